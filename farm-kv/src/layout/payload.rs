//! Buckets and overflow blocks in a transaction: payload bytes without versions.

use super::next::{pack, unpack};
use super::{BLOCK_SLOTS, Layout, META_BYTES, NEXT_BYTES, Next};

/// Joint versions and slot bits of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Joint version with the next bucket.
    pub forward: u16,
    /// Joint version with the previous bucket.
    pub backward: u16,
    /// Mask of the slots that hold a pair.
    pub occupied: u8,
    /// Mask of the slots whose pair hashes to this bucket.
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

/// The payload of a bucket in a transaction.
pub struct Bucket<'a, P> {
    pub(super) layout: &'a Layout,
    pub(super) payload: P,
}

impl<P: AsRef<[u8]>> Bucket<'_, P> {
    /// Returns the joint versions and slot bits.
    pub fn meta(&self) -> Meta {
        let bytes = &self.payload.as_ref()[self.layout.meta_at..][..META_BYTES];
        let meta = Meta::from_bytes(
            bytes
                .try_into()
                .expect("the slice has the length of the joint versions and slot bits"),
        );
        // The payload may come from another machine: bits of slots that do not exist are cleared.
        Meta {
            occupied: meta.occupied & self.layout.slot_bits,
            native: meta.native & self.layout.slot_bits,
            ..meta
        }
    }

    /// Returns the pointer to the first block of the bucket's chain.
    pub fn next(&self) -> Option<Next> {
        unpack(&self.payload.as_ref()[self.layout.next_at..]).0
    }

    /// Returns the key and value of a slot.
    pub fn pair(&self, slot: usize) -> &[u8] {
        &self.payload.as_ref()[self.layout.positions.at(slot)..][..self.layout.pair_bytes()]
    }

    /// Returns a slot that holds no pair.
    pub fn free_slot(&self) -> Option<usize> {
        let free = !self.meta().occupied & ((1u8 << self.layout.slots) - 1);
        (free != 0).then(|| free.trailing_zeros() as usize)
    }

    /// Returns the slot of a key among the native pairs, or among the foreign ones.
    pub fn find(&self, key: &[u8], native: bool) -> Option<usize> {
        let meta = self.meta();
        (0..self.layout.slots).find(|slot| {
            let bit = 1 << slot;
            meta.occupied & bit != 0
                && (meta.native & bit != 0) == native
                && self.pair(*slot)[..self.layout.key_bytes] == *key
        })
    }

    /// Returns the first slot that holds a native pair, or a foreign one.
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
    /// Stores the joint versions and slot bits.
    pub fn set_meta(&mut self, meta: Meta) {
        self.payload.as_mut()[self.layout.meta_at..][..META_BYTES]
            .copy_from_slice(&meta.to_bytes());
    }

    /// Stores the pointer to the first block of the bucket's chain.
    pub fn set_next(&mut self, next: Option<Next>) {
        self.payload.as_mut()[self.layout.next_at..][..NEXT_BYTES].copy_from_slice(&pack(next, 0));
    }

    /// Stores a pair in a slot.
    pub fn put(&mut self, slot: usize, pair: &[u8], native: bool) {
        let at = self.layout.positions.at(slot);
        self.payload.as_mut()[at..at + self.layout.pair_bytes()].copy_from_slice(pair);
        let mut meta = self.meta();
        meta.occupied |= 1 << slot;
        meta.native = meta.native & !(1 << slot) | u8::from(native) << slot;
        self.set_meta(meta);
    }

    /// Clears a slot.
    pub fn clear(&mut self, slot: usize) {
        let mut meta = self.meta();
        meta.occupied &= !(1 << slot);
        meta.native &= !(1 << slot);
        self.set_meta(meta);
    }
}

/// The payload of an overflow block in a transaction.
pub struct Block<'a, P> {
    pub(super) layout: &'a Layout,
    pub(super) payload: P,
}

impl<P: AsRef<[u8]>> Block<'_, P> {
    /// Returns the pointer to the next block of the chain.
    pub fn next(&self) -> Option<Next> {
        self.tail().0
    }

    /// Returns the mask of the slots that hold a pair.
    pub fn occupied(&self) -> u8 {
        self.tail().1
    }

    fn tail(&self) -> (Option<Next>, u8) {
        let (next, occupied) = unpack(&self.payload.as_ref()[self.layout.block_next_at..]);
        (next, occupied & ((1 << BLOCK_SLOTS) - 1))
    }

    /// Returns the key and value of a slot.
    pub fn pair(&self, slot: usize) -> &[u8] {
        &self.payload.as_ref()[self.layout.positions.at(slot)..][..self.layout.pair_bytes()]
    }

    /// Returns the slot of a key.
    pub fn find(&self, key: &[u8]) -> Option<usize> {
        let occupied = self.occupied();
        let bytes = self.layout.key_bytes;
        (0..BLOCK_SLOTS).find(|slot| occupied & 1 << slot != 0 && self.pair(*slot)[..bytes] == *key)
    }
}

impl<P: AsRef<[u8]> + AsMut<[u8]>> Block<'_, P> {
    /// Stores the pointer to the next block and the mask of the occupied slots.
    pub fn set_tail(&mut self, next: Option<Next>, occupied: u8) {
        let at = self.layout.block_next_at;
        self.payload.as_mut()[at..at + NEXT_BYTES].copy_from_slice(&pack(next, occupied));
    }

    /// Stores a pair in a slot. The caller must set the mask of the occupied slots.
    pub fn put(&mut self, slot: usize, pair: &[u8]) {
        let at = self.layout.positions.at(slot);
        self.payload.as_mut()[at..at + self.layout.pair_bytes()].copy_from_slice(pair);
    }
}
