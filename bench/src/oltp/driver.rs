//! Runs transactions on one worker: keeps several in flight, each started at the end of an earlier one (a closed loop),
//! retries those that met a conflict, and records the results.
//!
//! The number of transactions in flight and the waits before retries adapt to the conflicts: [`Backoff`]. Every
//! transaction has a seat; the context of a continuation is the number of the seat.

use std::time::Duration;

use farm_core::time::Nanos;
use farm_core::worker::{Cont, Worker};
use farm_txn::{Backoff, BackoffConfig};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::attempt::{self, Stop, Trail};
use super::recorder::{Costs, Recorder};
use super::{Drawn, Stream};
use crate::slices::{Slicer, Slices};
use crate::smallbank::Ledger;
use crate::ycsb::stream::worker_rng;

/// Bits of an attempt's number that count the attempts of one worker.
const ATTEMPT_BITS: u32 = 40;

/// Most doublings of the wait of a transaction that meets repeated conflicts; the wait starts at the duration of one
/// attempt.
const MOST_PATIENCE: u32 = 4;

/// Length of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// A duration, the first part of which is not counted.
    Time {
        /// Duration before the counting starts.
        warmup: Duration,
        /// Duration that is counted.
        duration: Duration,
    },
    /// A number of transactions of every worker, all of which are counted.
    Transactions(u64),
}

/// The run of one worker.
#[derive(Clone, Debug)]
pub struct Run {
    /// The transactions.
    pub stream: Stream,
    /// Seed of all random choices.
    pub seed: u64,
    /// Number of the worker in the whole cluster.
    pub worker: u64,
    /// Configuration of the conflict avoidance, and the most transactions in flight.
    pub avoidance: BackoffConfig,
    /// Length of the run.
    pub length: Length,
    /// Sampling rate: one transaction in this many is timed.
    pub sampled_1_in: u32,
}

/// Result of a run on one worker.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Records of the counted part.
    pub recorder: Recorder,
    /// Executed transactions by time slice.
    pub slices: Slices,
    /// Effect of all transactions on the money, including those of the warm-up.
    pub ledger: Ledger,
    /// Duration of the counted part.
    pub duration: Duration,
    /// Why the run ended early, if it did.
    pub failure: Option<String>,
}

/// The function that receives the result.
pub type Done = Box<dyn FnOnce(Ran) + Send>;

/// A transaction in flight.
#[derive(Clone, Copy)]
struct Seat {
    what: Drawn,
    /// Number of attempts that met conflicts.
    failed: u32,
    /// Start of this attempt: the time of the turn.
    tried: Nanos,
    /// Start of the transaction, if it is timed.
    began: Option<Nanos>,
}

struct Driver {
    stream: Stream,
    rng: Xoshiro256PlusPlus,
    backoff: Backoff,
    seats: Vec<Option<Seat>>,
    /// Seats without a transaction.
    free: Vec<usize>,
    /// Number of transactions still to start, if the run is bounded by it.
    left: u64,
    ends: Nanos,
    counts_from: Nanos,
    counting: bool,
    /// Number of the last attempt.
    number: u64,
    recorder: Recorder,
    slicer: Slicer,
    ledger: Ledger,
    before: Costs,
    failure: Option<String>,
    done: Option<Done>,
}

/// Runs transactions on a worker on which [`attempt::attach`] was called. Calls `done` on the worker's thread when the
/// run has ended and nothing is in flight any more. The worker continues to serve the transactions of others.
pub fn run(worker: &mut Worker, run: Run, done: Done) {
    let now = worker.clock().now();
    let (left, counts_from, ends, slicer) = match run.length {
        Length::Transactions(count) => (count, now, Nanos(u64::MAX), Slicer::new(None)),
        Length::Time { warmup, duration } => {
            let counts_from = now.after(warmup);
            let ends = counts_from.after(duration);
            (u64::MAX, counts_from, ends, Slicer::new(Some(duration)))
        }
    };
    let concurrency = run.avoidance.concurrency.max(1);
    let mut driver = Box::new(Driver {
        recorder: Recorder::new(run.stream.kinds().len(), run.sampled_1_in),
        stream: run.stream,
        rng: worker_rng(run.seed, run.worker),
        backoff: Backoff::new(run.avoidance),
        seats: vec![None; concurrency],
        free: (0..concurrency).rev().collect(),
        left,
        ends,
        counts_from,
        counting: false,
        number: run.worker << ATTEMPT_BITS,
        slicer,
        ledger: Ledger::default(),
        before: Costs::default(),
        failure: None,
        done: Some(done),
    });
    driver.start_counting(worker, now);
    driver.fill(worker);
    driver.put_back(worker);
}

impl Driver {
    /// Returns the number of transactions in flight, including those that wait for their next attempt.
    fn running(&self) -> usize {
        self.seats.len() - self.free.len()
    }

    /// Stores the driver on the worker, unless it has ended.
    fn put_back(self: Box<Self>, worker: &mut Worker) {
        if self.running() == 0 {
            self.end(worker);
        } else {
            worker.put_layer(self);
        }
    }

    fn end(mut self: Box<Self>, worker: &mut Worker) {
        let now = worker.clock().now();
        if self.counting {
            self.recorder.costs = Costs::of(worker).since(&self.before);
        } else {
            // If the run ended during the warm-up, nothing is counted.
            self.recorder.clear();
        }
        let ran = Ran {
            slices: self.slicer.finish(now, self.recorder.executed()),
            recorder: self.recorder,
            ledger: self.ledger,
            duration: now.since(self.counts_from),
            failure: self.failure,
        };
        if let Some(done) = self.done.take() {
            done(ran);
        }
    }

    fn start_counting(&mut self, worker: &mut Worker, now: Nanos) {
        if self.counting || now < self.counts_from {
            return;
        }
        self.counting = true;
        self.counts_from = now;
        self.recorder.clear();
        self.slicer.start(now);
        self.before = Costs::of(worker);
    }

    /// Starts as many transactions as may run.
    fn fill(&mut self, worker: &mut Worker) {
        while self.backoff.may_begin(self.running()) && self.goes_on(worker) {
            let Some(seat) = self.free.pop() else {
                return;
            };
            self.left -= 1;
            let began = self.recorder.sample().then(|| worker.clock().now());
            self.seats[seat] = Some(Seat {
                what: self.stream.next(&mut self.rng),
                failed: 0,
                tried: worker.now(),
                began,
            });
            self.attempt(worker, seat);
        }
    }

    fn goes_on(&self, worker: &Worker) -> bool {
        self.left > 0 && worker.now() < self.ends && self.failure.is_none()
    }

    fn attempt(&mut self, worker: &mut Worker, seat: usize) {
        let state = self.seats[seat].as_mut().expect("a transaction has a seat");
        state.tried = worker.now();
        let what = state.what;
        self.number += 1;
        attempt::run(worker, what, self.number, Cont::new(ended, seat as u64));
    }

    /// Records that the transaction of a seat was executed.
    fn executed(&mut self, worker: &mut Worker, seat: usize, trail: &Trail) {
        let Seat { what, began, .. } = self.seats[seat].expect("a transaction has a seat");
        let latency = began.map(|began| worker.clock().now() - began);
        let decision = trail
            .decision
            .as_ref()
            .expect("a committed transaction has a decision");
        let now = worker.now();
        if self.slicer.is_due(now) {
            self.slicer.advance(now, self.recorder.executed());
        }
        self.recorder.finish(what.kind(), decision.outcome, latency);
        self.ledger.committed(decision);
        self.backoff.committed(now);
        self.leave(seat);
    }

    fn leave(&mut self, seat: usize) {
        self.seats[seat] = None;
        self.free.push(seat);
    }

    /// Handles an attempt that did not commit.
    #[cold]
    fn stopped(&mut self, worker: &mut Worker, seat: usize, trail: &Trail, stop: &Stop) {
        let why = match stop {
            Stop::Conflict(why) if !worker.control().is_stopping() => {
                self.recorder.aborts.count(*why);
                let state = self.seats[seat].as_mut().expect("a transaction has a seat");
                // The worker's own random numbers: those of the transactions must stay the same for the same seed.
                let now = worker.now();
                let wait = self.backoff.aborted(state.failed, now, worker.rng());
                let attempt_ns = now - state.tried;
                let rng = worker.rng();
                let more = self
                    .backoff
                    .patience(state.failed, attempt_ns, MOST_PATIENCE, rng);
                let wait = wait + more;
                state.failed = state.failed.saturating_add(1);
                return worker.set_timer(wait, Cont::new(again, seat as u64));
            }
            Stop::Conflict(_) => "the machine is stopping".to_owned(),
            Stop::Full(why) => why.clone(),
            Stop::Lost(machine) => format!("machine {machine} is lost"),
            Stop::InDoubt(machine) => {
                let decision = trail
                    .decision
                    .as_ref()
                    .expect("a transaction in doubt has a decision");
                self.ledger.unknown(decision);
                format!("machine {machine} is lost, with transactions that may have committed")
            }
            Stop::Failed(why) => format!("{:?}: {why}", trail.what),
        };
        self.failure.get_or_insert(why);
        self.leave(seat);
    }
}

/// Retries a transaction.
fn again(worker: &mut Worker, seat: u64, (): ()) {
    let mut driver = worker.take_layer::<Driver>();
    driver.attempt(worker, seat as usize);
    worker.put_layer(driver);
}

fn ended(worker: &mut Worker, seat: u64, (trail, result): (Box<Trail>, Result<(), Stop>)) {
    let mut driver = worker.take_layer::<Driver>();
    let now = worker.now();
    driver.start_counting(worker, now);
    match result {
        Ok(()) => driver.executed(worker, seat as usize, &trail),
        Err(stop) => driver.stopped(worker, seat as usize, &trail, &stop),
    }
    attempt::give(worker, trail);
    driver.fill(worker);
    driver.put_back(worker);
}
