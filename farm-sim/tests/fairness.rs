//! Fairness of a worker's turn: reads that never stop hold up neither a commit, nor a reply, nor a
//! transaction's own read, and tasks that never stop do not keep a turn from ending.
//!
//! The fabric is drained between turns, so that the tests count turns, not time. Before slots and the
//! room of an endpoint were handed out in order, a commit beside 80 reads that renew themselves never
//! ended: their continuations took every slot and every completion entry again before the commit was
//! resumed, and its object stayed locked.

use std::time::Duration;

use farm_core::alloc::class_for_payload;
use farm_core::ids::Address;
use farm_core::worker::{Cont, ReadRequest, ReadResult, Worker};
use farm_sim::cluster::{Cluster, ClusterLimits, Pace};
use farm_sim::fabric::{Odds, SimConfig};
use farm_txn::{ObjectId, TxError, TxHandle, api};
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

const PAYLOAD: usize = 40;
const OPERATIONS: usize = 16;
/// Reads that renew themselves: five times what the worker may have in flight.
const READS: u64 = 80;
/// Most turns that a read, a commit or a reply may take longer beside them.
const MORE_TURNS: u32 = 4;

/// What the tests keep with a worker.
#[derive(Default)]
struct Load {
    /// What the endless reads read.
    target: Option<Address>,
    reads: u64,
    /// The object that the transaction changes.
    object: Option<Address>,
    done: Option<Result<(), String>>,
}

fn load(worker: &mut Worker) -> &mut Load {
    worker.layer().unwrap()
}

fn attach(worker: &mut Worker) {
    farm_txn::attach(worker);
    worker.put_layer(Box::<Load>::default());
}

/// Three machines of one worker each on a fabric that refuses and delays nothing by chance.
fn cluster() -> Cluster {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    let limits = ClusterLimits {
        workers: 1,
        operations: OPERATIONS,
        most_outstanding: OPERATIONS,
        max_inline_bytes: 256,
        ..ClusterLimits::drawn(&mut rng)
    };
    let odds = Odds {
        full: 0,
        stall: 0,
        late_completion: 0,
        spurious_wake: 0,
        late_arrival: 0,
        ..Odds::drawn(&mut rng)
    };
    let config = SimConfig {
        workers: 1,
        most_outstanding: limits.most_outstanding,
        max_inline_bytes: limits.max_inline_bytes,
        odds: Some(odds),
        ..SimConfig::seeded(1)
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

/// Lets everything land that was posted.
fn deliver(cluster: &Cluster) {
    while cluster.fabric().step() {}
    cluster.fabric().drain();
}

/// One turn of every worker, with everything delivered in between.
fn round(cluster: &Cluster) {
    for index in 0..cluster.workers() {
        let now = cluster.now();
        cluster.on(index, |worker| worker.turn(now));
        deliver(cluster);
    }
    cluster.fabric().advance_to(cluster.now() + 1_000);
}

/// Rounds until the worker's transaction has ended, at most `most`.
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

/// Starts reads that renew themselves on a worker, more than it may have in flight.
fn read_for_ever(cluster: &Cluster, worker: usize, target: Address) {
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
        .read_lock_free(request, Cont::new(came, number))
        .is_err()
    {
        worker.defer(Cont::new(issue, number));
    }
}

fn came(worker: &mut Worker, number: u64, result: ReadResult) {
    if let Ok(slot) = result {
        worker.arena().give(slot);
    }
    load(worker).reads += 1;
    issue(worker, number, ());
}

/// Begins a transaction that reads an object and writes it.
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
    load(worker).done = Some(outcome.map_err(|error| error.to_string()));
}

/// A transaction's own read and its commit, beside reads of the same worker to the same machine.
#[test]
fn reads_that_never_stop_do_not_hold_up_a_transaction() {
    let cluster = cluster();
    let (target, object) = (make(&cluster, 1), make(&cluster, 1));
    deliver(&cluster);
    transact(&cluster, 0, object);
    let alone = rounds_until_done(&cluster, 0, 1_000);
    read_for_ever(&cluster, 0, target);
    for _ in 0..20 {
        transact(&cluster, 0, object);
        let beside = rounds_until_done(&cluster, 0, 1_000);
        assert!(
            beside <= alone + MORE_TURNS,
            "{beside} turns beside the reads, {alone} without them"
        );
    }
}

/// The same of the primary, which has to answer LOCK.
#[test]
fn reads_that_never_stop_do_not_hold_up_a_reply() {
    let cluster = cluster();
    let (target, object) = (make(&cluster, 0), make(&cluster, 1));
    deliver(&cluster);
    transact(&cluster, 0, object);
    let alone = rounds_until_done(&cluster, 0, 1_000);
    read_for_ever(&cluster, 1, target);
    transact(&cluster, 0, object);
    let beside = rounds_until_done(&cluster, 0, 1_000);
    assert!(
        beside <= alone + MORE_TURNS,
        "{beside} turns, {alone} alone"
    );
}

/// A timer that sets itself again for no time at all once kept its worker in one turn for ever.
#[test]
fn a_turn_ends_though_its_timers_renew_themselves() {
    fn again(worker: &mut Worker, _: u64, (): ()) {
        load(worker).reads += 1;
        // A bound for the test, not for the worker.
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
        assert_eq!(ran, turn + 1, "one call of the timer a turn");
    }
}

fn issue_header(worker: &mut Worker, number: u64, (): ()) {
    let target = load(worker).target.unwrap();
    let came = Cont::new(header_came, number);
    if worker.read_header(target, came).is_err() {
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

/// Headers that are read for ever, more than there are slots, as commits of large read sets do together.
fn headers_that_renew_themselves(cluster: &Cluster) {
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

/// A header that was issued from the completion of another took the slot for which one waited: "did not end within
/// 20000 turns".
#[test]
fn headers_that_renew_themselves_do_not_hold_up_one_that_waits() {
    let cluster = cluster();
    headers_that_renew_themselves(&cluster);
    cluster.on(0, |worker| {
        let got = |worker: &mut Worker, _: u64, (): ()| load(worker).done = Some(Ok(()));
        worker.when_header_slot(Cont::new(got, 0));
    });
    // All others wait before it, and get their slots in order.
    rounds_until_done(&cluster, 0, HEADERS as u32);
}

/// Headers that waited went before all reads, those of transactions included: "did not end within 20000 turns".
#[test]
fn headers_that_renew_themselves_do_not_hold_up_a_transaction() {
    let cluster = cluster();
    let object = make(&cluster, 1);
    headers_that_renew_themselves(&cluster);
    transact(&cluster, 0, object);
    // It reads and locks; nothing that it waits for waits behind the headers.
    let rounds = rounds_until_done(&cluster, 0, 20_000);
    assert!(rounds <= 4 * MORE_TURNS, "{rounds} turns");
}
