//! The simulated cluster runs what production runs, and runs it the same every time.

use farm_core::worker::{Cont, Worker};
use farm_kv::shard::Changed;
use farm_kv::{Change, GetCont, KvError, TableId, TableSpec};
use farm_sim::cluster::{Cluster, ClusterLimits, Pace, Stepped};
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

fn found(worker: &mut Worker, _: u64, value: Result<Option<&[u8]>, KvError>) {
    assert_eq!(value.unwrap(), Some(&[7u8; 8][..]));
    counts(worker).found += 1;
}

fn until(cluster: &Cluster, what: &str, mut done: impl FnMut(&mut Worker) -> bool) {
    for _ in 0..1_000_000 {
        if (0..cluster.workers()).all(|worker| cluster.inspect(worker, &mut done)) {
            return;
        }
        assert_ne!(cluster.step(), Stepped::Stopped, "{:?}", cluster.failures());
    }
    panic!("{what} did not come to an end");
}

fn key(worker: usize) -> farm_kv::Key {
    let mut key = [0; 16];
    key[0] = worker as u8;
    key
}

fn run(seed: u64) -> u64 {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let limits = ClusterLimits::drawn(&mut rng);
    let pace = Pace::drawn(&mut rng);
    let config = SimConfig {
        most_outstanding: limits.most_outstanding,
        max_inline_bytes: limits.max_inline_bytes,
        ..SimConfig::seeded(seed)
    };
    let cluster = Cluster::new(config, &limits, pace, attach);
    let spec = TableSpec {
        id: 1,
        neighbourhood: 4,
        value_bytes: 8,
        shards: 3,
        buckets: 2,
    };
    for worker in 0..cluster.workers() {
        cluster.on(worker, |worker| {
            farm_kv::open(worker, spec, Cont::new(opened, 0));
        });
    }
    until(&cluster, "opening", |worker| {
        counts(worker).opened.is_some()
    });
    for index in 0..cluster.workers() {
        cluster.on(index, |worker| {
            let table = counts(worker).opened.unwrap();
            let value = Change::Upsert(&[7; 8]);
            farm_kv::change(worker, table, &key(index), value, Cont::new(put, 0)).unwrap();
        });
    }
    until(&cluster, "putting", |worker| counts(worker).put == 1);
    for index in 0..cluster.workers() {
        cluster.on(index, |worker| {
            let table = counts(worker).opened.unwrap();
            let other = key((index + 1) % 3);
            farm_kv::get(worker, table, &other, GetCont::new(found, 0)).unwrap();
        });
    }
    until(&cluster, "getting", |worker| counts(worker).found == 1);
    cluster
        .come_to_rest()
        .unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    cluster.check_at_rest().unwrap();
    cluster.fabric().trace_hash()
}

#[test]
fn a_table_is_served_and_everything_is_given_back() {
    for seed in 0..50 {
        run(seed);
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..5 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
    assert_ne!(run(1), run(2));
}
