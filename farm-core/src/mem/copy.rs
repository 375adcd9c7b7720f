//! The checked copy: a consistent image of an object from memory that its owner may be updating.
//!
//! `lines` describes how the lines are loaded, and why that is sound.

use std::sync::atomic::Ordering;

use super::lines::{self, LineLoads, Width};
use super::{LINE_BYTES, LINE_WORDS, Memory, WORD_BYTES};
use crate::{marks, mutants};

/// Number of times that a chunk of lines, or a whole read, is retried before the copy fails with [`Torn`].
pub const MAX_COPY_TRIES: u32 = 64;

/// Number of lines of a chunk. The lines of a chunk are checked together for a change, and copied again if there was a
/// change. Most reads consist of one chunk, and a change in a large object repeats only a small part of the copy.
const CHUNK_LINES: usize = 16;

/// The memory changed during every try of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn;

impl Memory {
    /// Copies adjacent objects of `stride` bytes, so that every line is an image of one moment and every object's
    /// header is the same after the last line as it was before (`FaRM'14 §3.5`).
    ///
    /// The length of `out` is the length of the copy, in whole lines; the last object may be cut short. For each line
    /// the first word is loaded, the line copied, and the first word loaded again: writers mark that word before and
    /// after they change the rest of the line, so an unchanged mark is an unchanged line. The caller must still compare
    /// the line versions with the header's version.
    ///
    /// Returns the number of tries that failed before the copy succeeded.
    ///
    /// # Errors
    /// [`Torn`] after [`MAX_COPY_TRIES`].
    ///
    /// # Panics
    /// On a range outside the window, or when offset, stride or length are not whole lines.
    #[inline]
    pub fn copy_objects(&self, offset: usize, stride: usize, out: &mut [u64]) -> Result<u32, Torn> {
        self.copy_objects_by(LineLoads::best(), offset, stride, out)
    }

    /// As [`Memory::copy_objects`], with the given instructions: for tests and measurements.
    ///
    /// # Errors
    /// As [`Memory::copy_objects`].
    ///
    /// # Panics
    /// As [`Memory::copy_objects`].
    #[inline]
    pub fn copy_objects_by(
        &self,
        loads: LineLoads,
        offset: usize,
        stride: usize,
        out: &mut [u64],
    ) -> Result<u32, Torn> {
        assert!(
            stride >= LINE_BYTES
                && (offset | stride).is_multiple_of(LINE_BYTES)
                && out.len().is_multiple_of(LINE_WORDS),
            "cannot copy {} words of objects of {stride} bytes from offset {offset}: these are not \
             whole lines of {LINE_BYTES} bytes",
            out.len()
        );
        self.check(offset, out.len() * WORD_BYTES);
        if out.is_empty() {
            return Ok(0);
        }
        if out.len() <= CHUNK_LINES * LINE_WORDS {
            let changed = self.copy_lines_once(loads, offset, out);
            if changed | self.headers_changed(offset, stride, out) == 0 {
                return Ok(0);
            }
        }
        self.copy_until_unchanged(loads, offset, stride, out)
    }

    /// Copies long ranges, and ranges that a writer changed during the first try.
    #[cold]
    fn copy_until_unchanged(
        &self,
        loads: LineLoads,
        offset: usize,
        stride: usize,
        out: &mut [u64],
    ) -> Result<u32, Torn> {
        let mut retries = u32::from(out.len() <= CHUNK_LINES * LINE_WORDS);
        loop {
            let mut at = offset;
            for lines in out.chunks_mut(CHUNK_LINES * LINE_WORDS) {
                retries += self.copy_unchanged_lines(loads, at, lines)?;
                at += CHUNK_LINES * LINE_BYTES;
            }
            if self.headers_changed(offset, stride, out) == 0 {
                if retries > 0 {
                    marks::mark("fabric: copy retried");
                }
                return Ok(retries);
            }
            retries += 1;
            if retries > MAX_COPY_TRIES {
                return Err(torn());
            }
            std::hint::spin_loop();
        }
    }

    /// Copies a chunk of lines, each of which is untorn. The caller must have checked the range.
    #[inline]
    fn copy_unchanged_lines(
        &self,
        loads: LineLoads,
        at: usize,
        out: &mut [u64],
    ) -> Result<u32, Torn> {
        for tries in 0..MAX_COPY_TRIES {
            if self.copy_lines_once(loads, at, out) == 0 {
                return Ok(tries);
            }
            std::hint::spin_loop();
        }
        Err(torn())
    }

    /// Copies lines, and returns zero if the first word of each line was the same before and after the line was copied.
    /// Does not branch on the loaded values, so that the cache misses of the lines overlap.
    #[inline]
    fn copy_lines_once(&self, loads: LineLoads, at: usize, out: &mut [u64]) -> u64 {
        match loads.width() {
            _ if self.is_hooked() => self.copy_words_once(at, out),
            Width::Words => self.copy_words_once(at, out),
            wide => {
                let lines = out.len() / LINE_WORDS;
                // SAFETY: the caller has checked the source range; the destination is a unique slice of as many lines,
                // and of at least one, because `chunks_mut` returns no empty slice and `copy_objects_by` returns early
                // for an empty `out`; the processor has the instructions, because `LineLoads` is constructed only for
                // widths that it has.
                unsafe { lines::copy::<true>(wide, self.at(at), out.as_mut_ptr(), lines) }
            }
        }
    }

    #[inline]
    fn copy_words_once(&self, at: usize, out: &mut [u64]) -> u64 {
        let mut changed = 0;
        for (i, line) in out.chunks_exact_mut(LINE_WORDS).enumerate() {
            let at = at + i * LINE_BYTES;
            line[0] = self.load_unchecked(at, Ordering::Acquire);
            for (j, word) in line.iter_mut().enumerate().skip(1) {
                *word = self.load_unchecked(at + j * WORD_BYTES, Ordering::Relaxed);
            }
            self.fence(Ordering::Acquire);
            changed |= self.load_unchecked(at, Ordering::Relaxed) ^ line[0];
        }
        changed
    }

    /// Returns zero if the header of every object still equals its copy.
    #[inline]
    fn headers_changed(&self, offset: usize, stride: usize, copy: &[u64]) -> u64 {
        self.fence(Ordering::Acquire);
        let (mut changed, mut at) = (0, 0);
        while at < copy.len() {
            let now = self.load_unchecked(offset + at * WORD_BYTES, Ordering::Relaxed);
            changed |= now ^ copy[at];
            at += stride / WORD_BYTES;
        }
        if changed != 0 && mutants::is_on("skip the header recheck") {
            return 0;
        }
        changed
    }
}

#[cold]
fn torn() -> Torn {
    marks::mark("fabric: copy torn");
    Torn
}

/// Copies whole lines without any check of consistency. Benchmarks compare the checked copy with it.
///
/// # Panics
/// On a range outside the window or not aligned.
#[inline]
pub fn copy_lines_raw(from: &Memory, offset: usize, out: &mut [u64]) {
    from.check(offset, out.len() * WORD_BYTES);
    debug_assert!(
        !from.is_hooked(),
        "memory whose accesses are intercepted for tests was passed to a function for benchmarks"
    );
    // SAFETY: the source is inside the window by the check, and the destination is a live unique slice; used by
    // benchmarks on memory that no thread writes at the time.
    unsafe {
        std::ptr::copy_nonoverlapping(from.at(offset).cast::<u64>(), out.as_mut_ptr(), out.len());
    }
}

/// As [`copy_lines_raw`], with the given instructions.
///
/// # Panics
/// On a range outside the window or not aligned, or a length that is not whole lines.
#[inline]
pub fn copy_lines_by(loads: LineLoads, from: &Memory, offset: usize, out: &mut [u64]) {
    assert!(
        out.len().is_multiple_of(LINE_WORDS),
        "cannot copy {} words: not a multiple of the {LINE_WORDS} words of a line",
        out.len()
    );
    match loads.width() {
        _ if from.is_hooked() => from.read_words(offset, out),
        Width::Words => from.read_words(offset, out),
        wide => {
            from.check(offset, out.len() * WORD_BYTES);
            let lines = out.len() / LINE_WORDS;
            if lines > 0 {
                // SAFETY: the source is inside the window by the check, and the destination is a unique slice of as
                // many lines, at least one; the processor has the instructions, because `LineLoads` is constructed only
                // for widths that it has.
                unsafe { lines::copy::<false>(wide, from.at(offset), out.as_mut_ptr(), lines) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;
    use std::sync::atomic::{AtomicBool, fence};
    use std::time::Duration;

    use crate::time::{Clock, Nanos};

    #[test]
    fn an_object_without_writer_is_copied_at_the_first_try() {
        let memory = Memory::anonymous(4096);
        let words: Vec<u64> = (1..=24).collect();
        memory.write_words(192, &words);
        let mut out = [0; 24];
        assert_eq!(memory.copy_objects(192, 192, &mut out), Ok(0));
        assert_eq!(out.as_slice(), words);
    }

    #[test]
    fn all_widths_copy_the_same_words_and_write_nothing_else() {
        const GUARD: u64 = 0xDEAD_BEEF;
        let memory = Memory::anonymous(8192);
        let words: Vec<u64> = (0..1024u64)
            .map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15))
            .collect();
        memory.write_words(0, &words);
        assert!(LineLoads::available().contains(&LineLoads::best()));
        for loads in LineLoads::available() {
            for lines in 0..=2 * CHUNK_LINES + 1 {
                for first in [0, 1, 7] {
                    let expected = &words[first * LINE_WORDS..][..lines * LINE_WORDS];
                    let mut out = vec![GUARD; lines * LINE_WORDS + 2];
                    let (end, at) = (lines * LINE_WORDS + 1, first * LINE_BYTES);
                    let done = memory.copy_objects_by(loads, at, 192, &mut out[1..end]);
                    assert_eq!(done, Ok(0));
                    assert_eq!(&out[1..end], expected, "{loads:?}");
                    out[1..end].fill(0);
                    copy_lines_by(loads, &memory, at, &mut out[1..end]);
                    assert_eq!(&out[1..end], expected, "{loads:?}");
                    assert_eq!((out[0], out[end]), (GUARD, GUARD), "{loads:?}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "access of")]
    fn a_copy_of_lines_past_the_window_panics() {
        let memory = Memory::anonymous(4096).window(0, 128);
        copy_lines_by(LineLoads::best(), &memory, 64, &mut [0; 16]);
    }

    /// Returns a time far enough ahead that reader and writer really run concurrently until then.
    fn end_of_race() -> Nanos {
        Clock::Host.now().after(Duration::from_millis(150))
    }

    /// Stops the writer even if the reader panics: a thread scope waits for its threads.
    struct StopOnDrop<'a>(&'a AtomicBool);

    impl Drop for StopOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_last_object_may_be_cut_short() {
        let memory = Memory::anonymous(4096);
        let mut out = [0; 40];
        assert_eq!(memory.copy_objects(0, 192, &mut out), Ok(0));
    }

    /// The last line is untorn at every moment, but it belongs to the header's version only if the header is checked
    /// again after the line.
    #[test]
    fn the_header_is_rechecked_after_the_last_line() {
        const LAST: usize = 2 * CHUNK_LINES * LINE_BYTES;
        for loads in LineLoads::available() {
            let memory = Memory::anonymous(4096);
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut value = 0;
                    while !stop.load(Ordering::Relaxed) {
                        value += 2;
                        memory.store(0, value + 1, Ordering::Relaxed);
                        fence(Ordering::Release);
                        memory.store(LAST, value, Ordering::Relaxed);
                        memory.store(0, value, Ordering::Release);
                        (0..100).for_each(|_| std::hint::spin_loop());
                    }
                });
                let _stop = StopOnDrop(&stop);
                let mut out = [0; (LAST + LINE_BYTES) / WORD_BYTES];
                let until = end_of_race();
                let mut good = 0;
                while Clock::Host.now() < until {
                    let copied = memory.copy_objects_by(loads, 0, LAST + LINE_BYTES, &mut out);
                    if copied.is_ok() && out[0] % 2 == 0 {
                        assert_eq!(out[LAST / WORD_BYTES], out[0], "{loads:?}");
                        good += 1;
                    }
                }
                assert!(good > 0, "{loads:?}: no copy succeeded");
            });
        }
    }

    /// A writer that follows the marking discipline never causes a torn line.
    #[test]
    fn lines_are_untorn_under_a_writer() {
        for loads in LineLoads::available() {
            copies_are_untorn_while_lines_are_written(loads, 0..1);
            // The header does not change, so that only the marks of the lines show a change.
            copies_are_untorn_while_lines_are_written(loads, 1..6);
            copies_are_untorn_while_lines_are_written(loads, 1..CHUNK_LINES + 2);
        }
    }

    fn copies_are_untorn_while_lines_are_written(loads: LineLoads, written: Range<usize>) {
        let memory = Memory::anonymous(4096);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut value = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    value += 2;
                    let line = written.start + value as usize / 2 % written.len();
                    let at = line * LINE_BYTES;
                    memory.store(at, value + 1, Ordering::Relaxed);
                    fence(Ordering::Release);
                    for word in 1..8 {
                        memory.store(at + word * 8, value, Ordering::Relaxed);
                    }
                    memory.store(at, value, Ordering::Release);
                }
            });
            let _stop = StopOnDrop(&stop);
            let (mut good, mut retried) = (0, 0);
            let mut out = vec![0; written.end * LINE_WORDS];
            let stride = out.len() * WORD_BYTES;
            let until = end_of_race();
            // Enough successes and retries to show that both ran concurrently, if the machine allows it in that time.
            while (good < 100_000 || retried < 1000) && Clock::Host.now() < until {
                let Ok(retries) = memory.copy_objects_by(loads, 0, stride, &mut out) else {
                    continue;
                };
                for line in out.chunks(LINE_WORDS).filter(|line| line[0] % 2 == 0) {
                    let whole = line[1..].iter().all(|word| *word == line[0]);
                    assert!(whole, "{loads:?} tore {line:?}");
                }
                good += 1;
                retried += retries;
            }
            assert!(good > 0, "{loads:?}: no copy succeeded");
        });
    }
}
