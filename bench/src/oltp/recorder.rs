//! The recorded transactions: counts by kind and outcome, aborts, latencies, and costs.
//!
//! Every worker has its own [`Recorder`]. They are merged after the run, also across processes.

use std::ops::AddAssign;

use farm_core::worker::Worker;
use farm_txn::{Abort, TxCounters};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::Outcome;
use crate::latency::{self, Sampling};

/// Attempts that did not commit and were retried, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aborts {
    /// Another transaction held a lock on an object.
    pub locked: u64,
    /// An object changed after the read.
    pub changed: u64,
    /// An object stayed locked for all tries of a read.
    pub timed_out: u64,
    /// Too many operations were in flight.
    pub busy: u64,
}

impl Aborts {
    /// Counts a conflict.
    pub fn count(&mut self, why: Option<Abort>) {
        let counter = match why {
            Some(Abort::Locked(_)) => &mut self.locked,
            Some(Abort::TimedOut(_)) => &mut self.timed_out,
            Some(Abort::Changed(_) | Abort::Lost(_)) => &mut self.changed,
            None => &mut self.busy,
        };
        *counter += 1;
    }

    /// Returns the sum over all reasons.
    pub fn total(&self) -> u64 {
        self.locked + self.changed + self.timed_out + self.busy
    }
}

impl AddAssign<&Aborts> for Aborts {
    fn add_assign(&mut self, other: &Aborts) {
        self.locked += other.locked;
        self.changed += other.changed;
        self.timed_out += other.timed_out;
        self.busy += other.busy;
    }
}

/// Operations that a worker sent to other machines, for its own transactions and for those of others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Costs {
    /// One-sided reads of other machines' memory, including retries: of table buckets, of objects, and of headers by
    /// validation.
    pub reads: u64,
    /// Part of `reads`: headers, by validation.
    pub header_reads: u64,
    /// Records written into other machines' logs: one one-sided write each.
    pub writes: u64,
    /// Part of `writes`: LOCK.
    pub lock_records: u64,
    /// Part of `writes`: COMMIT-PRIMARY.
    pub commit_records: u64,
    /// Part of `writes`: ABORT.
    pub abort_records: u64,
    /// Part of `writes`: TRUNCATE, only if no other record carried the truncation.
    pub truncate_records: u64,
    /// Messages sent: requests, one-way messages and replies. In the sum over all workers, each message is counted
    /// once.
    pub messages: u64,
    /// Replies to LOCK records of this worker's transactions.
    pub lock_replies: u64,
}

impl Costs {
    /// Returns the operations that a worker sent so far.
    ///
    /// # Panics
    /// If the worker has no transaction layer.
    pub fn of(worker: &mut Worker) -> Self {
        let (reads, messages) = (worker.read_counters(), worker.message_counters());
        let tx: TxCounters = farm_txn::counters(worker);
        Self {
            reads: reads.remote,
            header_reads: tx.header_reads,
            writes: tx.writes(),
            lock_records: tx.records.lock,
            commit_records: tx.records.commit_primary,
            abort_records: tx.records.abort,
            truncate_records: tx.records.truncate,
            messages: messages.calls + messages.one_way + messages.replies,
            lock_replies: tx.lock_replies,
        }
    }

    /// Returns the operations that were sent after `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        self.with(before, u64::wrapping_sub)
    }

    fn with(&self, other: &Self, both: fn(u64, u64) -> u64) -> Self {
        Self {
            reads: both(self.reads, other.reads),
            header_reads: both(self.header_reads, other.header_reads),
            writes: both(self.writes, other.writes),
            lock_records: both(self.lock_records, other.lock_records),
            commit_records: both(self.commit_records, other.commit_records),
            abort_records: both(self.abort_records, other.abort_records),
            truncate_records: both(self.truncate_records, other.truncate_records),
            messages: both(self.messages, other.messages),
            lock_replies: both(self.lock_replies, other.lock_replies),
        }
    }
}

impl AddAssign<&Costs> for Costs {
    fn add_assign(&mut self, other: &Costs) {
        *self = self.with(other, u64::wrapping_add);
    }
}

/// Why recorders cannot be merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecorderError {
    /// The sampling rates or the benchmarks differ.
    #[error("recorders of {ours:?} and {theirs:?} (kinds, sampled 1 in) cannot be merged")]
    Mixed {
        /// Number of kinds and sampling rate of the recorder that is the target of the merge.
        ours: (usize, u32),
        /// The same of the other recorder.
        theirs: (usize, u32),
    },
}

/// Counts and latencies of one worker, or of several merged workers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recorder {
    #[serde(rename = "sampled_1_in")]
    sampling: Sampling,
    kinds: Vec<PerKind>,
    /// Retried attempts; the driver adds to it directly.
    pub aborts: Aborts,
    /// Costs; the driver adds to it directly.
    pub costs: Costs,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct PerKind {
    executed: [u64; Outcome::ALL.len()],
    #[serde(with = "latency::pairs")]
    latency_ns: Histogram<u64>,
}

impl PerKind {
    fn new() -> Self {
        Self {
            executed: [0; Outcome::ALL.len()],
            latency_ns: latency::histogram(),
        }
    }
}

impl Recorder {
    /// Creates a recorder for `kinds` kinds of transactions that times one transaction in `sampled_1_in`.
    ///
    /// # Panics
    /// If `sampled_1_in` is 0.
    pub fn new(kinds: usize, sampled_1_in: u32) -> Self {
        Self {
            sampling: Sampling::new(sampled_1_in),
            kinds: (0..kinds).map(|_| PerKind::new()).collect(),
            aborts: Aborts::default(),
            costs: Costs::default(),
        }
    }

    /// Returns whether the transaction that starts now is to be timed. Call it once per transaction.
    #[inline]
    pub fn sample(&mut self) -> bool {
        self.sampling.sample()
    }

    /// Counts an executed transaction, with its latency if it was timed: from the start of its first attempt to the end
    /// of its last.
    ///
    /// # Panics
    /// If there is no such kind.
    #[inline]
    pub fn finish(&mut self, kind: usize, outcome: Outcome, latency_ns: Option<u64>) {
        let of_kind = &mut self.kinds[kind];
        of_kind.executed[outcome as usize] += 1;
        if let Some(latency_ns) = latency_ns {
            of_kind.latency_ns.saturating_record(latency_ns);
        }
    }

    /// Clears everything recorded, for the end of a warm-up.
    pub fn clear(&mut self) {
        for of_kind in &mut self.kinds {
            of_kind.executed = Default::default();
            of_kind.latency_ns.reset();
        }
        self.aborts = Aborts::default();
        self.costs = Costs::default();
    }

    /// Adds the counts and latencies of another recorder.
    ///
    /// # Errors
    /// [`RecorderError::Mixed`]; then nothing is added.
    pub fn merge(&mut self, other: &Recorder) -> Result<(), RecorderError> {
        let ours = (self.kinds.len(), self.sampled_1_in());
        let theirs = (other.kinds.len(), other.sampled_1_in());
        if ours != theirs {
            return Err(RecorderError::Mixed { ours, theirs });
        }
        for (ours, theirs) in self.kinds.iter_mut().zip(&other.kinds) {
            for (count, more) in ours.executed.iter_mut().zip(theirs.executed) {
                *count += more;
            }
            latency::add(&mut ours.latency_ns, &theirs.latency_ns);
        }
        self.aborts += &other.aborts;
        self.costs += &other.costs;
        Ok(())
    }

    /// Returns the sampling rate: one transaction in this many is timed.
    pub fn sampled_1_in(&self) -> u32 {
        self.sampling.one_in()
    }

    /// Returns the number of transactions of a kind with this outcome.
    ///
    /// # Panics
    /// If there is no such kind.
    pub fn of(&self, kind: usize, outcome: Outcome) -> u64 {
        self.kinds[kind].executed[outcome as usize]
    }

    /// Returns the number of transactions of all kinds with this outcome.
    pub fn total(&self, outcome: Outcome) -> u64 {
        let kinds = self.kinds.iter();
        kinds
            .map(|of_kind| of_kind.executed[outcome as usize])
            .sum()
    }

    /// Returns the number of executed transactions of a kind, with any outcome.
    ///
    /// # Panics
    /// If there is no such kind.
    pub fn executed_of(&self, kind: usize) -> u64 {
        self.kinds[kind].executed.iter().sum()
    }

    /// Returns the number of executed transactions, with any outcome.
    pub fn executed(&self) -> u64 {
        (0..self.kinds.len())
            .map(|kind| self.executed_of(kind))
            .sum()
    }

    /// Returns the latencies of a kind, in nanoseconds.
    ///
    /// # Panics
    /// If there is no such kind.
    pub fn latency_ns(&self, kind: usize) -> &Histogram<u64> {
        &self.kinds[kind].latency_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorder(sampled_1_in: u32, latencies: std::ops::Range<u64>) -> Recorder {
        let mut recorder = Recorder::new(2, sampled_1_in);
        for latency_ns in latencies {
            let timed = recorder.sample();
            recorder.finish(1, Outcome::Committed, timed.then_some(latency_ns));
        }
        recorder.finish(0, Outcome::NotFound, None);
        recorder.aborts.count(None);
        recorder.costs.writes = 7;
        recorder
    }

    #[test]
    fn one_in_n_is_timed_and_all_are_counted() {
        let recorder = recorder(8, 0..1000);
        assert_eq!(recorder.of(1, Outcome::Committed), 1000);
        assert_eq!(recorder.latency_ns(1).len(), 125);
        assert_eq!(
            (recorder.executed(), recorder.total(Outcome::NotFound)),
            (1001, 1)
        );
    }

    #[test]
    fn merged_recorders_add_all_counts_and_survive_serialization() {
        let mut one = recorder(1, 0..500);
        one.merge(&recorder(1, 500..1000)).unwrap();
        let text = serde_json::to_string(&one).unwrap();
        let received: Recorder = serde_json::from_str(&text).unwrap();
        let whole = recorder(1, 0..1000);
        for merged in [&one, &received] {
            assert_eq!(merged.latency_ns(1), whole.latency_ns(1));
            assert_eq!(merged.of(0, Outcome::NotFound), 2);
            assert_eq!((merged.executed_of(0), merged.executed_of(1)), (2, 1000));
            assert_eq!(merged.total(Outcome::Declined), 0);
            assert_eq!((merged.aborts.total(), merged.costs.writes), (2, 14));
        }
        assert!(one.merge(&Recorder::new(2, 4)).is_err());
        assert!(one.merge(&Recorder::new(3, 1)).is_err());
        assert!(serde_json::from_str::<Recorder>(&text.replacen("\":1", "\":0", 1)).is_err());
        one.clear();
        assert_eq!(
            (one.executed(), one.aborts, one.costs),
            (0, Aborts::default(), Costs::default())
        );
    }

    #[test]
    fn aborts_are_counted_by_reason() {
        let mut aborts = Aborts::default();
        let at = farm_core::ids::Address::NULL;
        for why in [Abort::Locked(at), Abort::Changed(at), Abort::TimedOut(at)] {
            aborts.count(Some(why));
        }
        aborts.count(None);
        let each = Aborts {
            locked: 1,
            changed: 1,
            timed_out: 1,
            busy: 1,
        };
        assert_eq!((aborts, aborts.total()), (each, 4));
    }
}
