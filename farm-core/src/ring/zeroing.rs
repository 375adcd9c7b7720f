//! The buffer of a ring, and when a receiver zeroes the space of consumed records.

use std::ops::Range;

use super::layout::Capacity;
use super::{Words, log_record_bytes};
use crate::mem::WORD_BYTES;

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

    /// Copies the body of the record that ends at `end` to `out`, as whole words.
    ///
    /// # Panics
    /// When no record with a body of `body_bytes` that ends at `end` lies between the positions of `kept`.
    pub(super) fn read_body(
        &self,
        kept: Range<u64>,
        end: u64,
        body_bytes: usize,
        out: &mut Vec<u64>,
    ) {
        let start = end - u64::from(log_record_bytes(body_bytes));
        assert!(
            kept.start <= start && end <= kept.end,
            "a record from {start} to {end} is not kept in the ring; the records from {} to {} are",
            kept.start,
            kept.end
        );
        let body = self.capacity.offset(start) as usize + 2 * WORD_BYTES;
        out.clear();
        out.resize(body_bytes.div_ceil(WORD_BYTES), 0);
        self.buffer.copy_out(body, out);
    }
}

/// The way in which a receiver zeroes the space of consumed records. A deliberate bug for tests is a
/// second implementation.
pub(super) trait Zeroing {
    /// Creates the state for a ring whose consumed space is zero up to `head`.
    fn new(head: u64) -> Self;

    /// Handles the consumption of the records from `head` to `end`. To be called before the head
    /// advances: afterwards the sender may write to this space.
    fn on_consumed<W: Words>(&mut self, space: Space<'_, W>, head: u64, end: u64);

    /// Handles a look of the receiver for a record at the read position. `is_empty` returns whether
    /// no record is there.
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
