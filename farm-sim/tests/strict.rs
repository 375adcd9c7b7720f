//! A bug that the simulator found (docs/decisions/0007), tested at every point of the commit where it could occur.
//!
//! T1 reads x and writes y. In the middle of T1's commit its processor stops. T2 writes x, commits, and
//! reports its outcome; then a lock-free read of y begins. If T1 saw x before T2's write, and the read saw y before T1's write,
//! then T1 is before T2, T2 before the read, and the read before T1: a cycle.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use farm_core::ids::Address;
use farm_core::object::Image;
use farm_core::worker::{Cont, Worker};
use farm_sim::cluster::{Cluster, ClusterLimits, Pace};
use farm_sim::fabric::{Odds, SimConfig};
use farm_txn::{Tx, TxError};
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

const OBJECT_BYTES: usize = 64;

/// The outcome of a worker's commit, once it has ended.
struct Outcome(Option<Result<(), TxError>>);

/// Runs a transaction of a worker to its end, by turns of that worker only.
fn transact<T>(
    cluster: &Cluster,
    worker: usize,
    body: impl FnOnce(&mut Tx, &mut Worker) -> Result<T, TxError>,
) -> Result<T, TxError> {
    fn committed(worker: &mut Worker, _: u64, outcome: Result<(), TxError>) {
        worker.layer::<Outcome>().unwrap().0 = Some(outcome);
    }
    let begun = cluster.on(worker, |worker| {
        worker.put_layer(Box::new(Outcome(None)));
        let mut tx = farm_txn::checkout(worker);
        match body(&mut tx, worker) {
            Ok(value) => {
                farm_txn::commit(worker, tx, Cont::new(committed, 0));
                Ok(value)
            }
            Err(error) => {
                farm_txn::checkin(worker, tx);
                Err(error)
            }
        }
    });
    let value = begun?;
    loop {
        let ended = cluster.inspect(worker, |worker| worker.layer::<Outcome>().unwrap().0.take());
        if let Some(outcome) = ended {
            return outcome.map(|()| value);
        }
        let now = cluster.now();
        cluster.on(worker, |worker| worker.turn(now));
    }
}

fn make(cluster: &Cluster) -> Address {
    let made = transact(cluster, 0, |tx, worker| {
        let object = tx.alloc(worker, 8, None)?;
        Ok(tx.address(object))
    });
    made.unwrap()
}

fn read(tx: &mut Tx, worker: &mut Worker, at: Address) -> Result<u8, TxError> {
    let object = tx.read(worker, at, 8)?;
    Ok(tx.payload(object)[0])
}

fn write(tx: &mut Tx, worker: &mut Worker, at: Address) -> Result<(), TxError> {
    let object = tx.read(worker, at, 8)?;
    tx.payload_mut(object)[0] = 1;
    Ok(())
}

/// Returns what a lock-free read of this machine's own memory sees; `None` while a writer holds the object.
fn lock_free(worker: &mut Worker, at: Address) -> Option<u8> {
    let (memory, at) = worker.local_memory(at).unwrap();
    let mut words = [0; OBJECT_BYTES / 8];
    memory.copy_objects(at, OBJECT_BYTES, &mut words).ok()?;
    let image = Image::check(&words).ok()?;
    let mut payload = [0; 8];
    image.copy_payload(0, &mut payload);
    Some(payload[0])
}

/// Creates one machine with two workers. Between any two accesses of a turn, the function set with `set_interruption` may
/// be called.
fn cluster(seed: u64) -> Rc<Cluster> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let limits = ClusterLimits {
        machines: 1,
        workers: 2,
        ring_bytes: 4096,
        ..ClusterLimits::drawn(&mut rng)
    };
    let odds = Odds {
        accesses_between_others: 1,
        nested_turn: Odds::WHOLE,
        ..Odds::drawn(&mut rng)
    };
    let config = SimConfig {
        odds: Some(odds),
        ..SimConfig::seeded(seed)
    };
    Rc::new(Cluster::new(
        config,
        &limits,
        Pace::drawn(&mut rng),
        farm_txn::attach,
    ))
}

/// Interrupts T1 at point number `stop`, checks what T1, T2 and the read saw, and returns whether T1 has such a point.
fn run(seed: u64, stop: u32) -> bool {
    let cluster = cluster(seed);
    cluster.fabric().set_interruption(|| {});
    let (x, y) = (make(&cluster), make(&cluster));
    // The results of T2 and of the read. Bit 0: T2 committed. Bits 8 and up: the value that the read saw plus one, or 0
    // if it saw none.
    let (calls, found) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU64::new(0)));
    let (their_calls, their_found) = (Arc::clone(&calls), Arc::clone(&found));
    let weak = Rc::downgrade(&cluster);
    cluster.fabric().set_interruption(move || {
        if their_calls.fetch_add(1, Ordering::Relaxed) != stop {
            return;
        }
        let cluster = weak.upgrade().unwrap();
        let committed = transact(&cluster, 1, |tx, worker| write(tx, worker, x)).is_ok();
        let seen = cluster.on(1, |worker| lock_free(worker, y));
        let seen = seen.map_or(0, |seen| u64::from(seen) + 1);
        their_found.store(u64::from(committed) | seen << 8, Ordering::Relaxed);
    });
    let saw = transact(&cluster, 0, |tx, worker| {
        write(tx, worker, y)?;
        read(tx, worker, x)
    });
    cluster.fabric().set_interruption(|| {});
    let found = found.load(Ordering::Relaxed);
    let (t2_committed, read_saw_old) = (found & 1 == 1, found >> 8 == 1);
    let t1_before_t2 = matches!(saw, Ok(0));
    assert!(
        !(t1_before_t2 && t2_committed && read_saw_old),
        "seed {seed}, T1 interrupted at point {stop}: cycle T1 < T2 < the read < T1"
    );
    calls.load(Ordering::Relaxed) > stop
}

#[test]
fn a_lock_free_read_forms_no_cycle_with_two_commits() {
    for seed in 0..20 {
        let points = (0..).take_while(|stop| run(seed, *stop)).count();
        assert!(
            points > 10,
            "seed {seed}: T1 has only {points} interruption points"
        );
    }
}
