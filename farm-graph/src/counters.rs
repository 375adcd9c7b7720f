//! What reads of the graph cost.

use crate::pending::Goal;

/// The cost of operations of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCost {
    /// Number of operations.
    pub operations: u64,
    /// Number of objects that they read, by one-sided reads if the object is on another machine.
    pub reads: u64,
    /// Number of operations that needed a transaction. Its reads are not counted.
    pub transactions: u64,
}

/// The cost of reads without a transaction on a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCounters {
    /// [`obj_get`](crate::ops::obj_get).
    pub obj_get: ReadCost,
    /// [`assoc_count`](crate::ops::assoc_count).
    pub assoc_count: ReadCost,
    /// [`assoc_range`](crate::ops::assoc_range).
    pub assoc_range: ReadCost,
}

impl ReadCounters {
    pub(crate) fn of(&mut self, goal: Goal) -> &mut ReadCost {
        match goal {
            Goal::Node => &mut self.obj_get,
            Goal::Count(_) => &mut self.assoc_count,
            Goal::Range(_) => &mut self.assoc_range,
        }
    }
}
