//! Buckets and overflow blocks as a transaction has them: payload bytes without versions.

use super::next::{pack, unpack};
use super::{BLOCK_SLOTS, Layout, META_BYTES, NEXT_BYTES, Next};
use crate::{KEY_BYTES, Key};

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
    pub(super) fn from_bytes(bytes: [u8; META_BYTES]) -> Self {
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
    pub(super) layout: &'a Layout,
    pub(super) payload: P,
}

impl<P: AsRef<[u8]>> Bucket<'_, P> {
    /// Joint versions and slot bits.
    pub fn meta(&self) -> Meta {
        let bytes = &self.payload.as_ref()[self.layout.meta_at..][..META_BYTES];
        let meta = Meta::from_bytes(bytes.try_into().expect("six bytes"));
        // It may be of another machine's memory.
        Meta {
            occupied: meta.occupied & self.layout.slot_bits,
            native: meta.native & self.layout.slot_bits,
            ..meta
        }
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
    pub(super) layout: &'a Layout,
    pub(super) payload: P,
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
        let (next, occupied) = unpack(&self.payload.as_ref()[self.layout.block_next_at..]);
        (next, occupied & ((1 << BLOCK_SLOTS) - 1))
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
