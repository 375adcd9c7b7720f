//! Tests of the placement of shards, and of the messages about it.

use std::sync::Arc;

use farm_core::config::Config;
use farm_core::machine::{Attach, start_all};

use farm_core::ids::{MachineId, WorkerId, WorkerRef};
use farm_core::region::placement::Placement;

use super::*;
use crate::blocking::{self, BlockingError};

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
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::tiny_for(2, 1);
    config.cluster.name = name.into();
    config.cluster.run_dir = dir.path().to_path_buf().into();
    let attach: Attach = Arc::new(|worker: &mut Worker| {
        farm_txn::attach(worker);
        crate::attach(worker);
    });
    let machines = start_all(&config, &attach).unwrap();
    let spec = TableSpec::sized(1, 6, 8, 4, 16, 0.9).unwrap();
    let open_and_fail = move |worker: &mut Worker| {
        open(worker, spec, Cont::new(|_, _, _| (), ()));
        fail(worker, spec.id, failed);
    };
    let done = machines[0].ask(0, |worker, answer| {
        open_and_fail(worker);
        answer.send(()).unwrap();
    });
    done.unwrap();
    let heard = blocking::open(&machines[1..], spec).map_err(|error| match error {
        BlockingError::Table(error) => error,
        BlockingError::Machine(error) => panic!("{error}"),
    });
    for machine in machines {
        machine.stop().unwrap();
    }
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
