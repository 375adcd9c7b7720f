//! Continuations: what to do when an operation is done.

use super::Worker;

/// A function and a context (`FaRM'14 §3.2`): called on the worker that began the operation, with
/// the operation's result. Two words, copied; making one allocates nothing. The context usually
/// names a slot of the caller's own slab.
pub struct Cont<T> {
    run: fn(&mut Worker, u64, T),
    context: u64,
}

impl<T> Cont<T> {
    /// The continuation that calls `run` with `context`.
    pub fn new(run: fn(&mut Worker, u64, T), context: u64) -> Self {
        Self { run, context }
    }

    /// Calls it.
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
