//! The private free map of one block: which of its slots a slab allocator may hand out.
//!
//! Two levels: a bit per slot, and a bit per word that has any free slot. With a cursor at the
//! lowest word of the upper level that may have a bit, taking the lowest free slot looks at a
//! handful of words however full the block is. Nothing grows after [`FreeSlots::new`].

const BITS: u32 = u64::BITS;

/// Free slots of one block. The lowest is taken first, so that a block fills without holes.
#[derive(Debug)]
pub(super) struct FreeSlots {
    /// A bit per slot, set when it is free; then a bit per one of those words, set when it is not 0.
    words: Box<[u64]>,
    /// Where the second level starts.
    summary: u32,
    /// No summary word before this one has a bit.
    cursor: u32,
    slots: u32,
    free: u32,
}

impl FreeSlots {
    /// All of `slots` free.
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

    /// Slots there are.
    pub(super) fn slots(&self) -> u32 {
        self.slots
    }

    /// Slots that are free.
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

    /// Takes this slot; false if it was not free.
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

    /// Gives this slot back; false if it was free already.
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

    /// Whether this slot is free.
    ///
    /// # Panics
    /// If there is no such slot.
    #[inline]
    pub(super) fn is_free(&self, slot: u32) -> bool {
        assert!(
            slot < self.slots,
            "slot {slot} of a block of {}",
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
    fn slots_go_out_in_order_and_the_lowest_comes_back_first() {
        for slots in [1, 63, 64, 65, 4096, 4097, 16384] {
            let mut free = FreeSlots::new(slots);
            for slot in 0..slots {
                assert_eq!(free.take_lowest(), Some(slot));
            }
            assert_eq!((free.take_lowest(), free.free()), (None, 0));
            assert!(free.give(slots - 1) && free.give(slots / 2) != (slots == 1));
            assert!(!free.give(slots - 1), "given twice");
            assert_eq!(free.take_lowest(), Some(slots / 2));
        }
    }

    #[test]
    #[should_panic(expected = "slot 5 of a block of 5")]
    fn a_slot_that_is_not_there_is_a_programmer_error() {
        FreeSlots::new(5).give(5);
    }

    proptest! {
        #[test]
        fn it_is_a_set(
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
