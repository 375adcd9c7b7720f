//! Deliberate bugs of rings that need more code than one expression.

use super::Words;
use super::zeroing::{BeforeTheHead, Space, Zeroing};
use crate::mutants;

/// Zeroes consumed space long after the head was reported: while the ring is in use, the five eighths of the ring
/// before the head stay unzeroed.
#[derive(Debug)]
pub(super) struct LongAfterTheHead {
    /// Position up to which consumed space is zero.
    zeroed: u64,
    /// Number of peeks since the last one that found a record.
    empty_peeks: u32,
}

fn is_on() -> bool {
    mutants::is_on("head advanced before zeroing")
}

impl Zeroing for LongAfterTheHead {
    fn new(head: u64) -> Self {
        Self {
            zeroed: head,
            empty_peeks: 0,
        }
    }

    fn on_consumed<W: Words>(&mut self, space: Space<'_, W>, head: u64, end: u64) {
        if !is_on() {
            BeforeTheHead.on_consumed(space, head, end);
        }
    }

    fn on_peek<W: Words>(
        &mut self,
        space: Space<'_, W>,
        head: u64,
        is_empty: impl FnOnce() -> bool,
    ) {
        if !is_on() {
            return;
        }
        self.empty_peeks = if is_empty() { self.empty_peeks + 1 } else { 0 };
        let kept = match self.empty_peeks {
            0 | 1 => u64::from(space.capacity.bytes() / 8 * 5),
            _ => 0,
        };
        let end = head.saturating_sub(kept).max(self.zeroed);
        space.clear(self.zeroed, end);
        self.zeroed = end;
    }
}
