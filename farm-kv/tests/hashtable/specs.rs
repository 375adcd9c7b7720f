//! Tables that cannot be, and tables that are not the same everywhere.

use std::sync::mpsc::{Sender, channel};

use farm_core::worker::{Cont, Worker};
use farm_kv::blocking::{self, BlockingError};
use farm_kv::{KvError, TableSpec};

use crate::cluster::{machines, on};

const GOOD: TableSpec = TableSpec {
    id: 3,
    neighbourhood: 6,
    value_bytes: 32,
    shards: 2,
    buckets: 4,
};

fn refused(outcome: Result<farm_kv::TableId, BlockingError>) -> String {
    match outcome {
        Err(BlockingError::Table(KvError::Spec(why))) => why,
        other => panic!("{other:?}"),
    }
}

/// Every worker learns why; none waits for ever, and none reads beyond its shard.
#[test]
fn tables_that_cannot_be_are_refused() {
    let (machines, _dir) = machines("impossible", 1, 2, |_| {});
    for (spec, what) in [
        (TableSpec { shards: 0, ..GOOD }, "0 shards"),
        (TableSpec { buckets: 0, ..GOOD }, "0 buckets"),
        (
            TableSpec {
                buckets: u32::MAX,
                ..GOOD
            },
            "larger than any region",
        ),
        (
            TableSpec {
                neighbourhood: 5,
                ..GOOD
            },
            "neighbourhood 5",
        ),
        (
            TableSpec {
                value_bytes: 1 << 20,
                ..GOOD
            },
            "larger than any object",
        ),
        // One bucket is an object, but no read brings two.
        (
            TableSpec {
                neighbourhood: 4,
                value_bytes: 300 << 10,
                ..GOOD
            },
            "more than",
        ),
    ] {
        let why = refused(blocking::open(&machines, spec));
        assert!(why.contains(what), "{spec:?}: {why}");
    }
    let table = blocking::open(&machines, GOOD).unwrap();
    assert!(refused(blocking::open(&machines, GOOD)).contains("already"));
    assert_eq!(
        on(&machines[0], 1, move |w| farm_kv::ops::check(w, table)
            .unwrap()
            .len()),
        1
    );
    for machine in machines {
        machine.stop().unwrap();
    }
}

#[test]
fn a_table_opened_otherwise_elsewhere_is_refused() {
    let (machines, _dir) = machines("otherwise", 2, 1, |_| {});
    type Opened = Result<farm_kv::TableId, KvError>;
    fn opened(worker: &mut Worker, _: u64, outcome: Opened) {
        worker.take_layer::<Sender<Opened>>().send(outcome).unwrap();
    }
    let (sender, answers) = channel::<Opened>();
    for (machine, buckets) in machines.iter().zip([4, 5]) {
        let sender = sender.clone();
        on(machine, 0, move |worker| {
            worker.put_layer(Box::new(sender));
            let spec = TableSpec { buckets, ..GOOD };
            farm_kv::open(worker, spec, Cont::new(opened, 0));
        });
    }
    for _ in 0..2 {
        match crate::cluster::wait(&answers) {
            Err(KvError::Spec(why)) => assert!(why.contains("another table"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    for machine in machines {
        machine.stop().unwrap();
    }
}
