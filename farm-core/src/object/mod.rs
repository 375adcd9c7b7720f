//! Objects in shared memory: their layout, lock-free reads and writes.
//!
//! An object starts at a cache line. Its header is a version word, whose two low bits are the lock mode, and a word of
//! size class, allocated bit and incarnation. Every further line begins with the low 16 bits of the version, so that a
//! reader that fetches whole lines can distinguish a consistent image from a torn one without asking the owner
//! (`FaRM'14 §3.5`, figure 8). The size class reveals a read of the wrong size. Versions and incarnations of a block
//! start from its [`Base`] and never go back. See `docs/layouts.md` for the bytes.

mod base;
pub mod header;
pub mod image;
pub mod write;

pub use base::Base;
pub use header::{FatPointer, Incarnation, LockMode, Version, VersionWord};
pub use image::{Image, Inconsistent, Misread, all_consistent, misread};

use crate::mem::LINE_BYTES;

/// Bytes of an object's header.
pub const HEADER_BYTES: usize = 16;
/// Bytes of a line version.
pub const LINE_VERSION_BYTES: usize = 2;
/// Payload bytes of the first line.
pub const FIRST_LINE_PAYLOAD: usize = LINE_BYTES - HEADER_BYTES;
/// Payload bytes of every further line.
pub const LINE_PAYLOAD: usize = LINE_BYTES - LINE_VERSION_BYTES;

/// Returns the payload bytes that an object of `object_bytes` (whole lines) holds.
pub const fn payload_capacity(object_bytes: usize) -> usize {
    FIRST_LINE_PAYLOAD + (object_bytes / LINE_BYTES - 1) * LINE_PAYLOAD
}

/// Returns the bytes of the smallest object, in whole lines, that holds `payload` bytes.
pub const fn object_bytes_for(payload: usize) -> usize {
    let further = payload
        .saturating_sub(FIRST_LINE_PAYLOAD)
        .div_ceil(LINE_PAYLOAD);
    LINE_BYTES * (1 + further)
}

/// Returns the offset in the object of byte `payload` of the payload.
pub const fn position(payload: usize) -> usize {
    if payload < FIRST_LINE_PAYLOAD {
        HEADER_BYTES + payload
    } else {
        let beyond = payload - FIRST_LINE_PAYLOAD;
        LINE_BYTES * (1 + beyond / LINE_PAYLOAD) + LINE_VERSION_BYTES + beyond % LINE_PAYLOAD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_and_size_are_inverse_and_positions_skip_the_versions() {
        for payload in 1..4000 {
            let bytes = object_bytes_for(payload);
            assert!(payload_capacity(bytes) >= payload);
            assert!(bytes == LINE_BYTES || payload_capacity(bytes - LINE_BYTES) < payload);
            let at = position(payload - 1);
            assert!(at >= HEADER_BYTES && at < bytes);
            assert!(at < LINE_BYTES || at % LINE_BYTES >= LINE_VERSION_BYTES);
        }
        assert_eq!((position(47), position(48), position(110)), (63, 66, 130));
    }
}
