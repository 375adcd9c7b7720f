//! The state that layers above store with a worker: one value of each type.
//!
//! A layer takes its state out while it runs and puts it back afterwards. Continuations run from the event loop only,
//! never inside the call that begins an operation, so no layer is entered while its state is taken out. If one is, that
//! is a bug, and the worker panics.

use std::any::{Any, TypeId};
use std::hash::{Hash, Hasher};

use crate::mem::AnyPlace;

/// Number of slots.
const SLOTS: usize = 256;

/// States of the layers, by type.
///
/// A type has a first and a second slot, which its id determines at compile time. It gets the first one if that is
/// free, else the second one, and if both belong to other types, a place in `more`. The types that share slots change
/// with each version of the program or the compiler. Of eight layers, two share their first slot with a probability of a
/// tenth, so that the second slot must be about as fast as the first.
pub(crate) struct Layers {
    slots: [AnyPlace; SLOTS],
    more: Vec<AnyPlace>,
}

impl Default for Layers {
    fn default() -> Self {
        Self {
            slots: [const { AnyPlace::FREE }; SLOTS],
            more: Vec::new(),
        }
    }
}

impl Layers {
    // Always inlined: layers take their state out and put it back in every operation, and the common case is a few
    // instructions.
    #[inline(always)]
    pub(crate) fn put<T: Any>(&mut self, state: Box<T>) {
        match self.place::<T>() {
            Some(place) => place.put(state),
            None => self.add(state),
        }
    }

    #[inline(always)]
    pub(crate) fn take<T: Any>(&mut self) -> Option<Box<T>> {
        self.place::<T>()?.take()
    }

    #[inline(always)]
    pub(crate) fn get<T: Any>(&mut self) -> Option<&mut T> {
        self.place::<T>()?.get()
    }

    /// Returns the place of the state of a type that was put before.
    #[inline(always)]
    fn place<T: Any>(&mut self) -> Option<&mut AnyPlace> {
        let [first, second] = slots(TypeId::of::<T>());
        if self.slots[first].is::<T>() {
            return Some(&mut self.slots[first]);
        }
        if self.slots[second].is::<T>() {
            return Some(&mut self.slots[second]);
        }
        self.place_in_more::<T>()
    }

    #[cold]
    fn place_in_more<T: Any>(&mut self) -> Option<&mut AnyPlace> {
        self.more.iter_mut().find(|place| place.is::<T>())
    }

    /// Adds the state of a type that has no place yet.
    #[cold]
    fn add<T: Any>(&mut self, state: Box<T>) {
        let is_free = |slot: &usize| self.slots[*slot].is_free();
        let place = AnyPlace::new(state);
        match slots(TypeId::of::<T>()).into_iter().find(is_free) {
            Some(free) => self.slots[free] = place,
            None => self.more.push(place),
        }
    }
}

/// Returns the first and the second slot of a type.
#[inline(always)]
fn slots(id: TypeId) -> [usize; 2] {
    let mut bits = Bits(0);
    id.hash(&mut bits);
    [bits.0, bits.0 >> 32].map(|bits| bits as usize % SLOTS)
}

/// A hasher that returns the hashed bits unchanged, because the id of a type is a hash already.
struct Bits(u64);

impl Hasher for Bits {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.0 ^= bytes.first().map_or(0, |byte| u64::from(*byte));
    }

    #[inline]
    fn write_u64(&mut self, bits: u64) {
        self.0 ^= bits;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_of_each_type() {
        let mut layers = Layers::default();
        assert!(layers.take::<u32>().is_none());
        layers.put(Box::new(1u32));
        layers.put(Box::new("two"));
        *layers.get::<u32>().unwrap() += 10;
        let state = layers.take::<u32>().unwrap();
        assert!(layers.get::<u32>().is_none(), "the state is taken out");
        layers.put(state);
        assert_eq!(layers.get::<u32>(), Some(&mut 11));
        assert_eq!(layers.get::<&str>(), Some(&mut "two"));
    }

    struct Own<const N: usize>(usize);

    /// Puts, takes and gets the state of a type.
    fn check<const N: usize>(layers: &mut Layers) {
        assert!(layers.get::<Own<N>>().is_none());
        assert!(layers.take::<Own<N>>().is_none());
        layers.put(Box::new(Own::<N>(1)));
        layers.put(Box::new(Own::<N>(2)));
        let mut state = layers.take::<Own<N>>().unwrap();
        assert!(layers.get::<Own<N>>().is_none());
        assert!(layers.take::<Own<N>>().is_none());
        state.0 += N;
        layers.put(state);
    }

    macro_rules! for_types {
        ($do:ident($layers:expr): $($tens:literal)+) => { $(
            $do::<{ $tens }>($layers); $do::<{ $tens + 1 }>($layers); $do::<{ $tens + 2 }>($layers);
            $do::<{ $tens + 3 }>($layers); $do::<{ $tens + 4 }>($layers); $do::<{ $tens + 5 }>($layers);
            $do::<{ $tens + 6 }>($layers); $do::<{ $tens + 7 }>($layers); $do::<{ $tens + 8 }>($layers);
            $do::<{ $tens + 9 }>($layers);
        )+ };
    }

    fn found<const N: usize>(layers: &mut Layers) {
        assert_eq!(layers.get::<Own<N>>().unwrap().0, N + 2);
    }

    #[test]
    fn types_that_share_slots_are_found() {
        let mut layers = Layers::default();
        for_types!(check(&mut layers): 0 10 20 30 40 50 60 70 80 90 100 110 120 130 140 150 160 170 180 190);
        for_types!(found(&mut layers): 0 10 20 30 40 50 60 70 80 90 100 110 120 130 140 150 160 170 180 190);
        let occupied = layers.slots.iter().filter(|slot| !slot.is_free()).count();
        assert_eq!(occupied + layers.more.len(), 200);
        assert!(
            !layers.more.is_empty(),
            "two slots for each of 200 types cannot be disjoint"
        );
    }
}
