//! A machine that the others go on without reports nothing of what it has found out, also no error.

use farm_core::alloc::SizeClass;
use farm_core::ids::Address;
use farm_core::worker::{Cont, ReadError, ReadRequest, ReadResult, Worker};
use farm_sim::cluster::{Cluster, ClusterLimits, Pace, Stepped};
use farm_txn::TxError;
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

const BYTES: usize = 8;

/// The error of the read, once it was reported.
#[derive(Default)]
struct Reported(Option<ReadError>);

fn reported(worker: &mut Worker) -> &mut Reported {
    worker.layer().expect("the read was begun")
}

/// Creates a cluster. Returns it with the index of a worker, and the address of an object of its machine.
fn cluster() -> (Cluster, usize, Address) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(3);
    let limits = ClusterLimits::drawn(&mut rng);
    let config = limits.fabric(3);
    let cluster = Cluster::new(config, &limits, Pace::drawn(&mut rng), farm_txn::attach);
    let reader = limits.workers;
    let address = cluster.on(reader, |worker| {
        worker.put_layer(Box::<Reported>::default());
        let mut tx = farm_txn::checkout(worker);
        let object = tx.alloc(worker, BYTES, None).unwrap();
        let address = tx.address(object);
        let made = |_: &mut Worker, _: u64, made: Result<(), TxError>| made.unwrap();
        farm_txn::commit(worker, tx, Cont::new(made, 0));
        address
    });
    cluster.come_to_rest().unwrap();
    (cluster, reader, address)
}

/// Begins to read an object as one of another size, which fails.
fn begin(worker: &mut Worker, address: Address) {
    let request = ReadRequest::object(address, SizeClass::new(1));
    let report = |worker: &mut Worker, _: u64, read: ReadResult| {
        reported(worker).0 = Some(read.expect_err("the object has another size"));
    };
    worker
        .read_lock_free(request, Cont::new(report, 0))
        .unwrap();
}

#[test]
fn an_error_that_an_evicted_machine_finds_is_not_reported() {
    for is_evicted in [false, true] {
        let (cluster, reader, address) = cluster();
        let machine = cluster.on(reader, |worker| {
            begin(worker, address);
            worker.me().machine
        });
        if is_evicted {
            cluster.fabric().evict(machine);
        }
        let mut found = None;
        for _ in 0..10_000 {
            if cluster.step() == Stepped::Stopped || found.is_some() {
                break;
            }
            found = cluster.inspect(reader, |worker| reported(worker).0);
        }
        assert_eq!(found.is_some(), !is_evicted, "{found:?}");
        // It has stopped, as a machine that was killed. This cluster has no copies.
        let others = cluster.failures();
        assert_eq!(others.is_empty(), !is_evicted, "{others:?}");
    }
}
