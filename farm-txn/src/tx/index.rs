//! Where in a transaction an object stands, by its address.

use std::collections::BTreeMap;

use farm_core::ids::Address;

use super::Entry;

/// Up to so many, looking through all of them is as fast as a table.
const LOOKED_THROUGH: usize = 32;

/// Finds entries: of a large transaction by a table, which small ones never fill.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// The first entry of each address.
    places: BTreeMap<Address, usize>,
    /// Entries that the table has.
    noted: usize,
}

impl Index {
    /// The first entry of an address.
    #[inline]
    pub(super) fn find(&self, entries: &[Entry], address: Address) -> Option<usize> {
        if entries.len() <= LOOKED_THROUGH {
            return entries.iter().position(|entry| entry.address == address);
        }
        debug_assert_eq!(self.noted, entries.len());
        self.places.get(&address).copied()
    }

    /// Entries were added.
    #[inline]
    pub(super) fn follow(&mut self, entries: &[Entry]) {
        if entries.len() > LOOKED_THROUGH {
            self.note(entries);
        }
    }

    #[cold]
    fn note(&mut self, entries: &[Entry]) {
        for (place, entry) in entries.iter().enumerate().skip(self.noted) {
            self.places.entry(entry.address).or_insert(place);
        }
        self.noted = entries.len();
    }

    /// Entries were taken away.
    #[inline]
    pub(super) fn rebuild(&mut self, entries: &[Entry]) {
        if self.noted > 0 {
            self.places.clear();
            self.noted = 0;
        }
        self.follow(entries);
    }
}
