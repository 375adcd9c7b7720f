//! A worker's cache of the first pages of lists, and of the objects with the data of nodes that do not contain it.

use farm_core::object::FatPointer;

/// Numbers of accesses to lists by reads without a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadCounters {
    /// Lists whose first page was in the cache, and was the first page still.
    pub hits: u64,
    /// Lists that were not in the cache.
    pub misses: u64,
    /// Lists whose cached page had been freed.
    pub stale: u64,
}

/// A part of a node that is in an object of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The data.
    Data,
    /// The first page of the list of this type.
    List(u32),
}

#[derive(Clone, Copy)]
struct Entry {
    node: FatPointer,
    part: Part,
    object: FatPointer,
}

/// The parts that were read last. The number of entries is fixed; each part has one place, which it shares with others.
pub(crate) struct Heads {
    entries: Vec<Option<Entry>>,
    pub(crate) counters: HeadCounters,
}

impl Heads {
    /// Creates a cache of `entries` entries, rounded up to a power of two; 0 means no cache.
    pub(crate) fn new(entries: usize) -> Self {
        let entries = match entries {
            0 => 0,
            some => some.next_power_of_two(),
        };
        Self {
            entries: vec![None; entries],
            counters: HeadCounters::default(),
        }
    }

    /// Returns the object of a part, as far as is known. The object may have been freed since.
    pub(crate) fn get(&self, node: FatPointer, part: Part) -> Option<FatPointer> {
        let entry = (*self.entries.get(self.place(node, part))?)?;
        let found = entry.node == node && entry.part == part;
        found.then_some(entry.object)
    }

    pub(crate) fn put(&mut self, node: FatPointer, part: Part, object: FatPointer) {
        let place = self.place(node, part);
        if let Some(entry) = self.entries.get_mut(place) {
            *entry = Some(Entry { node, part, object });
        }
    }

    /// Forgets the object of a part, if it is known.
    pub(crate) fn forget(&mut self, node: FatPointer, part: Part) {
        let place = self.place(node, part);
        if self.get(node, part).is_some() {
            self.entries[place] = None;
        }
    }

    fn place(&self, node: FatPointer, part: Part) -> usize {
        let part = match part {
            Part::Data => 1 << 32,
            Part::List(assoc_type) => u64::from(assoc_type),
        };
        let bits = node.address.to_bits() ^ part << 24;
        let mixed = bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        mixed as usize & self.entries.len().wrapping_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_returns_what_was_put_last() {
        let node = |at: u64| FatPointer::from_words([0x1000_0000_0000 + 64 * at, 1 << 56]).unwrap();
        let mut heads = Heads::new(5);
        assert_eq!(heads.entries.len(), 8);
        for at in 0..100 {
            heads.put(node(at), Part::List(1), node(at + 1000));
            assert_eq!(heads.get(node(at), Part::List(1)), Some(node(at + 1000)));
            assert_eq!(heads.get(node(at), Part::List(2)), None);
            assert_eq!(heads.get(node(at), Part::Data), None);
        }
        let kept = (0..100)
            .filter(|at| heads.get(node(*at), Part::List(1)).is_some())
            .count();
        assert!((1..=8).contains(&kept), "{kept} lists in 8 entries");
        let mut none = Heads::new(0);
        none.put(node(1), Part::Data, node(2));
        none.forget(node(1), Part::Data);
        assert_eq!(none.get(node(1), Part::Data), None);
        heads.put(node(1), Part::Data, node(2));
        heads.forget(node(1), Part::List(1));
        assert_eq!(heads.get(node(1), Part::Data), Some(node(2)));
        heads.forget(node(1), Part::Data);
        assert_eq!(heads.get(node(1), Part::Data), None);
    }
}
