//! The verdicts of checkers.

use std::fmt;

/// What is wrong with a history, by the field's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Anomaly {
    /// The workload itself saw what must not be, or recorded what cannot be.
    Violation,
    /// A value was seen that nobody wrote.
    UnknownValue,
    /// Reads of a transaction contradict its own writes.
    Internal,
    /// G1a: what an aborted transaction wrote was seen.
    AbortedRead,
    /// G1b: what its own writer replaced was seen by another.
    IntermediateRead,
    /// Two writes replaced the same one.
    LostUpdate,
    /// Two writes of an object have one version, or one write has two.
    DuplicateVersion,
    /// No order of an object's writes explains what was seen of it.
    IncompatibleOrder,
    /// G0: a cycle of writes that replaced each other.
    WriteCycle,
    /// G1c: a cycle of transactions of which each saw or replaced what the one before wrote.
    CircularInformationFlow,
    /// G-single of two: a transaction saw a part of another, and missed a part.
    FracturedRead,
    /// G-single: a cycle in which one transaction missed what another wrote.
    ReadSkew,
    /// G2: a cycle in which several transactions missed what others wrote.
    WriteSkew,
    /// A cycle only because one transaction ended before another began: somebody saw the past.
    StaleRead,
    /// No order of the operations on a key explains their answers.
    Linearizability,
    /// There are too many orders to try them all.
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

/// Why a history is not what a correct platform may show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The anomaly.
    pub kind: Anomaly,
    /// Who, when, and which objects; several lines.
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

/// How much a verdict is worth: a history in which nothing happened is always right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Transactions and lock-free reads, whatever their outcome.
    pub transactions: usize,
    /// Those that took effect: committed, or of unknown outcome and seen by one that took effect.
    pub committed: usize,
    /// Reads of those that took effect.
    pub reads: usize,
    /// Writes of those that took effect.
    pub writes: usize,
    /// Dependencies between them.
    pub edges: usize,
    /// Operations on keys.
    pub operations: usize,
    /// Those that changed something, as far as they were answered.
    pub changed: usize,
}
