//! One connection of one endpoint, modelled on an RC queue pair: the outstanding operations in post order, and which of
//! them may proceed.
//!
//! | later operation | waits for every earlier |
//! |---|---|
//! | write, notification, read, atomic | write |
//! | atomic | atomic |
//! | any, with a fence | read, atomic |
//!
//! All other operations in flight may pass each other: reads pass reads, and writes, reads and atomics pass earlier
//! reads. The conformance suite checks that the operations keep the order of the table. `tests/sim_fabric.rs` of
//! `farm-conformance` checks that every permitted pass occurs.

use std::collections::VecDeque;

use farm_core::fabric::{Atomic, Completion, Slot, Token};
use farm_core::ids::{MachineId, WorkerId};
use farm_core::time::Nanos;

use super::config::Defect;

/// The location of a word of exported memory, or of the first of several words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Location {
    /// Index of the memory among all exports of the fabric.
    pub(super) export: usize,
    /// Offset in bytes from the start of the export.
    pub(super) offset: usize,
}

impl Location {
    /// Returns the location `bytes` bytes further.
    pub(super) fn plus(self, bytes: usize) -> Self {
        Self {
            offset: self.offset + bytes,
            ..self
        }
    }
}

/// An outstanding operation.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) number: u64,
    pub(super) fence: bool,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    Write(Writing),
    Read(Reading),
    Atomic {
        at: Location,
        op: Atomic,
        token: Token,
        seen: Option<u64>,
    },
    Notify(WorkerId),
}

#[derive(Debug)]
pub(super) struct Writing {
    pub(super) to: Location,
    pub(super) words: Vec<u64>,
    /// Number of words that have landed.
    pub(super) landed: usize,
    /// The order in which words land, as indices of `words`; `None` for the order of their addresses.
    pub(super) order: Option<Vec<usize>>,
    pub(super) signal: Option<Token>,
    pub(super) slot: Option<Slot>,
}

#[derive(Debug)]
pub(super) struct Reading {
    pub(super) from: Location,
    /// Bytes of one object in a read of objects; `None` in a raw read.
    pub(super) stride: Option<usize>,
    pub(super) out: Vec<u64>,
    /// Indices of the pieces (words, or lines of objects) that have not been collected.
    pub(super) left: Vec<u32>,
    /// The first words of the objects at the moment when the read began; empty until then.
    pub(super) headers: Vec<u64>,
    /// Number of words of a piece.
    pub(super) piece: usize,
    /// Number of times that the read may still restart.
    pub(super) retries_left: u32,
    pub(super) token: Token,
    pub(super) slot: Slot,
}

impl Reading {
    /// Discards what was collected, and starts the read over.
    pub(super) fn restart(&mut self) {
        self.headers.clear();
        self.left.clear();
        self.left.extend(0..(self.out.len() / self.piece) as u32);
    }

    /// Returns the offsets of the objects' headers, in bytes from the start of the read. Empty for a raw read.
    pub(super) fn header_offsets(&self) -> impl Iterator<Item = usize> + use<> {
        let (bytes, stride) = (self.out.len() * 8, self.stride.unwrap_or(usize::MAX));
        let bytes = if self.stride.is_some() { bytes } else { 0 };
        (0..bytes).step_by(stride)
    }
}

/// A completion that has not been delivered to its poster's endpoint.
#[derive(Debug)]
pub(super) struct Ack {
    pub(super) number: u64,
    pub(super) completion: Completion,
    /// The words that a read returned; empty for other operations.
    pub(super) data: Vec<u64>,
}

/// One endpoint's connection to one machine.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) port: usize,
    pub(super) to: MachineId,
    pub(super) operations: VecDeque<Operation>,
    pub(super) acks: Vec<Ack>,
    pub(super) stalled_until: Nanos,
    pub(super) broken: bool,
}

impl Connection {
    pub(super) fn new(port: usize, to: MachineId, broken: bool) -> Self {
        Self {
            port,
            to,
            operations: VecDeque::new(),
            acks: Vec::new(),
            stalled_until: Nanos(0),
            broken,
        }
    }

    pub(super) fn is_active(&self) -> bool {
        !(self.operations.is_empty() && self.acks.is_empty())
    }

    /// Appends to `out` the indices of the operations that may proceed now, by the table of this module.
    pub(super) fn ready(&self, defect: Option<Defect>, out: &mut Vec<usize>) {
        let (mut writes, mut reads, mut atomics) = (0, 0, 0);
        let has = |which: Defect| defect == Some(which);
        for (place, operation) in self.operations.iter().enumerate() {
            let after_writes = match operation.kind {
                Kind::Write(_) => !has(Defect::WritesUnordered),
                Kind::Read(_) => !has(Defect::ReadsPassWrites),
                Kind::Atomic { .. } => true,
                Kind::Notify(_) => !has(Defect::WakeEarly),
            };
            let atomic = matches!(operation.kind, Kind::Atomic { .. });
            let fenced = operation.fence && !has(Defect::FencesIgnored);
            let waits = after_writes && writes > 0
                || atomic && atomics > 0
                || fenced && reads + atomics > 0;
            if !waits {
                out.push(place);
            }
            match operation.kind {
                Kind::Write(_) => writes += 1,
                Kind::Read(_) => reads += 1,
                Kind::Atomic { .. } => atomics += 1,
                Kind::Notify(_) => {}
            }
        }
    }
}
