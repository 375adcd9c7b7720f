//! What workers hold when nothing is under way any more.

use serde::{Deserialize, Serialize};

use crate::history::{Access, Outcome, Transaction};

/// The client of the last read: none of the workload's.
const NOBODY: u32 = u32::MAX / 2;

/// Later than all that clients did.
const END_OF_TIME: u64 = i64::MAX as u64;

/// What a worker holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// Slots that its allocator says are taken.
    pub taken: u64,
    /// Objects that there are; told by each machine's first worker.
    pub live: u64,
    /// Its machine's objects, as they are at the end; told by the first worker. Rows are told by the
    /// owners of their shards.
    pub objects: Vec<Last>,
    /// What this worker's clients added to all the money there is, in cents.
    pub paid_in: i64,
}

/// An object at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Last {
    /// As a transaction would have read it.
    pub read: Access,
    /// The first word of its data.
    pub value: u64,
}

impl Finished {
    /// What all workers of a cluster hold, in their order.
    pub fn all(finished: impl IntoIterator<Item = Finished>) -> Finished {
        let mut all = Finished::default();
        for one in finished {
            all.taken += one.taken;
            all.live += one.live;
            all.objects.extend(one.objects);
            all.paid_in += one.paid_in;
        }
        all
    }

    /// A transaction of nobody that reads every object when all others have ended: what was written last
    /// is still there.
    pub fn last_read(&self) -> Option<Transaction> {
        let accesses: Vec<Access> = self.objects.iter().map(|object| object.read).collect();
        (!accesses.is_empty()).then_some(Transaction {
            client: NOBODY,
            begun: END_OF_TIME - 1,
            ended: END_OF_TIME,
            outcome: Outcome::Committed,
            accesses,
        })
    }
}
