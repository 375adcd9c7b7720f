//! The state that the layers above keep with a worker: one value of each type.
//!
//! A layer takes its state out while it runs and puts it back when it is done. Continuations run
//! from the event loop only, never inside the call that begins an operation, so a layer is never
//! entered while its state is out; if it is, that is a bug, and it panics.

use std::any::{Any, TypeId};

/// State of the layers, by type.
#[derive(Default)]
pub(crate) struct Layers {
    entries: Vec<(TypeId, Option<Box<dyn Any + Send>>)>,
}

impl Layers {
    pub(crate) fn put<T: Any + Send>(&mut self, state: Box<T>) {
        let id = TypeId::of::<T>();
        match self.entries.iter_mut().find(|entry| entry.0 == id) {
            Some(entry) => entry.1 = Some(state),
            None => self.entries.push((id, Some(state))),
        }
    }

    #[inline]
    pub(crate) fn take<T: Any + Send>(&mut self) -> Option<Box<T>> {
        let id = TypeId::of::<T>();
        let entry = self.entries.iter_mut().find(|entry| entry.0 == id)?;
        entry.1.take()?.downcast().ok()
    }

    #[inline]
    pub(crate) fn get<T: Any + Send>(&mut self) -> Option<&mut T> {
        let id = TypeId::of::<T>();
        let entry = self.entries.iter_mut().find(|entry| entry.0 == id)?;
        entry.1.as_deref_mut()?.downcast_mut()
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
        assert!(layers.get::<u32>().is_none(), "it is out");
        layers.put(state);
        assert_eq!(layers.get::<u32>(), Some(&mut 11));
        assert_eq!(layers.get::<&str>(), Some(&mut "two"));
    }
}
