//! Hooks between the processors and shared memory.
//!
//! Production has none. The simulator puts a hook between every worker and the memory of its machine: with it the
//! simulator decides when a store becomes visible to other workers, in any order that the fences allow, and lets other
//! workers run between two accesses of one turn.

use std::fmt;
use std::sync::atomic::Ordering;

/// Intercepts every word access to memory made by [`Memory::hooked`](super::Memory::hooked). Offsets are bytes from the
/// start of the window that was hooked; they are inside of it, and aligned.
///
/// The calls do not name the worker that makes the access: the simulator, which schedules the workers, knows it.
pub trait Hook: Send + Sync {
    /// Loads a word.
    fn load(&self, offset: usize, order: Ordering) -> u64;
    /// Stores a word.
    fn store(&self, offset: usize, value: u64, order: Ordering);
    /// Compares and swaps a word, sequentially consistent. Returns the old value, as `Ok` if it was the expected one.
    fn compare_exchange(&self, offset: usize, expected: u64, new: u64) -> Result<u64, u64>;
    /// Adds to a word, wrapping and sequentially consistent. Returns the old value.
    fn fetch_add(&self, offset: usize, delta: u64) -> u64;
    /// Orders the accesses before it and those after it, to this and to all other memory.
    fn fence(&self, order: Ordering);
}

/// A hook, and the address at which its window begins.
pub(super) struct Hooked {
    pub(super) base: usize,
    pub(super) hook: Box<dyn Hook>,
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hooked({:#x})", self.base)
    }
}
