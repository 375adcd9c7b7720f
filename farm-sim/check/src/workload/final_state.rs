//! The final state of workers, when no operation is under way.

use serde::{Deserialize, Serialize};

use super::graph::AuditedNode;
use super::log::Log;
use crate::history::{Access, Outcome, Transaction};

/// The client number of the last read; no client of the workload has it.
const LAST_READ_CLIENT: u32 = u32::MAX / 2;

/// A moment after all operations of clients.
const END_OF_TIME: u64 = i64::MAX as u64;

/// The final state of a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinalState {
    /// Slots that its allocator counts as allocated. For workloads over objects, the first worker of a machine adds the
    /// machine's array objects.
    pub taken: u64,
    /// Number of objects and table blocks. Objects are counted by each machine's first worker, table blocks by the
    /// owners of their shards.
    pub live: u64,
    /// The final objects of its machine, reported by the machine's first worker. Rows are reported by the owners of
    /// their shards.
    pub objects: Vec<Last>,
    /// The nodes of its machine, reported by the machine's first worker.
    pub nodes: Vec<AuditedNode>,
    /// Cents that clients added to the total of all accounts: [`FinalState::take_paid`].
    pub paid_in: i64,
    /// Objects that entries of its machine name and that are on other machines, so that they were not counted. Only a loss separates them.
    pub elsewhere: u64,
    /// Cents that transactions add whose outcome is not known: [`FinalState::take_paid`].
    pub unsure: Vec<i64>,
}

/// The final state of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Last {
    /// The object as a transaction would read it.
    pub read: Access,
    /// The first word of its data.
    pub value: u64,
}

impl FinalState {
    /// Combines the final states of all workers of a cluster. The objects are in the order of their numbers.
    pub fn all(finished: impl IntoIterator<Item = FinalState>) -> FinalState {
        let mut all = FinalState::default();
        for one in finished {
            all.taken += one.taken;
            all.live += one.live;
            all.objects.extend(one.objects);
            all.nodes.extend(one.nodes);
            all.elsewhere += one.elsewhere;
        }
        all.objects.sort_by_key(|last| last.read.object());
        all
    }

    /// Takes what clients have added from the logs of all processes, including those that are gone.
    pub fn take_paid(&mut self, logs: &[Log]) {
        self.paid_in = logs.iter().map(|log| log.paid_in).sum();
        self.unsure = logs.iter().flat_map(|log| log.unsure.clone()).collect();
    }

    /// Returns a transaction that reads every object after all others have ended, so that the checkers verify that the
    /// last writes are present. `None` if there are no objects.
    pub fn last_read(&self) -> Option<Transaction> {
        let accesses: Vec<Access> = self.objects.iter().map(|object| object.read).collect();
        (!accesses.is_empty()).then_some(Transaction {
            client: LAST_READ_CLIENT,
            begun: END_OF_TIME - 1,
            ended: END_OF_TIME,
            outcome: Outcome::Committed,
            accesses,
        })
    }
}
