//! Messages that a worker has handed over to another worker of its machine, when the process that sent them has been killed.

mod common;

use common::until;
use farm_core::ids::{MachineId, WorkerId, WorkerRef};
use farm_core::messaging::{CallError, MessageId, ReplyCont};
use farm_core::worker::{Cont, Worker};
use farm_sim::cluster::{Cluster, ClusterLimits, Pace};
use farm_sim::fabric::{Odds, SimConfig};
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

const WORKERS: usize = 3;
/// The machine without memory, and its second worker.
const GUEST: usize = 3;
const CALLER: usize = WORKERS * GUEST + 1;
/// The third worker of the first machine. Messages of the caller to it arrive at the second one.
const SLOW: usize = 2;
const HANDS_OVER: usize = 1;
/// The slow worker takes at most 64 calls in a turn: it has not taken all of them when the caller's machine has been lost, and has come back.
const CALLS: u64 = 2_000;
/// Number of turns of other workers between two turns of the slow one.
const TURNS_OF_OTHERS: u64 = 200;
/// A message that is answered with its body.
const ECHO: MessageId = MessageId(MessageId::APPLICATION);

/// The state of the caller.
#[derive(Default)]
struct Calls {
    /// What the calls contain, and their answers must contain.
    body: u8,
    answered: u64,
    wrong: u64,
    /// Whether its machine has joined the cluster.
    joined: bool,
}

fn attach(worker: &mut Worker) {
    farm_txn::attach(worker);
    worker.put_layer(Box::<Calls>::default());
    worker.register(ECHO, |worker, request, body| worker.reply(request, &[body]));
}

fn calls(worker: &mut Worker) -> &mut Calls {
    worker.layer().unwrap()
}

fn call(worker: &mut Worker, number: u64, (): ()) {
    let to = WorkerRef::new(MachineId::new(1).unwrap(), WorkerId::new(2).unwrap());
    let body = [calls(worker).body];
    match worker.call(to, ECHO, &[&body], 8, ReplyCont::new(answered, number)) {
        Err(CallError::Busy) => worker.when_room(Cont::new(call, number)),
        called => called.unwrap(),
    }
}

fn answered(worker: &mut Worker, _: u64, reply: Result<&[u8], CallError>) {
    let Ok(reply) = reply else { return };
    let calls = calls(worker);
    calls.answered += 1;
    calls.wrong += u64::from(reply != [calls.body]);
}

/// Returns four machines, the last one without memory. The slow worker takes turns only if a test has it do so.
fn cluster() -> Cluster {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    let limits = ClusterLimits {
        machines: 4,
        without_memory: 1,
        workers: WORKERS,
        replicas: 3,
        survives: true,
        ring_bytes: 1 << 20,
        operations: 256,
        most_outstanding: 256,
        ..ClusterLimits::drawn(&mut rng)
    };
    let config = SimConfig {
        odds: Some(Odds::drawn(&mut rng)),
        ..limits.fabric(1)
    };
    let pace = Pace {
        turns: 512,
        sleeps: 0,
        pauses: 0,
        pause_nanos: 1,
        slow: 1024,
        slow_worker: SLOW,
        nested_steps: 1,
    };
    Cluster::new(config, &limits, pace, attach)
}

/// Has the caller begin its calls, and waits until all have been handed over to the slow worker, besides `before`.
fn begin(cluster: &Cluster, body: u8, before: u64) {
    cluster.submit(CALLER, move |worker| {
        calls(worker).body = body;
        (0..CALLS).for_each(|number| call(worker, number, ()));
    });
    let handed_over = || {
        let counters = cluster.inspect(HANDS_OVER, |worker| worker.message_counters());
        counters.handed_over
    };
    until(cluster, "to hand over", || handed_over() >= before + CALLS);
}

fn slow_turn(cluster: &Cluster) {
    let now = cluster.now();
    cluster.on(SLOW, |worker| worker.turn(now));
}

/// Once, calls of a process that had been killed were answered to the next process of its machine. They took room for replies that it had
/// not reserved, and could end calls of it, which have the same numbers.
#[test]
fn calls_of_a_killed_process_are_not_answered_to_the_next_one() {
    let cluster = cluster();
    begin(&cluster, 1, 0);
    cluster.kill(GUEST);
    let mut turns = 0;
    until(&cluster, "to join", || {
        // It ends if the configuration has changed while it joined.
        if !cluster.is_running(CALLER) && cluster.restart(attach) {
            cluster.submit(CALLER, |worker| calls(worker).joined = true);
        }
        if cluster.turns() > turns + TURNS_OF_OTHERS {
            turns = cluster.turns();
            slow_turn(&cluster);
        }
        cluster.is_running(CALLER) && cluster.inspect(CALLER, |worker| calls(worker).joined)
    });
    let counters = cluster.inspect(SLOW, |worker| worker.message_counters());
    assert!(counters.received >= CALLS, "{counters:?}");
    assert_eq!(counters.replies, 0, "answers to a killed process");
    begin(&cluster, 2, CALLS);
    until(&cluster, "to answer", || {
        slow_turn(&cluster);
        cluster.inspect(CALLER, |worker| calls(worker).answered) == CALLS
    });
    let wrong = cluster.inspect(CALLER, |worker| calls(worker).wrong);
    assert_eq!(wrong, 0, "answers to calls of another process");
}
