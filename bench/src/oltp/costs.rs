//! What transactions cost: retried attempts, and operations sent to other machines.

use farm_core::worker::Worker;
use farm_txn::Abort;

use crate::counters::counters;

counters! {
    /// Counters of the transactions of a worker.
    pub struct Counters {
        /// Retried attempts.
        pub aborts: Aborts,
        /// Operations sent to other machines.
        pub costs: Costs,
    }
}

counters! {
    /// Attempts that did not commit and were retried, by reason.
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
}

counters! {
    /// Operations that a worker sent to other machines, for its own transactions and for those of others.
    pub struct Costs {
        /// One-sided reads of other machines' memory, including retries: of table buckets, of objects, and of headers
        /// by validation.
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
}

impl Aborts {
    /// Counts a conflict.
    pub(crate) fn count(&mut self, why: Option<Abort>) {
        let counter = match why {
            Some(Abort::Locked(_)) => &mut self.locked,
            Some(Abort::TimedOut(_)) => &mut self.timed_out,
            Some(Abort::Changed(_) | Abort::Lost(_) | Abort::Reconfigured) => &mut self.changed,
            None => &mut self.busy,
        };
        *counter += 1;
    }

    /// Returns the sum over all reasons.
    pub fn total(&self) -> u64 {
        self.locked + self.changed + self.timed_out + self.busy
    }
}

impl crate::counters::Costs for Counters {
    fn of(worker: &mut Worker) -> Self {
        let (reads, messages) = (worker.read_counters(), worker.message_counters());
        let tx = farm_txn::counters(worker);
        let costs = Costs {
            reads: reads.remote,
            header_reads: tx.header_reads,
            writes: tx.writes(),
            lock_records: tx.records.lock,
            commit_records: tx.records.commit_primary,
            abort_records: tx.records.abort,
            truncate_records: tx.records.truncate,
            messages: messages.calls + messages.one_way + messages.replies,
            lock_replies: tx.lock_replies,
        };
        Self {
            aborts: Aborts::default(),
            costs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
