//! How whole lines are loaded. This is the hot path of every read, so it uses the widest instructions that the
//! processor has. Checked random reads of 384 bytes from 4 GiB, 32 at a time (Sapphire Rapids, pages of 4 KiB; `farm
//! bench limit` measures it on any machine): by words 7.5 million per second, by lines 8.0 million, and memcpy without
//! any check 8.1 million; from the first-level cache 90, 155 and 234 million.
//!
//! # Why a copy by vectors is sound
//!
//! The loads are inline assembly. So the compiler sees no Rust access to the memory, and can assume nothing about the
//! memory except the result of the assembly: whether the first word of every line was the same before and after the
//! line was loaded. If the first word of a line changed, the copy is discarded, so it does not matter what a racing
//! store left in the copy. If no first word changed, then no writer stored to the lines in between, because writers
//! follow a discipline: they mark the line's first word, change the line, and set the first word to a value that it
//! never had before. The copy then contains what relaxed atomic loads of its words would have returned: the assembly
//! does nothing that atomic loads could not do.
//!
//! The processor must load the first word, then the line, then the first word again. x86-64 keeps the order of loads
//! from write-back memory (Intel SDM 3A 9.2.2, AMD APM 2 7.2). That orders the loads of different instructions; the
//! pieces into which a wide load may be split can execute in any order, which is why the first word is loaded
//! separately before and after. Nothing is assumed about the atomicity of a wide load. If the two separate loads of a
//! first word returned the same value, no store to this word took place between them. The wide load read the word in
//! between, so the first word of the copied line has this value, too.

#[cfg(all(target_arch = "x86_64", not(miri)))]
use std::arch::asm;

/// The instructions that load whole lines. Values exist only for instructions that this processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineLoads(Width);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// Atomic words.
    Words,
    /// 16 bytes.
    Sse,
    /// 32 bytes.
    Avx,
    /// A line.
    Avx512,
}

impl LineLoads {
    /// Atomic words: the reference, and the only choice on processors other than x86-64.
    pub const WORDS: Self = Self(Width::Words);

    /// Returns the widest instructions that this processor has. Detected once; later calls are loads and branches.
    #[inline]
    pub fn best() -> Self {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        let best = match () {
            () if std::is_x86_feature_detected!("avx512f") => Self(Width::Avx512),
            () if std::is_x86_feature_detected!("avx") => Self(Width::Avx),
            () => Self(Width::Sse),
        };
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let best = Self::WORDS;
        best
    }

    /// Returns all widths that this processor has, the narrowest first.
    pub fn available() -> Vec<Self> {
        let all = [Width::Words, Width::Sse, Width::Avx, Width::Avx512];
        let widest = Self::best().0 as u8;
        all.into_iter()
            .filter(|width| *width as u8 <= widest)
            .map(Self)
            .collect()
    }

    /// Returns the name used in benchmark results.
    pub fn name(self) -> &'static str {
        match self.0 {
            Width::Words => "words",
            Width::Sse => "sse",
            Width::Avx => "avx",
            Width::Avx512 => "avx512",
        }
    }

    #[inline]
    pub(super) fn width(self) -> Width {
        self.0
    }
}

/// A loop over `$lines` lines that are copied by `$copy`. If `$check` is true, it loads the first word before and after
/// each line, and accumulates in `$changed` every bit in which the two differ.
#[cfg(all(target_arch = "x86_64", not(miri)))]
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

/// Copies `lines` lines, at least one. With `CHECK`, returns zero if the first word of each line was the same before
/// and after the line was copied; without, returns zero.
///
/// # Safety
/// `from` and `to` are valid for `lines` lines, no other code uses `to`, and the processor has the instructions of
/// `width`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub(super) unsafe fn copy<const CHECK: bool>(
    width: Width,
    from: *const u8,
    to: *mut u64,
    lines: usize,
) -> u64 {
    debug_assert!(lines > 0);
    let mut changed = 0u64;
    // SAFETY: the caller's promises. Registers 16 and up need no `vzeroupper`; after the AVX loop, `vzeroupper` zeroes
    // the upper halves of the others, as the surrounding code expects them.
    unsafe {
        match width {
            Width::Words => unreachable!("copies word by word do not use this assembly code"),
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
                    "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9",
                    "ymm10", "ymm11", "ymm12", "ymm13", "ymm14", "ymm15"
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

/// Stub for processors without vector copies: there [`LineLoads`] has no width but words.
///
/// # Safety
/// Not to be called.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(super) unsafe fn copy<const CHECK: bool>(_: Width, _: *const u8, _: *mut u64, _: usize) -> u64 {
    unreachable!("only processors of x86-64 choose a width that needs this function")
}
