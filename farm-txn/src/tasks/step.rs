//! The steps of a transaction, as its future sees them.

use std::sync::Arc;

use farm_core::worker::{Cont, Worker};

use super::answers::{Answer, RunKey, Slot};
use super::queue::TaskQueue;
use super::reply::answer;
use super::runs::{self, step};
use crate::error::TxError;
use crate::handle::TxHandle;

/// Returns the continuation that answers a call with a value.
pub(super) fn of_value<T: Send + 'static>(slot: Slot) -> Cont<Result<T, TxError>> {
    let ended = |worker: &mut Worker, slot, result: Result<T, TxError>| {
        let store = |answer: &mut Answer, value| answer.value = Some(Box::new(value));
        answer(worker, slot, |answer| answer.set(result, store));
    };
    Cont::new(ended, slot)
}

/// The next step of a transaction.
pub(super) enum Step {
    Try(RunKey),
    Done,
    OwnError,
}

/// Takes the next step out of an answer.
pub(super) fn next_step(answer: &mut Answer) -> Result<Step, TxError> {
    let [step, index, tx] = answer.ok()?.words;
    Ok(match step {
        step::TRY => Step::Try(RunKey {
            index: index as u32,
            tx: TxHandle::from_context(tx),
        }),
        step::DONE => Step::Done,
        _ => Step::OwnError,
    })
}

/// An open transaction. It ends without effect when this is dropped, unless its commit has begun.
pub(super) struct Open<'q>(pub(super) &'q Arc<TaskQueue>, pub(super) RunKey);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        runs::abandon_from(self.0, self.1);
    }
}
