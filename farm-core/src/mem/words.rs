//! [`Memory`]: a window over mapped memory, accessed by words.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::hook::{Hook, Hooked};
use super::{Access, LINE_BYTES, Mapping, WORD_BYTES};

/// A window over mapped memory that other threads, processes or devices may write at any time. It is accessed by
/// aligned 64-bit words, each atomic.
///
/// Offsets are in bytes from the start of the window. Every method panics on an offset outside the window or not
/// aligned to a word: code that receives an offset from another machine must validate it first. Cloning is cheap and
/// keeps the mapping alive.
#[derive(Clone, Debug)]
pub struct Memory {
    base: NonNull<u8>,
    len: usize,
    mapping: Arc<Mapping>,
    hook: Option<Arc<Hooked>>,
}

// SAFETY: `base` points into the mapping that `mapping` keeps alive, and every access is atomic.
unsafe impl Send for Memory {}
// SAFETY: as above; the only interior state is the mapped words.
unsafe impl Sync for Memory {}

impl Memory {
    /// Creates the window over a whole mapping.
    pub fn of(mapping: Mapping) -> Self {
        let mapping = Arc::new(mapping);
        Self {
            base: mapping.base(),
            len: mapping.len(),
            mapping,
            hook: None,
        }
    }

    /// Maps zeroed memory that is private to this process.
    ///
    /// # Panics
    /// If the system has no memory left.
    pub fn anonymous(len: usize) -> Self {
        Self::of(
            Mapping::anonymous(len)
                .expect("the system must have memory left for a private mapping"),
        )
    }

    /// Returns the part `offset .. offset + len` of this window.
    pub fn window(&self, offset: usize, len: usize) -> Self {
        self.check(offset, len);
        // SAFETY: inside this window by the check, so inside the mapping.
        let base = unsafe { self.base.add(offset) };
        Self {
            base,
            len,
            mapping: Arc::clone(&self.mapping),
            hook: self.hook.clone(),
        }
    }

    /// Returns the same window, with every access through it, and through windows of it, passed to `hook`.
    pub fn hooked(&self, hook: Box<dyn Hook>) -> Self {
        let base = self.base.as_ptr() as usize;
        Self {
            hook: Some(Arc::new(Hooked { base, hook })),
            ..self.clone()
        }
    }

    /// Returns the hook, and the offset in the hooked window of the byte at `offset` in this window.
    #[cold]
    fn through<'a>(&self, hooked: &'a Hooked, offset: usize) -> (&'a dyn Hook, usize) {
        let at = self.base.as_ptr() as usize - hooked.base + offset;
        (&*hooked.hook, at)
    }

    /// Returns whether accesses go through a hook.
    #[inline]
    pub(super) fn is_hooked(&self) -> bool {
        self.hook.is_some()
    }

    /// Returns the bytes in the window.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the window has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the access that the mapping allows.
    pub fn access(&self) -> Access {
        self.mapping.access()
    }

    #[inline]
    pub(super) fn check(&self, offset: usize, len: usize) {
        assert!(
            offset.is_multiple_of(WORD_BYTES) && len <= self.len && offset <= self.len - len,
            "an access of {len} bytes at offset {offset} is misaligned, or outside of the window of {} bytes",
            self.len
        );
    }

    #[inline]
    fn check_writable(&self) {
        assert!(
            self.mapping.access() == Access::ReadWrite,
            "cannot store to a mapping that is read-only"
        );
    }

    /// Returns the address of `offset`. The caller must have checked the range.
    #[inline]
    pub(super) fn at(&self, offset: usize) -> *const u8 {
        // SAFETY: callers pass offsets they have checked against the window.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Returns the address of the window, for a device that accesses it.
    pub(crate) fn start(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Returns the bytes of the smallest page of the mapping; if another process created the mapping, the system's page
    /// size.
    pub fn page_bytes(&self) -> usize {
        self.mapping.page_bytes()
    }

    /// Loads the word at `offset`.
    #[inline]
    pub fn load(&self, offset: usize, order: Ordering) -> u64 {
        self.check(offset, WORD_BYTES);
        self.load_unchecked(offset, order)
    }

    /// Stores the word at `offset`.
    #[inline]
    pub fn store(&self, offset: usize, value: u64, order: Ordering) {
        self.check(offset, WORD_BYTES);
        self.check_writable();
        self.store_unchecked(offset, value, order);
    }

    /// Compares and swaps the word at `offset` (sequentially consistent). Returns the old value in both cases.
    #[inline]
    pub fn compare_exchange(&self, offset: usize, expected: u64, new: u64) -> Result<u64, u64> {
        self.check(offset, WORD_BYTES);
        self.check_writable();
        if let Some(hooked) = &self.hook {
            let (hook, offset) = self.through(hooked, offset);
            return hook.compare_exchange(offset, expected, new);
        }
        self.word(offset)
            .compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst)
    }

    /// Adds to the word at `offset` (wrapping, sequentially consistent), and returns the old value.
    #[inline]
    pub fn fetch_add(&self, offset: usize, delta: u64) -> u64 {
        self.check(offset, WORD_BYTES);
        self.check_writable();
        if let Some(hooked) = &self.hook {
            let (hook, offset) = self.through(hooked, offset);
            return hook.fetch_add(offset, delta);
        }
        self.word(offset).fetch_add(delta, Ordering::SeqCst)
    }

    /// Orders accesses to shared memory, this and any other, like [`std::sync::atomic::fence`].
    #[inline]
    pub fn fence(&self, order: Ordering) {
        if let Some(hooked) = &self.hook {
            return hooked.hook.fence(order);
        }
        fence(order);
    }

    /// Copies words into `out`, each of them atomically, in an unspecified order.
    #[inline]
    pub fn read_words(&self, offset: usize, out: &mut [u64]) {
        self.check(offset, out.len() * WORD_BYTES);
        for (i, word) in out.iter_mut().enumerate() {
            *word = self.load_unchecked(offset + i * WORD_BYTES, Ordering::Relaxed);
        }
    }

    /// Stores words in increasing address order, as a one-sided write does (an RC queue pair places data in increasing
    /// order, `FaRM'14 §2`). Each store is a release, so that a reader that sees a word also sees every word before it
    /// and every earlier write; on x86-64 that costs nothing.
    #[inline]
    pub fn write_words(&self, offset: usize, words: &[u64]) {
        self.check(offset, words.len() * WORD_BYTES);
        self.check_writable();
        for (i, word) in words.iter().enumerate() {
            self.store_unchecked(offset + i * WORD_BYTES, *word, Ordering::Release);
        }
    }

    /// Zeroes `len` bytes (a multiple of a word).
    #[inline]
    pub fn zero(&self, offset: usize, len: usize) {
        assert!(
            len.is_multiple_of(WORD_BYTES),
            "cannot zero {len} bytes: not a multiple of {WORD_BYTES}"
        );
        self.check(offset, len);
        self.check_writable();
        for at in (offset..offset + len).step_by(WORD_BYTES) {
            self.store_unchecked(at, 0, Ordering::Relaxed);
        }
    }

    /// Loads a word. The caller must have checked the range.
    #[inline]
    pub(super) fn load_unchecked(&self, offset: usize, order: Ordering) -> u64 {
        if let Some(hooked) = &self.hook {
            let (hook, offset) = self.through(hooked, offset);
            return hook.load(offset, order);
        }
        self.word(offset).load(order)
    }

    /// Stores a word. The caller must have checked the range and that the mapping is writable.
    #[inline]
    fn store_unchecked(&self, offset: usize, value: u64, order: Ordering) {
        if let Some(hooked) = &self.hook {
            let (hook, offset) = self.through(hooked, offset);
            return hook.store(offset, value, order);
        }
        self.word(offset).store(value, order);
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: callers have checked that the word is inside the window and aligned; the mapping
        // outlives `self`; atomics may be shared with any number of writers.
        unsafe { &*self.at(offset).cast::<AtomicU64>() }
    }

    /// Returns the address of the low half of a word, for futex calls (little-endian hosts).
    ///
    /// # Panics
    /// On an offset outside the window.
    pub(crate) fn futex_word(&self, offset: usize) -> *const u32 {
        self.check(offset, WORD_BYTES);
        self.at(offset).cast()
    }

    /// Prefetches the lines of a range into the cache. Never faults, changes nothing.
    #[inline]
    pub fn prefetch(&self, offset: usize, len: usize) {
        self.check(offset, len);
        let mut at = offset;
        while at < offset + len {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a prefetch of an address inside the mapping; it has no effect on contents.
            unsafe {
                std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
                    self.at(at).cast(),
                );
            }
            at += LINE_BYTES;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_back_as_written() {
        let memory = Memory::anonymous(4096);
        memory.write_words(128, &[1, 2, 3]);
        let mut out = [0; 4];
        memory.read_words(120, &mut out);
        assert_eq!(out, [0, 1, 2, 3]);
        memory.zero(128, 16);
        assert_eq!(memory.load(136, Ordering::Relaxed), 0);
        assert_eq!(memory.load(144, Ordering::Relaxed), 3);
    }

    #[test]
    fn compare_exchange_and_fetch_add_return_the_old_value() {
        let memory = Memory::anonymous(64);
        assert_eq!(memory.compare_exchange(0, 0, 5), Ok(0));
        assert_eq!(memory.compare_exchange(0, 0, 6), Err(5));
        assert_eq!(memory.fetch_add(0, 2), 5);
        assert_eq!(memory.load(0, Ordering::Relaxed), 7);
    }

    /// Records the accesses, and stores nothing.
    #[derive(Default)]
    struct Log(std::sync::Mutex<Vec<String>>);

    impl Log {
        fn note(&self, what: String) {
            self.0.lock().unwrap().push(what);
        }
    }

    impl Hook for Arc<Log> {
        fn load(&self, offset: usize, _: Ordering) -> u64 {
            self.note(format!("load {offset}"));
            7
        }
        fn store(&self, offset: usize, value: u64, order: Ordering) {
            self.note(format!("store {offset} {value} {order:?}"));
        }
        fn compare_exchange(&self, offset: usize, expected: u64, new: u64) -> Result<u64, u64> {
            self.note(format!("swap {offset} {expected} {new}"));
            Err(9)
        }
        fn fetch_add(&self, offset: usize, delta: u64) -> u64 {
            self.note(format!("add {offset} {delta}"));
            11
        }
        fn fence(&self, order: Ordering) {
            self.note(format!("fence {order:?}"));
        }
    }

    #[test]
    fn every_access_goes_to_the_hook_and_none_to_memory() {
        let memory = Memory::anonymous(4096);
        let log = Arc::new(Log::default());
        let seen = memory.window(64, 512).hooked(Box::new(Arc::clone(&log)));
        let part = seen.window(128, 128);
        assert_eq!(part.load(8, Ordering::Acquire), 7);
        part.store(16, 3, Ordering::Release);
        assert_eq!(part.compare_exchange(0, 1, 2), Err(9));
        assert_eq!(part.fetch_add(0, 4), 11);
        part.fence(Ordering::Release);
        part.write_words(0, &[5, 6]);
        part.zero(0, 8);
        let mut line = [0; 8];
        assert_eq!(part.copy_objects(0, 64, &mut line), Ok(0));
        assert_eq!(line, [7; 8]);
        let expected = [
            "load 136",
            "store 144 3 Release",
            "swap 128 1 2",
            "add 128 4",
            "fence Release",
            "store 128 5 Release",
            "store 136 6 Release",
            "store 128 0 Relaxed",
        ];
        let log = log.0.lock().unwrap();
        assert_eq!(log[..expected.len()], expected);
        assert!(
            log[expected.len()..].contains(&"load 184".into()),
            "{log:?}"
        );
        let mut words = [0; 512];
        memory.read_words(0, &mut words);
        assert_eq!(words, [0; 512]);
    }

    #[test]
    #[should_panic(expected = "access of 8 bytes")]
    fn an_access_past_the_window_panics() {
        let memory = Memory::anonymous(4096).window(64, 64);
        memory.load(64, Ordering::Relaxed);
    }

    #[test]
    #[should_panic(expected = "access of")]
    fn an_offset_that_would_wrap_panics() {
        let memory = Memory::anonymous(4096);
        memory.read_words(usize::MAX - 7, &mut [0; 4]);
    }

    #[test]
    #[should_panic(expected = "access of")]
    fn an_unaligned_access_panics() {
        Memory::anonymous(4096).load(4, Ordering::Relaxed);
    }
}
