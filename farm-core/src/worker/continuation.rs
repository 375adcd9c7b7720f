//! Continuations: the code to run when an operation completes.

use super::Worker;

/// A function and a context (`FaRM'14 §3.2`), called with the result of an operation on the worker that began it. Two
/// words, copied; creating one allocates nothing. The context is usually the index of a slot in the caller's own slab.
pub struct Cont<T> {
    run: fn(&mut Worker, u64, T),
    context: u64,
}

impl<T> Cont<T> {
    /// Creates the continuation that calls `run` with `context`.
    pub fn new(run: fn(&mut Worker, u64, T), context: u64) -> Self {
        Self { run, context }
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
