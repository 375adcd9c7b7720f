//! The byte layout of a ring and the relations between its sizes: pure functions and constants,
//! shared by the sender, the receiver and the loom model.
//!
//! ```text
//! record   word 0      head     63      48 47     40 39 37 36  32 31              0
//!                              | message  |  to     | pad | kind | record length   |
//!                              | id (16)  | worker  | (3) | (5)  | in bytes (32)   |
//!          word 1      token    meaning belongs to the messaging layer
//!          word 2 ..   body     bytes in address order, zero-padded to a word
//!          last word   trailer  bit 63 set | sequence number of the record on this ring (63)
//!          or, where words land in any order (`RecordIntegrity::Checksum`):
//!                               bit 63 set | last bits of that number (15) | checksum (48)
//!
//! filler   word 0      head     message id 0, to 0, pad 0, kind 4, length to the end of the buffer
//!          word 1 ..   zero     as all free space
//! ```
//!
//! The head's length is not zero, so a head word is never zero, and a zero word of free space means
//! "no record yet" (FaRM'14 §3.1). The trailer is never zero either. The body's exact length is the
//! record length minus [`OVERHEAD_BYTES`] minus `pad`. Words are little-endian. The checksum is the
//! upper 48 bits of XXH3 over token and body, padding included, with the head as the seed. The
//! missing words of an incomplete record are zero. The checksum matches such a record by chance, so
//! that a poll accepts it, with probability 2^-48.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::RecordIntegrity;
use crate::ids::WorkerId;
use crate::limits::{
    MAX_RING_BYTES, MESSAGES_PER_RING, RECORD_OVERHEAD_BYTES, REPLY_SHARE_OF_RING, TINY_RING_BYTES,
};
use crate::mem::WORD_BYTES;

/// Bytes of a record outside its body: head, token and trailer.
pub const OVERHEAD_BYTES: u32 = 3 * WORD_BYTES as u32;

/// The receiver reports its head to the sender once this share of the ring, 1/2, has been consumed
/// since its last report (FaRM'14 §3.1).
pub const REPORT_SHARE: u64 = 2;

/// The share of a ring, 1/4, that requests and one-way messages leave free for replies.
pub const RESERVE_SHARE: u64 = REPLY_SHARE_OF_RING;

const WORD: u32 = WORD_BYTES as u32;

// A record travels as words and its body is read as bytes: both sides must use the same byte order.
const _: () = assert!(
    cfg!(target_endian = "little"),
    "rings need a little-endian processor"
);
// Capacities are powers of two, at least TINY_RING_BYTES, and the shares are powers of two. So
// every share of a ring is exact and consists of whole words, and what holds for the smallest
// capacity holds for all.
const _: () = assert!(TINY_RING_BYTES.is_power_of_two() && MAX_RING_BYTES.is_power_of_two());
const _: () = assert!(
    MESSAGES_PER_RING.is_power_of_two()
        && REPORT_SHARE.is_power_of_two()
        && RESERVE_SHARE.is_power_of_two()
);
const _: () = assert!((TINY_RING_BYTES / MESSAGES_PER_RING).is_multiple_of(WORD_BYTES as u64));
// The largest record of the smallest ring has a body, and lengths fit the head's 32 bits.
const _: () = assert!(TINY_RING_BYTES / MESSAGES_PER_RING > OVERHEAD_BYTES as u64);
const _: () = assert!(OVERHEAD_BYTES as u64 == RECORD_OVERHEAD_BYTES);
const _: () = assert!(MAX_RING_BYTES <= u32::MAX as u64);
// A request can always be sent once the ring is empty: the bytes consumed and not reported (less
// than the report share), a filler (shorter than a record), the request, and the reserve all fit.
const _: () = assert!(
    TINY_RING_BYTES / REPORT_SHARE
        + 2 * (TINY_RING_BYTES / MESSAGES_PER_RING)
        + TINY_RING_BYTES / RESERVE_SHARE
        <= TINY_RING_BYTES
);
// A reply can always be sent when only replies are left in the ring: unreported space and all bytes
// that credits allow (at most the reserve) fit. The module doc of `ring` argues the other case.
const _: () =
    assert!(TINY_RING_BYTES / REPORT_SHARE + TINY_RING_BYTES / RESERVE_SHARE <= TINY_RING_BYTES);

/// The size of a ring's buffer in bytes: a power of two between [`TINY_RING_BYTES`] and
/// [`MAX_RING_BYTES`].
///
/// ```
/// use farm_core::ring::Capacity;
/// let capacity = Capacity::new(1 << 20).unwrap();
/// assert_eq!(capacity.max_record_bytes(), 128 << 10);
/// assert_eq!(capacity.max_body_bytes(), (128 << 10) - 24);
/// assert!(Capacity::new(3000).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity(u32);

/// A ring size that is not permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid size for a ring of {bytes} bytes: it must be a power of two from {TINY_RING_BYTES} to \
     {MAX_RING_BYTES}"
)]
pub struct InvalidCapacity {
    /// Rejected size in bytes.
    pub bytes: u64,
}

impl Capacity {
    /// Returns the capacity of a ring of `bytes`.
    ///
    /// # Errors
    /// [`InvalidCapacity`] when `bytes` is not a power of two from [`TINY_RING_BYTES`] to
    /// [`MAX_RING_BYTES`].
    pub const fn new(bytes: u64) -> Result<Self, InvalidCapacity> {
        if bytes.is_power_of_two() && bytes >= TINY_RING_BYTES && bytes <= MAX_RING_BYTES {
            Ok(Self(bytes as u32))
        } else {
            Err(InvalidCapacity { bytes })
        }
    }

    /// Returns the size of the buffer in bytes.
    pub const fn bytes(self) -> u32 {
        self.0
    }

    /// Returns the bytes of the largest record, overhead included: an eighth of the buffer.
    pub const fn max_record_bytes(self) -> u32 {
        self.0 / MESSAGES_PER_RING as u32
    }

    /// Returns the bytes of the largest body.
    pub const fn max_body_bytes(self) -> u32 {
        self.max_record_bytes() - OVERHEAD_BYTES
    }

    /// Returns the bytes that requests and one-way messages leave free: a quarter of the buffer.
    pub const fn reply_reserve_bytes(self) -> u32 {
        self.0 / RESERVE_SHARE as u32
    }

    /// Returns the number of consumed bytes after which the receiver reports its head: half of the
    /// buffer.
    pub const fn report_bytes(self) -> u32 {
        self.0 / REPORT_SHARE as u32
    }

    /// Returns the offset in the buffer of the absolute `position`.
    #[inline]
    pub const fn offset(self, position: u64) -> u32 {
        (position & (self.0 as u64 - 1)) as u32
    }
}

/// Returns the bytes of the record that carries a body of `body_bytes`, or `None` if they exceed 32
/// bits.
#[inline]
pub const fn record_bytes(body_bytes: usize) -> Option<u32> {
    if body_bytes > (u32::MAX - OVERHEAD_BYTES - WORD) as usize {
        return None;
    }
    Some(OVERHEAD_BYTES + (body_bytes as u32).next_multiple_of(WORD))
}

/// The kind of a record, as far as the ring's space rules depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A message without a reply.
    OneWay = 1,
    /// A message whose sender holds credit for the reply.
    Request = 2,
    /// The answer to a request. May use the space that requests and one-way messages leave free.
    Reply = 3,
}

/// The kind of a filler, which is not a record.
const FILLER: u8 = 4;
const KIND_BITS: u32 = 5;
/// Number of bits of a trailer above its checksum.
const CHECKSUM_SHIFT: u32 = 16;

/// The decoded head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead {
    /// Bytes of the record, overhead and padding included.
    pub record_bytes: u32,
    /// Number of zero bytes after the body, 0 ..= 7.
    pub pad_bytes: u32,
    /// Kind of the record.
    pub kind: Kind,
    /// Destination worker on the receiving machine.
    pub to_worker: WorkerId,
    /// Id of the handler.
    pub message_id: u16,
}

impl RecordHead {
    /// Builds the head of a record with a body of `body_bytes`, for which [`record_bytes`] returned
    /// `Some`.
    #[inline]
    pub fn of(kind: Kind, to_worker: WorkerId, message_id: u16, body_bytes: u32) -> Self {
        let padded = body_bytes.next_multiple_of(WORD);
        Self {
            record_bytes: OVERHEAD_BYTES + padded,
            pad_bytes: padded - body_bytes,
            kind,
            to_worker,
            message_id,
        }
    }

    /// Returns the bytes of the body.
    #[inline]
    pub const fn body_bytes(self) -> u32 {
        self.record_bytes - OVERHEAD_BYTES - self.pad_bytes
    }

    /// Encodes the head word.
    #[inline]
    pub const fn encode(self) -> u64 {
        let kind = self.kind as u64 | (self.pad_bytes as u64) << KIND_BITS;
        self.record_bytes as u64
            | kind << 32
            | (self.to_worker.get() as u64) << 40
            | (self.message_id as u64) << 48
    }
}

/// Returns the head word of a filler of `bytes`.
#[inline]
pub const fn filler_word(bytes: u32) -> u64 {
    bytes as u64 | (FILLER as u64) << 32
}

/// Returns the trailer word of record number `sequence`.
#[inline]
pub const fn trailer_word(sequence: u64) -> u64 {
    sequence | 1 << 63
}

/// Returns the checksum trailer of record number `sequence` with this `head`. `words` are the words
/// between head and trailer.
#[inline]
pub fn checksum_trailer(sequence: u64, head: u64, words: &[u64]) -> u64 {
    let sum = xxh3_64_with_seed(bytemuck::cast_slice(words), head);
    checksum_trailer_start(sequence) | sum >> CHECKSUM_SHIFT
}

/// Returns the bits of a checksum trailer above the checksum.
const fn checksum_trailer_start(sequence: u64) -> u64 {
    1 << 63 | (sequence << (64 - CHECKSUM_SHIFT)) & !(1 << 63)
}

/// Returns the number of the record that has this trailer: with checksums, its last bits.
#[inline]
pub const fn sequence_of(trailer: u64, integrity: RecordIntegrity) -> u64 {
    let trailer = trailer & !(1 << 63);
    match integrity {
        RecordIntegrity::LastWord => trailer,
        RecordIntegrity::Checksum => trailer >> (64 - CHECKSUM_SHIFT),
    }
}

/// Returns whether `trailer` belongs to record number `sequence`. Does not verify the checksum.
#[inline]
pub const fn is_trailer_of(trailer: u64, sequence: u64, integrity: RecordIntegrity) -> bool {
    match integrity {
        RecordIntegrity::LastWord => trailer == trailer_word(sequence),
        RecordIntegrity::Checksum => {
            (trailer ^ checksum_trailer_start(sequence)) >> (64 - CHECKSUM_SHIFT) == 0
        }
    }
}

/// A decoded nonzero word at the head of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// A record starts here.
    Record(RecordHead),
    /// The rest of the buffer is unused: the next record is at offset 0.
    Filler {
        /// Bytes to the end of the buffer.
        bytes: u32,
    },
}

/// Decodes the head word found at `offset`. Checks everything on which the receiver relies: a
/// record that decodes is within the buffer, and its body is within the record.
///
/// # Errors
/// The content that a valid word would have.
#[inline]
pub fn decode_head(word: u64, offset: u32, capacity: Capacity) -> Result<Head, Expected> {
    let bytes = word as u32;
    let gap = capacity.bytes() - offset;
    let kind = match (word >> 32) as u8 & ((1 << KIND_BITS) - 1) {
        1 => Kind::OneWay,
        2 => Kind::Request,
        3 => Kind::Reply,
        // A filler precedes only a record that does not fit before the end, so it is shorter than a
        // record.
        FILLER if gap < capacity.max_record_bytes() && word == filler_word(gap) => {
            return Ok(Head::Filler { bytes });
        }
        FILLER => return Err(Expected::Filler { bytes: gap }),
        _ => return Err(Expected::Kind),
    };
    let most = capacity.max_record_bytes().min(gap);
    if bytes < OVERHEAD_BYTES || bytes > most || !bytes.is_multiple_of(WORD) {
        return Err(Expected::Length { most });
    }
    let pad_bytes = (word >> (32 + KIND_BITS)) as u32 & 7;
    if pad_bytes > bytes - OVERHEAD_BYTES {
        return Err(Expected::Padding);
    }
    let to_worker = WorkerId::new((word >> 40) as u16 & 0xff).ok_or(Expected::Worker)?;
    let message_id = (word >> 48) as u16;
    Ok(Head::Record(RecordHead {
        record_bytes: bytes,
        pad_bytes,
        kind,
        to_worker,
        message_id,
    }))
}

/// The place of the next record in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Bytes of the filler before the record; 0 for none.
    pub filler_bytes: u32,
    /// Offset of the record in the buffer.
    pub offset: u32,
}

/// Places a record at `tail` if it fits before the end of the buffer, else at offset 0 with a
/// filler before it.
#[inline]
pub const fn place(tail: u64, record_bytes: u32, capacity: Capacity) -> Placement {
    let offset = capacity.offset(tail);
    let gap = capacity.bytes() - offset;
    if record_bytes <= gap {
        Placement {
            filler_bytes: 0,
            offset,
        }
    } else {
        Placement {
            filler_bytes: gap,
            offset: 0,
        }
    }
}

/// The valid content of a word of a ring, for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// A kind of [`Kind`], or a filler.
    Kind,
    /// A length of whole words from [`OVERHEAD_BYTES`] to `most`.
    Length {
        /// The smaller of the largest record and the rest of the buffer, in bytes.
        most: u32,
    },
    /// A filler up to the end of the buffer, shorter than the largest record, with no other bit
    /// set.
    Filler {
        /// Bytes to the end of the buffer.
        bytes: u32,
    },
    /// Zero padding, no longer than the body.
    Padding,
    /// A valid worker id.
    Worker,
    /// This trailer.
    Trailer {
        /// The trailer word.
        word: u64,
    },
    /// A checksum that matches the record's words, none of which is missing.
    Checksum {
        /// The trailer word with the correct checksum.
        word: u64,
    },
    /// The missing words of an incomplete record (found: its trailer, or 0). No missing word landed
    /// within the time in which a word can still be in flight.
    Rest,
    /// A writable address in the sender's memory (found: its offset there).
    HeadCopy,
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind => f.write_str("a one-way message, request, reply or filler"),
            Self::Length { most } => {
                write!(
                    f,
                    "a record of {OVERHEAD_BYTES} to {most} bytes, a multiple of {WORD}"
                )
            }
            Self::Filler { bytes } => write!(f, "a filler of the {bytes} bytes up to the end of the buffer"),
            Self::Padding => f.write_str("zero padding, no longer than the body"),
            Self::Worker => f.write_str("a valid worker id"),
            Self::Trailer { word } => write!(f, "trailer {word:#018x}"),
            Self::Checksum { word } => write!(f, "trailer {word:#018x}, from the record's checksum"),
            Self::Rest => f.write_str(
                "the missing words of the record, but none landed within 5 s: the record is damaged",
            ),
            Self::HeadCopy => f.write_str("a writable head copy"),
        }
    }
}
