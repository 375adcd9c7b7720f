//! Counters of one worker's transactions: their outcomes, and the cost of their commits.

use crate::error::{Abort, TxError};
use crate::record::Kind;

/// Aborts of commits, by the error that the caller received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AbortCounters {
    /// [`Abort::Locked`].
    pub locked: u64,
    /// [`Abort::Changed`].
    pub changed: u64,
    /// [`Abort::TimedOut`], which a read of an object on another machine returns before any commit.
    pub timed_out: u64,
    /// [`Abort::Lost`].
    pub lost: u64,
    /// All other errors: a record that is too large for a log, objects of other machines where none are allowed, or the
    /// caller's own error, which a retry helper reported after a validation of the reads.
    pub other: u64,
}

impl AbortCounters {
    /// Returns the sum over all kinds.
    pub fn total(&self) -> u64 {
        self.locked + self.changed + self.timed_out + self.lost + self.other
    }
}

/// Records that a coordinator wrote into the logs of other machines: one one-sided write each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordCounters {
    /// LOCK.
    pub lock: u64,
    /// COMMIT-BACKUP.
    pub commit_backup: u64,
    /// COMMIT-PRIMARY.
    pub commit_primary: u64,
    /// ABORT.
    pub abort: u64,
    /// TRUNCATE: only records that truncate explicitly, not truncations that other records carry.
    pub truncate: u64,
}

impl RecordCounters {
    /// Returns the sum over all kinds.
    pub fn total(&self) -> u64 {
        self.lock + self.commit_backup + self.commit_primary + self.abort + self.truncate
    }
}

/// Counts of one worker's transactions, as their coordinator. Work for the transactions of other coordinators is not
/// included: see [`Worker::log_counters`] and [`Worker::message_counters`].
///
/// [`Worker::log_counters`]: farm_core::worker::Worker::log_counters
/// [`Worker::message_counters`]: farm_core::worker::Worker::message_counters
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxCounters {
    /// Transactions that committed, including those without objects or changes.
    pub committed: u64,
    /// Committed transactions that had objects of other machines.
    pub distributed: u64,
    /// Commits that did not take effect, and reads that ended a transaction.
    pub aborts: AbortCounters,
    /// Commits whose outcome is unknown: [`TxError::InDoubt`].
    pub in_doubt: u64,
    /// Records written into logs.
    pub records: RecordCounters,
    /// One-sided reads of objects of other machines, for the application; retries are not counted.
    pub object_reads: u64,
    /// One-sided reads of headers, by validation.
    pub header_reads: u64,
    /// VALIDATE requests; each has a reply.
    pub validates: u64,
    /// LOCK-REPLY messages received.
    pub lock_replies: u64,
}

impl TxCounters {
    /// Returns the number of one-sided writes of records.
    pub fn writes(&self) -> u64 {
        self.records.total()
    }

    /// Returns the number of one-sided reads, of objects and of headers.
    pub fn reads(&self) -> u64 {
        self.object_reads + self.header_reads
    }

    /// Returns the number of messages of commits in both directions: LOCK-REPLY, VALIDATE and its reply.
    pub fn messages(&self) -> u64 {
        self.lock_replies + 2 * self.validates
    }

    /// Returns the counts since `before`, which must be earlier counts of the same worker.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        self.with(before, u64::wrapping_sub)
    }

    /// Returns the sum of these counts and those of another worker.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.with(other, u64::wrapping_add)
    }

    fn with(&self, other: &Self, both: fn(u64, u64) -> u64) -> Self {
        let (aborts, records) = (&self.aborts, &self.records);
        Self {
            committed: both(self.committed, other.committed),
            distributed: both(self.distributed, other.distributed),
            aborts: AbortCounters {
                locked: both(aborts.locked, other.aborts.locked),
                changed: both(aborts.changed, other.aborts.changed),
                timed_out: both(aborts.timed_out, other.aborts.timed_out),
                lost: both(aborts.lost, other.aborts.lost),
                other: both(aborts.other, other.aborts.other),
            },
            in_doubt: both(self.in_doubt, other.in_doubt),
            records: RecordCounters {
                lock: both(records.lock, other.records.lock),
                commit_backup: both(records.commit_backup, other.records.commit_backup),
                commit_primary: both(records.commit_primary, other.records.commit_primary),
                abort: both(records.abort, other.records.abort),
                truncate: both(records.truncate, other.records.truncate),
            },
            object_reads: both(self.object_reads, other.object_reads),
            header_reads: both(self.header_reads, other.header_reads),
            validates: both(self.validates, other.validates),
            lock_replies: both(self.lock_replies, other.lock_replies),
        }
    }

    /// Counts the outcome of a commit. If `given_up`, the transaction validated its reads only and had dropped its
    /// writes.
    #[inline]
    pub(crate) fn count(
        &mut self,
        distributed: bool,
        given_up: bool,
        result: &Result<(), TxError>,
    ) {
        match result {
            Ok(()) if given_up => self.aborts.other += 1,
            Ok(()) => {
                self.committed += 1;
                self.distributed += u64::from(distributed);
            }
            Err(error) => self.count_failed(error),
        }
    }

    /// Counts the failure of a commit, or of a read that ends a transaction.
    #[cold]
    pub(crate) fn count_failed(&mut self, error: &TxError) {
        let aborts = &mut self.aborts;
        let counter = match error {
            TxError::Abort(Abort::Locked(_)) => &mut aborts.locked,
            TxError::Abort(Abort::Changed(_)) => &mut aborts.changed,
            TxError::Abort(Abort::TimedOut(_)) => &mut aborts.timed_out,
            TxError::Abort(Abort::Lost(_)) => &mut aborts.lost,
            TxError::InDoubt(_) => &mut self.in_doubt,
            _ => &mut aborts.other,
        };
        *counter += 1;
    }

    /// Counts a record written into a log.
    #[inline]
    pub(crate) fn count_record(&mut self, kind: Kind) {
        let records = &mut self.records;
        let counter = match kind {
            Kind::Lock => &mut records.lock,
            Kind::CommitBackup => &mut records.commit_backup,
            Kind::CommitPrimary => &mut records.commit_primary,
            Kind::Abort => &mut records.abort,
            Kind::Truncate => &mut records.truncate,
        };
        *counter += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_summed_and_subtracted() {
        let mut counters = TxCounters::default();
        for result in [
            Ok(()),
            Err(TxError::Ended),
            Err(Abort::Locked(farm_core::ids::Address::NULL).into()),
        ] {
            counters.count(true, false, &result);
        }
        counters.count(true, true, &Ok(()));
        for kind in [Kind::Lock, Kind::Lock, Kind::CommitPrimary, Kind::Truncate] {
            counters.count_record(kind);
        }
        (counters.header_reads, counters.object_reads) = (3, 4);
        (counters.validates, counters.lock_replies) = (1, 2);
        assert_eq!((counters.committed, counters.distributed), (1, 1));
        assert_eq!((counters.aborts.total(), counters.aborts.locked), (3, 1));
        let sums = |c: &TxCounters| (c.writes(), c.reads(), c.messages());
        assert_eq!(sums(&counters), (4, 7, 4));
        let twice = counters.plus(&counters);
        assert_eq!(sums(&twice), (8, 14, 8));
        assert_eq!(twice.since(&counters), counters);
    }
}
