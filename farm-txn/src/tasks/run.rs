//! The transactions of tasks, as their worker knows them, and their calls.

use farm_core::time::Nanos;
use farm_core::worker::Worker;

use super::answers::{RunKey, Slot};
use super::tasks;
use crate::error::TxError;
use crate::handle::TxHandle;

/// A transaction of a task.
pub(super) struct Run {
    /// Its key in [`crate::retry`]; `None` for a transaction that is tried once.
    pub(super) retried: Option<usize>,
    /// The open try.
    pub(super) tx: Option<TxHandle>,
    /// The call that waits for the next step.
    pub(super) slot: Option<Slot>,
    /// The first conflict that a call of the try reported.
    pub(super) conflict: Option<TxError>,
    /// Why the try ended before its body did.
    pub(super) ended: Option<TxError>,
    pub(super) began: Nanos,
    /// Time at which the last call ended.
    pub(super) active: Nanos,
    /// Calls under way.
    pub(super) calls: u32,
}

/// Returns a transaction by its index.
pub(super) fn run(worker: &mut Worker, index: u32) -> Option<&mut Run> {
    tasks(worker).transactions.get_mut(index as usize)
}

/// Returns a transaction if this is its open try.
pub(super) fn of_try(worker: &mut Worker, key: RunKey) -> Option<&mut Run> {
    run(worker, key.index).filter(|run| run.tx == Some(key.tx))
}

/// Counts a call of a transaction that begins.
#[inline]
pub(super) fn begin_call(worker: &mut Worker, key: Option<RunKey>) {
    if let Some(key) = key
        && let Some(run) = of_try(worker, key)
    {
        run.calls += 1;
    }
}

/// Handles the end of a call of a transaction. If it has failed, the error is noted. Returns the error to report in its
/// place, if the transaction has ended before.
pub(super) fn end_call(
    worker: &mut Worker,
    key: RunKey,
    failed: Option<TxError>,
) -> Option<TxError> {
    let now = worker.now();
    let run = of_try(worker, key)?;
    run.calls = run.calls.saturating_sub(1);
    run.active = now;
    let error = failed?;
    if let (TxError::Ended, Some(why)) = (&error, &run.ended) {
        return Some(why.clone());
    }
    if run.conflict.is_none() && !error.rests_on_reads() {
        run.conflict = Some(error);
    }
    None
}
