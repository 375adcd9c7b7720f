//! How long a transaction is retried on an object that another machine keeps locked, in virtual time.

use farm_core::ids::Address;
use farm_core::object::{LockMode, write};
use farm_core::worker::{Cont, Worker};
use farm_sim::cluster::{Cluster, ClusterLimits, Pace, Stepped};
use farm_txn::{Abort, ObjectId, TxError, TxHandle, api, retry};
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

const BYTES: usize = 8;
const PATIENCE_MS: u32 = 500;
const MS: u64 = 1_000_000;

/// A transaction that increments an object, and its outcome once it has ended.
struct Increment {
    address: Address,
    tries: u64,
    outcome: Option<Result<(), TxError>>,
}

fn increment(worker: &mut Worker) -> &mut Increment {
    worker.layer().expect("an increment was begun")
}

fn begin(worker: &mut Worker, address: Address) {
    worker.put_layer(Box::new(Increment {
        address,
        tries: 0,
        outcome: None,
    }));
    retry::run(worker, Cont::new(read, 0), Cont::new(ended, 0));
}

fn read(worker: &mut Worker, _: u64, tx: TxHandle) {
    let this = increment(worker);
    this.tries += 1;
    let address = this.address;
    api::read(worker, tx, address, BYTES, Cont::new(add, tx.to_context()));
}

fn add(worker: &mut Worker, tx: u64, object: Result<ObjectId, TxError>) {
    let tx = TxHandle::from_context(tx);
    let added = object.and_then(|object| {
        api::payload_mut(worker, tx, object)?[0] += 1;
        Ok(())
    });
    match added {
        Ok(()) => retry::commit(worker, tx),
        Err(error) => retry::fail(worker, tx, error),
    }
}

fn ended(worker: &mut Worker, _: u64, outcome: Result<(), TxError>) {
    increment(worker).outcome = Some(outcome);
}

/// Locks an object as a commit of a paused machine has, or unlocks it.
fn set_lock(worker: &mut Worker, address: Address, mode: LockMode) {
    let (memory, at) = worker.local_memory(address).unwrap();
    let version = write::load_version(memory, at).version();
    match mode {
        LockMode::Unlocked => write::unlock(memory, at, version),
        mode => assert!(write::try_lock(memory, at, version, mode)),
    }
}

/// Creates a cluster. Returns it with the index of the first worker of its second machine, and an object there.
fn cluster(seed: u64) -> (Cluster, usize, Address) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut limits = ClusterLimits::drawn(&mut rng);
    limits.read_tries = 16;
    limits.transactions.patience_ms = PATIENCE_MS;
    let config = limits.fabric(seed);
    let pace = Pace::drawn(&mut rng);
    let cluster = Cluster::new(config, &limits, pace, farm_txn::attach);
    let other = limits.workers;
    let address = cluster.on(other, |worker| {
        let mut tx = farm_txn::checkout(worker);
        let object = tx.alloc(worker, BYTES, None).unwrap();
        let address = tx.address(object);
        let made = |_: &mut Worker, _: u64, made: Result<(), TxError>| made.unwrap();
        farm_txn::commit(worker, tx, Cont::new(made, 0));
        address
    });
    cluster.come_to_rest().unwrap();
    (cluster, other, address)
}

/// Steps until the first worker's increment has ended, for at most `nanos` of virtual time. Returns its outcome.
fn outcome_within(cluster: &Cluster, nanos: u64) -> Option<Result<(), TxError>> {
    let until = cluster.now() + nanos;
    while cluster.now() < until {
        assert_ne!(cluster.step(), Stepped::Stopped, "{:?}", cluster.failures());
        let ended = cluster.inspect(0, |worker| increment(worker).outcome.take());
        if ended.is_some() {
            return ended;
        }
    }
    None
}

/// Once, four reads that timed out were an error, however little time they took: a paused machine that held a lock
/// failed the transactions of other machines.
#[test]
fn a_paused_machine_does_not_fail_the_transactions_of_others() {
    let (cluster, other, address) = cluster(1);
    cluster.on(other, |worker| {
        set_lock(worker, address, LockMode::Exclusive)
    });
    cluster.on(0, |worker| begin(worker, address));
    let stays = u64::from(PATIENCE_MS) * 4 / 5 * MS;
    if let Some(outcome) = outcome_within(&cluster, stays) {
        let tries = cluster.inspect(0, |worker| increment(worker).tries);
        panic!("{outcome:?} after {tries} tries and {:?}", cluster.now());
    }
    cluster.on(other, |worker| {
        set_lock(worker, address, LockMode::Unlocked)
    });
    let outcome = outcome_within(&cluster, 50 * MS);
    assert!(matches!(outcome, Some(Ok(()))), "{outcome:?}");
    cluster.come_to_rest().unwrap();
}

/// A lock that is never released ends the transaction. The error contains the object's address.
#[test]
fn a_lock_that_is_never_released_ends_a_transaction_after_patience_ms() {
    let (cluster, other, address) = cluster(2);
    cluster.on(other, |worker| {
        set_lock(worker, address, LockMode::Exclusive)
    });
    let began = cluster.now();
    cluster.on(0, |worker| begin(worker, address));
    let outcome = outcome_within(&cluster, u64::from(PATIENCE_MS) * 2 * MS);
    assert!(
        matches!(outcome, Some(Err(TxError::Abort(Abort::TimedOut(at)))) if at == address),
        "{outcome:?}"
    );
    let took = cluster.now() - began;
    assert!(took >= u64::from(PATIENCE_MS) * MS, "{took} ns");
    cluster.on(other, |worker| {
        set_lock(worker, address, LockMode::Unlocked)
    });
    cluster.come_to_rest().unwrap();
}
