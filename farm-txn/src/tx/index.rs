//! Finds the entry of an object by its address.

use farm_core::ids::Address;
use farm_core::mem::LINE_BYTES;

use super::Entries;

/// Up to this many entries, a search through all of them is as fast as a table.
const LOOKED_THROUGH: usize = 32;
/// Slots of the smallest table.
const LEAST_SLOTS: usize = 128;
/// The content of a slot without an entry.
const EMPTY: u32 = u32::MAX;

/// Index of entries by address. For large transactions it is a hash table with linear probing, which small transactions
/// never fill.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Number of the first entry of each address, or [`EMPTY`]; the length is a power of two, and at most 7/8 of the
    /// slots are filled.
    slots: Vec<u32>,
    /// Number of entries in the table.
    noted: usize,
}

impl Index {
    /// Returns the first entry of an address.
    #[inline]
    pub(super) fn find(&self, entries: &Entries, address: Address) -> Option<usize> {
        if entries.len() <= LOOKED_THROUGH {
            return entries.iter().position(|entry| entry.address == address);
        }
        debug_assert_eq!(self.noted, entries.len());
        let slot = self.probe(entries, address);
        let found = self.slots[slot];
        (found != EMPTY).then_some(found as usize)
    }

    /// Adds the entries that were appended since the last call.
    #[inline]
    pub(super) fn follow(&mut self, entries: &Entries) {
        if entries.len() > LOOKED_THROUGH {
            self.note(entries);
        }
    }

    /// Removes all entries.
    #[inline]
    pub(super) fn clear(&mut self) {
        if self.noted > 0 {
            self.slots.fill(EMPTY);
            self.noted = 0;
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.slots.capacity()
    }

    #[cold]
    fn note(&mut self, entries: &Entries) {
        let needed = entries.len() * 8 / 7 + 1;
        if needed > self.slots.len() {
            let slots = needed.next_power_of_two().max(LEAST_SLOTS);
            self.slots.clear();
            self.slots.reserve_exact(slots);
            self.slots.resize(slots, EMPTY);
            self.noted = 0;
        }
        for place in self.noted..entries.len() {
            let slot = self.probe(entries, entries[place].address);
            // If several entries have the same address, the table contains the first.
            if self.slots[slot] == EMPTY {
                self.slots[slot] = place as u32;
            }
        }
        self.noted = entries.len();
    }

    /// Returns the slot of an address: that of its entry, or the empty slot for a new entry.
    #[inline]
    fn probe(&self, entries: &Entries, address: Address) -> usize {
        let mask = self.slots.len() - 1;
        let line = address.to_bits() / LINE_BYTES as u64;
        let hash = line.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut slot = (hash >> 32) as usize & mask;
        loop {
            let found = self.slots[slot];
            if found == EMPTY || entries[found as usize].address == address {
                return slot;
            }
            slot = (slot + 1) & mask;
        }
    }
}
