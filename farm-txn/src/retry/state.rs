//! The state of transactions that are retried until they commit.

use std::collections::VecDeque;

use farm_core::time::Nanos;
use farm_core::worker::Cont;

use crate::backoff::{Backoff, BackoffConfig};
use crate::error::TxError;
use crate::handle::TxHandle;

/// Counts of a worker's transactions that are retried until they commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryCounters {
    /// Transactions begun: the first try of each.
    pub begun: u64,
    /// Begun transactions that had to wait until other transactions had ended.
    pub queued: u64,
    /// Tries that met a conflict.
    pub conflicts: u64,
    /// Tries repeated because there was no room.
    pub no_room: u64,
    /// Transactions committed.
    pub committed: u64,
    /// Transactions that ended with an error, or were dropped.
    pub failed: u64,
    /// Maximum number of transactions that ran at the same time.
    pub most_at_once: usize,
}

/// Admits transactions, so that a limited number runs at the same time.
pub(crate) struct Gate {
    pub(super) backoff: Backoff,
    pub(super) running: usize,
    pub(super) waiting: VecDeque<Cont<()>>,
    pub(super) counters: RetryCounters,
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
    /// Returns the number of transactions that run or wait.
    pub(crate) fn len(&self) -> usize {
        self.running + self.waiting.len()
    }

    /// Returns the next transaction if it may begin now, and counts it as running.
    pub(super) fn admit(&mut self) -> Option<Cont<()>> {
        if !self.backoff.may_begin(self.running) {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.count();
        Some(next)
    }

    /// Admits a transaction that does not wait, if none waits and it may begin now.
    pub(super) fn admit_now(&mut self) -> bool {
        let admitted = self.waiting.is_empty() && self.backoff.may_begin(self.running);
        if admitted {
            self.counters.begun += 1;
            self.count();
        }
        admitted
    }

    fn count(&mut self) {
        self.running += 1;
        self.counters.most_at_once = self.counters.most_at_once.max(self.running);
    }
}

/// How a run counts in the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admitted {
    /// As one of the transactions that run at the same time.
    Runs,
    /// Another transaction runs in its place, because it waits for something outside of the cluster.
    MadeWay,
    /// Not at all: another transaction waits for it.
    Within,
}

/// A transaction that is retried until it commits.
pub(crate) struct Run {
    pub(super) body: Cont<TxHandle>,
    pub(super) done: Cont<Result<(), TxError>>,
    pub(super) admitted: Admitted,
    pub(super) state: Tries,
    /// Error of the body, while the reads of the body are validated.
    pub(super) doubt: Option<TxError>,
    /// Error of a try that ends when the context of its transaction is no longer in use.
    pub(super) failed: Option<TxError>,
    /// Outcome to pass to `done`.
    pub(super) outcome: Option<Result<(), TxError>>,
}

/// The tries of one transaction so far.
#[derive(Default)]
pub(crate) struct Tries {
    /// Number of tries that met a conflict.
    pub(super) conflicts: u32,
    /// Time of the first try that ended with [`Abort::TimedOut`] since a try last reached its commit.
    pub(super) stuck_since: Option<Nanos>,
}
