//! A pointer to an object that knows the type of the object, as plain bytes.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};

/// A fat pointer to an object with a payload of type `T`. It is plain bytes, so that objects and values of tables can
/// contain it. Any two words make such a pointer; whether they point to an object is checked when it is used.
#[repr(transparent)]
pub struct Ptr<T> {
    words: [u64; 2],
    _to: PhantomData<fn() -> T>,
}

// SAFETY: two words of zeros are valid words.
unsafe impl<T> Zeroable for Ptr<T> {}

// SAFETY: the only field with a size is two words, for which any bits are valid, and which have no padding. The pointer
// contains no `T`.
unsafe impl<T: 'static> Pod for Ptr<T> {}

impl<T> Ptr<T> {
    /// Returns a pointer to no object.
    pub const fn null() -> Self {
        Self::from_words([0; 2])
    }

    /// Returns whether this is [`Ptr::null`].
    pub const fn is_null(self) -> bool {
        self.words[0] == 0
    }

    /// Creates a pointer from its words.
    pub const fn from_words(words: [u64; 2]) -> Self {
        let _to = PhantomData;
        Self { words, _to }
    }

    /// Returns the words of the pointer.
    pub const fn to_words(self) -> [u64; 2] {
        self.words
    }

    /// Returns the same pointer to an object whose payload begins with a `U`.
    pub const fn cast<U>(self) -> Ptr<U> {
        Ptr::from_words(self.words)
    }
}

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

impl<T> PartialEq for Ptr<T> {
    fn eq(&self, other: &Self) -> bool {
        self.words == other.words
    }
}

impl<T> Eq for Ptr<T> {}

impl<T> Hash for Ptr<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.words.hash(state);
    }
}

impl<T> Default for Ptr<T> {
    fn default() -> Self {
        Self::null()
    }
}

impl<T> fmt::Debug for Ptr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ptr({:#x}, {:#x})", self.words[0], self.words[1])
    }
}
