//! A value that a function lends to the code that it calls, through a variable of the thread.

use std::cell::Cell;
use std::ptr::NonNull;
use std::thread::LocalKey;

/// A place for a value that is lent for the duration of a call. It is a variable of a thread:
///
/// ```
/// use farm_core::mem::Lent;
///
/// thread_local! {
///     static COUNT: Lent<u32> = const { Lent::new() };
/// }
/// let mut count = 1;
/// let inner = Lent::lend(&COUNT, &mut count, || {
///     // Any code that is called here, such as the `poll` of a future.
///     Lent::with(&COUNT, |count| {
///         *count += 1;
///         assert!(Lent::with(&COUNT, |_| ()).is_none(), "it is in use");
///     })
/// });
/// assert!(inner.is_some());
/// assert!(Lent::with(&COUNT, |_| ()).is_none(), "it is no longer lent");
/// assert_eq!(count, 2);
/// ```
pub struct Lent<T: 'static> {
    value: Cell<Option<NonNull<T>>>,
}

/// Puts a pointer back when the call ends, also by a panic.
struct PutBack<T: 'static> {
    place: &'static LocalKey<Lent<T>>,
    value: Option<NonNull<T>>,
}

impl<T> Drop for PutBack<T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.place.with(|place| place.value.set(self.value));
    }
}

impl<T> Default for Lent<T> {
    fn default() -> Self {
        Self::new()
    }
}

// The functions are inlined, and the closures of `LocalKey::with` are small, so that the results of calls need not be
// copied through memory.
impl<T> Lent<T> {
    /// Creates a place without a value.
    pub const fn new() -> Self {
        let value = Cell::new(None);
        Self { value }
    }

    /// Calls `call`, within which [`Lent::with`] finds the value.
    #[inline(always)]
    pub fn lend<R>(place: &'static LocalKey<Self>, value: &mut T, call: impl FnOnce() -> R) -> R {
        let value = Some(NonNull::from(value));
        let value = place.with(|place| place.value.replace(value));
        let _back = PutBack { place, value };
        call()
    }

    /// Calls `work` with the value, if one is lent and not in use by an outer call of this function.
    #[inline(always)]
    pub fn with<R>(place: &'static LocalKey<Self>, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        let value = place.with(|place| place.value.take());
        let mut lent = value?;
        let _back = PutBack { place, value };
        // SAFETY: the pointer was made from the exclusive borrow of a call of `lend` that has not ended, because that call
        // removes it when it ends. The borrow is not used by that call meanwhile. It is not used twice at the same time:
        // the place is empty until `work` ends, and other threads have places of their own.
        Some(work(unsafe { lent.as_mut() }))
    }
}
