//! How many transactions a worker tries at once, in which order they begin, and how long they wait: its
//! [`Backoff`], wired.

use std::collections::VecDeque;
use std::time::Duration;

use farm_core::mutants;
use farm_core::worker::{Cont, Worker};

use crate::backoff::{Backoff, BackoffConfig};
use crate::error::TxError;
use crate::layer::transactions;

/// What a transaction that meets conflicts again and again waits by itself: at first up to about a commit
/// over several machines, on a host that is busy.
const PATIENCE_NANOS: u64 = 8_000;
/// It is doubled with every further conflict, but not more often.
const MOST_PATIENCE: u32 = 8;

/// What a worker's transactions that are tried until they commit have come to so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryCounters {
    /// Transactions that began: the first try of each.
    pub begun: u64,
    /// Those of them that had to wait until others had ended.
    pub queued: u64,
    /// Tries that met a conflict.
    pub conflicts: u64,
    /// Tries that were made again because there was no room.
    pub no_room: u64,
    /// Transactions that committed.
    pub committed: u64,
    /// Transactions that ended by an error, or were dropped.
    pub failed: u64,
    /// The most that ran at one time.
    pub most_at_once: usize,
}

/// Who may run now.
pub(crate) struct Gate {
    backoff: Backoff,
    running: usize,
    waiting: VecDeque<Cont<()>>,
    counters: RetryCounters,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            backoff: Backoff::new(BackoffConfig::default()),
            running: 0,
            waiting: VecDeque::new(),
            counters: RetryCounters::default(),
        }
    }
}

impl Gate {
    /// Transactions that run or wait.
    pub(crate) fn len(&self) -> usize {
        self.running + self.waiting.len()
    }

    /// Who may begin now.
    fn admit(&mut self) -> Option<Cont<()>> {
        if !self.backoff.may_begin(self.running) {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.running += 1;
        self.counters.most_at_once = self.counters.most_at_once.max(self.running);
        Some(next)
    }
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Committed,
    /// By an error; what it had read was as it should be.
    Failed,
}

impl Left {
    pub(crate) fn of(outcome: &Result<(), TxError>) -> Self {
        match outcome {
            Ok(()) => Self::Committed,
            Err(_) => Self::Failed,
        }
    }
}

/// Sets how this worker avoids conflicts from now on: waits begin from the shortest again, and all the
/// concurrency of `config` is there. Each part can be switched off.
///
/// # Panics
/// If the layer is not attached.
pub fn configure(worker: &mut Worker, config: BackoffConfig) {
    transactions(worker).gate.backoff = Backoff::new(config);
    admit_all(worker);
}

/// What came of this worker's transactions that are tried until they commit.
///
/// # Panics
/// If the layer is not attached.
pub fn counters(worker: &mut Worker) -> RetryCounters {
    transactions(worker).gate.counters
}

/// Calls the continuation, from the event loop, when one more transaction may run: in order. [`leave`]
/// follows.
pub(crate) fn enter(worker: &mut Worker, cont: Cont<()>) {
    let gate = &mut transactions(worker).gate;
    gate.counters.begun += 1;
    gate.waiting.push_back(cont);
    admit_all(worker);
    let gate = &mut transactions(worker).gate;
    gate.counters.queued += u64::from(!gate.waiting.is_empty());
}

/// A transaction that ran has ended.
pub(crate) fn leave(worker: &mut Worker, left: Left) {
    let now = worker.now();
    let gate = &mut transactions(worker).gate;
    gate.running -= 1;
    match left {
        Left::Committed => {
            gate.counters.committed += 1;
            gate.backoff.committed(now);
        }
        Left::Failed => gate.counters.failed += 1,
    }
    if !mutants::is_on("transaction that waits its turn not begun when another ends") {
        admit_all(worker);
    }
}

/// A try met a conflict, after so many others of its transaction: how long to wait before the next.
pub(crate) fn conflict(worker: &mut Worker, before: u32) -> Duration {
    let now = worker.now();
    let mut backoff = transactions(worker).gate.backoff.clone();
    let wait = backoff.aborted(before, now, worker.rng());
    let wait = wait + backoff.patience(before, PATIENCE_NANOS, MOST_PATIENCE, worker.rng());
    let gate = &mut transactions(worker).gate;
    gate.backoff = backoff;
    gate.counters.conflicts += 1;
    admit_all(worker);
    wait
}

/// A try found no room.
pub(crate) fn waits_for_room(worker: &mut Worker) {
    transactions(worker).gate.counters.no_room += 1;
}

fn admit_all(worker: &mut Worker) {
    while let Some(next) = transactions(worker).gate.admit() {
        worker.defer(next);
    }
}
