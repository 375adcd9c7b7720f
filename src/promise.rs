//! Results of continuations for which a program waits.

use std::marker::PhantomData;

use bytemuck::Pod;
use farm_core::worker::{Cont, Context, Worker};
use farm_txn::tasks::{Slot, answer, is_open, with_answer};

const COMPLETED: &str = "a continuation used a promise that was completed before";

/// The result of operations with continuations, for which a program waits: see [`Farm::call`](crate::Farm::call). It is one
/// word, so that it can be the context of every continuation until the last one [completes](Promise::complete) it. Meanwhile
/// it keeps what the continuations need besides.
///
/// A promise must be completed once. One that is never completed lets its caller wait until the machine stops. What is done
/// with one that was completed has no effect, and is logged as an error.
pub struct Promise<T> {
    slot: Slot,
    _of: PhantomData<fn(T)>,
}

impl<T> Clone for Promise<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Promise<T> {}

impl<T> std::fmt::Debug for Promise<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Promise({:?})", self.slot)
    }
}

impl<T: 'static> Context for Promise<T> {
    fn to_word(self) -> u64 {
        self.slot.to_word()
    }

    fn from_word(word: u64) -> Self {
        Self::new(Slot::from_word(word))
    }
}

impl<T> Promise<T> {
    pub(crate) fn new(slot: Slot) -> Self {
        let _of = PhantomData;
        Self { slot, _of }
    }

    fn check_open(self, worker: &mut Worker) -> bool {
        let open = is_open(worker, self.slot);
        if !open {
            tracing::error!("{COMPLETED}");
        }
        open
    }

    /// Keeps a state for later continuations, such as the handle of a transaction and an address. It replaces what was kept
    /// before. Nothing is allocated, once the worker has had a state of this size.
    pub fn keep<S: Pod>(self, worker: &mut Worker, state: S) {
        if !self.check_open(worker) {
            return;
        }
        with_answer(worker, self.slot, |answer| {
            answer.bytes.clear();
            answer.bytes.extend_from_slice(bytemuck::bytes_of(&state));
        });
    }

    /// Returns the state that was kept last.
    ///
    /// # Panics
    /// If the state that was kept has another size, or the promise was completed.
    pub fn kept<S: Pod>(self, worker: &mut Worker) -> S {
        assert!(is_open(worker, self.slot), "{COMPLETED}");
        // Copied first: a panic must not happen while the answer is borrowed from the queue.
        let mut state = S::zeroed();
        let found = with_answer(worker, self.slot, |answer| {
            if answer.bytes.len() == size_of::<S>() {
                bytemuck::bytes_of_mut(&mut state).copy_from_slice(&answer.bytes);
            }
            answer.bytes.len()
        });
        let wanted = size_of::<S>();
        assert!(
            found == wanted,
            "the promise keeps a state of {found} bytes, and was asked for one of {wanted}"
        );
        state
    }
}

impl<T: Send + 'static> Promise<T> {
    /// Returns the continuation that completes the promise with what it receives.
    pub fn cont(self) -> Cont<T> {
        let complete = |worker: &mut Worker, promise: Self, value| promise.complete(worker, value);
        Cont::new(complete, self)
    }

    /// Completes the promise. The caller gets the value.
    pub fn complete(self, worker: &mut Worker, value: T) {
        if !self.check_open(worker) {
            return;
        }
        let value = Box::new(value);
        answer(worker, self.slot, |answer| answer.value = Some(value));
    }
}
