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

/// Entries of a set.
const WAYS: usize = 4;

type Set = [Option<Entry>; WAYS];

/// The parts that are read often. The number of entries is fixed. Each part belongs to one set of them. A new part
/// replaces the last one of its set; a part that is found moves one place to the front, so that parts that are read
/// rarely do not replace those that are read often.
pub(crate) struct Heads {
    sets: Vec<Set>,
    pub(crate) counters: HeadCounters,
}

impl Heads {
    /// Creates a cache of `entries` entries, rounded up to a power of two of at least 4; 0 means no cache.
    pub(crate) fn new(entries: usize) -> Self {
        let sets = match entries {
            0 => 0,
            some => some.div_ceil(WAYS).next_power_of_two(),
        };
        Self {
            sets: vec![[None; WAYS]; sets],
            counters: HeadCounters::default(),
        }
    }

    /// Returns the object of a part, as far as is known. The object may have been freed since.
    #[inline]
    pub(crate) fn get(&mut self, node: FatPointer, part: Part) -> Option<FatPointer> {
        let set = self.set(node, part)?;
        let at = find(set, node, part)?;
        let found = set[at]?.object;
        set.swap(at, at.saturating_sub(1));
        Some(found)
    }

    pub(crate) fn put(&mut self, node: FatPointer, part: Part, object: FatPointer) {
        let Some(set) = self.set(node, part) else {
            return;
        };
        let at = find(set, node, part).or_else(|| set.iter().position(Option::is_none));
        set[at.unwrap_or(WAYS - 1)] = Some(Entry { node, part, object });
    }

    /// Forgets the object of a part, if it is known.
    pub(crate) fn forget(&mut self, node: FatPointer, part: Part) {
        if let Some(set) = self.set(node, part)
            && let Some(at) = find(set, node, part)
        {
            set[at] = None;
        }
    }

    #[inline]
    fn set(&mut self, node: FatPointer, part: Part) -> Option<&mut Set> {
        let part = match part {
            Part::Data => 1 << 32,
            Part::List(assoc_type) => u64::from(assoc_type),
        };
        // The finalizer of MurmurHash3: nodes are at addresses with regular distances.
        let mut mixed = node.address.to_bits() ^ part << 24;
        mixed = (mixed ^ mixed >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed = (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        let at = (mixed >> 32) as usize & self.sets.len().wrapping_sub(1);
        self.sets.get_mut(at)
    }
}

/// Returns the place of a part in its set.
#[inline]
fn find(set: &Set, node: FatPointer, part: Part) -> Option<usize> {
    let is_wanted = |entry: &Entry| entry.node == node && entry.part == part;
    set.iter()
        .position(|entry| entry.as_ref().is_some_and(is_wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(at: u64) -> FatPointer {
        FatPointer::from_words([0x1000_0000_0000 + 64 * at, 1 << 56]).unwrap()
    }

    #[test]
    fn the_cache_returns_what_was_put_last() {
        let mut heads = Heads::new(5);
        assert_eq!(heads.sets.len(), 2);
        assert_eq!(size_of::<Set>(), WAYS * 40);
        for at in 0..100 {
            heads.put(node(at), Part::List(1), node(at + 1000));
            assert_eq!(heads.get(node(at), Part::List(1)), Some(node(at + 1000)));
            assert_eq!(heads.get(node(at), Part::List(2)), None);
            assert_eq!(heads.get(node(at), Part::Data), None);
        }
        let kept = (0..100).filter(|at| heads.get(node(*at), Part::List(1)).is_some());
        assert_eq!(kept.count(), 8);
        let mut none = Heads::new(0);
        none.put(node(1), Part::Data, node(2));
        none.forget(node(1), Part::Data);
        assert_eq!(none.get(node(1), Part::Data), None);
        heads.put(node(1), Part::Data, node(2));
        heads.put(node(1), Part::Data, node(3));
        heads.forget(node(1), Part::List(1));
        assert_eq!(heads.get(node(1), Part::Data), Some(node(3)));
        heads.forget(node(1), Part::Data);
        assert_eq!(heads.get(node(1), Part::Data), None);
    }

    #[test]
    fn parts_that_are_read_once_do_not_replace_those_that_are_read_often() {
        let mut heads = Heads::new(4);
        for at in 0..4 {
            heads.put(node(at), Part::Data, node(at + 100));
        }
        for at in 10..1000 {
            for often in 0..2 {
                assert_eq!(heads.get(node(often), Part::Data), Some(node(often + 100)));
            }
            heads.put(node(at), Part::Data, node(1));
        }
    }

    #[test]
    fn three_quarters_of_a_cache_can_be_used() {
        let mut heads = Heads::new(1 << 12);
        let all = 3 << 10;
        for _ in 0..2 {
            for at in 0..all {
                heads.put(node(at), Part::List(7), node(at));
            }
        }
        let kept = (0..all).filter(|at| heads.get(node(*at), Part::List(7)).is_some());
        let kept = kept.count() as u64;
        assert!(kept * 10 > all * 9, "{kept} of {all}");
    }
}
