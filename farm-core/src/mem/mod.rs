//! Memory that other threads, other processes or a NIC read and write at the same time.
//!
//! [`Memory`] is the only access path: a bounds-checked window over a [`Mapping`], accessed by aligned 64-bit words, by
//! whole lines, and by the checked copy that makes a one-sided read of an object consistent ([`Memory::copy_objects`]).
//! No code forms a reference to the bytes themselves, so a concurrent writer breaks no Rust aliasing rule.
//!
//! Invariants of this module, on which all other code relies:
//! - a `Memory` never outlives its mapping (it holds a reference count);
//! - every access is inside the window and aligned, or panics (a programming error: offsets that come from another
//!   machine are validated before they reach this module);
//! - a read-only mapping is never stored to;
//! - if memory has a [`Hook`], every access goes through the hook.
//!
//! The tests in these files and the conformance suite of the fabric check the invariants.
#![allow(unsafe_code)]

mod any_place;
mod copy;
mod file_system;
mod function;
mod hook;
mod lent;
mod lines;
mod mapping;
mod pages;
mod ptr;
mod words;

pub use any_place::AnyPlace;
pub use copy::{MAX_COPY_TRIES, Torn, copy_lines_by, copy_lines_raw};
pub use function::{Borrowed, Context};
pub(crate) use function::{with_context, with_context_borrowing};
pub use hook::Hook;
pub use lent::Lent;
pub use lines::LineLoads;
pub use mapping::{Access, Mapping, MappingError};
pub use pages::HUGE_PAGE_BYTES;
pub use ptr::Ptr;
pub use words::Memory;

/// Bytes in a cache line: the unit that a one-sided read returns untorn (`FaRM'14 §3.5`).
pub const LINE_BYTES: usize = 64;
/// Bytes in a word: the unit of access that is always atomic.
pub const WORD_BYTES: usize = 8;
/// Words in a cache line.
pub const LINE_WORDS: usize = LINE_BYTES / WORD_BYTES;
