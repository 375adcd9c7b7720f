//! Tables that are not possible, tables with different specifications, and tables that are not open.

use std::sync::mpsc::{Sender, channel};

use farm_core::machine::Machine;
use farm_core::worker::{Cont, Worker};
use farm_kv::blocking::{self, BlockingError, OwnedChange};
use farm_kv::shard::Changed;
use farm_kv::{Change, GetCont, KvError, TableSpec, tasks};
use farm_testing::{on, receive};
use farm_txn::{TxError, TxHandle, block_on};

use crate::cluster::machines;

const GOOD: TableSpec = TableSpec {
    id: 3,
    neighbourhood: 6,
    key_bytes: farm_kv::KEY_BYTES,
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

/// Every worker receives the reason; no worker waits forever, and none reads beyond its shard.
#[test]
fn impossible_tables_are_rejected() {
    let cluster = machines("impossible", 1, 2);
    let machines = &cluster.machines;
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
                key_bytes: farm_kv::KEY_BYTES,
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
        // One bucket fits into an object, but no read can fetch two of them.
        (
            TableSpec {
                neighbourhood: 4,
                key_bytes: farm_kv::KEY_BYTES,
                value_bytes: 300 << 10,
                ..GOOD
            },
            "more than",
        ),
    ] {
        let why = refused(blocking::open(machines, spec));
        assert!(why.contains(what), "{spec:?}: {why}");
    }
    let table = blocking::open(machines, GOOD).unwrap();
    let other = TableSpec {
        value_bytes: 40,
        ..GOOD
    };
    let why = refused(blocking::open(machines, other));
    assert!(why.contains("another specification"), "{why}");
    assert_eq!(
        cluster.on(0, 1, move |w| farm_kv::ops::check(w, table).unwrap().len()),
        1
    );
    cluster.stop();
}

#[test]
fn tables_with_different_specifications_are_rejected() {
    let cluster = machines("otherwise", 2, 1);
    let machines = &cluster.machines;
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
    let mut refused = 0;
    for _ in 0..2 {
        match receive(&answers) {
            Ok(_) => {}
            Err(KvError::Spec(why)) => {
                assert!(why.contains("another specification"), "{why}");
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(refused, 1, "exactly one creation wins");
    cluster.stop();
}

/// A machine opens a table for all: the owners of its shards open it when they get changes. The others use it when they open it.
#[test]
fn one_worker_opens_a_table_for_all() {
    let cluster = machines("on-demand", 3, 2);
    let machines = &cluster.machines;
    let spec = TableSpec { shards: 12, ..GOOD };
    let table = blocking::open(&machines[..1], spec).unwrap();
    for number in 0..50u8 {
        let put = OwnedChange::Insert(vec![number; 32]);
        blocking::change(&machines[0], 1, table, [number; 16], put).unwrap();
    }
    let elsewhere = blocking::open(&machines[2..], spec).unwrap();
    for number in 0..50 {
        let found = blocking::get(&machines[2], 0, elsewhere, [number; 16]).unwrap();
        assert_eq!(found, Some(vec![number; 32]));
    }
    cluster.stop();
}

/// Regression: a program that opened its table again, for example in another of its parts, received the error "has been
/// opened already" and had no way to get the handle.
#[test]
fn opening_a_table_again_returns_the_same_handle() {
    let cluster = machines("again", 2, 2);
    let machines = &cluster.machines;
    let first = blocking::open(machines, GOOD).unwrap();
    let key = [7; 16];
    let put = OwnedChange::Insert(vec![9; 32]);
    blocking::change(&machines[0], 0, first, key, put).unwrap();
    let again = blocking::open(machines, GOOD).unwrap();
    assert_eq!(again, first);
    assert_eq!(
        blocking::get(&machines[1], 1, again, key).unwrap(),
        Some(vec![9; 32])
    );
    // The same on a single worker, which sends no requests.
    let alone = blocking::open(&machines[..1], GOOD).unwrap();
    assert_eq!(alone, first);
    cluster.stop();
}

/// Several concurrent openings of one table all return the handle.
#[test]
fn concurrent_openings_of_a_table_all_end() {
    let cluster = machines("at-once", 2, 1);
    let machines = &cluster.machines;
    type Opened = Result<farm_kv::TableId, KvError>;
    struct Answers(Sender<(u64, Opened)>);
    fn opened(worker: &mut Worker, number: u64, outcome: Opened) {
        let answers = worker.layer::<Answers>().unwrap();
        answers.0.send((number, outcome)).unwrap();
    }
    let (sender, answers) = channel();
    for machine in machines {
        let sender = sender.clone();
        on(machine, 0, move |worker| {
            worker.put_layer(Box::new(Answers(sender)));
            for number in 0..3 {
                farm_kv::open(worker, GOOD, Cont::new(opened, number));
            }
            let other = TableSpec { buckets: 9, ..GOOD };
            farm_kv::open(worker, other, Cont::new(opened, 3));
        });
    }
    let mut ids = Vec::new();
    for _ in 0..8 {
        match receive(&answers) {
            (0..=2, outcome) => ids.push(outcome.unwrap()),
            (_, Err(KvError::Spec(why))) => assert!(why.contains("another specification"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ids.len(), 6);
    assert!(ids.iter().all(|id| *id == ids[0]));
    cluster.stop();
}

/// Regression: if a table was open on one machine only, its use on another one panicked the worker and stopped the
/// machine. Now every operation reports an error, and the worker continues.
#[test]
fn a_table_that_is_not_open_is_a_typed_error() {
    let cluster = machines("not-open", 1, 2);
    let machines = &cluster.machines;
    let elsewhere = self::machines("elsewhere", 1, 1);
    let table = blocking::open(&elsewhere.machines, GOOD).unwrap();
    let key = [7; 16];
    let not_open = |error: BlockingError| match error {
        BlockingError::Table(error @ KvError::NotOpen(3)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    for worker in [0, 1] {
        let error = blocking::get(&machines[0], worker, table, key).unwrap_err();
        assert!(not_open(error).contains("open it on every worker"));
        let put = OwnedChange::Insert(vec![9; 32]);
        not_open(blocking::change(&machines[0], worker, table, key, put).unwrap_err());
        let rest = cluster.on(0, worker, move |worker| {
            [
                farm_kv::lookup::place_of(worker, table, &key).err(),
                farm_kv::ops::own_spans(worker, table).err(),
            ]
        });
        assert_eq!(rest, [const { Some(KvError::NotOpen(3)) }; 2]);
        let check = cluster.on(0, worker, move |w| farm_kv::ops::check(w, table));
        assert!(check.unwrap_err().contains("table 3 is not open"));
        in_a_transaction(&machines[0], worker, table);
    }
    // A place from another cluster is rejected in the same way as its table.
    let place = elsewhere.on(0, 0, move |worker| {
        farm_kv::lookup::place_of(worker, table, &key).unwrap()
    });
    let refused = cluster.on(0, 1, move |worker| {
        let unused = GetCont::new(|_, _, _| panic!("nothing was started"), ());
        farm_kv::lookup::get_at(worker, place, &key, unused).err()
    });
    assert_eq!(refused, Some(KvError::NotOpen(3)));
    // While the table is being opened, it is not open.
    let refused = cluster.on(0, 0, move |worker| {
        fn ignored(_: &mut Worker, _: u64, _: Result<farm_kv::TableId, KvError>) {}
        farm_kv::open(worker, GOOD, Cont::new(ignored, 0));
        let unused = GetCont::new(|_, _, _| panic!("nothing was started"), ());
        farm_kv::get(worker, table, &key, unused).err()
    });
    assert_eq!(refused, Some(KvError::NotOpen(3)));
    cluster.stop();
    elsewhere.stop();
}

/// The same inside of transactions, with continuations and with tasks.
fn in_a_transaction(machine: &Machine, worker: usize, table: farm_kv::TableId) {
    type Found = Result<Option<farm_kv::tx::ValueRef>, TxError>;
    fn found(worker: &mut Worker, tx: u64, found: Found) {
        farm_txn::api::abort(worker, TxHandle::from_context(tx));
        worker.take_layer::<Sender<Found>>().send(found).unwrap();
    }
    let refused = |error: TxError| match error {
        TxError::Layer(why) => {
            let why = why.to_string();
            assert!(why.contains("table 3 is not open"), "{why}");
        }
        other => panic!("{other:?}"),
    };
    let answer = machine.ask(worker, move |worker, answer: Sender<Found>| {
        worker.put_layer(Box::new(answer));
        let tx = farm_txn::api::begin(worker);
        farm_kv::tx::get(
            worker,
            tx,
            table,
            &[7; 16],
            Cont::new(found, tx.to_context()),
        );
    });
    refused(answer.unwrap().unwrap_err());
    let change = on(machine, worker, move |worker| {
        fn never(_: &mut Worker, _: u64, _: Result<Changed, TxError>) {
            panic!("nothing was started");
        }
        let tx = farm_txn::api::begin(worker);
        let (remove, cont) = (Change::Remove, Cont::new(never, 0));
        let refused = farm_kv::tx::change(worker, tx, table, &[7; 16], remove, cont);
        farm_txn::api::abort(worker, tx);
        refused
    });
    assert_eq!(change, Err(KvError::NotOpen(3)));
    let task = block_on(machine, worker, async move |farm: farm_txn::Handle| {
        let looked = farm.transact(async |tx| tasks::get(tx, table, &[7; 16]).await);
        let looked = looked.await.unwrap_err();
        let changed = farm
            .transact(async |tx| tasks::change(tx, table, &[7; 16], Change::Remove).await)
            .await;
        [looked, changed.unwrap_err()]
    });
    task.unwrap().into_iter().for_each(refused);
}
