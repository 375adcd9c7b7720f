//! Continuations: the code to run when an operation completes.

use super::Worker;
use crate::ids::RegionId;
use crate::mem::{Borrowed, Context, with_context, with_context_borrowing};

/// A function and a context (`FaRM'14 §3.2`), called with the result of an operation on the worker that began it. Two
/// words, copied; creating one allocates nothing. The context is usually the index of a slot in the caller's own slab.
///
/// The function captures nothing, and its parameter has the type of the context:
///
/// ```
/// use farm_core::worker::{Cont, Worker};
///
/// fn done(_worker: &mut Worker, slot: u32, result: Result<(), String>) {
///     println!("slot {slot}: {result:?}");
/// }
/// let slot: u32 = 5;
/// let cont: Cont<Result<(), String>> = Cont::new(done, slot);
/// ```
///
/// ```compile_fail
/// # use farm_core::worker::{Cont, Worker};
/// # fn done(_worker: &mut Worker, slot: u32, result: Result<(), String>) {}
/// let cont: Cont<Result<(), String>> = Cont::new(done, 5u64); // `done` takes a `u32`
/// ```
///
/// ```compile_fail
/// # use farm_core::worker::{Cont, Worker};
/// let captured = String::new();
/// let cont = Cont::new(move |_: &mut Worker, (): (), (): ()| println!("{captured}"), ());
/// ```
///
/// A continuation may run on another thread than the one that created it, so its function must be `Send`, even if it
/// captures a value of size zero:
///
/// ```compile_fail
/// # use farm_core::worker::{Cont, Worker};
/// # use std::marker::PhantomData;
/// let of_this_thread: PhantomData<*const ()> = PhantomData;
/// let cont = Cont::new(move |_: &mut Worker, (): (), (): ()| _ = &of_this_thread, ());
/// ```
pub struct Cont<T> {
    run: fn(&mut Worker, u64, T),
    context: u64,
}

impl Context for RegionId {
    #[inline]
    fn to_word(self) -> u64 {
        self.to_bits().into()
    }

    #[inline]
    fn from_word(word: u64) -> Self {
        RegionId::from_bits(word as u32).expect("the word is that of a region")
    }
}

impl<T> Cont<T> {
    /// Creates the continuation that calls `run` with `context`.
    #[inline]
    pub fn new<C: Context>(
        run: impl Fn(&mut Worker, C, T) + Copy + Send + 'static,
        context: C,
    ) -> Self {
        Self {
            run: with_context(run),
            context: context.to_word(),
        }
    }

    /// Calls the continuation with `result`.
    #[inline]
    pub fn resume(self, worker: &mut Worker, result: T) {
        (self.run)(worker, self.context, result);
    }
}

impl<T> Clone for Cont<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Cont<T> {}

impl<T> std::fmt::Debug for Cont<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cont({:#x})", self.context)
    }
}

/// As [`Cont`], for a result that contains references, such as the body of a message.
pub struct BorrowCont<R: Borrowed> {
    run: fn(&mut Worker, u64, R::Of<'_>),
    context: u64,
}

impl<R: Borrowed> BorrowCont<R> {
    /// Creates the continuation that calls `run` with `context`.
    #[inline]
    pub fn new<C: Context>(
        run: impl Fn(&mut Worker, C, R::Of<'_>) + Copy + Send + 'static,
        context: C,
    ) -> Self {
        Self {
            run: with_context_borrowing::<_, _, R, _>(run),
            context: context.to_word(),
        }
    }

    /// Calls the continuation with `result`.
    #[inline]
    pub fn resume(self, worker: &mut Worker, result: R::Of<'_>) {
        (self.run)(worker, self.context, result);
    }
}

impl<R: Borrowed> Clone for BorrowCont<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R: Borrowed> Copy for BorrowCont<R> {}

impl<R: Borrowed> std::fmt::Debug for BorrowCont<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BorrowCont({:#x})", self.context)
    }
}
