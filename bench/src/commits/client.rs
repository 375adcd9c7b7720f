//! The clients of a coordinator, which run transactions for the duration of a time slice.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use farm_core::ids::Address;
use farm_core::time::Nanos;
use farm_core::worker::{Cont, Worker};
use farm_txn::{ObjectId, TxCounters, TxError, TxHandle, api, retry};

use super::PAYLOAD_BYTES;
use crate::closed_loop::{self, Clients, ClosedLoop, Extent, Ran};
use crate::counters::{Costs, Counters};
use crate::recorder::{Outcome, Recorder};

/// Index in the recorder of transactions, timed from the start of their last attempt.
pub(super) const TRANSACTION: usize = 0;
/// Index in the recorder of the commits of these transactions.
pub(super) const COMMIT: usize = 1;

/// The task of a coordinator in one time slice.
#[derive(Clone)]
pub(super) struct Slice {
    /// Sets of objects. Each transaction uses the next set, so that transactions in flight have different sets if there
    /// are enough.
    pub(super) sets: Arc<Vec<Vec<Address>>>,
    pub(super) in_flight: usize,
    /// Whether transactions of different coordinators conflict. If so, they are retried until they commit, with the
    /// waits of the conflict avoidance, as in applications.
    pub(super) meet: bool,
    pub(super) duration: Duration,
}

impl Counters for TxCounters {
    fn add(&mut self, other: &Self) {
        *self = self.plus(other);
    }

    fn since(&self, before: &Self) -> Self {
        TxCounters::since(self, before)
    }
}

impl Costs for TxCounters {
    fn of(worker: &mut Worker) -> Self {
        farm_txn::counters(worker)
    }
}

/// Result of a slice.
pub(super) type Sliced = Ran<TxCounters>;

/// An attempt of a transaction.
#[derive(Default)]
struct Attempt {
    tx: Option<TxHandle>,
    objects: Vec<ObjectId>,
    /// Number of reads in flight.
    left: usize,
    failed: Option<TxError>,
    began: Nanos,
    /// Start of the commit.
    committed: Nanos,
}

struct Client {
    slice: Slice,
    next_set: usize,
    done: Sender<Sliced>,
}

type Driver = ClosedLoop<Client>;

/// Starts a slice; `done` receives the result.
pub(super) fn start(worker: &mut Worker, slice: Slice, done: Sender<Sliced>) {
    let extent = Extent {
        in_flight: slice.in_flight,
        duration: Some(slice.duration),
        ..Extent::default()
    };
    let client = Client {
        slice,
        next_set: 0,
        done,
    };
    closed_loop::start(worker, client, recorder(), extent);
}

/// Returns an empty recorder of transactions and commits.
pub(super) fn recorder() -> Recorder<TxCounters> {
    Recorder::untimed(2)
}

impl Clients for Client {
    type Operation = Attempt;
    type Costs = TxCounters;

    fn draw(&mut self, _: &mut Worker) -> Option<Attempt> {
        Some(Attempt::default())
    }

    fn begin(own: &mut Driver, worker: &mut Worker, seat: usize) {
        if own.clients.slice.meet {
            let done = Cont::new(has_committed, seat);
            return retry::run(worker, Cont::new(attempt, seat), done);
        }
        let tx = api::begin(worker);
        own.attempt(worker, seat, tx);
    }

    fn end(self, _: &mut Worker, ran: Sliced) {
        // Fails if the benchmark has failed and dropped the receiver.
        _ = self.done.send(ran);
    }
}

impl Driver {
    /// Reads the objects of a transaction.
    fn attempt(&mut self, worker: &mut Worker, seat: usize, tx: TxHandle) {
        let began = worker.clock().now();
        let Client {
            slice, next_set, ..
        } = &mut self.clients;
        let (sets, set) = (Arc::clone(&slice.sets), *next_set);
        *next_set = (set + 1) % sets.len();
        *self.operation(seat) = Attempt {
            tx: Some(tx),
            objects: Vec::with_capacity(sets[set].len()),
            left: sets[set].len(),
            failed: None,
            began,
            committed: began,
        };
        for at in &sets[set] {
            api::read(worker, tx, *at, PAYLOAD_BYTES, Cont::new(was_read, seat));
        }
    }
}

/// Begins one attempt of a transaction; [`retry::run`] calls it for each attempt.
fn attempt(worker: &mut Worker, seat: usize, tx: TxHandle) {
    closed_loop::resume(worker, |own: &mut Driver, worker| {
        own.attempt(worker, seat, tx)
    });
}

fn driver(worker: &mut Worker) -> &mut Driver {
    worker
        .layer()
        .expect("the client's state is attached to the worker while a time slice runs")
}

/// Stores the result of a read. After the last one, writes the objects and commits. This function does not take the
/// loop from the worker, because it may call [`has_committed`], which takes the loop.
fn was_read(worker: &mut Worker, seat: usize, result: Result<ObjectId, TxError>) {
    let own = driver(worker);
    let meet = own.clients.slice.meet;
    let attempt = own.operation(seat);
    attempt.left -= 1;
    match result {
        Ok(object) => attempt.objects.push(object),
        Err(error) => _ = attempt.failed.get_or_insert(error),
    }
    if attempt.left > 0 {
        return;
    }
    let tx = attempt
        .tx
        .expect("an attempt has a transaction while its objects are read");
    let objects = std::mem::take(&mut attempt.objects);
    if let Some(error) = attempt.failed.take() {
        if meet {
            return retry::fail(worker, tx, error);
        }
        api::abort(worker, tx);
        return has_committed(worker, seat, Err(error));
    }
    for object in objects {
        if let Ok(payload) = api::payload_mut(worker, tx, object) {
            payload[0] = payload[0].wrapping_add(1);
        }
    }
    let now = worker.clock().now();
    driver(worker).operation(seat).committed = now;
    match meet {
        true => retry::commit(worker, tx),
        false => api::commit(worker, tx, Cont::new(has_committed, seat)),
    }
}

fn has_committed(worker: &mut Worker, seat: usize, result: Result<(), TxError>) {
    closed_loop::resume(worker, |own: &mut Driver, worker| {
        if let Err(error) = result {
            return own.stop(seat, error.to_string());
        }
        let now = worker.clock().now();
        let attempt = own.operation(seat);
        let (transaction, commit) = (now - attempt.began, now - attempt.committed);
        let done = Outcome::Committed;
        own.finish_after(worker, seat, TRANSACTION, done, Some(transaction));
        own.recorder.finish(COMMIT, done, Some(commit));
    });
}
