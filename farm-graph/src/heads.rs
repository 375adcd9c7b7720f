//! A worker's cache of the first pages of lists.

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

#[derive(Clone, Copy)]
struct Entry {
    node: FatPointer,
    assoc_type: u32,
    head: FatPointer,
}

/// The first pages of lists that were read last. The number of entries is fixed; each list has one place, which it
/// shares with others.
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

    /// Returns the first page of a list, as far as is known. The page may have been freed since.
    pub(crate) fn get(&self, node: FatPointer, assoc_type: u32) -> Option<FatPointer> {
        let entry = (*self.entries.get(self.place(node, assoc_type))?)?;
        let found = entry.node == node && entry.assoc_type == assoc_type;
        found.then_some(entry.head)
    }

    pub(crate) fn put(&mut self, node: FatPointer, assoc_type: u32, head: FatPointer) {
        let place = self.place(node, assoc_type);
        if let Some(entry) = self.entries.get_mut(place) {
            *entry = Some(Entry {
                node,
                assoc_type,
                head,
            });
        }
    }

    fn place(&self, node: FatPointer, assoc_type: u32) -> usize {
        let bits = node.address.to_bits() ^ u64::from(assoc_type) << 40;
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
            heads.put(node(at), 1, node(at + 1000));
            assert_eq!(heads.get(node(at), 1), Some(node(at + 1000)));
            assert_eq!(heads.get(node(at), 2), None);
        }
        let kept = (0..100)
            .filter(|at| heads.get(node(*at), 1).is_some())
            .count();
        assert!((1..=8).contains(&kept), "{kept} lists in 8 entries");
        let mut none = Heads::new(0);
        none.put(node(1), 1, node(2));
        assert_eq!(none.get(node(1), 1), None);
    }
}
