//! Transactions one after the other, so many at a time, for the length of a slice.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use farm_core::ids::Address;
use farm_core::time::Nanos;
use farm_core::worker::{Cont, Worker};
use farm_txn::{ObjectId, TxCounters, TxError, TxHandle, api, retry};
use hdrhistogram::Histogram;

use super::PAYLOAD_BYTES;
use crate::micro::{histogram, record};

/// What a coordinator is to do.
#[derive(Clone)]
pub(super) struct Slice {
    /// The objects of a transaction; a transaction under way has a set to itself if there are enough.
    pub(super) sets: Arc<Vec<Vec<Address>>>,
    pub(super) in_flight: usize,
    /// Transactions meet: they are tried until they commit, as applications do, with the waits of the
    /// conflict avoidance.
    pub(super) meet: bool,
    pub(super) duration: Duration,
}

/// What it did.
pub(super) struct Sliced {
    pub(super) counters: TxCounters,
    pub(super) seconds: f64,
    pub(super) transactions: Histogram<u64>,
    pub(super) commits: Histogram<u64>,
}

impl Sliced {
    /// Another slice, after this one.
    pub(super) fn add(&mut self, other: &Self) {
        self.counters = self.counters.plus(&other.counters);
        self.seconds += other.seconds;
        let both = [
            (&mut self.transactions, &other.transactions),
            (&mut self.commits, &other.commits),
        ];
        for (own, theirs) in both {
            own.add(theirs).expect("histograms of the same bounds");
        }
    }

    /// The same slice of another coordinator.
    pub(super) fn join(&mut self, other: &Self) {
        let longest = self.seconds.max(other.seconds);
        self.add(other);
        self.seconds = longest;
    }
}

struct Running {
    tx: TxHandle,
    objects: Vec<ObjectId>,
    /// Reads that have not come.
    left: usize,
    failed: Option<TxError>,
    began: Nanos,
    committed: Nanos,
}

struct Client {
    slice: Slice,
    running: Vec<Option<Running>>,
    next_set: usize,
    began: Nanos,
    ends: Nanos,
    before: TxCounters,
    transactions: Histogram<u64>,
    commits: Histogram<u64>,
    done: Sender<Result<Sliced, String>>,
}

/// Begins a slice; `done` hears what came of it.
pub(super) fn start(worker: &mut Worker, slice: Slice, done: Sender<Result<Sliced, String>>) {
    let now = worker.clock().now();
    let in_flight = slice.in_flight;
    let client = Client {
        running: (0..in_flight).map(|_| None).collect(),
        next_set: 0,
        began: now,
        ends: now.after(slice.duration),
        before: farm_txn::counters(worker),
        transactions: histogram(),
        commits: histogram(),
        slice,
        done,
    };
    worker.put_layer(Box::new(client));
    for index in 0..in_flight {
        begin(worker, index);
    }
}

fn client(worker: &mut Worker) -> &mut Client {
    worker.layer().expect("a slice is under way")
}

fn running(worker: &mut Worker, index: usize) -> &mut Running {
    client(worker).running[index]
        .as_mut()
        .expect("a transaction is under way")
}

fn begin(worker: &mut Worker, index: usize) {
    if client(worker).slice.meet {
        let (attempt, done) = (
            Cont::new(attempt, index as u64),
            Cont::new(has_committed, index as u64),
        );
        return retry::run(worker, attempt, done);
    }
    let tx = api::begin(worker);
    attempt(worker, index as u64, tx);
}

/// One try of a transaction.
fn attempt(worker: &mut Worker, index: u64, tx: TxHandle) {
    let index = index as usize;
    let began = worker.clock().now();
    let client = client(worker);
    let set = client.next_set;
    client.next_set = (set + 1) % client.slice.sets.len();
    let sets = Arc::clone(&client.slice.sets);
    client.running[index] = Some(Running {
        tx,
        objects: Vec::with_capacity(sets[set].len()),
        left: sets[set].len(),
        failed: None,
        began,
        committed: began,
    });
    for at in &sets[set] {
        let cont = Cont::new(was_read, index as u64);
        api::read(worker, tx, *at, PAYLOAD_BYTES, cont);
    }
}

fn was_read(worker: &mut Worker, index: u64, result: Result<ObjectId, TxError>) {
    let index = index as usize;
    let state = running(worker, index);
    state.left -= 1;
    match result {
        Ok(object) => state.objects.push(object),
        Err(error) => _ = state.failed.get_or_insert(error),
    }
    if state.left > 0 {
        return;
    }
    let (tx, failed) = (state.tx, state.failed.take());
    let objects = std::mem::take(&mut state.objects);
    let meet = client(worker).slice.meet;
    if let Some(error) = failed {
        if meet {
            return retry::fail(worker, tx, error);
        }
        api::abort(worker, tx);
        return ended(worker, index, Err(error));
    }
    for object in objects {
        if let Ok(payload) = api::payload_mut(worker, tx, object) {
            payload[0] = payload[0].wrapping_add(1);
        }
    }
    let now = worker.clock().now();
    running(worker, index).committed = now;
    match meet {
        true => retry::commit(worker, tx),
        false => api::commit(worker, tx, Cont::new(has_committed, index as u64)),
    }
}

fn has_committed(worker: &mut Worker, index: u64, result: Result<(), TxError>) {
    ended(worker, index as usize, result);
}

/// A transaction has ended: the next one begins, until the slice is over.
fn ended(worker: &mut Worker, index: usize, result: Result<(), TxError>) {
    let now = worker.clock().now();
    let client = client(worker);
    let Some(state) = client.running[index].take() else {
        return;
    };
    match result {
        Ok(()) => {
            record(
                &mut client.transactions,
                Duration::from_nanos(now - state.began),
            );
            record(
                &mut client.commits,
                Duration::from_nanos(now - state.committed),
            );
        }
        Err(error) => {
            // Nobody hears it once the bench has given up.
            _ = client.done.send(Err(error.to_string()));
            return;
        }
    }
    if now < client.ends {
        return begin(worker, index);
    }
    if client.running.iter().any(Option::is_some) {
        return;
    }
    let counters = farm_txn::counters(worker);
    let client = worker.take_layer::<Client>();
    let sliced = Sliced {
        counters: counters.since(&client.before),
        seconds: (now - client.began) as f64 / 1e9,
        transactions: client.transactions,
        commits: client.commits,
    };
    _ = client.done.send(Ok(sliced));
}
