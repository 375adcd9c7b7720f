//! The simulated cluster runs the code of production, and repeats a run exactly from its seed.

mod common;

use common::until;
use farm_check::workload;
use farm_core::alloc::class_for_payload;
use farm_core::worker::{Cont, Worker};
use farm_kv::shard::Changed;
use farm_kv::{Change, GetCont, KvError, TableId, TableSpec};
use farm_sim::cluster::{Cluster, ClusterLimits, Pace};
use farm_sim::fabric::SimConfig;
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

struct Counts {
    opened: Option<TableId>,
    put: u64,
    found: u64,
}

fn attach(worker: &mut Worker) {
    farm_txn::attach(worker);
    farm_kv::attach(worker);
    let counts = Counts {
        opened: None,
        put: 0,
        found: 0,
    };
    worker.put_layer(Box::new(counts));
}

fn counts(worker: &mut Worker) -> &mut Counts {
    worker.layer().unwrap()
}

fn opened(worker: &mut Worker, _: u64, table: Result<TableId, KvError>) {
    counts(worker).opened = Some(table.unwrap());
}

fn put(worker: &mut Worker, _: u64, done: Result<Changed, KvError>) {
    done.unwrap();
    counts(worker).put += 1;
}

fn found(worker: &mut Worker, _: u64, value: Result<Option<&[u8]>, &KvError>) {
    assert_eq!(value.unwrap(), Some(&[7u8; 8][..]));
    counts(worker).found += 1;
}

/// Has the cluster take steps until all workers have done something.
fn until_all(cluster: &Cluster, what: &str, mut done: impl FnMut(&mut Worker) -> bool) {
    until(cluster, what, || {
        (0..cluster.workers()).all(|worker| cluster.inspect(worker, &mut done))
    });
}

fn key(worker: usize) -> farm_kv::Key {
    let mut key = [0; 16];
    key[0] = worker as u8;
    key
}

/// Starts a cluster with an open table.
fn with_table(seed: u64) -> Cluster {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let limits = ClusterLimits::drawn(&mut rng);
    let pace = Pace::drawn(&mut rng);
    let config = limits.fabric(seed);
    let cluster = Cluster::new(config, &limits, pace, attach);
    let spec = TableSpec {
        id: 1,
        neighbourhood: 4,
        key_bytes: farm_kv::KEY_BYTES,
        value_bytes: 8,
        shards: 3,
        buckets: 2,
    };
    for worker in 0..cluster.workers() {
        cluster.on(worker, |worker| {
            farm_kv::open(worker, spec, Cont::new(opened, 0));
        });
    }
    until_all(&cluster, "opening", |worker| {
        counts(worker).opened.is_some()
    });
    cluster
}

/// Has each worker put a pair, and waits until all are there.
fn put_all(cluster: &Cluster, key: impl Fn(usize) -> farm_kv::Key) {
    for index in 0..cluster.workers() {
        cluster.on(index, |worker| {
            let table = counts(worker).opened.unwrap();
            let value = Change::Upsert(&[7; 8]);
            farm_kv::change(worker, table, &key(index), value, Cont::new(put, 0)).unwrap();
        });
    }
    until_all(cluster, "putting", |worker| counts(worker).put == 1);
}

fn run(seed: u64) -> u64 {
    let cluster = with_table(seed);
    put_all(&cluster, key);
    for index in 0..cluster.workers() {
        cluster.on(index, |worker| {
            let table = counts(worker).opened.unwrap();
            let other = key((index + 1) % 3);
            farm_kv::get(worker, table, &other, GetCont::new(found, 0)).unwrap();
        });
    }
    until_all(&cluster, "getting", |worker| counts(worker).found == 1);
    cluster
        .come_to_rest()
        .unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    cluster.fabric().trace_hash()
}

#[test]
fn a_table_is_served_and_every_resource_is_returned() {
    for seed in 0..50 {
        run(seed);
    }
}

/// Returns how many workers make the changes of one key that all workers request.
fn owners_of_one_key(seed: u64) -> usize {
    let cluster = with_table(seed);
    put_all(&cluster, |_| key(seed as usize));
    let owners = (0..cluster.workers()).filter(|index| {
        let counters = cluster.inspect(*index, farm_kv::change_counters);
        counters.changes > 0
    });
    owners.count()
}

#[test]
fn one_worker_makes_all_changes_of_a_key() {
    for seed in 0..20 {
        assert_eq!(owners_of_one_key(seed), 1, "seed {seed}");
    }
}

/// Two owners only get in each other's way, because all that they do is in transactions: hardly a run of the simulator fails.
#[cfg(feature = "mutants")]
#[test]
fn deliberate_bugs_of_owners_are_found() {
    farm_core::mutants::switch(Some("two workers own a shard"));
    let is_found = (0..10).any(|seed| owners_of_one_key(seed) > 1);
    farm_core::mutants::switch(None);
    assert!(is_found);
}

#[test]
fn the_same_seed_repeats_the_same_run() {
    for seed in 0..5 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
    assert_ne!(run(1), run(2));
}

/// A machine whose memory is full cannot make its objects. It replies so to the other workers, which request the
/// objects' addresses, and they end. An earlier version requested the addresses forever.
#[test]
fn a_workload_that_cannot_be_set_up_ends_on_every_worker() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(3);
    let limits = ClusterLimits::drawn(&mut rng);
    let cluster = Cluster::new(
        SimConfig::seeded(3),
        &limits,
        Pace::drawn(&mut rng),
        |worker| {
            attach(worker);
            workload::attach(worker);
        },
    );
    let class = class_for_payload(1).unwrap();
    for index in 0..limits.workers {
        cluster.on(
            index,
            |worker| while worker.reserve_array(class, 1, None).is_ok() {},
        );
    }
    for index in 0..cluster.workers() {
        cluster.on(index, |worker| {
            workload::start(worker, workload::Spec::default(), Box::new(|_| {}));
        });
    }
    until_all(&cluster, "a workload without objects", workload::is_done);
    let logs = (0..cluster.workers()).map(|index| cluster.inspect(index, workload::take_log));
    let history = workload::Log::merge(logs.collect());
    assert!(history.transactions.is_empty());
    let [first, ..] = &history.violations[..] else {
        panic!("no worker recorded why the workload ended");
    };
    assert!(first.starts_with("cannot create object 0: "), "{first}");
}

/// A worker without clients is done once it is set up.
#[test]
fn a_workload_without_clients_ends() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(4);
    let limits = ClusterLimits::drawn(&mut rng);
    let pace = Pace::drawn(&mut rng);
    let cluster = Cluster::new(SimConfig::seeded(4), &limits, pace, |worker| {
        attach(worker);
        workload::attach(worker);
    });
    for index in 0..cluster.workers() {
        cluster.on(index, |worker| {
            let spec = workload::Spec {
                clients: 0,
                ..workload::Spec::default()
            };
            workload::start(worker, spec, Box::new(|_| {}));
        });
    }
    until_all(&cluster, "a workload without clients", workload::is_done);
}
