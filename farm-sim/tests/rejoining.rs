//! What a machine without memory must have done before it leaves, and what happens on it when it has come back.

use std::time::Duration;

use farm_core::worker::{Cont, Worker};
use farm_kv::shard::Changed;
use farm_kv::{Change, KEY_BYTES, TableId, TableSpec};
use farm_sim::cluster::{Cluster, ClusterLimits, Pace, Stepped};
use farm_sim::fabric::{Odds, SimConfig};
use farm_txn::{TxError, TxHandle, api};
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

/// The machine without memory.
const GUEST: usize = 2;
const MOST_STEPS: u64 = 1_000_000;
const VALUE: [u8; 8] = [7; 8];
/// A worker that nobody wakes sleeps longer, in simulated time.
const WORKERS_SLEEP: Duration = Duration::from_secs(2);

/// The state of a test on a worker.
#[derive(Default)]
struct Known {
    table: Option<TableId>,
    tx: Option<TxHandle>,
    committed: u64,
    /// Whether an item of the worker's inbox has run.
    began: bool,
}

fn attach(worker: &mut Worker) {
    farm_txn::attach(worker);
    farm_kv::attach(worker);
    worker.put_layer(Box::<Known>::default());
}

fn known(worker: &mut Worker) -> &mut Known {
    worker.layer().unwrap()
}

/// Returns a cluster of three machines, the last one without memory.
fn cluster(seed: u64, workers: usize) -> (Cluster, ClusterLimits) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut limits = ClusterLimits::drawn(&mut rng);
    limits.workers = workers;
    limits.make_room_for_tables();
    limits.leave_without_memory(1);
    let config = SimConfig {
        most_outstanding: limits.most_outstanding,
        max_inline_bytes: limits.max_inline_bytes,
        odds: Some(Odds::drawn(&mut rng)),
        ..SimConfig::seeded(seed)
    };
    let pace = Pace {
        sleeps: 1024,
        ..Pace::drawn(&mut rng)
    };
    (Cluster::new(config, &limits, pace, attach), limits)
}

fn until(cluster: &Cluster, what: &str, done: impl Fn() -> bool) {
    for _ in 0..MOST_STEPS {
        if done() {
            return;
        }
        assert_ne!(cluster.step(), Stepped::Stopped, "{:?}", cluster.failures());
    }
    panic!("{what} takes more than {MOST_STEPS} steps");
}

fn insert(worker: &mut Worker, key: u8) {
    let table = known(worker).table.unwrap();
    let tx = api::begin(worker);
    known(worker).tx = Some(tx);
    let key = [key; KEY_BYTES];
    let inserted = Cont::new(
        |worker: &mut Worker, _: u64, changed: Result<Changed, TxError>| {
            assert_eq!(changed.unwrap(), Changed::Inserted);
            let tx = known(worker).tx.take().unwrap();
            let committed = |worker: &mut Worker, _: u64, ended: Result<(), TxError>| {
                ended.unwrap();
                known(worker).committed += 1;
            };
            api::commit(worker, tx, Cont::new(committed, 0));
        },
        0,
    );
    let change = Change::Insert(&VALUE);
    farm_kv::tx::change(worker, tx, table, &key, change, inserted).unwrap();
}

/// Regression test: a worker gathers the changes of a table's counts for 100 us before it sends them to the owners of the shards. A
/// machine that left within that time did not send them, so the owners counted wrong for ever.
#[test]
fn a_machine_that_leaves_has_sent_the_changes_of_counts() {
    for seed in 0..20 {
        let (cluster, limits) = cluster(seed, 1);
        let spec = TableSpec {
            id: 1,
            neighbourhood: 6,
            key_bytes: KEY_BYTES,
            value_bytes: VALUE.len(),
            shards: 2,
            buckets: 4,
        };
        for worker in 0..cluster.workers() {
            let opened = |worker: &mut Worker, _: u64, table: Result<TableId, _>| {
                known(worker).table = Some(table.unwrap());
            };
            cluster.on(worker, |worker| {
                farm_kv::open(worker, spec, Cont::new(opened, 0))
            });
        }
        let is_open = |worker| cluster.inspect(worker, |worker| known(worker).table.is_some());
        until(&cluster, "to open a table", || {
            (0..cluster.workers()).all(is_open)
        });
        // The machine truncates both commits 500 us after the first one. Then it waits for nothing else.
        let second = Cont::new(|worker: &mut Worker, _: u64, ()| insert(worker, 2), 0);
        cluster.submit(GUEST, move |worker| {
            insert(worker, 1);
            worker.set_timer(Duration::from_micros(400 + 5 * seed), second);
        });
        until(&cluster, "to insert two pairs", || {
            cluster.inspect(GUEST, |worker| known(worker).committed) == 2
        });
        cluster.leave(GUEST);
        until(&cluster, "to leave", || !cluster.is_running(GUEST));
        cluster.come_to_rest_with(&farm_kv::left_over).unwrap();
        let pairs = |worker| -> u64 {
            let facts = cluster.on(worker, |worker| {
                let table = known(worker).table.unwrap();
                farm_kv::ops::check(worker, table)
            });
            let facts = facts.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
            facts.iter().map(|shard| shard.pairs).sum()
        };
        assert_eq!((0..2 * limits.workers).map(pairs).sum::<u64>(), 2);
    }
}

/// Regression test: a worker that slept when the first worker of its machine had joined the cluster was not woken, although items
/// waited in its inbox.
#[test]
fn all_workers_of_a_machine_that_comes_back_begin_at_once() {
    for seed in 0..20 {
        let waited = wait_after_a_return(seed);
        assert!(waited < WORKERS_SLEEP / 2, "seed {seed}: {waited:?}");
    }
}

/// The deliberate bug that only delays: no judge of the simulator finds it.
#[cfg(feature = "mutants")]
#[test]
fn deliberate_bugs_of_machines_that_come_back_are_found() {
    let bug = Some("workers not woken when their machine has joined");
    let is_found = |seed| {
        farm_core::mutants::switch(bug);
        let waited = wait_after_a_return(seed);
        farm_core::mutants::switch(None);
        waited >= WORKERS_SLEEP / 2
    };
    assert!((0..20).any(is_found));
}

/// Has a machine leave and come back. Returns the simulated time until all its workers have begun.
fn wait_after_a_return(seed: u64) -> Duration {
    let (cluster, limits) = cluster(seed, 2);
    cluster.leave(GUEST);
    let guests = GUEST * limits.workers..cluster.workers();
    until(&cluster, "to leave", || !cluster.is_running(guests.start));
    let before = cluster.now();
    cluster.restart(attach);
    for worker in guests.clone() {
        cluster.submit(worker, |worker| known(worker).began = true);
    }
    let began = |worker| cluster.inspect(worker, |worker| known(worker).began);
    until(&cluster, "to begin", || guests.clone().all(began));
    cluster.now().since(before)
}
