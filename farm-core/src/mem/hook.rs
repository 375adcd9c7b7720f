//! What may stand between the processors and shared memory.
//!
//! Production has none. The simulator puts one between every worker and the memory of its machine: so
//! it decides when a store becomes visible to others, in any order that the fences allow, and lets
//! others run between two accesses of one turn.

use std::fmt;
use std::sync::atomic::Ordering;

/// Sees every access by words to memory made by [`Memory::hooked`](super::Memory::hooked). Offsets are
/// bytes from the start of the window that was hooked; they are inside of it, and aligned.
///
/// Who accesses is not told: whoever lets the workers run knows which of them does.
pub trait Hook: Send + Sync {
    /// A load.
    fn load(&self, offset: usize, order: Ordering) -> u64;
    /// A store.
    fn store(&self, offset: usize, value: u64, order: Ordering);
    /// A compare-and-swap, sequentially consistent: the old value, `Ok` if it was the expected one.
    fn compare_exchange(&self, offset: usize, expected: u64, new: u64) -> Result<u64, u64>;
    /// A fetch-and-add, wrapping and sequentially consistent: the old value.
    fn fetch_add(&self, offset: usize, delta: u64) -> u64;
    /// A fence between the accesses before it and those after, to this and to all other memory.
    fn fence(&self, order: Ordering);
}

/// A hook, and where the window begins that it was put on.
pub(super) struct Hooked {
    pub(super) base: usize,
    pub(super) hook: Box<dyn Hook>,
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hooked({:#x})", self.base)
    }
}
