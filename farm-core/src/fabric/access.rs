//! Checks that every backend performs before it accepts a post, and reads that the processor itself
//! performs.

use std::sync::atomic::{Ordering, fence};

use super::{Arena, Counters, Read, ReadKind, Rejected, Slot, Source, Status};
use crate::mem::{LINE_BYTES, Memory, WORD_BYTES};

/// Why a post is permanently rejected.
pub(super) enum Fault {
    Closed,
    BadAccess,
}

impl Fault {
    pub(super) fn reject(self, slot: Option<Slot>) -> Rejected {
        match self {
            Fault::Closed => Rejected::Closed(slot),
            Fault::BadAccess => Rejected::BadAccess(slot),
        }
    }
}

/// Returns whether `bytes` from `offset` on are whole words within a memory of `memory_bytes`.
#[inline]
pub(super) fn fits(offset: u64, bytes: usize, memory_bytes: u64) -> bool {
    offset.is_multiple_of(WORD_BYTES as u64)
        && bytes.is_multiple_of(WORD_BYTES)
        && bytes as u64 <= memory_bytes
        && offset <= memory_bytes - bytes as u64
}

impl Read {
    /// Returns whether a slot of `slot_bytes` can hold the read, and whether a read of objects
    /// consists of whole lines.
    #[inline]
    pub fn is_well_formed(&self, slot_bytes: usize) -> bool {
        let bytes = u64::from(self.bytes);
        let whole = match self.kind {
            ReadKind::Raw => true,
            ReadKind::Objects { stride } => {
                let all = u64::from(stride) | self.from.offset | bytes;
                stride > 0 && all.is_multiple_of(LINE_BYTES as u64)
            }
        };
        whole && bytes > 0 && bytes <= slot_bytes as u64
    }
}

impl Source<'_> {
    /// Returns the number of bytes to write.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        match self {
            Source::Inline(words) => words.len() * WORD_BYTES,
            Source::Slot { bytes, .. } => *bytes as usize,
        }
    }

    /// Returns whether the source is longer than its slot, or than an inline write may be.
    #[inline]
    pub(super) fn is_too_long(&self, max_inline_bytes: usize) -> bool {
        let most = match self {
            Source::Inline(_) => max_inline_bytes,
            Source::Slot { slot, .. } => slot.bytes(),
        };
        self.bytes() > most
    }

    /// Returns the words to write.
    #[inline]
    pub(super) fn words<'a>(&'a self, arena: &'a Arena) -> &'a [u64] {
        match self {
            Source::Inline(words) => words,
            Source::Slot { slot, bytes } => &arena.words(slot)[..*bytes as usize / WORD_BYTES],
        }
    }

    /// Returns the slot, if the source is a slot.
    #[inline]
    pub(super) fn into_slot(self) -> Option<Slot> {
        match self {
            Source::Inline(_) => None,
            Source::Slot { slot, .. } => Some(slot),
        }
    }
}

/// Performs a read with the processor's loads, without a device.
#[inline]
pub(super) fn copy(
    memory: &Memory,
    read: &Read,
    slot: &mut Slot,
    arena: &mut Arena,
    counters: &mut Counters,
) -> Status {
    let out = &mut arena.words_mut(slot)[..read.bytes as usize / WORD_BYTES];
    let offset = read.from.offset as usize;
    match read.kind {
        ReadKind::Raw => {
            memory.read_words(offset, out);
            // Orders the loads of this read before all later accesses of this thread.
            fence(Ordering::Acquire);
            Status::Ok
        }
        ReadKind::Objects { stride } => {
            copy_objects(memory, offset, stride as usize, out, counters)
        }
    }
}

/// Reads adjacent objects with the processor's loads.
#[inline]
pub(super) fn copy_objects(
    memory: &Memory,
    offset: usize,
    stride: usize,
    out: &mut [u64],
    counters: &mut Counters,
) -> Status {
    match memory.copy_objects(offset, stride, out) {
        Ok(retries) => {
            counters.read_retries += u64::from(retries);
            Status::Ok
        }
        Err(_) => {
            counters.reads_torn += 1;
            Status::Torn
        }
    }
}
