//! The checked copy: a consistent image of an object from memory that its owner may be updating.

use std::sync::atomic::{Ordering, fence};

use super::{LINE_BYTES, LINE_WORDS, Memory, WORD_BYTES};

/// Most times one line, or one whole read, is tried again before the read is [`Torn`].
pub const MAX_COPY_TRIES: u32 = 64;

/// The memory changed under the copy at every try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn;

impl Memory {
    /// Copies adjacent objects of `stride` bytes, so that every line is an image of one moment and
    /// every object's header is the same after the last line as it was before (`FaRM'14 §3.5`).
    ///
    /// `out` gives the length, whole lines; the last object may be cut short. For each line the
    /// first word is loaded, the line copied, and the first word loaded again: writers mark it
    /// before and after they change the rest of the line, so an unchanged mark is an unchanged line.
    /// The caller still compares line versions with the header's.
    ///
    /// Gives the number of tries that failed before the copy was good.
    ///
    /// # Errors
    /// [`Torn`] after [`MAX_COPY_TRIES`].
    ///
    /// # Panics
    /// On a range outside the window, or when offset, stride or length are not whole lines.
    #[inline]
    pub fn copy_objects(&self, offset: usize, stride: usize, out: &mut [u64]) -> Result<u32, Torn> {
        assert!(
            stride >= LINE_BYTES
                && (offset | stride) % LINE_BYTES == 0
                && out.len() % LINE_WORDS == 0,
            "objects of {stride} bytes at {offset}, {} words, are not whole lines",
            out.len()
        );
        self.check(offset, out.len() * WORD_BYTES);
        let mut retries = 0;
        loop {
            for (i, line) in out.chunks_exact_mut(LINE_WORDS).enumerate() {
                retries += self.copy_line(offset + i * LINE_BYTES, line)?;
            }
            if self.headers_unchanged(offset, stride, out) {
                return Ok(retries);
            }
            retries += 1;
            if retries > MAX_COPY_TRIES {
                return Err(Torn);
            }
            std::hint::spin_loop();
        }
    }

    /// One line, whole. The range is checked by the caller.
    #[inline]
    fn copy_line(&self, at: usize, line: &mut [u64]) -> Result<u32, Torn> {
        for tries in 0..MAX_COPY_TRIES {
            let mark = self.word_unchecked(at).load(Ordering::Acquire);
            line[0] = mark;
            for i in 1..LINE_WORDS {
                line[i] = self.word_unchecked(at + i * WORD_BYTES).load(Ordering::Relaxed);
            }
            fence(Ordering::Acquire);
            if self.word_unchecked(at).load(Ordering::Relaxed) == mark {
                return Ok(tries);
            }
            std::hint::spin_loop();
        }
        Err(Torn)
    }

    #[inline]
    fn headers_unchanged(&self, offset: usize, stride: usize, copy: &[u64]) -> bool {
        fence(Ordering::Acquire);
        (0..copy.len() * WORD_BYTES).step_by(stride).all(|at| {
            self.word_unchecked(offset + at).load(Ordering::Relaxed) == copy[at / WORD_BYTES]
        })
    }
}

/// Copies whole lines with no check at all: the limit that the checked copy is measured against.
///
/// # Panics
/// On a range outside the window or not aligned.
#[inline]
pub fn copy_lines_raw(from: &Memory, offset: usize, out: &mut [u64]) {
    from.check(offset, out.len() * WORD_BYTES);
    // SAFETY: source inside the window by the check, destination a live unique slice; used by
    // benchmarks on memory that nobody writes at the time.
    unsafe {
        std::ptr::copy_nonoverlapping(from.at(offset).cast::<u64>(), out.as_mut_ptr(), out.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_quiet_object_copies_at_the_first_try() {
        let memory = Memory::anonymous(4096);
        let words: Vec<u64> = (1..=24).collect();
        memory.write_words(192, &words);
        let mut out = [0; 24];
        assert_eq!(memory.copy_objects(192, 192, &mut out), Ok(0));
        assert_eq!(out.as_slice(), words);
    }

    #[test]
    fn the_last_object_may_be_cut_short() {
        let memory = Memory::anonymous(4096);
        let mut out = [0; 40];
        assert_eq!(memory.copy_objects(0, 192, &mut out), Ok(0));
    }

    /// A writer that follows the marking discipline is never seen half-way through a line.
    #[test]
    fn lines_are_whole_under_a_writer() {
        let memory = Memory::anonymous(4096);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut value = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    value += 2;
                    memory.store(0, value + 1, Ordering::Relaxed);
                    fence(Ordering::Release);
                    for word in 1..8 {
                        memory.store(word * 8, value, Ordering::Relaxed);
                    }
                    memory.store(0, value, Ordering::Release);
                }
            });
            let mut good = 0;
            for _ in 0..200_000 {
                let mut line = [0; 8];
                if memory.copy_objects(0, 64, &mut line).is_ok() && line[0] % 2 == 0 {
                    assert!(line[1..].iter().all(|w| *w == line[0]), "torn line {line:?}");
                    good += 1;
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert!(good > 0);
        });
    }
}
