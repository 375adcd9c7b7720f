//! What the clients of a run asked for, and what they were answered.
//!
//! Moments are nanoseconds of one clock that all clients share. Operation A came before operation B if
//! A ended *before* B began; equal moments order nothing.

use serde::{Deserialize, Serialize};

/// Names a write: unique in a history. [`WriteId::INITIAL`] is the value that an object was made with.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct WriteId(pub u64);

impl WriteId {
    /// The value that an object was made with.
    pub const INITIAL: WriteId = WriteId(0);
}

/// An object's number in the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectId(pub u32);

/// What a transaction did with one object. One that reads and writes an object has both, the read
/// first; it writes an object once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// It saw a value.
    Read {
        /// The object.
        object: ObjectId,
        /// Version of the object that was read.
        version: u64,
        /// Who wrote what was seen.
        id: WriteId,
        /// What that write replaced, as the value itself tells.
        parent: WriteId,
    },
    /// It replaced the value.
    Write {
        /// The object.
        object: ObjectId,
        /// The write.
        id: WriteId,
        /// The write that it replaced: what the same transaction read.
        parent: WriteId,
    },
}

/// How an operation ended, as far as its client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// All of it took effect.
    Committed,
    /// Nothing of it did.
    Aborted,
    /// A machine was lost, or the run ended: it took effect or not, or will yet.
    Unknown,
}

/// A transaction, or a single lock-free read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transaction {
    /// The client; it does one thing at a time.
    pub client: u32,
    /// The moment just before it was asked for.
    pub begun: u64,
    /// The moment just after its outcome was known; of an unknown outcome of no meaning.
    pub ended: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// What it did, or would have done; of an unknown outcome perhaps not all of it is known.
    pub accesses: Vec<Access>,
}

/// What was asked of a key of a hashtable. Values are numbers that are written once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Asked {
    /// The value.
    Get,
    /// A new pair; nothing if the key is there.
    Insert(u64),
    /// A new value; nothing if the key is not there.
    Update(u64),
    /// A new pair or a new value.
    Upsert(u64),
    /// The pair goes.
    Remove,
}

/// What the table answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answered {
    /// To a get.
    Value(Option<u64>),
    /// There is a new pair.
    Inserted,
    /// There is a new value.
    Updated,
    /// The pair is gone.
    Removed,
    /// Nothing was done: the key was there.
    Exists,
    /// Nothing was done: the key was not there.
    Absent,
    /// Nothing was done: there was no room, or conflicts did not end.
    Refused,
}

/// An operation on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyOperation {
    /// The client; it does one thing at a time.
    pub client: u32,
    /// The key.
    pub key: u64,
    /// The moment just before it was asked for.
    pub begun: u64,
    /// The moment just after its answer was known; of one without answer of no meaning.
    pub ended: u64,
    /// What was asked.
    pub asked: Asked,
    /// What was answered; `None` if that is not known: it took effect or not, or will yet.
    pub answered: Option<Answered>,
}

/// A history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// Transactions and lock-free reads of objects, in no order.
    pub transactions: Vec<Transaction>,
    /// Operations on a hashtable, in no order.
    pub operations: Vec<KeyOperation>,
    /// What the workload itself saw that must not be: torn values, broken invariants.
    pub violations: Vec<String>,
}

impl History {
    /// Adds what others recorded.
    pub fn merge(&mut self, other: History) {
        self.transactions.extend(other.transactions);
        self.operations.extend(other.operations);
        self.violations.extend(other.violations);
    }
}
