//! A cluster of three machines with memory and one without, and objects in it.

use farm_core::ids::Address;
use farm_core::worker::{Cont, Worker};
use farm_sim::cluster::{Cluster, ClusterLimits, Pace};
use farm_txn::api::{self, TxHandle};
use farm_txn::{ObjectId, TxError};
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::common::until;

/// The machine without memory.
pub(crate) const PROGRAM: usize = 3;
const PAYLOAD: usize = 8;

/// What a worker has received.
#[derive(Default)]
struct Got {
    object: Option<Result<ObjectId, TxError>>,
    committed: Option<Result<(), TxError>>,
}

pub(crate) fn attach(worker: &mut Worker) {
    farm_txn::attach(worker);
    worker.put_layer(Box::<Got>::default());
}

fn got(worker: &mut Worker) -> &mut Got {
    worker.layer().unwrap()
}

/// Returns a cluster of three machines with memory, which have copies of all regions, and one without, of one worker each, with these changes.
pub(crate) fn cluster_with(seed: u64, change: impl FnOnce(&mut ClusterLimits)) -> Cluster {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut limits = ClusterLimits {
        machines: 4,
        without_memory: 1,
        workers: 1,
        replicas: 3,
        survives: true,
        ..ClusterLimits::drawn(&mut rng)
    };
    change(&mut limits);
    let pace = Pace::drawn(&mut rng);
    Cluster::new(limits.fabric(seed), &limits, pace, attach)
}

/// Reserves room for an object near another one. Returns the open transaction and the address.
pub(crate) fn reserve(
    cluster: &Cluster,
    machine: usize,
    near: Option<Address>,
) -> (TxHandle, Address) {
    fn on_object(worker: &mut Worker, _: u64, object: Result<ObjectId, TxError>) {
        got(worker).object = Some(object);
    }
    loop {
        let tx = cluster.on(machine, |worker| {
            let tx = api::begin(worker);
            api::alloc(worker, tx, PAYLOAD, near, Cont::new(on_object, 0));
            tx
        });
        let mut object = None;
        until(cluster, "an allocation", || {
            object = cluster.inspect(machine, |worker| got(worker).object.take());
            object.is_some()
        });
        if let Some(Ok(object)) = object {
            let address = |worker: &mut Worker| api::with(worker, tx, |tx, _| tx.address(object));
            return (tx, cluster.on(machine, address).unwrap());
        }
    }
}

/// Creates an object near another one.
pub(crate) fn create(cluster: &Cluster, machine: usize, near: Option<Address>) -> Address {
    fn on_commit(worker: &mut Worker, _: u64, committed: Result<(), TxError>) {
        got(worker).committed = Some(committed);
    }
    loop {
        let (tx, address) = reserve(cluster, machine, near);
        cluster.on(machine, |worker| {
            api::commit(worker, tx, Cont::new(on_commit, 0));
        });
        let mut committed = None;
        until(cluster, "a commit", || {
            committed = cluster.inspect(machine, |worker| got(worker).committed.take());
            committed.is_some()
        });
        if let Some(Ok(())) = committed {
            return address;
        }
    }
}
