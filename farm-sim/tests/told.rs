//! What a machine is told of regions counts only in the configuration that it is told of.

mod common;

use common::until;
use farm_core::ids::{MachineId, RegionId, WorkerRef};
use farm_core::messaging::{CallError, MessageId, ReplyCont};
use farm_core::worker::{Cont, Worker};
use farm_sim::cluster::{Cluster, ClusterLimits, Pace};
use farm_txn::{ObjectId, TxError, api};
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

/// The machine that is lost.
const LOST: usize = 2;
const PROGRAM: usize = 3;
/// What the manager tells machines of regions.
const CHANGES: MessageId = MessageId(MessageId::CORE + 4);

#[derive(Default)]
struct Got {
    object: Option<Result<ObjectId, TxError>>,
    committed: Option<Result<(), TxError>>,
    answered: bool,
}

fn attach(worker: &mut Worker) {
    farm_txn::attach(worker);
    worker.put_layer(Box::<Got>::default());
}

fn got(worker: &mut Worker) -> &mut Got {
    worker.layer().unwrap()
}

/// Creates three machines with memory, with two copies of each region, and a program.
fn cluster(seed: u64) -> Cluster {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let limits = ClusterLimits {
        machines: 4,
        without_memory: 1,
        // So that the index of a machine is that of its worker.
        workers: 1,
        replicas: 2,
        survives: true,
        ..ClusterLimits::drawn(&mut rng)
    };
    let pace = Pace::drawn(&mut rng);
    Cluster::new(limits.fabric(seed), &limits, pace, attach)
}

/// Creates an object on the first machine, and returns its region.
fn create(cluster: &Cluster) -> RegionId {
    fn allocated(worker: &mut Worker, _: u64, object: Result<ObjectId, TxError>) {
        got(worker).object = Some(object);
    }
    fn committed(worker: &mut Worker, _: u64, outcome: Result<(), TxError>) {
        got(worker).committed = Some(outcome);
    }
    let tx = cluster.on(0, |worker| {
        let tx = api::begin(worker);
        api::alloc(worker, tx, 40, None, Cont::new(allocated, 0));
        tx
    });
    until(cluster, "an allocation", || {
        cluster.inspect(0, |worker| got(worker).object.is_some())
    });
    let region = cluster.on(0, |worker| {
        let object = got(worker).object.take().unwrap().unwrap();
        let address = api::with(worker, tx, |tx, _| tx.address(object)).unwrap();
        api::commit(worker, tx, Cont::new(committed, 0));
        address.region()
    });
    until(cluster, "a commit", || {
        cluster.inspect(0, |worker| got(worker).committed.is_some())
    });
    region
}

/// Has the manager tell the program, as if it were of this configuration, that a region has only its primary.
fn tell(cluster: &Cluster, configuration: u64, region: RegionId, primary: MachineId) {
    fn answered(worker: &mut Worker, _: u64, reply: Result<&[u8], CallError>) {
        reply.unwrap();
        got(worker).answered = true;
    }
    let mut body = configuration.to_le_bytes().to_vec();
    // No catalog.
    body.extend([0; 8]);
    body.extend(region.to_bits().to_le_bytes());
    body.push(1);
    body.extend(primary.get().to_le_bytes());
    let program = WorkerRef::first_of(MachineId::new(PROGRAM as u16 + 1).unwrap());
    until(cluster, "room", || {
        cluster.on(0, |worker| {
            got(worker).answered = false;
            let cont = ReplyCont::new(answered, 0);
            worker.call(program, CHANGES, &[&body], 0, cont).is_ok()
        })
    });
    until(cluster, "an answer", || {
        cluster.inspect(0, |worker| got(worker).answered)
    });
}

/// A program that joined while a machine came back was told of the regions of the configuration before, after it had applied the next one.
/// Its commits then reached fewer copies than a region had, and were lost with the others.
#[test]
fn regions_of_an_earlier_configuration_have_no_effect() {
    for seed in 0..10 {
        let cluster = cluster(seed);
        let region = create(&cluster);
        cluster.kill_process(LOST);
        until(&cluster, "to go on", || {
            !cluster.is_running(LOST) && !cluster.changes_configuration()
        });
        let known = |cluster: &Cluster| {
            cluster.inspect(PROGRAM, |worker| {
                let (map, membership) = (worker.store().map(), worker.membership());
                (map.lookup(region).unwrap(), membership.configuration())
            })
        };
        let (replicas, configuration) = known(&cluster);
        assert_eq!(replicas.all().len(), 2, "seed {seed}");
        assert!(configuration > 1, "seed {seed}");
        for other in [1, configuration + 1] {
            tell(&cluster, other, region, replicas.primary());
            assert_eq!(known(&cluster).0, replicas, "seed {seed}");
        }
        tell(&cluster, configuration, region, replicas.primary());
        assert_eq!(known(&cluster).0.all().len(), 1, "seed {seed}");
        // All machines know the replicas of the newest configuration, in all runs of the simulator that end.
        let wrong = cluster.check_replicas().unwrap_err();
        assert!(wrong.contains("knows other replicas"), "{wrong}");
    }
}
