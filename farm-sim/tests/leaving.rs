//! A machine without memory leaves at any time, on a fabric that delays and reorders: it leaves no lock and no reservation,
//! what it had committed remains, and the other machines continue. It comes back, and leaves again, any number of times.

use farm_core::ids::Address;
use farm_core::worker::{Cont, Worker};
use farm_sim::cluster::{Cluster, ClusterLimits, Pace, Stepped};
use farm_sim::fabric::{Odds, SimConfig};
use farm_txn::{TxError, api};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

const BYTES: usize = 40;
const OBJECTS: usize = 6;
/// Sum of the first byte of all objects.
const SUM: u64 = 6 * 40;
const TASKS: usize = 4;
/// Steps within which everything ends.
const MOST_STEPS: u64 = 3_000_000;

/// Number of steps for which the others are at rest before they are checked.
const QUIET_STEPS: u32 = 3_000;

/// What a worker knows: the objects, and the results of its tasks.
#[derive(Default)]
struct Known {
    objects: Vec<Address>,
    committed: u64,
    stopped: usize,
    /// The tasks make no further transfer.
    enough: bool,
    wrong: Option<String>,
}

fn attach(worker: &mut Worker) {
    farm_txn::attach(worker);
    worker.put_layer(Box::<Known>::default());
}

fn known(worker: &mut Worker) -> &mut Known {
    worker.layer().unwrap()
}

/// Starts a task that moves 1 from one object to another, allocates and frees, until its machine leaves or it is enough.
fn transfer_for_ever(worker: &mut Worker) {
    let seed = worker.rng().random();
    let objects = known(worker).objects.clone();
    farm_txn::spawn(worker, |farm| async move {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        loop {
            let from = rng.random_range(0..OBJECTS);
            let to = (from + rng.random_range(1..OBJECTS)) % OBJECTS;
            let moved = farm.transact(async |tx| {
                let (from, to) = (objects[from], objects[to]);
                let (from, to) = (tx.read(from, BYTES).await?, tx.read(to, BYTES).await?);
                let extra = tx.alloc(BYTES, None).await?;
                let extra_to = tx.alloc_array(BYTES, 2, None).await?;
                if tx.payload(from).await?[0] > 0 && tx.payload(to).await?[0] < 200 {
                    tx.change(from, |payload| payload[0] -= 1).await?;
                    tx.change(to, |payload| payload[0] += 1).await?;
                }
                tx.free(extra).await?;
                for extra in extra_to {
                    tx.free(extra).await?;
                }
                Ok(())
            });
            let moved = moved.await;
            let goes_on = farm.at_once(|worker| {
                let state = known(worker);
                match moved {
                    Ok(()) => state.committed += 1,
                    Err(TxError::Stopped(_)) => state.stopped += 1,
                    // The allocation may find no memory for a moment.
                    Err(TxError::NoMemory(_) | TxError::Alloc(_)) => {}
                    Err(error) => _ = state.wrong.get_or_insert(error.to_string()),
                }
                !state.enough && state.wrong.is_none() && moved_on(state)
            });
            if goes_on != Some(true) {
                return;
            }
        }
    });
}

/// Starts a task as [`transfer_for_ever`] does, when the machine has joined the others.
fn transfer_when_joined(worker: &mut Worker) {
    if worker.store().map().is_complete() {
        return transfer_for_ever(worker);
    }
    let again = Cont::new(
        |worker: &mut Worker, _: u64, ()| transfer_when_joined(worker),
        0,
    );
    worker.set_timer(std::time::Duration::from_micros(5), again);
}

fn moved_on(state: &Known) -> bool {
    state.stopped == 0
}

/// Returns the number of transactions that the leaving machine had committed, and the number of those of its later starts.
fn run(seed: u64) -> [u64; 2] {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut limits = ClusterLimits::drawn(&mut rng);
    limits.leave_without_memory(1);
    limits.per_machine_bytes = limits.per_machine_bytes.max(8 * limits.region_bytes as u64);
    let config = SimConfig {
        odds: Some(Odds::drawn(&mut rng)),
        ..limits.fabric(seed)
    };
    let cluster = Cluster::new(config, &limits, Pace::drawn(&mut rng), attach);
    // Half of the objects are on each of the two machines with memory.
    let mut objects = Vec::new();
    for index in 0..OBJECTS {
        let owner = index % 2 * limits.workers;
        objects.push(cluster.on(owner, |worker| {
            let mut tx = farm_txn::checkout(worker);
            let object = tx.alloc(worker, BYTES, None).unwrap();
            tx.payload_mut(object)[0] = (SUM / OBJECTS as u64) as u8;
            let address = tx.address(object);
            farm_txn::commit(
                worker,
                tx,
                Cont::new(|_, _: u64, made: Result<(), TxError>| made.unwrap(), 0),
            );
            address
        }));
    }
    cluster.come_to_rest().unwrap();
    for worker in 0..cluster.workers() {
        let me = cluster.on(worker, |worker| {
            known(worker).objects = objects.clone();
            (0..TASKS).for_each(|_| transfer_for_ever(worker));
            worker.me()
        });
        cluster.fabric().unpark(me.machine, me.worker);
    }
    let committed = |workers: std::ops::Range<usize>| -> u64 {
        let committed = |worker| cluster.inspect(worker, |worker| known(worker).committed);
        workers.map(committed).sum()
    };
    let steps = |until: &dyn Fn() -> bool, what: &str| {
        for _ in 0..MOST_STEPS {
            if until() {
                return;
            }
            assert_ne!(
                cluster.step(),
                Stepped::Stopped,
                "seed {seed}: {:?}",
                cluster.failures()
            );
        }
        let rest = |worker| {
            cluster.inspect(worker, |worker| {
                let left = worker.check_at_rest().err().map(|left| left.to_string());
                (
                    worker.store().map().is_complete(),
                    left,
                    farm_txn::left_over(worker),
                )
            })
        };
        let rest: Vec<_> = (0..cluster.workers()).map(rest).collect();
        panic!("seed {seed}: {what} takes more than {MOST_STEPS} steps: {rest:#?}");
    };
    let leaving = 2 * limits.workers..cluster.workers();
    for _ in 0..rng.random_range(0..20_000) {
        cluster.step();
    }
    let mut by_leaving = [committed(leaving.clone()), 0];
    let gone = || !leaving.clone().any(|worker| cluster.is_running(worker));
    for start in 0..=rng.random_range(0..=3u32) {
        if start > 0 {
            cluster.restart(attach);
            // Its workers begin at any time, also while it joins.
            for worker in leaving.clone() {
                cluster.on(worker, |worker| {
                    known(worker).objects = objects.clone();
                    (0..TASKS).for_each(|_| transfer_when_joined(worker));
                });
            }
            let before = committed(0..leaving.start);
            let some = rng.random_range(0..30);
            // The scheduler may run its workers rarely, so that the others win all conflicts.
            let enough = || {
                let of_others = committed(0..leaving.start) - before;
                of_others > 0 && (committed(leaving.clone()) >= some || of_others > 2_000)
            };
            steps(&enough, "the transfers of a machine that has come back");
            by_leaving[1] += committed(leaving.clone());
        }
        cluster.leave(2);
        steps(&gone, "to leave");
    }
    let stay = 0..leaving.start;
    let so_far = committed(stay.clone());
    steps(
        &|| committed(stay.clone()) >= so_far + 40,
        "the transfers of the others",
    );
    assert_eq!(cluster.failures(), Vec::<String>::new(), "seed {seed}");
    for worker in stay.clone() {
        cluster.inspect(worker, |worker| known(worker).enough = true);
    }
    let at_rest = || {
        stay.clone().all(|worker| {
            cluster.inspect(worker, |worker| {
                worker.check_at_rest().is_ok() && farm_txn::left_over(worker).is_none()
            })
        })
    };
    // One-way messages may be under way although all workers are at rest.
    let quiet = std::cell::Cell::new(0);
    let stays_at_rest = || {
        quiet.set(if at_rest() { quiet.get() + 1 } else { 0 });
        quiet.get() > QUIET_STEPS
    };
    steps(&stays_at_rest, "to come to rest");
    let mut sum = 0;
    for worker in 0..cluster.workers() {
        let wrong = cluster.inspect(worker, |worker| known(worker).wrong.clone());
        assert_eq!(wrong, None, "seed {seed}, worker {worker}");
    }
    for (index, address) in objects.iter().enumerate() {
        sum += cluster.on(index % 2 * limits.workers, |worker| {
            let tx = api::begin(worker);
            let read = api::with(worker, tx, |tx, worker| {
                let object = tx.read(worker, *address, BYTES)?;
                assert_eq!(tx.locked_now(worker), None, "seed {seed}");
                Ok::<_, TxError>(u64::from(tx.payload(object)[0]))
            });
            api::abort(worker, tx);
            read.unwrap().unwrap()
        });
    }
    assert_eq!(sum, SUM, "seed {seed}");
    // All slots except those of the objects were returned.
    for machine in 0..2 {
        let workers = machine * limits.workers..(machine + 1) * limits.workers;
        let live = workers.map(|worker| {
            cluster.inspect(worker, |worker| {
                worker.check_slab().unwrap();
                let class = farm_core::alloc::class_for_payload(BYTES).unwrap();
                worker.slab_usage(class).live as usize
            })
        });
        assert_eq!(live.sum::<usize>(), OBJECTS / 2, "seed {seed}");
    }
    by_leaving
}

#[test]
fn a_machine_without_memory_leaves_at_any_time() {
    let (mut first, mut later) = (0, 0);
    for seed in 0..60 {
        let [before, after] = run(seed);
        (first, later) = (first + before, later + after);
    }
    assert!(first > 100, "it left before it did anything");
    assert!(later > 300, "it did nothing after it had come back");
}
