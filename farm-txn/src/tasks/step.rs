//! The steps of a transaction, as its future sees them.

use std::sync::Arc;

use farm_core::worker::{Cont, Worker};

use super::answers::{Answer, RunKey, Slot};
use super::queue::TaskQueue;
use super::reply::answer;
use super::run::Step;
use super::tries;
use crate::error::TxError;

/// Returns the continuation that answers a call with a value.
pub(super) fn of_value<T: Send + 'static>(slot: Slot) -> Cont<Result<T, TxError>> {
    let ended = |worker: &mut Worker, slot, result: Result<T, TxError>| {
        let store = |answer: &mut Answer, value| answer.value = Some(Box::new(value));
        answer(worker, slot, |answer| answer.set(result, store));
    };
    Cont::new(ended, slot)
}

/// Takes the next step out of an answer.
pub(super) fn next_step(answer: &mut Answer) -> Result<Step, TxError> {
    Ok(Step::from_words(answer.ok()?.words))
}

/// An open transaction. It ends without effect when this is dropped, unless its commit has begun.
pub(super) struct Open<'q>(pub(super) &'q Arc<TaskQueue>, pub(super) RunKey);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        tries::abandon_from(self.0, self.1);
    }
}
