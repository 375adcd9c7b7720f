//! The history of a run: the operations of all clients, and their results.
//!
//! Moments are ticks of one clock that all clients share: nanoseconds of the host's clock, or ticks of virtual time.
//! Operation A precedes operation B in real time if A ended *before* B began. Equal moments imply no order.

pub mod graph;

use farm_kv::shard::Changed;
use serde::{Deserialize, Serialize};

use graph::GraphOperation;

/// The id of a write, unique in a history. [`WriteId::INITIAL`] is the value that an object was created with.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct WriteId(pub u64);

impl WriteId {
    /// The id of the initial value of an object.
    pub const INITIAL: WriteId = WriteId(0);
}

/// An object's number in the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectId(pub u32);

/// One access of a transaction to an object. If a transaction reads and writes an object, it has both accesses, the
/// read first. It writes an object at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// The transaction read a value.
    Read {
        /// The object.
        object: ObjectId,
        /// Version of the object that was read.
        version: u64,
        /// The write that produced the value.
        id: WriteId,
        /// The write that `id` replaced, as recorded in the value itself.
        parent: WriteId,
    },
    /// The transaction replaced the value.
    Write {
        /// The object.
        object: ObjectId,
        /// The write.
        id: WriteId,
        /// The write that `id` replaced: the value that the same transaction read.
        parent: WriteId,
    },
}

impl Access {
    /// Returns the object.
    pub fn object(&self) -> ObjectId {
        match self {
            Access::Read { object, .. } | Access::Write { object, .. } => *object,
        }
    }
}

/// The outcome of a transaction, as far as its client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// All of its writes took effect.
    Committed,
    /// None of its writes took effect.
    Aborted,
    /// A machine was lost or the run ended before the outcome was known. The transaction may have taken effect, may
    /// still take effect, or may never do so.
    Unknown,
}

/// A transaction, or a single lock-free read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transaction {
    /// The client. A client has one operation at a time.
    pub client: u32,
    /// The moment just before the client requested the transaction.
    pub begun: u64,
    /// The moment just after the client knew the outcome. Meaningless if the outcome is unknown.
    pub ended: u64,
    /// The outcome.
    pub outcome: Outcome,
    /// The accesses that the transaction made or attempted. If the outcome is unknown, the list may be incomplete.
    pub accesses: Vec<Access>,
}

/// An operation on a key of a hashtable. Every value is a number that is written once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyRequest {
    /// Returns the value.
    Get,
    /// Inserts a new pair. Does nothing if the key is present.
    Insert(u64),
    /// Replaces the value. Does nothing if the key is absent.
    Update(u64),
    /// Inserts a new pair or replaces the value.
    Upsert(u64),
    /// Removes the pair.
    Remove,
}

/// The result of an operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyResult {
    /// The result of a get: the value, or `None` if the key is absent.
    Value(Option<u64>),
    /// A new pair was inserted.
    Inserted,
    /// The value was replaced.
    Updated,
    /// The pair was removed.
    Removed,
    /// No effect: the key was present.
    Exists,
    /// No effect: the key was absent.
    Absent,
    /// No effect: the table was full, or conflicts did not end.
    Refused,
}

impl From<Changed> for KeyResult {
    fn from(changed: Changed) -> Self {
        match changed {
            Changed::Inserted => KeyResult::Inserted,
            Changed::Updated => KeyResult::Updated,
            Changed::Removed => KeyResult::Removed,
            Changed::Exists => KeyResult::Exists,
            Changed::Absent => KeyResult::Absent,
        }
    }
}

/// An operation on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyOperation {
    /// The client. A client has one operation at a time.
    pub client: u32,
    /// The key.
    pub key: u64,
    /// The moment just before the client requested the operation.
    pub begun: u64,
    /// The moment just after the client knew the result. Meaningless if there is no result.
    pub ended: u64,
    /// The operation.
    pub request: KeyRequest,
    /// The result. `None` if it is not known: the operation may have taken effect, may still take effect, or may
    /// never do so.
    pub result: Option<KeyResult>,
}

/// The history of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// Transactions and lock-free reads of objects, in any order.
    pub transactions: Vec<Transaction>,
    /// Operations on a hashtable, in any order.
    pub operations: Vec<KeyOperation>,
    /// Operations on a graph, in any order.
    pub graph: Vec<GraphOperation>,
    /// Violations that the workload itself detected: torn values and broken invariants.
    pub violations: Vec<String>,
}

impl History {
    /// Appends another history.
    pub fn merge(&mut self, other: History) {
        self.transactions.extend(other.transactions);
        self.operations.extend(other.operations);
        self.graph.extend(other.graph);
        self.violations.extend(other.violations);
    }
}
