//! Fairness of a worker's turn: endless reads hold up neither a commit, nor a reply, nor a transaction's own read, and
//! endless tasks do not keep a turn from ending.
//!
//! The fabric is drained between turns, so that the tests count turns, not time. Before slots and the room of an
//! endpoint were granted in order, a commit beside 80 reads that renew themselves never ended: their continuations took
//! every slot and every completion entry again before the commit was resumed, and its object stayed locked.

use std::time::Duration;

use farm_core::alloc::class_for_payload;
use farm_core::ids::{Address, WorkerRef};
use farm_core::marks;
use farm_core::messaging::{CallError, MessageId, ReplyCont};
use farm_core::worker::{Cont, ReadRequest, ReadResult, Worker};
use farm_sim::cluster::{Cluster, ClusterLimits, Pace};
use farm_sim::fabric::{Odds, SimConfig};
use farm_txn::{ObjectId, TxError, TxHandle, api};
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

const PAYLOAD: usize = 40;
const OPERATIONS: usize = 16;
/// Number of reads that renew themselves: five times what the worker may have in flight.
const READS: u64 = 80;
/// Maximum number of additional turns of a read, a commit or a reply beside the endless reads.
const MORE_TURNS: u32 = 4;

/// The tests' state on a worker.
#[derive(Default)]
struct Load {
    /// The object that the endless reads read.
    target: Option<Address>,
    reads: u64,
    /// The object that the transaction changes.
    object: Option<Address>,
    /// The bytes of each message.
    bytes: usize,
    done: Option<Result<(), String>>,
    /// Number of transactions that have ended.
    ended: usize,
}

fn load(worker: &mut Worker) -> &mut Load {
    worker.layer().unwrap()
}

fn attach(worker: &mut Worker) {
    farm_txn::attach(worker);
    worker.put_layer(Box::<Load>::default());
}

/// Creates three machines of one worker each, on a fabric that rejects and delays nothing by chance.
fn cluster() -> Cluster {
    cluster_with(|_| ())
}

fn cluster_with(change: impl FnOnce(&mut ClusterLimits)) -> Cluster {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut limits = ClusterLimits {
        workers: 1,
        operations: OPERATIONS,
        most_outstanding: OPERATIONS,
        max_inline_bytes: 256,
        ..ClusterLimits::drawn(&mut rng)
    };
    change(&mut limits);
    let odds = Odds {
        full: 0,
        stall: 0,
        late_completion: 0,
        spurious_wake: 0,
        late_arrival: 0,
        ..Odds::drawn(&mut rng)
    };
    let config = SimConfig {
        workers: limits.workers,
        odds: Some(odds),
        ..limits.fabric(1)
    };
    Cluster::new(config, &limits, Pace::drawn(&mut rng), attach)
}

fn make(cluster: &Cluster, worker: usize) -> Address {
    let address = cluster.on(worker, |worker| {
        let mut tx = farm_txn::checkout(worker);
        let object = tx.alloc(worker, PAYLOAD, None).unwrap();
        let address = tx.address(object);
        farm_txn::commit(worker, tx, Cont::new(ended, 0));
        address
    });
    rounds_until_done(cluster, worker, 1_000);
    address
}

/// Completes every posted operation.
fn deliver(cluster: &Cluster) {
    while cluster.fabric().step() {}
    cluster.fabric().drain();
}

/// Runs one turn of every worker. Everything is delivered after each turn.
fn round(cluster: &Cluster) {
    for index in 0..cluster.workers() {
        let now = cluster.now();
        cluster.on(index, |worker| worker.turn(now));
        deliver(cluster);
    }
    cluster.fabric().advance_to(cluster.now() + 1_000);
}

/// Returns the number of rounds until the worker's transaction has ended, at most `most`.
fn rounds_until_done(cluster: &Cluster, worker: usize, most: u32) -> u32 {
    for rounds in 0..most {
        if let Some(done) = cluster.inspect(worker, |worker| load(worker).done.take()) {
            done.unwrap();
            return rounds;
        }
        round(cluster);
    }
    panic!("the transaction did not end within {most} turns");
}

/// Starts reads that renew themselves on a worker: more than it may have in flight.
fn start_endless_reads(cluster: &Cluster, worker: usize, target: Address) {
    cluster.on(worker, |worker| {
        load(worker).target = Some(target);
        for number in 0..READS {
            issue(worker, number, ());
        }
    });
    for _ in 0..20 {
        round(cluster);
    }
    assert!(cluster.inspect(worker, |worker| load(worker).reads) > 20);
}

fn issue(worker: &mut Worker, number: u64, (): ()) {
    let target = load(worker).target.unwrap();
    let request = ReadRequest::object(target, class_for_payload(PAYLOAD).unwrap());
    if worker
        .read_lock_free(request, Cont::new(on_read, number))
        .is_err()
    {
        worker.defer(Cont::new(issue, number));
    }
}

fn on_read(worker: &mut Worker, number: u64, result: ReadResult) {
    if let Ok(slot) = result {
        worker.arena().give(slot);
    }
    load(worker).reads += 1;
    issue(worker, number, ());
}

/// Starts a transaction that reads an object and writes it.
fn transact(cluster: &Cluster, worker: usize, object: Address) {
    cluster.on(worker, |worker| {
        load(worker).object = Some(object);
        let tx = api::begin(worker);
        api::read(
            worker,
            tx,
            object,
            PAYLOAD,
            Cont::new(read, tx.to_context()),
        );
    });
}

fn read(worker: &mut Worker, tx: u64, object: Result<ObjectId, TxError>) {
    let tx = TxHandle::from_context(tx);
    let changed = object.and_then(|object| {
        api::payload_mut(worker, tx, object)?[0] += 1;
        Ok(())
    });
    match changed {
        Ok(()) => api::commit(worker, tx, Cont::new(ended, 0)),
        Err(error) => load(worker).done = Some(Err(error.to_string())),
    }
}

fn ended(worker: &mut Worker, _: u64, outcome: Result<(), TxError>) {
    load(worker).ended += 1;
    load(worker).done = Some(outcome.map_err(|error| error.to_string()));
}

/// A transaction's own read and its commit, beside endless reads by the same worker of the same machine.
#[test]
fn endless_reads_do_not_hold_up_a_transaction() {
    let cluster = cluster();
    let (target, object) = (make(&cluster, 1), make(&cluster, 1));
    deliver(&cluster);
    transact(&cluster, 0, object);
    let alone = rounds_until_done(&cluster, 0, 1_000);
    start_endless_reads(&cluster, 0, target);
    for _ in 0..20 {
        transact(&cluster, 0, object);
        let beside = rounds_until_done(&cluster, 0, 1_000);
        assert!(
            beside <= alone + MORE_TURNS,
            "{beside} turns beside the reads, {alone} without them"
        );
    }
}

/// As `endless_reads_do_not_hold_up_a_transaction`, with the reads on the primary, which must reply to LOCK.
#[test]
fn endless_reads_do_not_hold_up_a_reply() {
    let cluster = cluster();
    let (target, object) = (make(&cluster, 0), make(&cluster, 1));
    deliver(&cluster);
    transact(&cluster, 0, object);
    let alone = rounds_until_done(&cluster, 0, 1_000);
    start_endless_reads(&cluster, 1, target);
    transact(&cluster, 0, object);
    let beside = rounds_until_done(&cluster, 0, 1_000);
    assert!(
        beside <= alone + MORE_TURNS,
        "{beside} turns, {alone} alone"
    );
}

/// Many commits wait for room of the endpoint for their records. Once, each of them was resumed in each turn, encoded its record, and
/// found no room: with copies, all commits of a worker together used most of its time for this.
#[test]
fn commits_that_wait_for_the_endpoint_are_not_all_resumed_in_each_turn() {
    const COMMITS: usize = 200;
    let cluster = cluster_with(|limits| (limits.log_bytes, limits.replicas) = (1 << 20, 3));
    make(&cluster, 0);
    deliver(&cluster);
    cluster.on(0, |worker| {
        load(worker).ended = 0;
        for _ in 0..COMMITS {
            let mut tx = farm_txn::checkout(worker);
            tx.alloc(worker, PAYLOAD, None).unwrap();
            farm_txn::commit(worker, tx, Cont::new(ended, 0));
        }
    });
    marks::take();
    let (mut turns, mut reached) = (0, marks::Reached::new());
    while cluster.inspect(0, |worker| load(worker).ended) < COMMITS {
        round(&cluster);
        turns += 1;
        for (name, count) in marks::take() {
            *reached.entry(name).or_default() += count;
        }
        assert!(turns < 10_000, "the commits do not end");
    }
    let waited = reached.get("log: room of the endpoint waited for");
    assert!(waited.is_some(), "no commit waited: {reached:?}");
    let refused = reached.get("log: endpoint full").copied().unwrap_or(0);
    let most = turns * cluster.workers() as u64 + COMMITS as u64;
    assert!(
        refused <= most,
        "{refused} records refused in {turns} turns"
    );
}

/// A timer that sets itself again with a delay of zero once kept its worker in one turn forever.
#[test]
fn a_turn_ends_although_its_timers_renew_themselves() {
    fn again(worker: &mut Worker, _: u64, (): ()) {
        load(worker).reads += 1;
        // Bounds the test if the turn does not end.
        if load(worker).reads < 100_000 {
            worker.set_timer(Duration::ZERO, Cont::new(again, 0));
        }
    }
    let cluster = cluster();
    cluster.on(0, |worker| again(worker, 0, ()));
    for turn in 1..=50 {
        let now = cluster.now();
        cluster.on(0, |worker| worker.turn(now));
        let ran = cluster.inspect(0, |worker| load(worker).reads);
        assert_eq!(ran, turn + 1, "each turn calls the timer once");
    }
}

fn issue_header(worker: &mut Worker, number: u64, (): ()) {
    let target = load(worker).target.unwrap();
    let on_read = Cont::new(header_came, number);
    if worker.read_header(target, on_read).is_err() {
        worker.when_header_slot(Cont::new(issue_header, number));
    }
}

fn header_came(worker: &mut Worker, number: u64, result: ReadResult) {
    if let Ok(slot) = result {
        worker.arena().give(slot);
    }
    load(worker).reads += 1;
    issue_header(worker, number, ());
}

/// Starts endless header reads, more than there are slots, as the concurrent commits of large read sets issue them.
fn start_endless_header_reads(cluster: &Cluster) {
    let target = make(cluster, 1);
    deliver(cluster);
    cluster.on(0, |worker| {
        load(worker).target = Some(target);
        (0..HEADERS).for_each(|number| issue_header(worker, number, ()));
    });
    for _ in 0..20 {
        round(cluster);
    }
}

const HEADERS: u64 = 2_000;

/// Once, a header read that was issued from the completion of another took the slot for which a waiting one was queued:
/// "did not end within 20000 turns".
#[test]
fn endless_header_reads_do_not_hold_up_a_waiting_one() {
    let cluster = cluster();
    start_endless_header_reads(&cluster);
    cluster.on(0, |worker| {
        let got = |worker: &mut Worker, _: u64, (): ()| load(worker).done = Some(Ok(()));
        worker.when_header_slot(Cont::new(got, 0));
    });
    // All other header reads are queued before this one, and get their slots in order.
    rounds_until_done(&cluster, 0, HEADERS as u32);
}

/// Once, waiting header reads went before all other reads, including those of transactions: "did not end within 20000
/// turns".
#[test]
fn endless_header_reads_do_not_hold_up_a_transaction() {
    let cluster = cluster();
    let object = make(&cluster, 1);
    start_endless_header_reads(&cluster);
    transact(&cluster, 0, object);
    // The transaction reads and locks; none of its steps is queued behind the header reads.
    let rounds = rounds_until_done(&cluster, 0, 20_000);
    assert!(rounds <= 4 * MORE_TURNS, "{rounds} turns");
}

/// A message that is answered at once.
const ECHO: MessageId = MessageId(MessageId::APPLICATION);
/// Calls of each worker at a time.
const CALLS: u64 = 64;

/// Calls the first worker of the first machine again and again.
fn call(worker: &mut Worker, number: u64, (): ()) {
    let to = WorkerRef::first_of(worker.machines()[0].0);
    let cont = ReplyCont::new(answered, number);
    let body = vec![0; load(worker).bytes];
    match worker.call(to, ECHO, &[&body], 0, cont) {
        Err(CallError::Busy) => worker.when_room(Cont::new(call, number)),
        called => called.unwrap(),
    }
}

/// Sends as many messages as there is room for, again and again, to the first worker of its own machine.
fn send_all(worker: &mut Worker, _: u64, (): ()) {
    let to = WorkerRef::first_of(worker.me().machine);
    let body = vec![0; load(worker).bytes];
    while worker.send(to, ECHO, &[&body]).is_ok() {
        load(worker).reads += 1;
    }
    worker.when_room(Cont::new(send_all, 0));
}

fn answered(worker: &mut Worker, number: u64, reply: Result<&[u8], CallError>) {
    reply.unwrap();
    load(worker).reads += 1;
    call(worker, number, ());
}

/// Once, a worker that handed messages over to a slow worker of its machine filled that worker's ring from the rings of the first
/// machines in each turn. Messages of the last machines, and its own, never arrived.
#[test]
fn messages_of_all_machines_are_handed_over_to_a_slow_worker() {
    // As many messages as a worker takes from one ring at a time fill half of the ring, and far fewer.
    for (bytes, is_greedy) in [(100, false), (600, false), (100, true)] {
        hand_over(bytes, is_greedy);
    }
}

/// If `is_greedy`, the other worker of the slow worker's machine sends from one continuation: see [`send_all`].
fn hand_over(bytes: usize, is_greedy: bool) {
    let cluster = cluster_with(|limits| {
        (limits.machines, limits.workers) = (7, 2);
        (limits.operations, limits.most_outstanding) = (256, 256);
        limits.ring_bytes = 1 << 14;
    });
    // The second worker of each machine: what it sends to the first machine arrives at the second worker there.
    let callers: Vec<usize> = (1..cluster.workers()).step_by(2).collect();
    for index in 0..cluster.workers() {
        cluster.on(index, |worker| {
            worker.register(ECHO, |worker, request, _| worker.reply(request, &[]));
        });
    }
    for caller in &callers {
        cluster.on(*caller, |worker| {
            load(worker).bytes = bytes;
            match is_greedy && *caller == callers[0] {
                true => send_all(worker, 0, ()),
                false => (0..CALLS).for_each(|number| call(worker, number, ())),
            }
        });
    }
    for turn in 0..20_000 {
        for index in 0..cluster.workers() {
            // The first worker takes one turn of 64.
            if index > 0 || turn % 64 == 0 {
                let now = cluster.now();
                cluster.on(index, |worker| worker.turn(now));
                deliver(&cluster);
            }
        }
        cluster.fabric().advance_to(cluster.now() + 1_000);
    }
    let answers = callers
        .iter()
        .map(|caller| cluster.inspect(*caller, |worker| load(worker).reads));
    let answers: Vec<u64> = answers.collect();
    let (own, others) = answers.split_first().unwrap();
    let (least, most) = (others.iter().min().unwrap(), others.iter().max().unwrap());
    assert!(
        least * 8 > *most,
        "answers to the workers of other machines: {others:?}"
    );
    // A worker's own messages get half of the room.
    let of_others: u64 = others.iter().sum();
    assert!(
        own * 4 > of_others && of_others * 4 > *own,
        "answers to the other worker of the machine: {own}, to the others: {others:?}"
    );
}
