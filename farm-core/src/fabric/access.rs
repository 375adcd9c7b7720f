//! What every backend asks of a post before it takes it.

use super::{Read, ReadKind, Rejected, Slot};
use crate::mem::{LINE_BYTES, WORD_BYTES};

/// Why a post is refused for good.
pub(super) enum Fault {
    Closed,
    BadAccess,
}

impl Fault {
    pub(super) fn reject(self, slot: Option<Slot>) -> Rejected {
        match self {
            Fault::Closed => Rejected::Closed(slot),
            Fault::BadAccess => Rejected::BadAccess(slot),
        }
    }
}

/// Whether so many bytes from `offset` are whole words within a memory of `memory_bytes`.
#[inline]
pub(super) fn fits(offset: u64, bytes: usize, memory_bytes: u64) -> bool {
    offset.is_multiple_of(WORD_BYTES as u64)
        && bytes.is_multiple_of(WORD_BYTES)
        && bytes as u64 <= memory_bytes
        && offset <= memory_bytes - bytes as u64
}

impl Read {
    /// Whether it asks for something that a slot of so many bytes can hold, objects as whole lines.
    #[inline]
    pub fn is_well_formed(&self, slot_bytes: usize) -> bool {
        let bytes = u64::from(self.bytes);
        let whole = match self.kind {
            ReadKind::Raw => true,
            ReadKind::Objects { stride } => {
                let all = u64::from(stride) | self.from.offset | bytes;
                stride > 0 && all.is_multiple_of(LINE_BYTES as u64)
            }
        };
        whole && bytes > 0 && bytes <= slot_bytes as u64
    }
}
