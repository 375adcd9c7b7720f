//! What happens on a machine without memory that has left and come back.

mod common;

use std::time::Duration;

use common::until;
use farm_core::worker::Worker;
use farm_sim::cluster::{Cluster, ClusterLimits, Pace};
use farm_sim::fabric::{Odds, SimConfig};
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

/// The machine without memory.
const GUEST: usize = 2;
/// A worker that nobody wakes sleeps longer, in simulated time.
const WORKERS_SLEEP: Duration = Duration::from_secs(2);

/// The state of a test on a worker.
#[derive(Default)]
struct Known {
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
        odds: Some(Odds::drawn(&mut rng)),
        ..limits.fabric(seed)
    };
    let pace = Pace {
        sleeps: 1024,
        ..Pace::drawn(&mut rng)
    };
    (Cluster::new(config, &limits, pace, attach), limits)
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
