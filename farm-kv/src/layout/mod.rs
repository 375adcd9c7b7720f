//! The layout of a bucket and of an overflow block.
//!
//! ```text
//! bucket, H = 6, pairs of 16 + 32 bytes: 192 bytes, three lines (versions left out)
//!   line 0   slot 0 (48)
//!   line 1   slot 1 (48)   next (14)
//!   line 2   slot 2 (48)   forward joint (2)  backward joint (2)  occupied (1)  native (1)
//! overflow block: 128 bytes, two lines
//!   line 0   slot 0 (48)
//!   line 1   slot 1 (48)   next (14), whose spare bits mark the occupied slots
//! ```
//!
//! `occupied` and `native` have a bit for each slot; a pair is native in the bucket to which its key hashes, and
//! foreign in the bucket after it. A next pointer is 14 bytes: 32 bits of region, 26 of offset in lines, 48 of
//! incarnation, 6 spare. If a pair fits into a line, it is stored within one line, so that a key is compared in place;
//! otherwise slots follow each other across lines.

mod next;
mod payload;
mod raw;

use farm_core::alloc::{SizeClass, class_for_payload};
use farm_core::mem::{LINE_BYTES, WORD_BYTES};
use farm_core::object::{FIRST_LINE_PAYLOAD, LINE_PAYLOAD, position};

pub use next::{NEXT_BYTES, Next};
pub use payload::{Block, Bucket, Meta};
pub(crate) use raw::{Found, candidates};

use crate::{KvError, MAX_KEY_BYTES};

/// Bytes of the joint versions and slot bits.
const META_BYTES: usize = 6;
/// Pairs in an overflow block (`FaRM'14 §3.6`).
pub const BLOCK_SLOTS: usize = 2;
/// Maximum number of slots of a bucket: H = 12.
pub const MAX_SLOTS: usize = 6;
/// The neighbourhoods that a table can have.
pub const NEIGHBOURHOODS: [u32; 5] = [2, 4, 6, 8, 12];

/// The positions of an object's slots, in payload bytes.
#[derive(Clone, Copy, Debug)]
struct Slots {
    first: usize,
    /// Distance between slots from the second slot on.
    step: usize,
    second: usize,
}

impl Slots {
    /// Places one slot per line, for pairs that fit into a line.
    fn by_line() -> Self {
        Self {
            first: 0,
            second: FIRST_LINE_PAYLOAD,
            step: LINE_PAYLOAD,
        }
    }

    fn packed(pair: usize) -> Self {
        Self {
            first: 0,
            second: pair,
            step: pair,
        }
    }

    #[inline]
    fn at(&self, slot: usize) -> usize {
        if slot == 0 {
            self.first
        } else {
            self.second + (slot - 1) * self.step
        }
    }
}

/// The layout of one table's objects.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Number of slots of a bucket: H/2.
    pub slots: usize,
    /// Bytes of a key.
    pub key_bytes: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Size class of a bucket.
    pub bucket_class: SizeClass,
    /// Size class of an overflow block.
    pub block_class: SizeClass,
    positions: Slots,
    /// Whether each pair is stored within one line.
    aligned: bool,
    next_at: usize,
    meta_at: usize,
    /// Offset of the next pointer in the object, for aligned layouts.
    next_byte: usize,
    /// Offset in the object of the word that ends with the joint versions and slot bits, if they end a line.
    meta_word: usize,
    /// Mask with a bit for each slot.
    slot_bits: u8,
    block_next_at: usize,
}

impl Layout {
    /// Creates the layout for neighbourhood `h`, keys of `key_bytes`, and values of `value_bytes`.
    ///
    /// # Errors
    /// [`KvError::Spec`] for another neighbourhood or length of keys, or if a bucket or an overflow block would exceed the largest
    /// object.
    pub fn new(h: u32, key_bytes: usize, value_bytes: usize) -> Result<Self, KvError> {
        if !NEIGHBOURHOODS.contains(&h) {
            return Err(KvError::Spec(format!(
                "neighbourhood {h} is not one of {NEIGHBOURHOODS:?}"
            )));
        }
        if !(1..=MAX_KEY_BYTES).contains(&key_bytes) {
            return Err(KvError::Spec(format!(
                "keys of {key_bytes} bytes; a key has 1 to {MAX_KEY_BYTES} bytes"
            )));
        }
        let slots = h as usize / 2;
        let pair = key_bytes.saturating_add(value_bytes);
        let too_large = |slots: usize, what: &str| {
            let why = format!(
                "{slots} pairs of {pair} bytes make a {what} larger than any object; use smaller values \
                 (table.value_bytes) or a smaller neighbourhood (table.neighbourhood)"
            );
            move |_| KvError::Spec(why)
        };
        let bucket_payload = slots
            .saturating_mul(pair)
            .saturating_add(NEXT_BYTES + META_BYTES);
        let bucket_class = class_for_payload(bucket_payload).map_err(too_large(slots, "bucket"))?;
        let block_class =
            class_for_payload(BLOCK_SLOTS.saturating_mul(pair).saturating_add(NEXT_BYTES))
                .map_err(too_large(BLOCK_SLOTS, "block"))?;
        let lines = bucket_class.object_bytes() / LINE_BYTES;
        let aligned = pair <= FIRST_LINE_PAYLOAD
            && pair + NEXT_BYTES <= LINE_PAYLOAD
            && slots.max(BLOCK_SLOTS) <= lines
            && (slots == 1 || lines >= 3 || pair + NEXT_BYTES + META_BYTES <= LINE_PAYLOAD)
            && block_class.object_bytes() / LINE_BYTES >= BLOCK_SLOTS;
        let positions = if aligned {
            Slots::by_line()
        } else {
            Slots::packed(pair)
        };
        // The next pointer is after the pair of line 1, or in place of that pair if the bucket has one slot. The joint
        // versions and slot bits are after the pair of line 2 or, if there are only two lines, after the next pointer.
        let (next_at, meta_at) = if aligned && lines >= 3 {
            (
                FIRST_LINE_PAYLOAD + LINE_PAYLOAD - NEXT_BYTES,
                FIRST_LINE_PAYLOAD + 2 * LINE_PAYLOAD - META_BYTES,
            )
        } else if aligned {
            let end = FIRST_LINE_PAYLOAD + LINE_PAYLOAD;
            (end - META_BYTES - NEXT_BYTES, end - META_BYTES)
        } else {
            (slots * pair, slots * pair + NEXT_BYTES)
        };
        let block_next_at = positions.at(BLOCK_SLOTS - 1) + pair;
        Ok(Self {
            slots,
            key_bytes,
            value_bytes,
            bucket_class,
            block_class,
            positions,
            aligned,
            next_at,
            meta_at,
            next_byte: position(next_at),
            meta_word: (position(meta_at) + META_BYTES).saturating_sub(WORD_BYTES),
            slot_bits: (1 << slots) - 1,
            block_next_at,
        })
    }

    /// Returns the bytes of a bucket.
    #[inline]
    pub fn bucket_bytes(&self) -> usize {
        self.bucket_class.object_bytes()
    }

    /// Returns the bytes of an overflow block.
    pub fn block_bytes(&self) -> usize {
        self.block_class.object_bytes()
    }

    /// Returns the payload bytes of an overflow block.
    pub(crate) fn block_payload_bytes(&self) -> usize {
        self.block_class.payload_capacity()
    }

    /// Returns the bytes of the largest read of a lookup.
    #[inline]
    pub(crate) fn lookup_bytes(&self) -> usize {
        (2 * self.bucket_bytes()).max(self.block_bytes())
    }

    /// Returns the offset of a slot's value in the payload of a bucket or of an overflow block.
    pub(crate) fn value_at(&self, slot: usize) -> usize {
        self.positions.at(slot) + self.key_bytes
    }

    /// Returns the bytes of a pair.
    pub fn pair_bytes(&self) -> usize {
        self.key_bytes + self.value_bytes
    }

    /// Returns a view of the payload of a bucket.
    pub fn bucket<P: AsRef<[u8]>>(&self, payload: P) -> Bucket<'_, P> {
        Bucket {
            layout: self,
            payload,
        }
    }

    /// Returns a view of the payload of an overflow block.
    pub fn block<P: AsRef<[u8]>>(&self, payload: P) -> Block<'_, P> {
        Block {
            layout: self,
            payload,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farm_core::object::payload_capacity;

    #[test]
    fn objects_for_pairs_of_16_and_32_bytes_have_the_expected_sizes() {
        let bytes = |h| {
            let layout = Layout::new(h, 16, 32).unwrap();
            assert!(layout.aligned);
            (layout.bucket_bytes(), layout.block_bytes())
        };
        assert_eq!(bytes(2), (128, 128));
        assert_eq!(bytes(4), (192, 128));
        assert_eq!(bytes(6), (192, 128));
        assert_eq!(bytes(8), (256, 128));
        assert_eq!(bytes(12), (384, 128));
    }

    #[test]
    fn invalid_tables_are_rejected_with_a_reason() {
        assert!(
            Layout::new(5, 16, 32)
                .unwrap_err()
                .to_string()
                .contains("neighbourhood 5")
        );
        assert!(
            Layout::new(12, 16, 1 << 20)
                .unwrap_err()
                .to_string()
                .contains("larger than any object")
        );
        for key_bytes in [0, 257, usize::MAX] {
            let why = Layout::new(6, key_bytes, 8).unwrap_err().to_string();
            assert!(why.contains("a key has 1 to 256 bytes"), "{why}");
        }
        assert!(Layout::new(6, 256, usize::MAX).is_err());
    }

    /// The parts of an object must not overlap and must be inside the object, for every neighbourhood and value length.
    /// Regression test: with H = 4 and values of up to 29 bytes, two pairs in two lines, the second pair overlapped the
    /// next pointer.
    #[test]
    fn parts_do_not_overlap() {
        let of = |h, key: usize| (0..2000 / key).map(move |bytes| (h, key, bytes));
        let keys = |h| {
            [1, 8, 16, 17, 48, 256]
                .into_iter()
                .flat_map(move |key| of(h, key))
        };
        for (h, key_bytes, value_bytes) in NEIGHBOURHOODS.into_iter().flat_map(keys) {
            let layout = Layout::new(h, key_bytes, value_bytes).unwrap();
            let pair = layout.pair_bytes();
            let mut parts = vec![(layout.next_at, NEXT_BYTES), (layout.meta_at, META_BYTES)];
            parts.extend((0..layout.slots).map(|slot| (layout.positions.at(slot), pair)));
            parts.sort_unstable();
            let what = format!("H = {h}, {key_bytes} and {value_bytes} bytes: {parts:?}");
            assert!(
                parts.windows(2).all(|p| p[0].0 + p[0].1 <= p[1].0),
                "{what}"
            );
            let (at, len) = *parts.last().unwrap();
            assert!(
                at + len <= payload_capacity(layout.bucket_bytes()),
                "{what}"
            );
            let block_next = layout.block_next_at;
            assert!(layout.positions.at(1) + pair <= block_next, "{what}");
            let capacity = payload_capacity(layout.block_bytes());
            assert!(block_next + NEXT_BYTES <= capacity, "{what}");
            if layout.aligned {
                let line = |at: usize| position(at) / LINE_BYTES;
                for (at, len) in parts {
                    assert_eq!(line(at), line(at + len - 1), "{what}");
                }
                let meta_end = layout.meta_word + WORD_BYTES;
                assert_eq!(meta_end, position(layout.meta_at) + META_BYTES, "{what}");
            }
        }
    }
}
