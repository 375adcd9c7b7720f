//! Memory of freed objects is reused for another size only after an epoch has ended on all machines.

#![allow(clippy::disallowed_methods)] // Waits for real threads in real time.

use std::time::{Duration, Instant};

use farm_core::alloc::SizeClass;
use farm_core::config::Config;
use farm_core::ids::Address;
use farm_core::machine::Machine;
use farm_core::worker::{EpochCounters, EpochGuard, Worker};
use farm_testing::{TestCluster, on};

const MACHINES: usize = 3;
const WORKERS: usize = 2;
const SMALL: SizeClass = SizeClass::new(1);
const LARGE: SizeClass = SizeClass::new(30);
/// Longer than any epoch change takes here.
const PATIENCE: Duration = Duration::from_secs(20);

/// State of a test on one worker.
#[derive(Default)]
struct Kept {
    objects: Vec<Address>,
    guard: Option<EpochGuard>,
    hooks_called: u64,
}

/// Starts machines with one region of 64 blocks each.
fn cluster(name: &str) -> TestCluster {
    cluster_of(name, MACHINES, WORKERS)
}

fn cluster_of(name: &str, machines: usize, workers: usize) -> TestCluster {
    let mut config = Config::tiny_for(machines as u16, workers as u16);
    config.memory.region_bytes = 64 * 4096;
    config.memory.per_machine_bytes = 64 * 4096;
    TestCluster::start(name, config, |worker| {
        worker.put_layer(Box::<Kept>::default());
        worker.on_end_of_epoch(|worker| kept(worker).hooks_called += 1);
    })
}

fn kept(worker: &mut Worker) -> &mut Kept {
    worker.layer().unwrap()
}

/// Reserves objects until there is no memory, and returns their number.
fn fill(machine: &Machine, worker: usize, class: SizeClass) -> usize {
    on(machine, worker, move |worker| {
        let before = kept(worker).objects.len();
        while let Ok((object, _)) = worker.reserve_object(class, None) {
            kept(worker).objects.push(object.address);
        }
        kept(worker).objects.len() - before
    })
}

fn free_all(machine: &Machine, worker: usize) {
    on(machine, worker, |worker| {
        for address in std::mem::take(&mut kept(worker).objects) {
            worker.release_object(address).unwrap();
        }
    });
}

/// Fills memory with objects of one size, about half of the blocks by each worker, and frees every object.
fn fill_and_free(machine: &Machine) {
    on(machine, 0, |worker| {
        for _ in 0..1000 {
            let (object, _) = worker.reserve_object(SMALL, None).unwrap();
            kept(worker).objects.push(object.address);
        }
    });
    assert!(fill(machine, 1, SMALL) > 900);
    assert_eq!(machine.store().usage().unwrap().free_bytes, 0);
    settle(std::slice::from_ref(machine));
    for worker in 0..WORKERS {
        free_all(machine, worker);
    }
}

/// Retries until there is memory for objects of `class`; returns false if that takes longer than `patience`.
fn fill_in_time(machine: &Machine, worker: usize, class: SizeClass, patience: Duration) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < patience {
        if fill(machine, worker, class) > 0 {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

fn counters(machine: &Machine, worker: usize) -> EpochCounters {
    on(machine, worker, |worker| worker.epoch_counters())
}

/// Returns the number of one-way messages that a worker has sent. Here all of them belong to epoch changes.
fn sent(machine: &Machine, worker: usize) -> u64 {
    on(machine, worker, |worker| worker.message_counters().one_way)
}

/// Waits until no epoch change is under way and no operation is open.
fn settle(machines: &[Machine]) {
    let begun = Instant::now();
    // A message from one worker to another may start work that only a later round sees.
    let rounds = (0..3).flat_map(|_| machines);
    for machine in rounds {
        for worker in 0..WORKERS {
            while let Err(left) = on(machine, worker, |worker| worker.check_at_rest()) {
                assert!(begun.elapsed() < PATIENCE, "{left}");
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn memory_full_of_one_size_is_reused_after_every_machine_has_replied() {
    let cluster = cluster("epoch-fill");
    let machines = &cluster.machines;
    fill_and_free(&machines[0]);
    assert_eq!(
        counters(&machines[0], 0).begun,
        0,
        "no block could be retired before"
    );
    // Every block is of the small class: without the end of an epoch there is no memory.
    assert_eq!(fill(&machines[0], 1, LARGE), 0);
    assert!(fill_in_time(&machines[0], 1, LARGE, PATIENCE));
    settle(machines);
    let own = counters(&machines[0], 0);
    assert_eq!((own.begun, own.ended, own.abandoned), (1, 1, 0));
    assert_eq!(own.bytes, 64 * 4096, "all blocks were freed");
    let others = WORKERS as u64 - 1;
    assert_eq!(
        own.requests,
        MACHINES as u64 - 1,
        "one request for each other machine"
    );
    assert_eq!(own.requests_within, others * (own.fruitless + 2));
    assert_eq!(sent(&machines[0], 0), own.requests + own.requests_within);
    for machine in &machines[1..] {
        assert_eq!(
            sent(machine, 0),
            others + 1,
            "requests within the machine, and one reply"
        );
        assert_eq!(sent(machine, 1), 1);
        let passed_on = EpochCounters {
            requests_within: others,
            ..EpochCounters::default()
        };
        assert_eq!(counters(machine, 0), passed_on);
        assert_eq!(counters(machine, 1), EpochCounters::default());
    }
    for machine in machines {
        for worker in 0..WORKERS {
            let (epoch, hooks) = on(machine, worker, |worker| {
                (worker.epoch(), kept(worker).hooks_called)
            });
            assert_eq!((epoch, hooks), (1, 1));
        }
    }
    // Objects fill all memory: the next change can free blocks only after they are freed.
    free_all(&machines[0], 1);
    assert!(
        fill_in_time(&machines[0], 0, SMALL, PATIENCE),
        "the memory is reused for small objects again"
    );
    cluster.stop();
}

#[test]
fn an_operation_of_any_worker_that_began_before_delays_the_reuse() {
    let cluster = cluster("epoch-open");
    let machines = &cluster.machines;
    fill_and_free(&machines[0]);
    fill_and_free(&machines[1]);
    let begin = |worker: &mut Worker| kept(worker).guard = Some(worker.pin());
    let end = |worker: &mut Worker| {
        let guard = kept(worker).guard.take().unwrap();
        worker.unpin(guard);
    };
    on(&machines[2], 1, begin);
    let short = Duration::from_millis(100);
    assert!(
        !fill_in_time(&machines[0], 0, LARGE, short),
        "the operation is open"
    );
    assert_eq!(counters(&machines[0], 0).ended, 0);
    // An operation that begins in the new epoch does not delay the reuse.
    on(&machines[1], 1, begin);
    // Another machine needs memory, too. For that, an epoch that has just begun must end.
    assert!(
        !fill_in_time(&machines[1], 0, LARGE, short),
        "both operations are open"
    );
    on(&machines[2], 1, end);
    assert!(fill_in_time(&machines[0], 0, LARGE, PATIENCE));
    assert!(
        !fill_in_time(&machines[1], 0, LARGE, short),
        "one operation is open"
    );
    // Memory of the same class needs no epoch change.
    assert!(fill_in_time(&machines[1], 0, SMALL, PATIENCE));
    free_all(&machines[1], 0);
    on(&machines[1], 1, end);
    assert!(fill_in_time(&machines[1], 0, LARGE, PATIENCE));
    settle(machines);
    for machine in machines {
        let epoch = on(machine, 1, |worker| worker.epoch());
        assert!(
            epoch >= 2,
            "two machines needed memory, but the epoch is {epoch}"
        );
    }
    cluster.stop();
}

/// Regression: on a machine of one worker, without others to wait for, an allocation that failed ended the epoch
/// itself, and called the hooks of layers within a layer's call.
#[test]
fn hooks_are_not_called_within_an_allocation() {
    let cluster = cluster_of("epoch-hooks", 1, 1);
    let machines = &cluster.machines;
    fill(&machines[0], 0, SMALL);
    // A worker reports failed allocations at intervals: the next one below must be reported, too.
    let filled = on(&machines[0], 0, |worker| worker.now());
    let reported_again = filled.after(Duration::from_millis(1));
    while on(&machines[0], 0, |worker| worker.now()) < reported_again {}
    // In one turn with the allocation: after it, the worker may reclaim what was freed.
    let within = on(&machines[0], 0, |worker| {
        for address in std::mem::take(&mut kept(worker).objects) {
            worker.release_object(address).unwrap();
        }
        let before = kept(worker).hooks_called;
        assert!(worker.reserve_object(LARGE, None).is_err());
        kept(worker).hooks_called - before
    });
    assert_eq!(within, 0);
    assert!(fill_in_time(&machines[0], 0, LARGE, PATIENCE));
    assert!(on(&machines[0], 0, |worker| kept(worker).hooks_called) > 0);
    cluster.stop();
}
