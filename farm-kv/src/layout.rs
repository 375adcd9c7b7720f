//! The bytes of a bucket and of an overflow block.
//!
//! ```text
//! bucket, H = 6, pairs of 16 + 32 bytes: 192 bytes, three lines (versions left out)
//!   line 0   slot 0 (48)
//!   line 1   slot 1 (48)   next (14)
//!   line 2   slot 2 (48)   forward joint (2)  backward joint (2)  occupied (1)  native (1)
//! overflow block: 128 bytes, two lines
//!   line 0   slot 0 (48)
//!   line 1   slot 1 (48)   next (14), whose spare bits say which slots are occupied
//! ```
//!
//! `occupied` and `native` have a bit for each slot; a pair is native in the bucket its key hashes
//! to and foreign in the one after it. A next pointer is 14 bytes: 32 bits of region, 26 of offset
//! in lines, 48 of incarnation, 6 spare. Where a pair fits a line it stands in one line, so that a
//! key is compared where it lies; otherwise slots follow each other across lines.

use farm_core::alloc::{SizeClass, class_for_payload};
use farm_core::ids::{Address, RegionId};
use farm_core::mem::LINE_BYTES;
use farm_core::object::{
    FIRST_LINE_PAYLOAD, HEADER_BYTES, Incarnation, LINE_PAYLOAD, LINE_VERSION_BYTES, position,
};

use crate::{KEY_BYTES, Key, KvError};

/// Bytes of a next pointer.
pub const NEXT_BYTES: usize = 14;
/// Joint versions and slot bits.
const META_BYTES: usize = 6;
/// Pairs in an overflow block (`FaRM'14 §3.6`).
pub const BLOCK_SLOTS: usize = 2;
/// Most slots of a bucket: H = 12.
pub const MAX_SLOTS: usize = 6;
/// Neighbourhoods that a table can have.
pub const NEIGHBOURHOODS: [u32; 5] = [2, 4, 6, 8, 12];

const INCARNATION_BITS: u32 = 48;
const OFFSET_BITS: u32 = 26;
const REGION_SHIFT: u32 = INCARNATION_BITS + OFFSET_BITS;
const SPARE_SHIFT: u32 = REGION_SHIFT + 32;
const _: () = assert!(SPARE_SHIFT + 6 == NEXT_BYTES as u32 * 8);

/// A pointer to an overflow block: where it is and which incarnation of it is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    /// The block.
    pub address: Address,
    incarnation: u64,
}

impl Next {
    /// The pointer to a block whose header has this incarnation.
    pub fn new(address: Address, incarnation: Incarnation) -> Self {
        Self {
            address,
            incarnation: incarnation.count() & ((1 << INCARNATION_BITS) - 1),
        }
    }

    /// Whether a header's incarnation is the one that was meant.
    #[inline]
    pub fn names(&self, incarnation: Incarnation) -> bool {
        incarnation.is_allocated()
            && incarnation.count() & ((1 << INCARNATION_BITS) - 1) == self.incarnation
    }
}

/// The 14 bytes: a pointer that may be null, and six bits.
fn pack(next: Option<Next>, spare: u8) -> [u8; NEXT_BYTES] {
    let pointer = next.map_or(0, |next| {
        u128::from(next.address.region().to_bits()) << REGION_SHIFT
            | u128::from(next.address.offset() as usize as u64 / LINE_BYTES as u64)
                << INCARNATION_BITS
            | u128::from(next.incarnation)
    });
    let bytes = (pointer | u128::from(spare & 63) << SPARE_SHIFT).to_le_bytes();
    bytes[..NEXT_BYTES].try_into().expect("fourteen bytes")
}

fn unpack(bytes: &[u8]) -> (Option<Next>, u8) {
    let mut wide = [0; 16];
    wide[..NEXT_BYTES].copy_from_slice(&bytes[..NEXT_BYTES]);
    let bits = u128::from_le_bytes(wide);
    let next = RegionId::from_bits((bits >> REGION_SHIFT) as u32).map(|region| {
        let line = (bits >> INCARNATION_BITS) as u32 & ((1 << OFFSET_BITS) - 1);
        let incarnation = bits as u64 & ((1 << INCARNATION_BITS) - 1);
        Next {
            address: Address::new(region, line * LINE_BYTES as u32),
            incarnation,
        }
    });
    (next, (bits >> SPARE_SHIFT) as u8 & 63)
}

/// Where the slots of an object are, in payload bytes.
#[derive(Clone, Copy, Debug)]
struct Slots {
    first: usize,
    /// From the second slot on they are this far apart, after the second.
    step: usize,
    second: usize,
}

impl Slots {
    /// One slot a line, if a pair fits one.
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
    /// Slots of a bucket: H/2.
    pub slots: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Size class of a bucket.
    pub bucket_class: SizeClass,
    /// Size class of an overflow block.
    pub block_class: SizeClass,
    positions: Slots,
    /// Each pair lies within one line.
    aligned: bool,
    next_at: usize,
    meta_at: usize,
    /// Where that is in the object, if it is within one line.
    meta_in_line: usize,
    block_next_at: usize,
}

impl Layout {
    /// The layout for neighbourhood `h` and values of `value_bytes`.
    ///
    /// # Errors
    /// [`KvError::Spec`] for another neighbourhood, or a value so large that a bucket is no object.
    pub fn new(h: u32, value_bytes: usize) -> Result<Self, KvError> {
        if !NEIGHBOURHOODS.contains(&h) {
            return Err(KvError::Spec(format!(
                "neighbourhood {h} is none of {NEIGHBOURHOODS:?}"
            )));
        }
        let slots = h as usize / 2;
        let pair = KEY_BYTES + value_bytes;
        let too_large = |slots: usize, what: &str| {
            let why = format!(
                "{slots} pairs of {pair} bytes make a {what} larger than any object; use smaller values \
                 (table.value_bytes) or a smaller neighbourhood (table.neighbourhood)"
            );
            move |_| KvError::Spec(why)
        };
        let bucket_payload = slots * pair + NEXT_BYTES + META_BYTES;
        let bucket_class = class_for_payload(bucket_payload).map_err(too_large(slots, "bucket"))?;
        let block_class = class_for_payload(BLOCK_SLOTS * pair + NEXT_BYTES)
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
        // Behind the pair of line 1, which has one or is free; the rest behind that of line 2, or, if
        // there are but two lines, behind both.
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
            value_bytes,
            bucket_class,
            block_class,
            positions,
            aligned,
            next_at,
            meta_at,
            meta_in_line: position(meta_at),
            block_next_at,
        })
    }

    /// Bytes of a bucket.
    #[inline]
    pub fn bucket_bytes(&self) -> usize {
        self.bucket_class.object_bytes()
    }

    /// Bytes of an overflow block.
    pub fn block_bytes(&self) -> usize {
        self.block_class.object_bytes()
    }

    /// Bytes of the largest read of a lookup.
    #[inline]
    pub(crate) fn lookup_bytes(&self) -> usize {
        (2 * self.bucket_bytes()).max(self.block_bytes())
    }

    /// Bytes of a pair.
    pub fn pair_bytes(&self) -> usize {
        KEY_BYTES + self.value_bytes
    }

    /// The payload of a bucket, to be read.
    pub fn bucket<P: AsRef<[u8]>>(&self, payload: P) -> Bucket<'_, P> {
        Bucket {
            layout: self,
            payload,
        }
    }

    /// The payload of an overflow block, to be read.
    pub fn block<P: AsRef<[u8]>>(&self, payload: P) -> Block<'_, P> {
        Block {
            layout: self,
            payload,
        }
    }

    /// Finds a key among the pairs that `wanted` has a bit for, in the bytes of an object with its
    /// versions. `None` if it is not there.
    ///
    /// Compares every slot and branches once: where a key is found cannot be predicted.
    #[inline]
    pub(crate) fn find_in_object(&self, object: &[u8], wanted: u8, key: &Key) -> Option<usize> {
        let mut found = 0u8;
        for slot in 0..self.slots.max(BLOCK_SLOTS) {
            if wanted >> slot == 0 {
                break;
            }
            found |= u8::from(self.key_in_object(object, slot) == *key) << slot;
        }
        found &= wanted;
        (found != 0).then(|| found.trailing_zeros() as usize)
    }

    #[inline]
    fn key_in_object(&self, object: &[u8], slot: usize) -> Key {
        let mut key = [0; KEY_BYTES];
        if self.aligned {
            key.copy_from_slice(&object[Self::aligned_at(slot)..][..KEY_BYTES]);
        } else {
            copy_out(object, self.positions.at(slot), &mut key);
        }
        key
    }

    /// Where the pair of a slot stands in the object, where each is in a line of its own.
    #[inline]
    fn aligned_at(slot: usize) -> usize {
        if slot == 0 {
            HEADER_BYTES
        } else {
            slot * LINE_BYTES + LINE_VERSION_BYTES
        }
    }

    /// Copies the value of a slot out of the bytes of an object with its versions.
    #[inline]
    pub(crate) fn value_in_object(&self, object: &[u8], slot: usize, out: &mut [u8]) {
        if self.aligned {
            let at = Self::aligned_at(slot) + KEY_BYTES;
            out.copy_from_slice(&object[at..at + out.len()]);
        } else {
            copy_out(object, self.positions.at(slot) + KEY_BYTES, out);
        }
    }

    /// Joint versions and slot bits, out of the bytes of a bucket with its versions.
    #[inline]
    pub(crate) fn meta_in_object(&self, object: &[u8]) -> Meta {
        let mut bytes = [0; META_BYTES];
        if self.aligned {
            bytes.copy_from_slice(&object[self.meta_in_line..][..META_BYTES]);
        } else {
            copy_out(object, self.meta_at, &mut bytes);
        }
        let meta = Meta::from_bytes(bytes);
        // Another machine's memory: bits of slots that there are, whatever stands in it.
        Meta {
            occupied: meta.occupied & ((1 << self.slots) - 1),
            ..meta
        }
    }

    /// The chain of a bucket, out of its bytes with versions.
    #[inline]
    pub(crate) fn next_in_bucket(&self, object: &[u8]) -> Option<Next> {
        let mut bytes = [0; NEXT_BYTES];
        copy_out(object, self.next_at, &mut bytes);
        unpack(&bytes).0
    }

    /// The next block and the occupied slots of an overflow block, out of its bytes with versions.
    pub(crate) fn next_in_block(&self, object: &[u8]) -> (Option<Next>, u8) {
        let mut bytes = [0; NEXT_BYTES];
        copy_out(object, self.block_next_at, &mut bytes);
        let (next, occupied) = unpack(&bytes);
        (next, occupied & ((1 << BLOCK_SLOTS) - 1))
    }
}

/// Copies payload bytes out of the bytes of an object with its versions.
fn copy_out(object: &[u8], from: usize, out: &mut [u8]) {
    let mut done = 0;
    while done < out.len() {
        let at = position(from + done);
        let n = (LINE_BYTES - at % LINE_BYTES).min(out.len() - done);
        out[done..done + n].copy_from_slice(&object[at..at + n]);
        done += n;
    }
}

/// Joint versions and slot bits of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Joint version with the next bucket.
    pub forward: u16,
    /// Joint version with the bucket before.
    pub backward: u16,
    /// Slots that hold a pair.
    pub occupied: u8,
    /// Slots whose pair hashes to this bucket.
    pub native: u8,
}

impl Meta {
    #[inline]
    fn from_bytes(bytes: [u8; META_BYTES]) -> Self {
        Self {
            forward: u16::from_le_bytes([bytes[0], bytes[1]]),
            backward: u16::from_le_bytes([bytes[2], bytes[3]]),
            occupied: bytes[4],
            native: bytes[5],
        }
    }

    fn to_bytes(self) -> [u8; META_BYTES] {
        let (forward, backward) = (self.forward.to_le_bytes(), self.backward.to_le_bytes());
        [
            forward[0],
            forward[1],
            backward[0],
            backward[1],
            self.occupied,
            self.native,
        ]
    }
}

/// The payload of a bucket, as a transaction has it.
pub struct Bucket<'a, P> {
    layout: &'a Layout,
    payload: P,
}

impl<P: AsRef<[u8]>> Bucket<'_, P> {
    /// Joint versions and slot bits.
    pub fn meta(&self) -> Meta {
        let bytes = &self.payload.as_ref()[self.layout.meta_at..][..META_BYTES];
        Meta::from_bytes(bytes.try_into().expect("six bytes"))
    }

    /// The bucket's chain.
    pub fn next(&self) -> Option<Next> {
        unpack(&self.payload.as_ref()[self.layout.next_at..]).0
    }

    /// Key and value of a slot.
    pub fn pair(&self, slot: usize) -> &[u8] {
        &self.payload.as_ref()[self.layout.positions.at(slot)..][..self.layout.pair_bytes()]
    }

    /// A slot that holds no pair.
    pub fn free_slot(&self) -> Option<usize> {
        let free = !self.meta().occupied & ((1u8 << self.layout.slots) - 1);
        (free != 0).then(|| free.trailing_zeros() as usize)
    }

    /// The slot of a key among natives, or among foreigners.
    pub fn find(&self, key: &Key, native: bool) -> Option<usize> {
        let meta = self.meta();
        (0..self.layout.slots).find(|slot| {
            let bit = 1 << slot;
            meta.occupied & bit != 0
                && (meta.native & bit != 0) == native
                && self.pair(*slot)[..KEY_BYTES] == *key
        })
    }

    /// The first slot that holds a native pair, or a foreign one.
    pub fn first_of(&self, native: bool) -> Option<usize> {
        let meta = self.meta();
        let bits = if native {
            meta.occupied & meta.native
        } else {
            meta.occupied & !meta.native
        };
        (bits != 0).then(|| bits.trailing_zeros() as usize)
    }
}

impl<P: AsRef<[u8]> + AsMut<[u8]>> Bucket<'_, P> {
    /// Changes joint versions and slot bits.
    pub fn set_meta(&mut self, meta: Meta) {
        self.payload.as_mut()[self.layout.meta_at..][..META_BYTES]
            .copy_from_slice(&meta.to_bytes());
    }

    /// Changes the bucket's chain.
    pub fn set_next(&mut self, next: Option<Next>) {
        self.payload.as_mut()[self.layout.next_at..][..NEXT_BYTES].copy_from_slice(&pack(next, 0));
    }

    /// Puts a pair into a slot.
    pub fn put(&mut self, slot: usize, pair: &[u8], native: bool) {
        let at = self.layout.positions.at(slot);
        self.payload.as_mut()[at..at + self.layout.pair_bytes()].copy_from_slice(pair);
        let mut meta = self.meta();
        meta.occupied |= 1 << slot;
        meta.native = meta.native & !(1 << slot) | u8::from(native) << slot;
        self.set_meta(meta);
    }

    /// Empties a slot.
    pub fn clear(&mut self, slot: usize) {
        let mut meta = self.meta();
        meta.occupied &= !(1 << slot);
        meta.native &= !(1 << slot);
        self.set_meta(meta);
    }
}

/// The payload of an overflow block, as a transaction has it.
pub struct Block<'a, P> {
    layout: &'a Layout,
    payload: P,
}

impl<P: AsRef<[u8]>> Block<'_, P> {
    /// The block after it.
    pub fn next(&self) -> Option<Next> {
        self.tail().0
    }

    /// Slots that hold a pair.
    pub fn occupied(&self) -> u8 {
        self.tail().1
    }

    fn tail(&self) -> (Option<Next>, u8) {
        unpack(&self.payload.as_ref()[self.layout.block_next_at..])
    }

    /// Key and value of a slot.
    pub fn pair(&self, slot: usize) -> &[u8] {
        &self.payload.as_ref()[self.layout.positions.at(slot)..][..self.layout.pair_bytes()]
    }

    /// The slot of a key.
    pub fn find(&self, key: &Key) -> Option<usize> {
        let occupied = self.occupied();
        (0..BLOCK_SLOTS)
            .find(|slot| occupied & 1 << slot != 0 && self.pair(*slot)[..KEY_BYTES] == *key)
    }
}

impl<P: AsRef<[u8]> + AsMut<[u8]>> Block<'_, P> {
    /// Changes the block after it and the occupied slots.
    pub fn set_tail(&mut self, next: Option<Next>, occupied: u8) {
        let at = self.layout.block_next_at;
        self.payload.as_mut()[at..at + NEXT_BYTES].copy_from_slice(&pack(next, occupied));
    }

    /// Puts a pair into a slot; the occupied slots are the caller's to set.
    pub fn put(&mut self, slot: usize, pair: &[u8]) {
        let at = self.layout.positions.at(slot);
        self.payload.as_mut()[at..at + self.layout.pair_bytes()].copy_from_slice(pair);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farm_core::object::payload_capacity;
    use proptest::prelude::*;

    #[test]
    fn the_sizes_of_16_and_32_bytes_are_those_that_the_utilization_needs() {
        let bytes = |h| {
            let layout = Layout::new(h, 32).unwrap();
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
    fn impossible_tables_say_why() {
        assert!(
            Layout::new(5, 32)
                .unwrap_err()
                .to_string()
                .contains("neighbourhood 5")
        );
        assert!(
            Layout::new(12, 1 << 20)
                .unwrap_err()
                .to_string()
                .contains("larger than any object")
        );
    }

    /// Parts do not overlap and lie within the object, for every neighbourhood and value length: with
    /// H = 4 and values of up to 29 bytes, two pairs in two lines, the second pair once lay where the
    /// pointer to the chain was.
    #[test]
    fn parts_do_not_overlap() {
        for (h, value_bytes) in NEIGHBOURHOODS
            .iter()
            .flat_map(|h| (0..2000).map(move |bytes| (*h, bytes)))
        {
            let layout = Layout::new(h, value_bytes).unwrap();
            let pair = layout.pair_bytes();
            let mut parts = vec![(layout.next_at, NEXT_BYTES), (layout.meta_at, META_BYTES)];
            parts.extend((0..layout.slots).map(|slot| (layout.positions.at(slot), pair)));
            parts.sort_unstable();
            let what = format!("H = {h}, {value_bytes} bytes: {parts:?}");
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
            }
        }
    }

    proptest! {
        #[test]
        fn a_next_pointer_survives_its_fourteen_bytes(
            ring in 0u32..100, at in 1u32..1 << 25, line in 0u32..1 << 26, count in 0u64..1 << 48, spare in 0u8..64,
        ) {
            let address = Address::new(RegionId::new(ring, at).unwrap(), line * 64);
            let incarnation = Incarnation(count << 1 | 1);
            let next = Next::new(address, incarnation);
            prop_assert_eq!(unpack(&pack(Some(next), spare)), (Some(next), spare));
            prop_assert_eq!(unpack(&pack(None, spare)), (None, spare));
            prop_assert!(next.names(incarnation) && !next.names(incarnation.freed()));
        }
    }
}
