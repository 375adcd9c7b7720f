//! Tests of the placement of shards, and of the messages about it.

use farm_core::ids::{MachineId, WorkerId, WorkerRef};
use farm_core::region::placement::Placement;

use super::*;
use crate::blocking::{self, BlockingError};
use crate::testing::cluster;

#[test]
fn shards_are_spread_evenly_over_machines_and_workers() {
    let machine = |n| MachineId::new(n).unwrap();
    let machines = [(machine(1), 2), (machine(2), 2), (machine(3), 2)];
    let placement = Placement::new(&[machine(1), machine(2), machine(3)]);
    let owners = owners(&placement, &machines, 12);
    for (id, workers) in machines {
        for worker in 0..workers {
            let me = WorkerRef::new(id, WorkerId::new(worker as u16).unwrap());
            assert_eq!(
                owners.iter().filter(|owner| **owner == me).count(),
                2,
                "{me}"
            );
        }
    }
}

#[test]
fn a_table_is_sized_by_its_occupancy() {
    let spec = TableSpec::sized(1, 6, 32, 3, 1_000_000, 0.9).unwrap();
    let occupancy = 1_000_000.0 / spec.slots() as f64;
    assert!((occupancy - 0.9).abs() < 1e-5, "{occupancy}");
    for (shards, pairs, occupancy) in [
        (0, 1, 0.9),
        (1, 0, 0.9),
        (1, 1, 0.0),
        (1, 1, 1.1),
        (1, 1, f64::NAN),
    ] {
        assert!(TableSpec::sized(1, 6, 32, shards, pairs, occupancy).is_err());
    }
}

/// Returns the outcome of opening a table on the second of two machines, if the opening on the first machine failed
/// with `failed`.
fn heard_after(name: &str, failed: KvError) -> Result<TableId, KvError> {
    let cluster = cluster(name, 2);
    let spec = TableSpec::sized(1, 6, 8, 4, 16, 0.9).unwrap();
    cluster.on(0, 0, move |worker| {
        open(worker, spec, Cont::new(|_, _, _| (), ()));
        fail(worker, spec.id, failed);
    });
    let heard = blocking::open(&cluster.machines[1..], spec).map_err(|error| match error {
        BlockingError::Table(error) => error,
        BlockingError::Machine(error) => panic!("{error}"),
    });
    cluster.stop();
    heard
}

/// Regression: a machine that lost another one while it opened a table reported to a third one that it had no memory.
#[test]
fn a_failed_opening_reports_existing_shards() {
    let machine = |id| MachineId::new(id).unwrap();
    let memory = |id| KvError::Memory {
        machine: machine(id),
        why: "its log says".into(),
    };
    let heard = heard_after("shard-lost", KvError::PeerLost(machine(3)));
    assert_eq!(heard, Ok(TableId(1)));
    let heard = heard_after("shard-others", memory(3));
    assert_eq!(heard, Ok(TableId(1)));
    let heard = heard_after("shard-own", memory(1));
    assert!(
        matches!(heard, Err(KvError::Memory { machine, .. }) if machine.get() == 1),
        "{heard:?}"
    );
}
