//! A random sample of ids in bounded memory.

use std::collections::BinaryHeap;

use super::known::mixed;

/// A sample of ids without repetition: those with the least mixed numbers. The sample of a set of ids depends on the set only,
/// so that samples of parts are [merged](Sample::merge) to the sample of the whole.
#[derive(Clone, Debug)]
pub struct Sample {
    most: usize,
    /// Mixed numbers and ids. The greatest number is on top.
    chosen: BinaryHeap<(u64, u64)>,
}

impl Sample {
    /// Creates an empty sample of at most `most` ids.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            chosen: BinaryHeap::new(),
        }
    }

    /// Adds an id, which must not have been added before.
    pub fn add(&mut self, id: u64) {
        let number = mixed(id);
        if self.chosen.len() < self.most {
            self.chosen.push((number, id));
        } else if let Some(mut greatest) = self.chosen.peek_mut()
            && number < greatest.0
        {
            *greatest = (number, id);
        }
    }

    /// Adds the ids of the sample of another part.
    pub fn merge(&mut self, ids: impl IntoIterator<Item = u64>) {
        ids.into_iter().for_each(|id| self.add(id));
    }

    /// Returns the ids, in a random order.
    pub fn ids(self) -> Vec<u64> {
        let chosen = self.chosen.into_sorted_vec();
        chosen.into_iter().map(|(_, id)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_parts_are_merged_to_the_sample_of_the_whole() {
        let sample = |ids: std::ops::Range<u64>| {
            let mut sample = Sample::new(100);
            sample.merge(ids);
            sample
        };
        let whole = sample(0..5000).ids();
        assert_eq!(whole.len(), 100);
        let mut merged = sample(0..1234);
        merged.merge(sample(1234..5000).ids());
        assert_eq!(merged.ids(), whole);
        // About the same number of each tenth of the ids.
        for tenth in 0..10 {
            let ids: std::ops::Range<u64> = tenth * 500..(tenth + 1) * 500;
            let found = whole.iter().filter(|id| ids.contains(*id)).count();
            assert!((2..=25).contains(&found), "{tenth}: {found}");
        }
        let mut few = sample(0..7).ids();
        few.sort_unstable();
        assert_eq!(few, [0, 1, 2, 3, 4, 5, 6]);
        assert!(Sample::new(0).ids().is_empty());
    }
}
