//! The checked copy: a consistent image of an object from memory that its owner may be updating.
//!
//! It is the hot path of every read, so lines are loaded by the widest instructions that the
//! processor has. Random reads of 384 bytes from 4 GiB, 32 at a time (Sapphire Rapids, 4 KiB pages;
//! `farm bench limit` measures it anywhere): words 7.5 million a second, 64-byte loads 8.0 million,
//! memcpy without any check 8.1 million; from the first-level cache 74, 155 and 234 million.
//!
//! # Why a copy by vectors is sound
//!
//! The loads are inline assembly, so the compiler sees no access of the language's at all and can
//! assume nothing about the memory but what the assembly answers: that the first word of every line
//! was the same before and after the line was loaded, or that some was not. In the second case the
//! copy is thrown away, so it does not matter what a racing store left in it. In the first, writers
//! that keep to the discipline (mark the line's first word, change the line, set the word to what it
//! never was before) have not stored to the line in between. The copy is then what relaxed atomic
//! loads of its words would have given: the assembly does nothing that atomics could not.
//!
//! The processor must load the first word, then the line, then the first word again. x86-64 keeps
//! the order of loads from write-back memory (Intel SDM 3A 9.2.2, AMD APM 2 7.2). That binds the
//! loads of different instructions; the pieces that a wide load may be split into can come in any
//! order, which is why the first word is loaded by itself before and after. Nothing is assumed about
//! the atomicity of a wide load, and the first word of the copy, which the wide load brought between
//! the two, is that same word.

use std::sync::atomic::{Ordering, fence};

use super::{LINE_BYTES, LINE_WORDS, Memory, WORD_BYTES};

/// Most times some lines, or one whole read, are tried again before the read is [`Torn`].
pub const MAX_COPY_TRIES: u32 = 64;

/// Lines that are copied before a change in one of them is noticed and they are copied again: as
/// many as most reads have, few enough that a writer elsewhere in a large object is not in the way.
const CHUNK_LINES: usize = 16;

/// The memory changed under the copy at every try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn;

/// The instructions by which whole lines are loaded: only such as this processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineLoads(Width);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    /// Atomic words.
    Words,
    /// 16 bytes.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Sse,
    /// 32 bytes.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Avx,
    /// A line.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Avx512,
}

impl LineLoads {
    /// By atomic words: the reference, and all that processors other than x86-64 have.
    pub const WORDS: Self = Self(Width::Words);

    /// The widest that this processor has. Found out once; a load and a branch from then on.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[inline]
    pub fn best() -> Self {
        if std::is_x86_feature_detected!("avx512f") {
            Self(Width::Avx512)
        } else if std::is_x86_feature_detected!("avx") {
            Self(Width::Avx)
        } else {
            Self(Width::Sse)
        }
    }

    /// The widest that this processor has.
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    pub fn best() -> Self {
        Self::WORDS
    }

    /// All that this processor has, the narrowest first.
    pub fn available() -> Vec<Self> {
        let mut all = vec![Self::WORDS];
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            all.push(Self(Width::Sse));
            all.extend(std::is_x86_feature_detected!("avx").then_some(Self(Width::Avx)));
            all.extend(std::is_x86_feature_detected!("avx512f").then_some(Self(Width::Avx512)));
        }
        all
    }

    /// What they are called in results.
    pub fn name(self) -> &'static str {
        match self.0 {
            Width::Words => "words",
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Width::Sse => "sse",
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Width::Avx => "avx",
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Width::Avx512 => "avx512",
        }
    }
}

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
        self.copy_objects_by(LineLoads::best(), offset, stride, out)
    }

    /// As [`Memory::copy_objects`], by these instructions: for tests and measurements.
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
                && (offset | stride) % LINE_BYTES == 0
                && out.len() % LINE_WORDS == 0,
            "objects of {stride} bytes at {offset}, {} words, are not whole lines",
            out.len()
        );
        self.check(offset, out.len() * WORD_BYTES);
        let mut retries = 0;
        loop {
            let mut at = offset;
            for lines in out.chunks_mut(CHUNK_LINES * LINE_WORDS) {
                retries += self.copy_unchanged_lines(loads, at, lines)?;
                at += CHUNK_LINES * LINE_BYTES;
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

    /// Some lines, each whole. The range is checked by the caller.
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
        Err(Torn)
    }

    /// Copies lines and gives a word that is zero if each one's first word was the same before it
    /// was copied and after. No branch on what is loaded, so that the lines' misses overlap.
    #[inline]
    fn copy_lines_once(&self, loads: LineLoads, at: usize, out: &mut [u64]) -> u64 {
        match loads.0 {
            Width::Words => self.copy_words_once(at, out),
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            wide => {
                let lines = out.len() / LINE_WORDS;
                // SAFETY: the caller has checked the source range; the destination is a unique
                // slice of as many lines, at least one as `chunks_mut` gives no empty slice; the
                // processor has the instructions, else there would be no such `LineLoads`.
                unsafe { x86::copy::<true>(wide, self.at(at), out.as_mut_ptr(), lines) }
            }
        }
    }

    #[inline]
    fn copy_words_once(&self, at: usize, out: &mut [u64]) -> u64 {
        let mut changed = 0;
        for (i, line) in out.chunks_exact_mut(LINE_WORDS).enumerate() {
            let at = at + i * LINE_BYTES;
            line[0] = self.word_unchecked(at).load(Ordering::Acquire);
            for (j, word) in line.iter_mut().enumerate().skip(1) {
                *word = self
                    .word_unchecked(at + j * WORD_BYTES)
                    .load(Ordering::Relaxed);
            }
            fence(Ordering::Acquire);
            changed |= self.word_unchecked(at).load(Ordering::Relaxed) ^ line[0];
        }
        changed
    }

    #[inline]
    fn headers_unchanged(&self, offset: usize, stride: usize, copy: &[u64]) -> bool {
        fence(Ordering::Acquire);
        let mut changed = 0;
        let mut at = offset;
        for object in copy.chunks(stride / WORD_BYTES) {
            changed |= self.word_unchecked(at).load(Ordering::Relaxed) ^ object[0];
            at += stride;
        }
        changed == 0
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

/// As [`copy_lines_raw`], by these instructions; whole words whoever writes.
///
/// # Panics
/// On a range outside the window or not aligned, or a length that is not whole lines.
#[inline]
pub fn copy_lines_by(loads: LineLoads, from: &Memory, offset: usize, out: &mut [u64]) {
    assert!(
        out.len() % LINE_WORDS == 0,
        "{} words are not whole lines",
        out.len()
    );
    match loads.0 {
        Width::Words => from.read_words(offset, out),
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        wide => {
            from.check(offset, out.len() * WORD_BYTES);
            let lines = out.len() / LINE_WORDS;
            if lines > 0 {
                // SAFETY: source inside the window by the check, destination a unique slice of as
                // many lines, at least one; the processor has the instructions.
                unsafe { x86::copy::<false>(wide, from.at(offset), out.as_mut_ptr(), lines) };
            }
        }
    }
}

/// The loops over lines, in assembly. The module's documentation tells why they are sound.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use std::arch::asm;

    use super::Width;

    /// A loop over `$lines` lines that are copied by `$copy`. The checked one loads the first word
    /// before and after, and gathers in `$changed` every bit in which the two ever differ.
    macro_rules! copy_lines {
        ($check:expr, $from:ident, $to:ident, $lines:ident, $changed:ident,
         [$($copy:literal),+], [$($end:literal),*], [$($clobber:tt),+]) => {
            if $check {
                asm!(
                    "2:",
                    "mov {mark}, [{from}]",
                    $($copy,)+
                    "xor {mark}, [{from}]",
                    "or {changed}, {mark}",
                    "add {from}, 64",
                    "add {to}, 64",
                    "dec {lines}",
                    "jnz 2b",
                    $($end,)*
                    mark = out(reg) _,
                    changed = inout(reg) $changed,
                    from = inout(reg) $from => _,
                    to = inout(reg) $to => _,
                    lines = inout(reg) $lines => _,
                    $(out($clobber) _,)+
                    options(nostack),
                )
            } else {
                asm!(
                    "2:",
                    $($copy,)+
                    "add {from}, 64",
                    "add {to}, 64",
                    "dec {lines}",
                    "jnz 2b",
                    $($end,)*
                    from = inout(reg) $from => _,
                    to = inout(reg) $to => _,
                    lines = inout(reg) $lines => _,
                    $(out($clobber) _,)+
                    options(nostack),
                )
            }
        };
    }

    /// Copies `lines` lines, at least one. With `CHECK`, zero if the first word of each was the same
    /// before and after; without, zero.
    ///
    /// # Safety
    /// `from` and `to` are good for so many lines, nobody else uses `to`, and the processor has the
    /// instructions of `width`.
    #[inline]
    pub(super) unsafe fn copy<const CHECK: bool>(
        width: Width,
        from: *const u8,
        to: *mut u64,
        lines: usize,
    ) -> u64 {
        debug_assert!(lines > 0);
        let mut changed = 0u64;
        // SAFETY: the caller's promises. Registers 16 and up need no `vzeroupper`; the others' upper
        // halves are zeroed, as the code around expects them.
        unsafe {
            match width {
                Width::Words => unreachable!("words are not copied by assembly"),
                Width::Sse => copy_lines!(
                    CHECK,
                    from,
                    to,
                    lines,
                    changed,
                    [
                        "movups xmm0, [{from}]",
                        "movups xmm1, [{from} + 16]",
                        "movups xmm2, [{from} + 32]",
                        "movups xmm3, [{from} + 48]",
                        "movups [{to}], xmm0",
                        "movups [{to} + 16], xmm1",
                        "movups [{to} + 32], xmm2",
                        "movups [{to} + 48], xmm3"
                    ],
                    [],
                    ["xmm0", "xmm1", "xmm2", "xmm3"]
                ),
                Width::Avx => copy_lines!(
                    CHECK,
                    from,
                    to,
                    lines,
                    changed,
                    [
                        "vmovdqu ymm0, [{from}]",
                        "vmovdqu ymm1, [{from} + 32]",
                        "vmovdqu [{to}], ymm0",
                        "vmovdqu [{to} + 32], ymm1"
                    ],
                    ["vzeroupper"],
                    [
                        "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8",
                        "ymm9", "ymm10", "ymm11", "ymm12", "ymm13", "ymm14", "ymm15"
                    ]
                ),
                Width::Avx512 => copy_lines!(
                    CHECK,
                    from,
                    to,
                    lines,
                    changed,
                    ["vmovdqu64 zmm16, [{from}]", "vmovdqu64 [{to}], zmm16"],
                    [],
                    ["zmm16"]
                ),
            }
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

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
    fn all_instructions_copy_the_same_and_nothing_around_it() {
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
    fn lines_past_the_window_are_refused() {
        let memory = Memory::anonymous(4096).window(0, 128);
        copy_lines_by(LineLoads::best(), &memory, 64, &mut [0; 16]);
    }

    /// Ends the writer however the reader ends: a scope waits for its threads.
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

    /// The last line is whole at every moment, but of the header's time only if the header is looked
    /// at again after it.
    #[test]
    fn the_header_is_of_the_same_moment_as_the_last_line() {
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
                let until = Instant::now() + Duration::from_millis(300);
                let mut good = 0;
                while Instant::now() < until {
                    let copied = memory.copy_objects_by(loads, 0, LAST + LINE_BYTES, &mut out);
                    if copied.is_ok() && out[0] % 2 == 0 {
                        assert_eq!(out[LAST / WORD_BYTES], out[0], "{loads:?}");
                        good += 1;
                    }
                }
                assert!(good > 0, "{loads:?} took none");
            });
        }
    }

    /// A writer that follows the marking discipline is never seen half-way through a line.
    #[test]
    fn lines_are_whole_under_a_writer() {
        for loads in LineLoads::available() {
            copies_are_whole_while_lines_are_written(loads, 0..1);
            // The header rests, so that nothing but the lines' own marks tells of a change.
            copies_are_whole_while_lines_are_written(loads, 1..6);
            copies_are_whole_while_lines_are_written(loads, 1..CHUNK_LINES + 2);
        }
    }

    fn copies_are_whole_while_lines_are_written(loads: LineLoads, written: Range<usize>) {
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
            let until = Instant::now() + Duration::from_millis(400);
            // Enough that the two were really at it at the same time, where that is to be had.
            while (good < 100_000 || retried < 1000) && Instant::now() < until {
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
            assert!(good > 0, "{loads:?} took none");
        });
    }
}
