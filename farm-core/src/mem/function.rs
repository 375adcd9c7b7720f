//! Function items and closures that capture nothing, called where only their type is known.
//!
//! Such a type has size zero, so its only value can be created anywhere. A continuation with a context of any type
//! therefore consists only of a plain function pointer and a word.

use std::ptr::NonNull;

/// A value that a continuation carries as its context: at most a word.
pub trait Context: Copy + 'static {
    /// Encodes the value as a word.
    fn to_word(self) -> u64;
    /// Returns the value that [`Context::to_word`] encoded as `word`.
    fn from_word(word: u64) -> Self;
}

impl Context for u64 {
    #[inline(always)]
    fn to_word(self) -> u64 {
        self
    }

    #[inline(always)]
    fn from_word(word: u64) -> Self {
        word
    }
}

impl Context for u32 {
    #[inline(always)]
    fn to_word(self) -> u64 {
        self.into()
    }

    #[inline(always)]
    fn from_word(word: u64) -> Self {
        word as Self
    }
}

impl Context for usize {
    #[inline(always)]
    fn to_word(self) -> u64 {
        self as u64
    }

    #[inline(always)]
    fn from_word(word: u64) -> Self {
        word as Self
    }
}

/// The first value is the low half of the word.
impl Context for (u32, u32) {
    #[inline(always)]
    fn to_word(self) -> u64 {
        u64::from(self.1) << 32 | u64::from(self.0)
    }

    #[inline(always)]
    fn from_word(word: u64) -> Self {
        (word as u32, (word >> 32) as u32)
    }
}

impl Context for () {
    #[inline(always)]
    fn to_word(self) -> u64 {
        0
    }

    #[inline(always)]
    fn from_word(_: u64) -> Self {}
}

/// Returns the only value of a function type, which has size zero.
///
/// # Safety
/// A value of the type `F` exists.
#[inline(always)]
unsafe fn again<F: Copy + Send + 'static>() -> F {
    const {
        assert!(
            size_of::<F>() == 0,
            "the function of a continuation must not capture variables: pass them as its context"
        )
    };
    // SAFETY: a read of a type of size zero reads no byte, so any aligned pointer is valid for it. The caller promises
    // that a value of the type exists. The type is `Copy`, `Send` and `'static`, so a copy of the value violates no
    // ownership and no borrow, on any thread.
    unsafe { NonNull::<F>::dangling().read() }
}

/// Returns a function pointer that decodes the context from its word, and calls `function` with it.
#[inline]
pub(crate) fn with_context<W, C, T, F>(_function: F) -> fn(&mut W, u64, T)
where
    C: Context,
    F: Fn(&mut W, C, T) + Copy + Send + 'static,
{
    |worker, word, result| {
        // SAFETY: a value of the type was passed to `with_context`, so it exists.
        let function = unsafe { again::<F>() };
        function(worker, C::from_word(word), result);
    }
}

/// A type of results that contain references, which are valid only during the call of the function that receives them.
pub trait Borrowed {
    /// The result with references that are valid for `'a`.
    type Of<'a>;
}

/// As [`with_context`], for a function to which the result is passed with references.
#[inline]
pub(crate) fn with_context_borrowing<W, C, R, F>(_function: F) -> fn(&mut W, u64, R::Of<'_>)
where
    C: Context,
    R: Borrowed,
    F: Fn(&mut W, C, R::Of<'_>) + Copy + Send + 'static,
{
    |worker, word, result| {
        // SAFETY: a value of the type was passed to `with_context_borrowing`, so it exists.
        let function = unsafe { again::<F>() };
        function(worker, C::from_word(word), result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Half(u32);

    impl Context for Half {
        fn to_word(self) -> u64 {
            self.0.into()
        }

        fn from_word(word: u64) -> Self {
            Self(word as u32)
        }
    }

    fn note(seen: &mut Vec<(Half, u8)>, context: Half, result: u8) {
        seen.push((context, result));
    }

    #[test]
    fn functions_and_closures_get_their_typed_context() {
        let mut seen = Vec::new();
        let [function, closure] = [
            with_context(note),
            with_context(|seen: &mut Vec<_>, Half(context), result| {
                seen.push((Half(context + 1), result));
            }),
        ];
        function(&mut seen, Half(7).to_word(), 1);
        closure(&mut seen, Half(7).to_word(), 2);
        assert_eq!(seen, [(Half(7), 1), (Half(8), 2)]);
        assert_eq!(<(u32, u32)>::from_word((3, 4).to_word()), (3, 4));
    }
}
