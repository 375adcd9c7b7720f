//! The transactions of tasks, as their worker knows them, and their calls.

use farm_core::time::Nanos;

use super::answers::{RunKey, Slot};
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

/// The next step of a transaction, as the answer of a call.
pub(super) enum Step {
    /// The body runs with this try.
    Try(RunKey),
    /// The transaction has ended.
    Done,
    /// The body's own error is the outcome.
    OwnError,
}

impl Step {
    const DONE: [u64; 3] = [1, 0, 0];
    const OWN_ERROR: [u64; 3] = [2, 0, 0];

    /// Returns the step as the words of an answer.
    pub(super) fn to_words(&self) -> [u64; 3] {
        match self {
            Self::Try(key) => [0, key.index.into(), key.tx.to_context()],
            Self::Done => Self::DONE,
            Self::OwnError => Self::OWN_ERROR,
        }
    }

    /// Returns the step that [`Step::to_words`] has encoded.
    pub(super) fn from_words(words: [u64; 3]) -> Self {
        match words {
            Self::DONE => Self::Done,
            Self::OWN_ERROR => Self::OwnError,
            [_, index, tx] => Self::Try(RunKey {
                index: index as u32,
                tx: TxHandle::from_context(tx),
            }),
        }
    }
}

/// The transactions of tasks, by index.
pub(super) type Runs = slab::Slab<Run>;

/// Returns a transaction if this is its open try.
#[inline]
pub(super) fn of_try(runs: &mut Runs, key: RunKey) -> Option<&mut Run> {
    let run = runs.get_mut(key.index as usize);
    run.filter(|run| run.tx == Some(key.tx))
}

/// Counts a call of a transaction that begins.
#[inline]
pub(super) fn begin_call(runs: &mut Runs, key: Option<RunKey>) {
    if let Some(key) = key
        && let Some(run) = of_try(runs, key)
    {
        run.calls += 1;
    }
}

/// Handles the end of a call of a transaction. If it has failed, the error is noted. If the transaction has ended before,
/// the error becomes the reason for that.
#[inline]
pub(super) fn end_call(runs: &mut Runs, now: Nanos, key: RunKey, error: &mut Option<TxError>) {
    let Some(run) = of_try(runs, key) else {
        return;
    };
    run.calls = run.calls.saturating_sub(1);
    run.active = now;
    if error.is_some() {
        failed(run, error);
    }
}

#[cold]
fn failed(run: &mut Run, error: &mut Option<TxError>) {
    match (&*error, &run.ended) {
        (Some(TxError::Ended), Some(why)) => *error = Some(why.clone()),
        (Some(conflict), _) if run.conflict.is_none() && !conflict.rests_on_reads() => {
            run.conflict = Some(conflict.clone());
        }
        _ => {}
    }
}
