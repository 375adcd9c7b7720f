//! The private free map of one block: the slots that a slab allocator may reserve.
//!
//! It has two levels: a bit per slot, and a bit per word of 64 slots, which is set if any of these slots is free. A
//! cursor marks the lowest word of the upper level that may have a bit, so that taking the lowest free slot reads only
//! a few words however full the block is. Nothing grows after [`FreeSlots::new`].

const BITS: u32 = u64::BITS;

/// The free slots of one block. The lowest is taken first, so that a block fills without holes.
#[derive(Debug)]
pub(super) struct FreeSlots {
    /// One bit per slot, set if the slot is free; then one bit per word of slot bits, set if that word is not 0.
    words: Box<[u64]>,
    /// Index of the first word of the second level.
    summary: u32,
    /// Index in the second level before which all words are 0.
    cursor: u32,
    slots: u32,
    free: u32,
}

impl FreeSlots {
    /// Creates a map of `slots` slots, all of them free.
    pub(super) fn new(slots: u32) -> Self {
        let (lower, upper) = (slots.div_ceil(BITS), slots.div_ceil(BITS * BITS));
        let mut words = vec![0; (lower + upper) as usize].into_boxed_slice();
        fill(&mut words[..lower as usize], slots);
        fill(&mut words[lower as usize..], lower);
        Self {
            words,
            summary: lower,
            cursor: 0,
            slots,
            free: slots,
        }
    }

    /// Returns the number of slots.
    pub(super) fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns the number of free slots.
    #[inline]
    pub(super) fn free(&self) -> u32 {
        self.free
    }

    /// Takes the lowest free slot.
    #[inline]
    pub(super) fn take_lowest(&mut self) -> Option<u32> {
        if self.free == 0 {
            return None;
        }
        let mut upper = (self.summary + self.cursor) as usize;
        while self.words[upper] == 0 {
            upper += 1;
        }
        self.cursor = upper as u32 - self.summary;
        let word = self.cursor * BITS + self.words[upper].trailing_zeros();
        let slot = word * BITS + self.words[word as usize].trailing_zeros();
        self.take(slot);
        Some(slot)
    }

    /// Takes this slot. Returns false if it was not free.
    #[inline]
    pub(super) fn take(&mut self, slot: u32) -> bool {
        if !self.is_free(slot) {
            return false;
        }
        let word = slot / BITS;
        self.words[word as usize] &= !(1 << (slot % BITS));
        if self.words[word as usize] == 0 {
            self.words[(self.summary + word / BITS) as usize] &= !(1 << (word % BITS));
        }
        self.free -= 1;
        true
    }

    /// Marks this slot as free. Returns false if it was free already.
    #[inline]
    pub(super) fn give(&mut self, slot: u32) -> bool {
        if self.is_free(slot) {
            return false;
        }
        let word = slot / BITS;
        self.words[word as usize] |= 1 << (slot % BITS);
        self.words[(self.summary + word / BITS) as usize] |= 1 << (word % BITS);
        self.cursor = self.cursor.min(word / BITS);
        self.free += 1;
        true
    }

    /// Returns whether this slot is free.
    ///
    /// # Panics
    /// If the block has no such slot.
    #[inline]
    pub(super) fn is_free(&self, slot: u32) -> bool {
        assert!(
            slot < self.slots,
            "slot {slot} is out of range: the block has {} slots",
            self.slots
        );
        self.words[(slot / BITS) as usize] >> (slot % BITS) & 1 == 1
    }
}

/// Sets the lowest `bits` bits.
fn fill(words: &mut [u64], bits: u32) {
    for (i, word) in words.iter_mut().enumerate() {
        let left = bits - i as u32 * BITS;
        *word = if left >= BITS {
            u64::MAX
        } else {
            (1 << left) - 1
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn slots_are_taken_in_order_and_the_lowest_free_one_first() {
        for slots in [1, 63, 64, 65, 4096, 4097, 16384] {
            let mut free = FreeSlots::new(slots);
            for slot in 0..slots {
                assert_eq!(free.take_lowest(), Some(slot));
            }
            assert_eq!((free.take_lowest(), free.free()), (None, 0));
            assert!(free.give(slots - 1) && free.give(slots / 2) != (slots == 1));
            assert!(!free.give(slots - 1), "a slot cannot be given twice");
            assert_eq!(free.take_lowest(), Some(slots / 2));
        }
    }

    #[test]
    #[should_panic(expected = "slot 5 is out of range: the block has 5")]
    fn a_slot_out_of_range_panics() {
        FreeSlots::new(5).give(5);
    }

    proptest! {
        #[test]
        fn free_slots_behave_like_a_set(
            slots in 1u32..5000,
            steps in prop::collection::vec((0u8..3, any::<u32>()), 0..400),
        ) {
            let mut free = FreeSlots::new(slots);
            let mut model: BTreeSet<u32> = (0..slots).collect();
            for (step, slot) in steps {
                let slot = slot % slots;
                match step {
                    0 => prop_assert_eq!(free.take_lowest(), model.pop_first()),
                    1 => prop_assert_eq!(free.give(slot), model.insert(slot)),
                    _ => prop_assert_eq!(free.take(slot), model.remove(&slot)),
                }
                prop_assert_eq!(free.free() as usize, model.len());
                prop_assert_eq!(free.is_free(slot), model.contains(&slot));
            }
        }
    }
}
