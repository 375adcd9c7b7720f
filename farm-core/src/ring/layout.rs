//! The bytes of a ring and the relations between its sizes: pure functions and constants, shared by
//! sender, receiver and the model checked by loom.
//!
//! ```text
//! record   word 0      head     63      48 47     40 39 37 36  32 31              0
//!                              | message  |  to     | pad | kind | record length   |
//!                              | id (16)  | worker  | (3) | (5)  | in bytes (32)   |
//!          word 1      token    meaning belongs to the messaging layer
//!          word 2 ..   body     bytes in address order, zero-padded to a word
//!          last word   trailer  bit 63 set | sequence number of the record on this ring (63)
//!          or, where words land in any order (`Wholeness::Checksum`):
//!                               bit 63 set | last bits of that number (15) | checksum (48)
//!
//! filler   word 0      head     message id 0, to 0, pad 0, kind 4, length to the end of the buffer
//!          word 1 ..   zero     as all free space
//! ```
//!
//! The head's length is not zero, so a head is not zero, so the zero of free space means "nothing
//! yet" (FaRM'14 §3.1). The trailer is not zero either. The body's exact length is the record's less
//! [`OVERHEAD_BYTES`] less `pad`. Words are little-endian. The checksum is the upper 48 bits of XXH3 of
//! token and body, padding included, with the head as the seed. Of the words of a record that is half
//! there some are still zero, so it is taken for whole by one in 2^48 looks at it.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Wholeness;
use crate::ids::WorkerId;
use crate::limits::{
    MAX_RING_BYTES, MESSAGES_PER_RING, RECORD_OVERHEAD_BYTES, REPLY_SHARE_OF_RING, TINY_RING_BYTES,
};
use crate::mem::WORD_BYTES;

/// Bytes of a record that are not body: head, token and trailer.
pub const OVERHEAD_BYTES: u32 = 3 * WORD_BYTES as u32;

/// The receiver tells the sender its head once this share of the ring, 1/2, has been consumed since
/// it last did (FaRM'14 §3.1).
pub const REPORT_SHARE: u64 = 2;

/// The share of a ring, 1/4, that requests and one-way messages leave free for replies.
pub const RESERVE_SHARE: u64 = REPLY_SHARE_OF_RING;

const WORD: u32 = WORD_BYTES as u32;

// A record travels as words and its body is read as bytes: both sides must agree on their order.
const _: () = assert!(cfg!(target_endian = "little"), "rings are little-endian");
// Capacities are powers of two from TINY_RING_BYTES on, and so are the shares: every share of a ring
// is exact and whole words, and what holds for the least capacity holds for all.
const _: () = assert!(TINY_RING_BYTES.is_power_of_two() && MAX_RING_BYTES.is_power_of_two());
const _: () = assert!(
    MESSAGES_PER_RING.is_power_of_two()
        && REPORT_SHARE.is_power_of_two()
        && RESERVE_SHARE.is_power_of_two()
);
const _: () = assert!((TINY_RING_BYTES / MESSAGES_PER_RING).is_multiple_of(WORD_BYTES as u64));
// The greatest record of the least ring has a body, and lengths fit the head's 32 bits.
const _: () = assert!(TINY_RING_BYTES / MESSAGES_PER_RING > OVERHEAD_BYTES as u64);
const _: () = assert!(OVERHEAD_BYTES as u64 == RECORD_OVERHEAD_BYTES);
const _: () = assert!(MAX_RING_BYTES <= u32::MAX as u64);
// A request can always be sent once the ring is empty: what was consumed and not reported (less than
// the report share), a filler (less than a record), the request, and the reserve all fit.
const _: () = assert!(
    TINY_RING_BYTES / REPORT_SHARE
        + 2 * (TINY_RING_BYTES / MESSAGES_PER_RING)
        + TINY_RING_BYTES / RESERVE_SHARE
        <= TINY_RING_BYTES
);
// A reply can always be sent when only replies are left in the ring: unreported space and everything
// that credits allow (at most the reserve) fit. The other case is argued at the module.
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

/// A size that no ring can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a ring of {bytes} bytes: its size must be a power of two from {TINY_RING_BYTES} to \
     {MAX_RING_BYTES}"
)]
pub struct InvalidCapacity {
    /// The size.
    pub bytes: u64,
}

impl Capacity {
    /// A ring of `bytes`.
    ///
    /// # Errors
    /// [`InvalidCapacity`] tells what a size must be.
    pub const fn new(bytes: u64) -> Result<Self, InvalidCapacity> {
        if bytes.is_power_of_two() && bytes >= TINY_RING_BYTES && bytes <= MAX_RING_BYTES {
            Ok(Self(bytes as u32))
        } else {
            Err(InvalidCapacity { bytes })
        }
    }

    /// Bytes of the buffer.
    pub const fn bytes(self) -> u32 {
        self.0
    }

    /// Bytes of the greatest record, overhead included: an eighth of the buffer.
    pub const fn max_record_bytes(self) -> u32 {
        self.0 / MESSAGES_PER_RING as u32
    }

    /// Bytes of the greatest body.
    pub const fn max_body_bytes(self) -> u32 {
        self.max_record_bytes() - OVERHEAD_BYTES
    }

    /// Bytes that requests and one-way messages leave free: a quarter of the buffer.
    pub const fn reply_reserve_bytes(self) -> u32 {
        self.0 / RESERVE_SHARE as u32
    }

    /// Bytes consumed after which the receiver reports its head: half of the buffer.
    pub const fn report_bytes(self) -> u32 {
        self.0 / REPORT_SHARE as u32
    }

    /// Where in the buffer the absolute `position` is.
    #[inline]
    pub const fn offset(self, position: u64) -> u32 {
        (position & (self.0 as u64 - 1)) as u32
    }
}

/// Bytes of the record that carries a body of `body_bytes`; `None` beyond what 32 bits count.
#[inline]
pub const fn record_bytes(body_bytes: usize) -> Option<u32> {
    if body_bytes > (u32::MAX - OVERHEAD_BYTES - WORD) as usize {
        return None;
    }
    Some(OVERHEAD_BYTES + (body_bytes as u32).next_multiple_of(WORD))
}

/// What a record is, as far as the ring's rules of space depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A message that nobody answers.
    OneWay = 1,
    /// A message whose sender holds credit for the reply.
    Request = 2,
    /// The answer to a request; may use the space that the others leave free.
    Reply = 3,
}

/// The kind of a filler, which is no record.
const FILLER: u8 = 4;
const KIND_BITS: u32 = 5;
/// Bits of a trailer above its checksum.
const CHECKSUM_SHIFT: u32 = 16;

/// The decoded head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead {
    /// Bytes of the record, overhead and padding included.
    pub record_bytes: u32,
    /// Bytes of zero after the body, 0 ..= 7.
    pub pad_bytes: u32,
    /// Kind of the record.
    pub kind: Kind,
    /// Worker of the receiving machine that it is for.
    pub to_worker: WorkerId,
    /// Handler that it is for.
    pub message_id: u16,
}

impl RecordHead {
    /// The head of a record with a body of `body_bytes`, which has passed [`record_bytes`].
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

    /// Bytes of the body.
    #[inline]
    pub const fn body_bytes(self) -> u32 {
        self.record_bytes - OVERHEAD_BYTES - self.pad_bytes
    }

    /// The head word.
    #[inline]
    pub const fn encode(self) -> u64 {
        let kind = self.kind as u64 | (self.pad_bytes as u64) << KIND_BITS;
        self.record_bytes as u64
            | kind << 32
            | (self.to_worker.get() as u64) << 40
            | (self.message_id as u64) << 48
    }
}

/// The head word of a filler of `bytes`.
#[inline]
pub const fn filler_word(bytes: u32) -> u64 {
    bytes as u64 | (FILLER as u64) << 32
}

/// The trailer word of record number `sequence`.
#[inline]
pub const fn trailer_word(sequence: u64) -> u64 {
    sequence | 1 << 63
}

/// The trailer word of record number `sequence` with this head and, up to the trailer, these words.
#[inline]
pub fn checksum_trailer(sequence: u64, head: u64, words: &[u64]) -> u64 {
    let sum = xxh3_64_with_seed(bytemuck::cast_slice(words), head);
    checksum_trailer_start(sequence) | sum >> CHECKSUM_SHIFT
}

/// What such a trailer has above the checksum.
const fn checksum_trailer_start(sequence: u64) -> u64 {
    1 << 63 | (sequence << (64 - CHECKSUM_SHIFT)) & !(1 << 63)
}

/// Whether a trailer is one of record number `sequence`, whatever its checksum.
#[inline]
pub const fn is_trailer_of(trailer: u64, sequence: u64, wholeness: Wholeness) -> bool {
    match wholeness {
        Wholeness::LastWord => trailer == trailer_word(sequence),
        Wholeness::Checksum => {
            (trailer ^ checksum_trailer_start(sequence)) >> (64 - CHECKSUM_SHIFT) == 0
        }
    }
}

/// What a word that is not zero at the head of a ring says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// A record starts here.
    Record(RecordHead),
    /// Nothing up to the end of the buffer: the next record is at offset 0.
    Filler {
        /// Bytes to the end of the buffer.
        bytes: u32,
    },
}

/// Decodes the head word found at `offset`. Everything that the receiver will rely on is checked
/// here: a record that decodes lies within the buffer and its body within the record.
///
/// # Errors
/// What a valid word would have had.
#[inline]
pub fn decode_head(word: u64, offset: u32, capacity: Capacity) -> Result<Head, Expected> {
    let bytes = word as u32;
    let gap = capacity.bytes() - offset;
    let kind = match (word >> 32) as u8 & ((1 << KIND_BITS) - 1) {
        1 => Kind::OneWay,
        2 => Kind::Request,
        3 => Kind::Reply,
        // Only what does not fit before the end is preceded by a filler, so it is shorter than a record.
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

/// Where the next record of a ring goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Bytes of filler before it; 0 for none.
    pub filler_bytes: u32,
    /// Its offset in the buffer.
    pub offset: u32,
}

/// Places a record after `tail`: there if it fits before the end of the buffer, else at offset 0
/// with a filler before it.
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

/// What a word of a ring should have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// One of the kinds of [`Kind`], or a filler.
    Kind,
    /// A length of whole words from [`OVERHEAD_BYTES`] to `most`.
    Length {
        /// The greatest record, or what is left before the end of the buffer.
        most: u32,
    },
    /// A filler up to the end of the buffer, shorter than the greatest record, and nothing else set.
    Filler {
        /// Bytes to the end of the buffer.
        bytes: u32,
    },
    /// Padding no longer than the body and made of zeroes.
    Padding,
    /// A worker that a machine can have.
    Worker,
    /// This trailer.
    Trailer {
        /// The word.
        word: u64,
    },
    /// A checksum that is the record's, of which no word is missing.
    Checksum {
        /// The trailer with it.
        word: u64,
    },
    /// The missing words of a record that is half there (found: its trailer, or 0): none landed within the time in
    /// which one can still be on its way.
    Rest,
    /// A place in the sender's memory that may be written (found: its offset there).
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
            Self::Filler { bytes } => write!(f, "a filler of the last {bytes} bytes"),
            Self::Padding => f.write_str("padding with zeroes, within the body"),
            Self::Worker => f.write_str("a worker that a machine can have"),
            Self::Trailer { word } => write!(f, "trailer {word:#018x}"),
            Self::Checksum { word } => write!(f, "trailer {word:#018x} by the record's checksum"),
            Self::Rest => f.write_str(
                "the rest of the record, no word of which landed for 5 s: the record is damaged",
            ),
            Self::HeadCopy => f.write_str("a head copy that may be written"),
        }
    }
}
