//! The state that layers above store with a worker: one value of each type.
//!
//! A layer takes its state out while it runs and puts it back afterwards. Continuations run from the event loop only,
//! never inside the call that begins an operation, so no layer is entered while its state is taken out. If one is, that
//! is a bug, and the worker panics.

use std::any::{Any, TypeId};
use std::hash::{Hash, Hasher};

/// Number of slots in which a layer's state is looked up first. The type determines the slot at compile time. With 256
/// slots and eight layers, the probability that two layers share a slot is a tenth; with 16 slots it would be nine
/// tenths.
const PLACES: usize = 256;

/// States of the layers, by type.
pub(crate) struct Layers {
    places: [Option<Box<dyn Any + Send>>; PLACES],
    /// States whose slot in `places` was occupied.
    more: Vec<Box<dyn Any + Send>>,
}

impl Default for Layers {
    fn default() -> Self {
        Self {
            places: [const { None }; PLACES],
            more: Vec::new(),
        }
    }
}

impl Layers {
    // Always inlined: layers take their state out and put it back in every operation, and the common case is a few
    // instructions.
    #[inline(always)]
    pub(crate) fn put<T: Any + Send>(&mut self, state: Box<T>) {
        match &mut self.places[place::<T>()] {
            free @ None if self.more.is_empty() => *free = Some(state),
            _ => self.put_more(state),
        }
    }

    /// Stores a state whose slot in `places` may be occupied, or which may replace an earlier one.
    #[cold]
    fn put_more<T: Any + Send>(&mut self, state: Box<T>) {
        self.take::<T>();
        match &mut self.places[place::<T>()] {
            Some(_) => self.more.push(state),
            free => *free = Some(state),
        }
    }

    #[inline(always)]
    pub(crate) fn take<T: Any + Send>(&mut self) -> Option<Box<T>> {
        let state = match &mut self.places[place::<T>()] {
            state @ Some(_) if state.as_deref().is_some_and(|state| state.is::<T>()) => {
                state.take()
            }
            _ => self.take_more::<T>(),
        };
        state?.downcast().ok()
    }

    /// Removes a state whose slot in `places` was occupied when it was put.
    #[cold]
    fn take_more<T: Any + Send>(&mut self) -> Option<Box<dyn Any + Send>> {
        let found = self.more.iter().position(|state| state.is::<T>())?;
        Some(self.more.swap_remove(found))
    }

    #[inline]
    pub(crate) fn get<T: Any + Send>(&mut self) -> Option<&mut T> {
        let first = self.places[place::<T>()].as_deref_mut();
        match first.and_then(|state| state.downcast_mut()) {
            Some(state) => Some(state),
            None => self.more.iter_mut().find_map(|state| state.downcast_mut()),
        }
    }
}

/// Returns the index in `places` of a type.
#[inline]
fn place<T: Any>() -> usize {
    let mut place = Place(0);
    TypeId::of::<T>().hash(&mut place);
    place.0 as usize % PLACES
}

/// A hasher that returns the hashed bits unchanged, because the id of a type is a hash already.
struct Place(u64);

impl Hasher for Place {
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
}
