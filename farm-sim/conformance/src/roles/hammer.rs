//! A writer that updates objects continuously by the protocol of object writes (`FaRM'14 §3.5`). It stores
//! one word per step, so that a reader can run between any two of its stores.

use std::sync::atomic::{Ordering, fence};

use farm_core::mem::{LINE_BYTES, LINE_WORDS, WORD_BYTES};
use farm_core::object::header::BEING_WRITTEN;
use farm_core::object::{LockMode, Version, VersionWord};
use serde::{Deserialize, Serialize};

use super::{Actor, STOP, Step};
use crate::Node;

/// The hammered objects: adjacent, and updated one after the other in a cycle. The first object is at most
/// one version ahead of the others, and never behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hammered {
    /// Number of objects; at most 256.
    pub objects: usize,
    /// Lines of each object; at most 32.
    pub lines: usize,
    /// Upper limit, exclusive, of the steps of rest after the first update of each cycle of `rests` updates. The limit
    /// doubles after each further one.
    pub longest_rest: u64,
    /// Number of different limits, at least 1.
    pub rests: u64,
}

impl Hammered {
    /// Two objects of four lines.
    pub const USUAL: Self = Self {
        objects: 2,
        lines: 4,
        longest_rest: 128,
        rests: 1,
    };

    /// The same objects for devices whose reads take thousands of the writer's steps: some rests are longer than a read.
    pub const SLOW: Self = Self {
        rests: 8,
        ..Self::USUAL
    };

    /// Bytes of one object.
    pub(crate) const fn object_bytes(self) -> usize {
        self.lines * LINE_BYTES
    }

    /// Bytes of all objects.
    pub(crate) const fn bytes(self) -> usize {
        self.objects * self.object_bytes()
    }
}

/// Returns word number `word` of object number `object` at a version. Word 0 is the unlocked header. The
/// first word of each further line has the line version in its low 16 bits. The rest of each word is a
/// value and its complement, so that a torn word can be detected.
pub(crate) fn content(object: usize, version: Version, word: usize) -> u64 {
    let key = version.get() << 16 | (object as u64) << 8 | word as u64;
    let mixed = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    if word == 0 {
        VersionWord::of(version, LockMode::Unlocked).0
    } else if word.is_multiple_of(LINE_WORDS) {
        let half = mixed >> 40;
        (half << 24 | (!half & 0xFF_FFFF)) << 16 | u64::from(version.line())
    } else {
        let half = mixed >> 32;
        half << 32 | (!half & 0xFFFF_FFFF)
    }
}

/// Returns whether the two halves of a word fit together, for any version. True for headers and for 0.
pub(crate) fn is_whole_word(word: usize, value: u64) -> bool {
    if word == 0 || value == 0 {
        true
    } else if word.is_multiple_of(LINE_WORDS) {
        let payload = value >> 16;
        payload >> 24 == !payload & 0xFF_FFFF || payload == 0
    } else {
        value >> 32 == !value & 0xFFFF_FFFF
    }
}

/// The next step of an update.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Rest(u64),
    Lock,
    Mark(usize),
    Data(usize),
    LineVersion(usize),
    Unlock,
}

/// See [`Role::Hammer`](super::Role::Hammer).
pub(super) struct Hammer {
    what: Hammered,
    phase: Phase,
    object: usize,
    versions: Vec<Version>,
    updates: u64,
}

impl Hammer {
    pub(super) fn new(what: Hammered) -> Self {
        Self {
            what,
            phase: Phase::Rest(0),
            object: 0,
            versions: vec![Version::ZERO; what.objects],
            updates: 0,
        }
    }

    /// Returns the steps of rest after this update: a varying number, so that reads overlap with every phase.
    fn rest(&self) -> u64 {
        let limit = self.what.longest_rest << (self.updates % self.what.rests);
        (self.updates.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) % limit
    }

    fn store(&mut self, node: &Node) -> Phase {
        let memory = &node.closed;
        let lines = self.what.lines;
        let at = self.object * self.what.object_bytes();
        let old = self.versions[self.object];
        let new = old.next();
        let marked = |word: u64| word | u64::from(BEING_WRITTEN);
        match self.phase {
            Phase::Rest(left) => left.checked_sub(1).map_or(Phase::Lock, Phase::Rest),
            Phase::Lock => {
                memory.store(
                    at,
                    VersionWord::of(old, LockMode::Exclusive).0,
                    Ordering::Relaxed,
                );
                fence(Ordering::Release);
                Phase::Mark(1)
            }
            Phase::Mark(line) if line == lines => {
                fence(Ordering::Release);
                Phase::Data(1)
            }
            Phase::Mark(line) => {
                let first = at + line * LINE_BYTES;
                memory.store(
                    first,
                    marked(memory.load(first, Ordering::Relaxed)),
                    Ordering::Relaxed,
                );
                Phase::Mark(line + 1)
            }
            Phase::Data(word) if word == lines * LINE_WORDS => {
                fence(Ordering::Release);
                Phase::LineVersion(1)
            }
            Phase::Data(word) => {
                let value = content(self.object, new, word);
                let value = if word.is_multiple_of(LINE_WORDS) {
                    marked(value)
                } else {
                    value
                };
                memory.store(at + word * WORD_BYTES, value, Ordering::Relaxed);
                Phase::Data(word + 1)
            }
            Phase::LineVersion(line) if line == lines => Phase::Unlock,
            Phase::LineVersion(line) => {
                let value = content(self.object, new, line * LINE_WORDS);
                memory.store(at + line * LINE_BYTES, value, Ordering::Relaxed);
                Phase::LineVersion(line + 1)
            }
            Phase::Unlock => {
                memory.store(at, content(self.object, new, 0), Ordering::Release);
                self.versions[self.object] = new;
                self.object = (self.object + 1) % self.what.objects;
                self.updates += 1;
                Phase::Rest(self.rest())
            }
        }
    }
}

impl Actor for Hammer {
    fn step(&mut self, node: &mut Node) -> Step {
        if matches!(self.phase, Phase::Lock) && node.open.load(STOP, Ordering::Acquire) != 0 {
            return Step::Done(vec![self.updates]);
        }
        self.phase = self.store(node);
        Step::More
    }
}
