//! Operations on tables inside of callers' transactions, compared with a map, on machines of one process.

mod common;

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc;
use std::time::Duration;

use farm_core::config::Config;
use farm_core::worker::{Cont, Worker};
use farm_kv::Change;
use farm_kv::shard::Changed;
use farm_kv::tx::{self, ValueRef};
use farm_kv::{Key, TableId, TableSpec, blocking};
use farm_testing::TestCluster;
use farm_txn::{TxError, TxHandle, api};
use proptest::prelude::*;

const VALUE: usize = 8;
const WORKERS: usize = 2;
/// A few keys in a few buckets, to get chains, displacements, and chains that become empty.
const KEYS: u8 = 40;

#[derive(Clone, Copy, Debug)]
struct Op {
    table: usize,
    at: u8,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Get,
    Insert(u8),
    Update(u8),
    Upsert(u8),
    Remove,
}

#[derive(Clone, Debug, PartialEq)]
enum Did {
    Found(Option<u8>),
    Changed(Changed),
}

/// A transaction in progress on a worker.
struct Run {
    tx: TxHandle,
    tables: [TableId; 2],
    ops: VecDeque<Op>,
    did: Vec<Did>,
    commits: bool,
    answer: mpsc::Sender<Result<Vec<Did>, String>>,
}

fn key(key: u8) -> Key {
    let mut bytes = [0; 16];
    bytes[3] = key;
    bytes
}

fn next(worker: &mut Worker, _: u64, (): ()) {
    let run: &mut Run = worker.layer().unwrap();
    let (tx, tables) = (run.tx, run.tables);
    let Some(op) = run.ops.pop_front() else {
        return match run.commits {
            true => api::commit(worker, tx, Cont::new(committed, 0)),
            false => {
                api::abort(worker, tx);
                committed(worker, 0, Ok(()));
            }
        };
    };
    let (table, key) = (tables[op.table], key(op.at));
    let value = |value| [value; VALUE];
    let (inserted, updated, upserted);
    let change = match op.what {
        What::Get => return tx::get(worker, tx, table, &key, Cont::new(found, 0)),
        What::Insert(with) => {
            inserted = value(with);
            Change::Insert(&inserted)
        }
        What::Update(with) => {
            updated = value(with);
            Change::Update(&updated)
        }
        What::Upsert(with) => {
            upserted = value(with);
            Change::Upsert(&upserted)
        }
        What::Remove => Change::Remove,
    };
    tx::change(worker, tx, table, &key, change, Cont::new(changed, 0)).unwrap();
}

fn found(worker: &mut Worker, _: u64, result: Result<Option<ValueRef>, TxError>) {
    let tx = worker.layer::<Run>().unwrap().tx;
    let value = match result {
        Ok(found) => found.map(|found| tx::value(worker, tx, found).unwrap().to_vec()),
        Err(error) => return stop(worker, error),
    };
    let value = value.map(|value| {
        assert_eq!(value, [value[0]; VALUE]);
        value[0]
    });
    did(worker, Did::Found(value));
}

fn changed(worker: &mut Worker, _: u64, result: Result<Changed, TxError>) {
    match result {
        Ok(changed) => did(worker, Did::Changed(changed)),
        Err(error) => stop(worker, error),
    }
}

fn did(worker: &mut Worker, what: Did) {
    worker.layer::<Run>().unwrap().did.push(what);
    next(worker, 0, ());
}

fn stop(worker: &mut Worker, error: TxError) {
    let run: Box<Run> = worker.take_layer();
    api::abort(worker, run.tx);
    run.answer.send(Err(error.to_string())).unwrap();
}

fn committed(worker: &mut Worker, _: u64, result: Result<(), TxError>) {
    let Run { did, answer, .. } = *worker.take_layer::<Run>();
    let told = result.map(|()| did).map_err(|error| error.to_string());
    answer.send(told).unwrap();
}

/// Two tables on a cluster of their own.
struct Tables {
    cluster: TestCluster,
    ids: [TableId; 2],
}

fn tables(machines: u16) -> Tables {
    let mut config = Config::default_for(machines, WORKERS as u16);
    config.memory.region_bytes = 8 << 20;
    config.memory.per_machine_bytes = 16 << 20;
    let cluster = common::start("kv-tx", config);
    let spec = |id, shards, buckets| TableSpec {
        id,
        neighbourhood: 4,
        key_bytes: farm_kv::KEY_BYTES,
        value_bytes: VALUE,
        shards,
        buckets,
    };
    let open = |spec| blocking::open(&cluster.machines, spec).unwrap();
    let ids = [open(spec(1, 3, 4)), open(spec(2, 1, 6))];
    Tables { cluster, ids }
}

impl Tables {
    fn run(&self, machine: usize, ops: &[Op], commits: bool) -> Result<Vec<Did>, String> {
        let (tables, ops) = (self.ids, ops.iter().copied().collect());
        let run = move |worker: &mut Worker, answer| {
            let tx = api::begin(worker);
            worker.put_layer(Box::new(Run {
                tx,
                tables,
                ops,
                did: Vec::new(),
                commits,
                answer,
            }));
            next(worker, 0, ());
        };
        self.cluster.machines[machine].ask(0, run).unwrap()
    }

    /// Waits until every worker has handled the messages that were sent to it. Submitted work runs before a turn polls
    /// the rings, so a single submission may run before counts that were sent earlier are handled.
    fn handle_all_messages(&self) {
        struct Turn(mpsc::Sender<()>);
        fn turn_begun(worker: &mut Worker, _: u64, (): ()) {
            let Turn(answer) = *worker.take_layer();
            answer.send(()).unwrap();
        }
        for machine in &self.cluster.machines {
            for index in 0..WORKERS {
                let in_next_turn = |worker: &mut Worker, answer| {
                    worker.put_layer(Box::new(Turn(answer)));
                    worker.set_timer(Duration::ZERO, Cont::new(turn_begun, 0));
                };
                machine.ask(index, in_next_turn).unwrap();
            }
        }
    }

    /// Checks the invariants and counts of all shards, after all counts were sent.
    fn check(&self, pairs: [usize; 2]) {
        let left = |worker: &mut Worker| farm_kv::left_over(worker).or(farm_txn::left_over(worker));
        while self.cluster.on_all(left).iter().any(Option::is_some) {
            std::thread::yield_now();
        }
        self.handle_all_messages();
        for (table, pairs) in self.ids.into_iter().zip(pairs) {
            let facts = self
                .cluster
                .on_all(move |worker| farm_kv::ops::check(worker, table));
            let shards = facts.into_iter().flat_map(Result::unwrap);
            assert_eq!(shards.map(|shard| shard.pairs).sum::<u64>(), pairs as u64);
        }
    }
}

type Maps = [BTreeMap<u8, u8>; 2];

fn model(maps: &mut Maps, op: Op) -> Did {
    let map = &mut maps[op.table];
    let there = map.contains_key(&op.at);
    let changed = match op.what {
        What::Get => return Did::Found(map.get(&op.at).copied()),
        What::Insert(_) if there => Changed::Exists,
        What::Update(_) | What::Remove if !there => Changed::Absent,
        What::Insert(value) | What::Update(value) | What::Upsert(value) => {
            map.insert(op.at, value);
            if there {
                Changed::Updated
            } else {
                Changed::Inserted
            }
        }
        What::Remove => {
            map.remove(&op.at);
            Changed::Removed
        }
    };
    Did::Changed(changed)
}

fn ops() -> impl Strategy<Value = Op> {
    let what = prop_oneof![
        2 => Just(What::Get),
        4 => any::<u8>().prop_map(What::Insert),
        1 => any::<u8>().prop_map(What::Update),
        2 => any::<u8>().prop_map(What::Upsert),
        3 => Just(What::Remove),
    ];
    (0..2usize, 0..KEYS, what).prop_map(|(table, at, what)| Op { table, at, what })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Transactions run one after the other on any machine, and some of them abort. Every operation must return what a
    /// map returns, and the invariants of the tables must hold.
    #[test]
    fn tables_in_transactions_agree_with_maps(
        machines in 1..=3u16,
        transactions in prop::collection::vec(
            (0..3usize, prop::collection::vec(ops(), 1..8), prop::bool::weighted(0.8)),
            1..40,
        ),
    ) {
        let tables = tables(machines);
        let mut maps = Maps::default();
        for (machine, ops, commits) in transactions {
            let mut after = maps.clone();
            let wanted: Vec<_> = ops.iter().map(|op| model(&mut after, *op)).collect();
            let did = tables.run(machine % usize::from(machines), &ops, commits);
            prop_assert_eq!(did, Ok(wanted), "{:?}", ops);
            if commits {
                maps = after;
            }
        }
        tables.check([maps[0].len(), maps[1].len()]);
        for (table, map) in tables.ids.into_iter().zip(&maps) {
            for at in 0..KEYS {
                let found = blocking::get(&tables.cluster.machines[0], 1, table, key(at)).unwrap();
                prop_assert_eq!(found, map.get(&at).map(|value| vec![*value; VALUE]));
            }
        }
    }
}
