//! When a receiver zeroes the space of consumed records.

use super::Words;
use super::layout::Capacity;

/// The buffer of a ring.
pub(super) struct Space<'a, W> {
    pub(super) buffer: &'a W,
    pub(super) capacity: Capacity,
}

impl<W: Words> Space<'_, W> {
    /// Zeroes the bytes between two positions.
    #[inline]
    pub(super) fn clear(&self, mut at: u64, end: u64) {
        while at < end {
            let offset = self.capacity.offset(at);
            let bytes = u64::from(self.capacity.bytes() - offset).min(end - at);
            self.buffer.clear(offset as usize, bytes as usize);
            at += bytes;
        }
    }
}

/// Zeroes the space of consumed records. The deliberate bug is another implementation.
pub(super) trait Zeroing {
    /// Begins at the head of a ring, up to which all consumed space is zero.
    fn new(head: u64) -> Self;

    /// The records from `head` to `end` are consumed, and the head is about to advance: the sender may write there then.
    fn on_consumed<W: Words>(&mut self, space: Space<'_, W>, head: u64, end: u64);

    /// The receiver looks for a record at the read position. `is_empty` says whether there is none.
    fn on_peek<W: Words>(
        &mut self,
        space: Space<'_, W>,
        head: u64,
        is_empty: impl FnOnce() -> bool,
    );
}

/// Zeroes consumed space before the head advances (`FaRM'14 §3.1`).
#[derive(Debug)]
pub(super) struct BeforeTheHead;

impl Zeroing for BeforeTheHead {
    fn new(_head: u64) -> Self {
        Self
    }

    #[inline]
    fn on_consumed<W: Words>(&mut self, space: Space<'_, W>, head: u64, end: u64) {
        space.clear(head, end);
    }

    #[inline]
    fn on_peek<W: Words>(&mut self, _: Space<'_, W>, _: u64, _: impl FnOnce() -> bool) {}
}

#[cfg(not(feature = "mutants"))]
pub(super) type Chosen = BeforeTheHead;
#[cfg(feature = "mutants")]
pub(super) type Chosen = super::faults::LongAfterTheHead;
