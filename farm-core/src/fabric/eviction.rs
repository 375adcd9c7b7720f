//! The word by which other machines tell a process that they go on without it.
//!
//! A machine that does not answer may be stopped, or slow, and go on at any later instruction. Before the others serve what it has
//! served, they set this word in its memory. The process looks at the word after each one-sided operation and before it reports what
//! follows from the operation: if the word is not set by then, the operation took place before the others went on. So no clock has to be
//! trusted (`FaRM'15 §5.1` has leases for this).

use std::sync::atomic::{Ordering, fence};

use crate::mem::{LINE_BYTES, Memory};

/// Whether a process is evicted. Clones share the word.
#[derive(Clone, Debug)]
pub struct Eviction(Memory);

impl Eviction {
    /// Creates the value for the first word of `memory`, which is 0 until the process is evicted.
    pub fn new(memory: Memory) -> Self {
        Self(memory)
    }

    /// Creates the value of a process that no other one can evict.
    pub fn never() -> Self {
        Self(Memory::anonymous(LINE_BYTES))
    }

    /// Returns whether the process is evicted. If it is not, all that this thread has loaded before was so before any machine went on
    /// without this one.
    #[inline]
    pub fn has_happened(&self) -> bool {
        // Loads before this one are not moved behind it.
        fence(Ordering::Acquire);
        self.0.load(0, Ordering::Acquire) != 0
    }

    /// As [`Eviction::has_happened`], also for what this thread has stored: it was visible before.
    #[inline]
    pub fn has_happened_after_stores(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(0, Ordering::SeqCst) != 0
    }

    /// Evicts the process. When this returns, it reports nothing any more of what it finds out from then on.
    pub fn set(&self) {
        self.0.store(0, 1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_the_word() {
        let one = Eviction::never();
        let other = one.clone();
        assert!(!other.has_happened() && !other.has_happened_after_stores());
        one.set();
        assert!(other.has_happened() && other.has_happened_after_stores());
    }
}
