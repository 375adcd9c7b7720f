//! The system's allocator, which counts what threads that ask for it allocate: for tests of how much that is.

#![allow(unsafe_code)] // The allocator; nothing else.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The allocator.
pub(crate) struct Counting;

thread_local! {
    static COUNTS: Cell<bool> = const { Cell::new(false) };
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
    static MOST: Cell<i64> = const { Cell::new(0) };
}

/// What a thread allocated while it counted.
#[allow(dead_code)] // Each test looks at one of the two kinds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocated {
    /// Calls that gave memory.
    pub(crate) times: u64,
    /// Bytes that were not given back.
    pub(crate) bytes: i64,
    /// The most that these ever were.
    pub(crate) most_bytes: i64,
}

/// Built with `SHOW_ALLOCATIONS` set, tests print where each allocation comes from.
const SHOW: bool = option_env!("SHOW_ALLOCATIONS").is_some();

/// Whether this thread counts from now on. Returns whether it did.
pub(crate) fn count(counts: bool) -> bool {
    COUNTS.replace(counts)
}

/// What this thread allocated since the last call.
pub(crate) fn take() -> Allocated {
    Allocated {
        times: ALLOCATIONS.replace(0),
        bytes: BYTES.replace(0),
        most_bytes: MOST.replace(0),
    }
}

/// Counts a call that changed what the thread has by so many bytes.
fn note(allocations: u64, bytes: i64) {
    // A thread that ends may allocate when its locals are gone.
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

// SAFETY: every call is the system allocator's own, with the arguments that came; counting touches
// nothing but thread-locals without destructors, which allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size() as i64);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size() as i64);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        note(1, bytes as i64 - layout.size() as i64);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(old, layout, bytes) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        note(0, -(layout.size() as i64));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(old, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
