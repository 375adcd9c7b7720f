//! Limits how many transactions of a worker run at the same time, keeps their order, and determines how long they wait:
//! applies the worker's [`Backoff`].

use std::time::Duration;

use farm_core::mutants;
use farm_core::worker::{Cont, Worker};

use super::state::{Admitted, RetryCounters};
use crate::backoff::{Backoff, BackoffConfig};
use crate::error::TxError;
use crate::layer::transactions;

/// First upper bound, in nanoseconds, of the additional wait of a transaction that repeatedly meets conflicts: about a
/// commit over several machines on a busy host.
const PATIENCE_NANOS: u64 = 8_000;
/// Maximum number of doublings of that bound; it doubles with every further conflict.
const MOST_PATIENCE: u32 = 8;

/// How a transaction left the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    Committed,
    /// With an error or dropped.
    Failed,
}

impl Left {
    pub(crate) fn of(outcome: &Result<(), TxError>) -> Self {
        match outcome {
            Ok(()) => Self::Committed,
            Err(_) => Self::Failed,
        }
    }
}

/// Sets how this worker avoids conflicts from now on: waits start from the shortest again, and the concurrency is that
/// of `config`. Each part can be switched off.
///
/// # Panics
/// If the layer is not attached to the worker.
pub fn configure(worker: &mut Worker, config: BackoffConfig) {
    transactions(worker).gate.backoff = Backoff::new(config);
    admit_all(worker);
}

/// Returns the counts of this worker's transactions that are retried until they commit.
///
/// # Panics
/// If the layer is not attached to the worker.
pub fn counters(worker: &mut Worker) -> RetryCounters {
    transactions(worker).gate.counters
}

/// Calls the continuation from the event loop when one more transaction may run, in the order of the calls. The caller
/// must call [`leave`] afterwards.
pub(crate) fn enter(worker: &mut Worker, cont: Cont<()>) {
    let gate = &mut transactions(worker).gate;
    gate.counters.begun += 1;
    gate.waiting.push_back(cont);
    admit_all(worker);
    let gate = &mut transactions(worker).gate;
    gate.counters.queued += u64::from(!gate.waiting.is_empty());
}

/// Admits a transaction at once, if it need not wait. The caller must call [`leave`] afterwards.
pub(crate) fn enter_now(worker: &mut Worker) -> bool {
    transactions(worker).gate.admit_now()
}

/// Admits another transaction in place of one that waits for something else.
pub(crate) fn make_way(worker: &mut Worker) {
    transactions(worker).gate.running -= 1;
    admit_all(worker);
}

/// Handles the end of a transaction that ran.
pub(crate) fn leave(worker: &mut Worker, admitted: Admitted, left: Left) {
    let now = worker.now();
    let gate = &mut transactions(worker).gate;
    match admitted {
        Admitted::Runs => gate.running -= 1,
        Admitted::MadeWay => {}
        Admitted::Within => return,
    }
    match left {
        Left::Committed => {
            gate.counters.committed += 1;
            gate.backoff.committed(now);
        }
        Left::Failed => gate.counters.failed += 1,
    }
    if !mutants::is_on("transaction that waits its turn not begun when another ends") {
        admit_all(worker);
    }
}

/// Handles a try that met a conflict, after `before` earlier conflicts of its transaction. Returns the wait before the
/// next try.
pub(crate) fn conflict(worker: &mut Worker, before: u32) -> Duration {
    let now = worker.now();
    let mut backoff = transactions(worker).gate.backoff.clone();
    let wait = backoff.aborted(before, now, worker.rng());
    let wait = wait + backoff.patience(before, PATIENCE_NANOS, MOST_PATIENCE, worker.rng());
    let gate = &mut transactions(worker).gate;
    gate.backoff = backoff;
    gate.counters.conflicts += 1;
    admit_all(worker);
    wait
}

/// Lets a transaction that has met a conflict wait in the queue before its next try, if more transactions run than should, or if
/// another one runs in its place: the limit would otherwise hold only for transactions that have not begun. Returns whether
/// it waits; then it runs when it is admitted.
pub(crate) fn wait_again(worker: &mut Worker, admitted: Admitted, next_try: Cont<()>) -> bool {
    let gate = &mut transactions(worker).gate;
    match admitted {
        Admitted::Runs if gate.running > gate.backoff.concurrency() => gate.running -= 1,
        Admitted::MadeWay => {}
        Admitted::Runs | Admitted::Within => return false,
    }
    gate.waiting.push_back(next_try);
    admit_all(worker);
    true
}

/// Counts a try that found no room.
pub(crate) fn waits_for_room(worker: &mut Worker) {
    transactions(worker).gate.counters.no_room += 1;
}

fn admit_all(worker: &mut Worker) {
    while let Some(next) = transactions(worker).gate.admit() {
        worker.defer(next);
    }
}
