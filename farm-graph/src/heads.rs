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

/// Bits of the hashes of the parts in a set, which are never 0; 0 for an empty entry. They are apart from the entries, so that
/// a part that is not in the cache costs one access to memory, and one that is costs two.
type Tags = [u16; WAYS];

/// The parts that are read often. The number of entries is fixed. Each part belongs to one set of them. A new part
/// replaces the last one of its set; a part that is found moves one place to the front, so that parts that are read
/// rarely do not replace those that are read often.
pub(crate) struct Heads {
    tags: Vec<Tags>,
    entries: Vec<[Option<Entry>; WAYS]>,
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
            tags: vec![[0; WAYS]; sets],
            entries: vec![[None; WAYS]; sets],
            counters: HeadCounters::default(),
        }
    }

    /// Returns the object of a part, as far as is known. The object may have been freed since.
    #[inline]
    pub(crate) fn get(&mut self, node: FatPointer, part: Part) -> Option<FatPointer> {
        let (set, tag) = self.place(node, part);
        let at = self.find((set, tag), node, part)?;
        let found = self.entries[set][at]?.object;
        if at > 0 {
            self.tags[set].swap(at, at - 1);
            self.entries[set].swap(at, at - 1);
        }
        Some(found)
    }

    pub(crate) fn put(&mut self, node: FatPointer, part: Part, object: FatPointer) {
        let (set, tag) = self.place(node, part);
        let Some(tags) = self.tags.get(set) else {
            return;
        };
        let empty = tags.iter().position(|tag| *tag == 0);
        let at = self.find((set, tag), node, part).or(empty);
        let at = at.unwrap_or(WAYS - 1);
        self.tags[set][at] = tag;
        self.entries[set][at] = Some(Entry { node, part, object });
    }

    /// Forgets the object of a part, if it is known.
    pub(crate) fn forget(&mut self, node: FatPointer, part: Part) {
        let (set, tag) = self.place(node, part);
        if let Some(at) = self.find((set, tag), node, part) {
            self.tags[set][at] = 0;
            self.entries[set][at] = None;
        }
    }

    /// Returns the number of the set of a part, and its tag.
    #[inline]
    fn place(&self, node: FatPointer, part: Part) -> (usize, u16) {
        let part = match part {
            Part::Data => 1 << 32,
            Part::List(assoc_type) => u64::from(assoc_type),
        };
        // The finalizer of MurmurHash3: nodes are at addresses with regular distances.
        let mut mixed = node.address.to_bits() ^ part << 24;
        mixed = (mixed ^ mixed >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed = (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        let set = (mixed >> 32) as usize & self.tags.len().wrapping_sub(1);
        (set, mixed as u16 | 1)
    }

    /// Returns the place of a part in its set.
    #[inline]
    fn find(&self, (set, tag): (usize, u16), node: FatPointer, part: Part) -> Option<usize> {
        let tags = self.tags.get(set)?;
        (0..WAYS).find(|&at| {
            let is_wanted = |entry: &Entry| entry.node == node && entry.part == part;
            tags[at] == tag && self.entries[set][at].as_ref().is_some_and(is_wanted)
        })
    }
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
        assert_eq!((heads.tags.len(), heads.entries.len()), (2, 2));
        assert_eq!(size_of::<Option<Entry>>() + size_of::<u16>(), 42);
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
