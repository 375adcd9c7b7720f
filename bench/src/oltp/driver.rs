//! The clients of a benchmark on one worker: they run its transactions, and retry those that met a conflict.
//!
//! The number of transactions in flight and the waits before retries adapt to the conflicts: [`Backoff`].

use std::borrow::Borrow;

use farm_core::time::Nanos;
use farm_core::worker::{Cont, Worker};
use farm_txn::{Backoff, BackoffConfig};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use super::attempt::{self, EndedCont, Stop, Trail};
use super::costs::Counters;
use super::{Drawn, Stream, task};
use crate::closed_loop::{self, Clients, ClosedLoop, Extent, again};
use crate::recorder::Recorder;
use crate::smallbank::Ledger;
use crate::ycsb::stream::worker_rng;

/// Bits of an attempt's number that count the attempts of one worker.
const ATTEMPT_BITS: u32 = 40;

/// Maximum number of doublings of the wait of a transaction that meets repeated conflicts; the wait starts at the
/// duration of one attempt.
const MOST_PATIENCE: u32 = 4;

/// The run of one worker.
#[derive(Clone, Debug)]
pub struct Run {
    /// The transactions.
    pub stream: Stream,
    /// Seed of all random choices.
    pub seed: u64,
    /// Number of the worker in the whole cluster.
    pub worker: u64,
    /// Configuration of the conflict avoidance, including the maximum number of transactions in flight.
    pub avoidance: BackoffConfig,
    /// How long, how much and how fast. `avoidance.concurrency` replaces its number of operations in flight.
    pub extent: Extent,
    /// Sampling rate: one transaction in this many is timed.
    pub sampled_1_in: u32,
    /// Whether transactions run as tasks, and not by continuations.
    pub tasks: bool,
}

/// Result of a run on one worker. It is serializable for the exchange between processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ran {
    /// What was executed.
    pub transactions: closed_loop::Ran<Counters>,
    /// Effect of all transactions on the money, including those of the warm-up.
    pub ledger: Ledger,
}

impl Borrow<closed_loop::Ran<Counters>> for Ran {
    fn borrow(&self) -> &closed_loop::Ran<Counters> {
        &self.transactions
    }
}

/// The function that receives the result.
pub type Done = Box<dyn FnOnce(Ran) + Send>;

/// A transaction in flight.
struct Pending {
    what: Drawn,
    /// Number of attempts that met conflicts.
    failed: u32,
    /// Start of this attempt: the time of the turn.
    tried: Nanos,
}

struct Transactions {
    stream: Stream,
    rng: Xoshiro256PlusPlus,
    backoff: Backoff,
    /// Number of the last attempt.
    number: u64,
    ledger: Ledger,
    /// Makes one attempt.
    attempt: fn(&mut Worker, Drawn, u64, EndedCont),
    done: Done,
}

type Driver = ClosedLoop<Transactions>;

/// Runs transactions on a worker on which [`attempt::attach`] was called. Calls `done` on the worker's thread when the
/// run has ended and nothing is in flight any more. The worker continues to serve the transactions of other workers.
pub fn run(worker: &mut Worker, run: Run, done: Done) {
    let recorder = Recorder::new(run.stream.kinds().len(), run.sampled_1_in);
    let extent = Extent {
        in_flight: run.avoidance.concurrency.max(1),
        ..run.extent
    };
    let transactions = Transactions {
        stream: run.stream,
        rng: worker_rng(run.seed, run.worker),
        backoff: Backoff::new(run.avoidance),
        number: run.worker << ATTEMPT_BITS,
        ledger: Ledger::default(),
        attempt: if run.tasks { task::run } else { attempt::run },
        done,
    };
    closed_loop::start(worker, transactions, recorder, extent);
}

impl Clients for Transactions {
    type Operation = Pending;
    type Costs = Counters;

    #[inline]
    fn may_begin(&self, running: usize) -> bool {
        self.backoff.may_begin(running)
    }

    #[inline]
    fn draw(&mut self, worker: &mut Worker) -> Option<Pending> {
        Some(Pending {
            what: self.stream.next(&mut self.rng),
            failed: 0,
            tried: worker.now(),
        })
    }

    #[inline]
    fn begin(own: &mut Driver, worker: &mut Worker, seat: usize) {
        let pending = own.operation(seat);
        pending.tried = worker.now();
        let what = pending.what;
        own.clients.number += 1;
        let number = own.clients.number;
        (own.clients.attempt)(worker, what, number, Cont::new(ended, seat));
    }

    fn end(self, _: &mut Worker, ran: closed_loop::Ran<Counters>) {
        (self.done)(Ran {
            transactions: ran,
            ledger: self.ledger,
        });
    }
}

impl Driver {
    /// Records that the transaction of a seat was executed.
    fn executed(&mut self, worker: &mut Worker, seat: usize, trail: &Trail) {
        let kind = self.operation(seat).what.kind();
        let decision = trail.decision();
        self.finish(worker, seat, kind, decision.outcome);
        self.clients.ledger.committed(decision);
        self.clients.backoff.committed(worker.now());
    }

    /// Handles an attempt that did not commit.
    #[cold]
    fn stopped(&mut self, worker: &mut Worker, seat: usize, trail: &Trail, stop: &Stop) {
        let why = match stop {
            Stop::Conflict(why) if !worker.control().is_stopping() => {
                self.recorder.counters.aborts.count(*why);
                return self.retry(worker, seat);
            }
            Stop::Conflict(_) => "the machine is stopping".to_owned(),
            Stop::Full(why) => why.clone(),
            Stop::Leaving => "the machine leaves the cluster".to_owned(),
            Stop::Lost(machine) => format!("machine {machine} is lost"),
            Stop::InDoubt(machine) => {
                self.clients.ledger.unknown(trail.decision());
                format!(
                    "machine {machine} is lost, and it is unknown whether a transaction in which it took part committed"
                )
            }
            Stop::Failed(why) => format!("{:?}: {why}", trail.what),
        };
        self.stop(seat, why);
    }

    /// Retries the transaction of a seat after a wait.
    fn retry(&mut self, worker: &mut Worker, seat: usize) {
        let pending = self.operation(seat);
        let (failed, now) = (pending.failed, worker.now());
        let attempt_ns = now - pending.tried;
        pending.failed = failed.saturating_add(1);
        // The worker's own random numbers: those of the transactions must stay the same for the same seed.
        let (backoff, rng) = (&mut self.clients.backoff, worker.rng());
        let wait = backoff.aborted(failed, now, rng);
        let more = backoff.patience(failed, attempt_ns, MOST_PATIENCE, rng);
        worker.set_timer(wait + more, Cont::new(again::<Transactions>, seat));
    }
}

fn ended(worker: &mut Worker, seat: usize, (trail, result): (Box<Trail>, Result<(), Stop>)) {
    closed_loop::resume(worker, |own: &mut Driver, worker| {
        match &result {
            Ok(()) => own.executed(worker, seat, &trail),
            Err(stop) => own.stopped(worker, seat, &trail, stop),
        }
        attempt::give(worker, trail);
    });
}
