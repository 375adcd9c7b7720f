//! What a start shows its peers in its first file, and what they show it, beside the [doorbells](super::park).

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::fabric::Eviction;
use crate::mem::{LINE_BYTES, Memory, WORD_BYTES};

/// Bytes at the begin of the first file of a start: a line with the count and the time between two counts, and one with the eviction.
pub(super) const SIGNS_BYTES: usize = 2 * LINE_BYTES;

/// The signs of life of a start, and of what others have decided about it.
#[derive(Clone, Debug)]
pub(super) struct Signs(Memory);

impl Signs {
    /// Creates the value for the first [`SIGNS_BYTES`] bytes of `memory`.
    pub(super) fn of(memory: &Memory) -> Self {
        Self(memory.window(0, SIGNS_BYTES))
    }

    /// Shows the time between two signs.
    pub(super) fn begin(&self, period: Duration) {
        let nanos = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        self.0.store(WORD_BYTES, nanos, Ordering::Relaxed);
    }

    /// Returns the time between two signs; 0 before the start gives any.
    pub(super) fn period(&self) -> Duration {
        Duration::from_nanos(self.0.load(WORD_BYTES, Ordering::Relaxed))
    }

    pub(super) fn count(&self) -> u64 {
        self.0.load(0, Ordering::Relaxed)
    }

    pub(super) fn give(&self) {
        self.0
            .store(0, self.count().wrapping_add(1), Ordering::Relaxed);
    }

    pub(super) fn eviction(&self) -> Eviction {
        Eviction::new(self.0.window(LINE_BYTES, LINE_BYTES))
    }
}
