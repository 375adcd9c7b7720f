//! A place for a value of any type.

use std::any::{Any, TypeId};

/// A place for a boxed value of a type that is chosen when the place is made.
///
/// It does what `Option<Box<dyn Any>>` does, by one comparison of types that the caller's code contains. `Any` asks for the
/// type through the value's table of functions, which costs 30 instructions more; layers access their state several times
/// in each operation.
///
/// ```
/// use farm_core::mem::AnyPlace;
///
/// let mut place = AnyPlace::new(Box::new(7u32));
/// assert_eq!(place.get::<u32>(), Some(&mut 7));
/// assert_eq!(place.get::<i32>(), None);
/// let taken = place.take::<u32>();
/// assert_eq!(place.get::<u32>(), None);
/// place.put(taken.unwrap());
/// assert_eq!(place.get::<u32>(), Some(&mut 7));
/// ```
pub struct AnyPlace {
    /// The type of the value, also while there is none.
    id: TypeId,
    value: Option<Box<dyn Any>>,
}

/// The type of a place that belongs to no type.
struct Nothing;

impl AnyPlace {
    /// A place in which no value is found, and none can be put.
    pub const FREE: Self = Self {
        id: TypeId::of::<Nothing>(),
        value: None,
    };

    /// Creates a place with a value.
    pub fn new<T: Any>(value: Box<T>) -> Self {
        Self {
            id: TypeId::of::<T>(),
            value: Some(value),
        }
    }

    /// Returns whether the place belongs to no type.
    pub fn is_free(&self) -> bool {
        self.is::<Nothing>()
    }

    /// Returns whether this is the place for a value of this type.
    #[inline(always)]
    pub fn is<T: Any>(&self) -> bool {
        self.id == TypeId::of::<T>()
    }

    /// Returns the value, if there is one and it has this type.
    #[inline(always)]
    pub fn get<T: Any>(&mut self) -> Option<&mut T> {
        if !self.is::<T>() {
            return None;
        }
        let value: *mut dyn Any = &mut **self.value.as_mut()?;
        // SAFETY: the value has the type T: `new` and `put` store no other value in a place with this id. The pointer was
        // made from an exclusive borrow of the value, which lasts as long as the returned one.
        Some(unsafe { &mut *value.cast::<T>() })
    }

    /// Takes the value out, if there is one and it has this type.
    #[inline(always)]
    pub fn take<T: Any>(&mut self) -> Option<Box<T>> {
        if !self.is::<T>() {
            return None;
        }
        let value = Box::into_raw(self.value.take()?);
        // SAFETY: the value has the type T: `new` and `put` store no other value in a place with this id. The pointer comes
        // from a box of that type.
        Some(unsafe { Box::from_raw(value.cast::<T>()) })
    }

    /// Puts a value in. A value that was there is dropped.
    ///
    /// # Panics
    /// If this is the place of another type.
    #[inline(always)]
    pub fn put<T: Any>(&mut self, value: Box<T>) {
        assert!(self.is::<T>(), "a place has values of one type");
        self.value = Some(value);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::rc::Rc;

    use super::*;

    #[test]
    fn values_are_dropped_once() {
        let value = Rc::new(());
        let mut place = AnyPlace::new(Box::new(Rc::clone(&value)));
        place.put(Box::new(Rc::clone(&value)));
        assert_eq!(Rc::strong_count(&value), 2, "the first was replaced");
        let taken = place.take::<Rc<()>>().unwrap();
        drop(place);
        assert_eq!(Rc::strong_count(&value), 2);
        drop(taken);
        assert_eq!(Rc::strong_count(&value), 1);
    }

    #[test]
    fn a_place_takes_only_its_type() {
        let mut place = AnyPlace::new(Box::new(1u8));
        let put = catch_unwind(AssertUnwindSafe(|| place.put(Box::new(1i8))));
        assert!(put.is_err());
        assert_eq!(place.get::<u8>(), Some(&mut 1));
        assert!(place.take::<i8>().is_none());
        let mut free = AnyPlace::FREE;
        assert!(free.is_free() && !place.is_free());
        assert!(free.get::<u8>().is_none() && free.take::<u8>().is_none());
    }
}
