//! The names of the nodes that a worker has seen last.

use farm_core::object::FatPointer;

/// The names of nodes by their ids, in bounded memory: each id has one place, which it shares with others.
pub struct Known(Vec<Option<(u64, FatPointer)>>);

impl Known {
    /// Creates a cache for `entries` names, rounded up to a power of two.
    pub fn new(entries: usize) -> Self {
        Self(vec![None; entries.next_power_of_two()])
    }

    fn place(&self, id: u64) -> usize {
        mixed(id) as usize & (self.0.len() - 1)
    }

    /// Returns the name of a node, if the cache has it.
    pub fn get(&self, id: u64) -> Option<FatPointer> {
        let (of, node) = self.0[self.place(id)]?;
        (of == id).then_some(node)
    }

    /// Stores the name of a node.
    pub fn put(&mut self, id: u64, node: FatPointer) {
        let place = self.place(id);
        self.0[place] = Some((id, node));
    }
}

/// Returns a number that is distributed evenly for any ids. Different ids have different numbers.
pub(super) fn mixed(id: u64) -> u64 {
    // The finalizer of SplitMix64.
    let id = (id ^ id >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let id = (id ^ id >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    id ^ id >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_returns_the_name_of_the_same_id_only() {
        let node = |at: u64| FatPointer::from_words([0x1000_0000_0000 + 64 * at, 1 << 56]).unwrap();
        let mut known = Known::new(100);
        for id in 0..1000 {
            assert_eq!(known.get(id), None);
            known.put(id, node(id));
            assert_eq!(known.get(id), Some(node(id)));
        }
        let kept = (0..1000).filter_map(|id| Some((id, known.get(id)?)));
        let kept: Vec<_> = kept.collect();
        assert!((100..=128).contains(&kept.len()), "{}", kept.len());
        assert!(kept.iter().all(|(id, found)| *found == node(*id)));
    }
}
