//! Removes duplicates from ids.

use super::known::mixed;

/// A hash table that is reused: a slot whose round is not the current one is empty.
#[derive(Default)]
pub struct Distinct {
    /// Rounds and ids. Only the first slots are used if there are few ids.
    slots: Vec<(u64, u64)>,
    round: u64,
}

impl Distinct {
    /// Removes all but the first occurrence of each id.
    pub fn retain(&mut self, ids: &mut Vec<u64>) {
        let used = (2 * ids.len()).next_power_of_two();
        if self.slots.len() < used {
            self.slots.resize(used, (0, 0));
        }
        self.round += 1;
        let (slots, round) = (&mut self.slots[..used], self.round);
        ids.retain(|id| {
            let mut at = mixed(*id) as usize & (used - 1);
            // At most half of the slots become full, so an empty one is found.
            while slots[at].0 == round {
                if slots[at].1 == *id {
                    return false;
                }
                at = (at + 1) & (used - 1);
            }
            slots[at] = (round, *id);
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_first_occurrences_remain(lists in proptest::collection::vec(proptest::collection::vec(0..50u64, 0..200), 1..10)) {
            let mut distinct = Distinct::default();
            for list in lists {
                let mut expected: Vec<u64> = Vec::new();
                for id in &list {
                    if !expected.contains(id) {
                        expected.push(*id);
                    }
                }
                let mut found = list;
                distinct.retain(&mut found);
                prop_assert_eq!(found, expected);
            }
        }
    }
}
