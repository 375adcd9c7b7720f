//! The allocator of the system, with counters per thread, for tests that check the number and size of allocations. A
//! thread counts only after it called [`count`].

#![allow(unsafe_code)] // Only for the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The counting allocator.
pub(crate) struct Counting;

thread_local! {
    static COUNTS: Cell<bool> = const { Cell::new(false) };
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
    static MOST: Cell<i64> = const { Cell::new(0) };
}

/// The allocations of a thread while it counted.
#[allow(dead_code)] // Each test uses one of the two kinds of counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocated {
    /// Number of calls that allocated memory.
    pub(crate) times: u64,
    /// Bytes that were allocated and not freed.
    pub(crate) bytes: i64,
    /// Maximum of `bytes`.
    pub(crate) most_bytes: i64,
}

/// If the build sets `SHOW_ALLOCATIONS`, the tests print a backtrace of each allocation.
const SHOW: bool = option_env!("SHOW_ALLOCATIONS").is_some();

/// Switches counting on or off for this thread. Returns the previous setting.
pub(crate) fn count(counts: bool) -> bool {
    COUNTS.replace(counts)
}

/// Returns the counts of this thread since the last call, and resets them.
pub(crate) fn take() -> Allocated {
    Allocated {
        times: ALLOCATIONS.replace(0),
        bytes: BYTES.replace(0),
        most_bytes: MOST.replace(0),
    }
}

/// Counts a call that changed the allocated bytes of this thread by `bytes`.
fn note(allocations: u64, bytes: i64) {
    // A thread that is ending may allocate after its thread-locals were destroyed.
    if !COUNTS.try_with(Cell::get).unwrap_or(false) {
        return;
    }
    ALLOCATIONS.set(ALLOCATIONS.get() + allocations);
    BYTES.set(BYTES.get() + bytes);
    MOST.set(MOST.get().max(BYTES.get()));
    if SHOW && allocations > 0 {
        COUNTS.set(false);
        eprintln!("{}", std::backtrace::Backtrace::force_capture());
        COUNTS.set(true);
    }
}

// SAFETY: every call is forwarded to the system allocator with unchanged arguments. Counting uses only thread-locals
// without destructors, which do not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size() as i64);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`, and the arguments are unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size() as i64);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc_zeroed`, and the arguments are unchanged.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        note(1, bytes as i64 - layout.size() as i64);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::realloc`, and the arguments are unchanged.
        unsafe { System.realloc(old, layout, bytes) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        note(0, -(layout.size() as i64));
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`, and the arguments are unchanged.
        unsafe { System.dealloc(old, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
