//! The results of checkers.

use std::fmt;

/// An anomaly of a history, by its standard name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Anomaly {
    /// The workload itself detected a violation, or an operation is recorded as ended before it began.
    Violation,
    /// A value was read that no transaction wrote.
    UnknownValue,
    /// Reads of a transaction contradict its own writes.
    Internal,
    /// G1a: a write of an aborted transaction was read.
    AbortedRead,
    /// G1b: a transaction read a version that the version's own writer replaced.
    IntermediateRead,
    /// Two writes replaced the same version.
    LostUpdate,
    /// Two writes of an object have the same version number, or one write has two version numbers.
    DuplicateVersion,
    /// No order of an object's writes explains the reads.
    IncompatibleOrder,
    /// G0: a cycle of transactions, each of which replaced a write of the previous transaction.
    WriteCycle,
    /// G1c: a cycle of transactions, each of which read or replaced a write of the previous transaction.
    CircularInformationFlow,
    /// G-single of two transactions: one read some writes of the other and missed others.
    FracturedRead,
    /// G-single: a cycle in which one transaction missed a write of another.
    ReadSkew,
    /// G2: a cycle in which several transactions missed writes of others.
    WriteSkew,
    /// A cycle only because of real-time order: a transaction ended before another began, but must follow it.
    StaleRead,
    /// No order of the operations on a key, or on a graph, explains their results.
    Linearizability,
    /// There are too many orders to try all of them.
    Undecided,
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Anomaly::Violation => "violation",
            Anomaly::UnknownValue => "unknown value",
            Anomaly::Internal => "internal inconsistency",
            Anomaly::AbortedRead => "G1a (aborted read)",
            Anomaly::IntermediateRead => "G1b (intermediate read)",
            Anomaly::LostUpdate => "lost update",
            Anomaly::DuplicateVersion => "duplicate version",
            Anomaly::IncompatibleOrder => "incompatible order",
            Anomaly::WriteCycle => "G0 (write cycle)",
            Anomaly::CircularInformationFlow => "G1c (circular information flow)",
            Anomaly::FracturedRead => "G-single (fractured read)",
            Anomaly::ReadSkew => "G-single (read skew)",
            Anomaly::WriteSkew => "G2 (write skew)",
            Anomaly::StaleRead => "stale read (real-time order violated)",
            Anomaly::Linearizability => "not linearizable",
            Anomaly::Undecided => "not decided",
        })
    }
}

/// The reason why a correct platform cannot produce a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The anomaly.
    pub kind: Anomaly,
    /// The transactions or operations involved, as several lines of text.
    pub text: String,
}

impl Finding {
    pub(super) fn new(kind: Anomaly, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { kind, text }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.text)
    }
}

impl std::error::Error for Finding {}

/// Counts of what a verdict covers. A history without effects always passes, so its verdict proves little.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Transactions and lock-free reads, of any outcome.
    pub transactions: usize,
    /// Effective transactions: committed transactions, and transactions of unknown outcome whose writes an effective
    /// transaction read or replaced.
    pub committed: usize,
    /// Reads of effective transactions.
    pub reads: usize,
    /// Writes of effective transactions.
    pub writes: usize,
    /// Dependencies between effective transactions.
    pub edges: usize,
    /// Operations on keys, and operations and transactions on a graph.
    pub operations: usize,
    /// Those of them that are known to have changed a pair or the graph.
    pub changed: usize,
}
