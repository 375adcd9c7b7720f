//! Transactions that are retried until they commit.
//!
//! ```text
//!  run ──▶ queue ──▶ body(tx) ──▶ commit ──▶ done(Ok)
//!          (gate)      ▲  │          │
//!                      │  └─▶ fail ──┤ conflict: wait, then retry
//!                      └─────────────┤ no room: retry when there is room
//!                                    └ anything else ──▶ done(Err)
//! ```
//!
//! - A conflict ([`Abort::Locked`], [`Abort::Changed`], [`Abort::TimedOut`]) is retried after the wait that the
//!   worker's [`Backoff`](crate::Backoff) returns. If reads time out for the duration of [`set_patience`], by default
//!   `transactions.patience_ms` of the configuration, the transaction ends: a machine died with the lock, or no object
//!   starts at the address.
//! - After [`Abort::Reconfigured`] it is retried in the next configuration.
//! - [`TxError::Busy`] is retried when there may be room.
//! - [`Abort::Lost`] and [`TxError::InDoubt`] are never retried: the first would fail again, and for the second it is
//!   unknown whether the transaction took effect.
//! - Any other error of a body may result from reads that are mutually inconsistent, such as a pointer from before a
//!   change and its object from after the change. The reads of the try are therefore validated first, as by a commit
//!   that writes nothing ([`api::validate`]). If the validation meets a conflict, the transaction is retried; else the
//!   error is reported, because the reads are of one moment. To end without effect, a body fails with
//!   [`TxError::GivenUp`], or with [`TxError::Refused`] and a message.
//!
//! At most as many transactions run on a worker at the same time as its `Backoff` allows; the others wait in the order
//! in which they were started. If it allows fewer than before, transactions that meet a conflict wait in the same queue before
//! their next try.

mod gate;
pub(crate) mod state;

use std::time::Duration;

use farm_core::time::Nanos;
use farm_core::worker::{Cont, Worker};
use farm_core::{marks, mutants};

use gate::{Left, conflict, enter, enter_now, leave};
pub use gate::{configure, counters};
pub use state::RetryCounters;
use state::{Admitted, Run, Tries};

use crate::api;
use crate::error::{Abort, TxError};
use crate::handle::TxHandle;
use crate::layer::transactions;
use crate::open;

/// How an error is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// Wait, then retry.
    Wait,
    /// Retry when there is room.
    Room,
    /// Validate the reads, and report the error if that succeeds.
    Validate,
    /// Report the error.
    Report,
}

impl Tries {
    /// Counts a conflict, and returns the number of earlier conflicts.
    pub(crate) fn next(&mut self) -> u32 {
        self.conflicts += 1;
        self.conflicts - 1
    }

    /// Returns how the error of a body is handled. `patience` is how long reads that time out are retried.
    pub(crate) fn of_body(&mut self, error: &TxError, now: Nanos, patience: Duration) -> Remedy {
        match error {
            TxError::Abort(Abort::Locked(_) | Abort::Changed(_) | Abort::Reconfigured) => {
                Remedy::Wait
            }
            TxError::Abort(Abort::TimedOut(_)) => {
                let since = *self.stuck_since.get_or_insert(now);
                match now.since(since) < patience {
                    true => Remedy::Wait,
                    false => Remedy::Validate,
                }
            }
            TxError::Busy => Remedy::Room,
            error if error.rests_on_reads() && !mutants::is_on("refusal not validated") => {
                Remedy::Validate
            }
            _ => Remedy::Report,
        }
    }

    /// Returns how the error of a commit is handled.
    pub(crate) fn of_commit(&mut self, error: &TxError) -> Remedy {
        // All reads of the try have succeeded.
        self.stuck_since = None;
        Self::of_validation(error)
    }

    /// Returns how the error of a validation is handled.
    pub(crate) fn of_validation(error: &TxError) -> Remedy {
        match error {
            TxError::Abort(
                Abort::Locked(_) | Abort::Changed(_) | Abort::TimedOut(_) | Abort::Reconfigured,
            ) => Remedy::Wait,
            TxError::Busy => Remedy::Room,
            _ => Remedy::Report,
        }
    }
}

/// Runs a transaction until it commits, or ends with an error that no retry can resolve; then calls `done` with the
/// outcome.
///
/// In each try, the event loop calls `body` with a new transaction. The body ends the transaction by [`commit`] or
/// [`fail`], at once or from a later continuation; after [`api::commit`] or [`api::abort`], `done` would never be
/// called. Each try starts afresh. A try allocates no memory.
///
/// ```
/// # use std::sync::{Arc, mpsc};
/// # use farm_core::{config::Config, machine::start_all};
/// use farm_core::ids::Address;
/// use farm_core::worker::{Cont, Worker};
/// use farm_txn::{ObjectId, TxError, TxHandle, api, retry};
///
/// struct Counter(Address);
///
/// // Adds one to the first byte of an object.
/// fn body(worker: &mut Worker, _: u64, tx: TxHandle) {
///     let Counter(address) = *worker.layer::<Counter>().unwrap();
///     api::read(worker, tx, address, 8, Cont::new(on_read, tx.to_context()));
/// }
/// fn on_read(worker: &mut Worker, tx: u64, object: Result<ObjectId, TxError>) {
///     let tx = TxHandle::from_context(tx);
///     let added = object.and_then(|object| {
///         api::payload_mut(worker, tx, object)?[0] += 1;
///         Ok(())
///     });
///     match added {
///         Ok(()) => retry::commit(worker, tx),
///         Err(error) => retry::fail(worker, tx, error),
///     }
/// }
/// # fn done(worker: &mut Worker, _: u64, outcome: Result<(), TxError>) {
/// #     outcome.unwrap();
/// #     worker.take_layer::<mpsc::Sender<()>>().send(()).unwrap();
/// # }
/// # let mut config = Config::tiny_for(1, 1);
/// # config.cluster.name = "doc-retry".into();
/// # let machine = start_all(&config, &(Arc::new(farm_txn::attach) as _))?.remove(0);
/// # let counter = farm_txn::block_on(&machine, 0, async |farm| {
/// #     let tx = farm.begin().await?;
/// #     let object = tx.alloc(8, None).await?;
/// #     let counter = tx.address(object).await?;
/// #     tx.commit().await.map(|()| counter)
/// # })?;
/// # let counter = counter.unwrap();
/// # let () = machine.ask(0, move |worker, answer: mpsc::Sender<()>| {
/// #     worker.put_layer(Box::new(answer));
/// #     worker.put_layer(Box::new(Counter(counter)));
/// retry::run(worker, Cont::new(body, 0), Cont::new(done, 0));
/// # })?;
/// # machine.stop()?;
/// # Ok::<_, farm_core::machine::MachineError>(())
/// ```
///
/// Runs must not nest: if the limit of running transactions is reached, a body that waits for another run waits for
/// ever, because that run begins only after the body's own run has ended.
pub fn run(worker: &mut Worker, body: Cont<TxHandle>, done: Cont<Result<(), TxError>>) {
    let key = insert(worker, body, done, Admitted::Runs);
    enter(worker, Cont::new(attempt, key as u64));
}

/// As [`run`], for the transaction of a task. If the task runs the body of another transaction, the new one is `within`
/// that one, and does not wait for others. Returns its key, and whether the caller must call [`attempt`] now.
pub(crate) fn prepare(
    worker: &mut Worker,
    body: Cont<TxHandle>,
    done: Cont<Result<(), TxError>>,
    within: bool,
) -> (usize, bool) {
    let admitted = match within {
        true => Admitted::Within,
        false => Admitted::Runs,
    };
    let key = insert(worker, body, done, admitted);
    let begins = within || enter_now(worker);
    if !begins {
        enter(worker, Cont::new(attempt, key as u64));
    }
    (key, begins)
}

fn insert(
    worker: &mut Worker,
    body: Cont<TxHandle>,
    done: Cont<Result<(), TxError>>,
    admitted: Admitted,
) -> usize {
    transactions(worker).runs.insert(Run {
        body,
        done,
        admitted,
        state: Tries::default(),
        doubt: None,
        failed: None,
        outcome: None,
    })
}

/// Sets how long this worker retries a transaction whose reads time out each time, counted from the first timeout; then
/// the transaction ends with [`Abort::TimedOut`]. With zero, it ends at the first timeout. The default is
/// `transactions.patience_ms` of the configuration.
///
/// # Panics
/// If the layer is not attached to the worker.
pub fn set_patience(worker: &mut Worker, patience: Duration) {
    transactions(worker).patience = patience;
}

/// Returns the duration that [`set_patience`] has set.
///
/// # Panics
/// If the layer is not attached to the worker.
pub fn patience(worker: &mut Worker) -> Duration {
    transactions(worker).patience
}

/// Ends a try of [`run`] with a commit. No-op if the try has ended. Within [`api::with`] of the transaction, the event
/// loop commits it afterwards.
///
/// # Panics
/// If the transaction is open but is not a try of a [`run`].
pub fn commit(worker: &mut Worker, tx: TxHandle) {
    let Some(key) = run_of(worker, tx) else {
        return;
    };
    if open::is_in_use(worker, tx) {
        return worker.defer(Cont::new(
            |worker: &mut Worker, tx, ()| commit(worker, tx),
            tx,
        ));
    }
    api::commit(worker, tx, Cont::new(tried, key as u64));
}

/// Ends a try of [`run`] with an error: the body's own, or one that a call returned. The [module](self) lists how each
/// error is handled. No-op if the try has ended. Within [`api::with`] of the transaction, the event loop ends the try
/// afterwards.
///
/// # Panics
/// If the transaction is open but is not a try of a [`run`].
pub fn fail(worker: &mut Worker, tx: TxHandle, error: TxError) {
    let Some(key) = run_of(worker, tx) else {
        return;
    };
    if open::is_in_use(worker, tx) {
        transactions(worker).runs[key].failed = Some(error);
        return worker.defer(Cont::new(fail_later, tx));
    }
    let remedy = remedy_of_body(worker, key, &error);
    if remedy == Remedy::Validate {
        transactions(worker).runs[key].doubt = Some(error);
        return api::validate(worker, tx, Cont::new(tried, key as u64));
    }
    api::abort(worker, tx);
    act(worker, key, remedy, error);
}

/// As [`fail`], for a try whose transaction was aborted already. An error that rests on reads is reported, because these can no
/// longer be validated.
pub(crate) fn fail_aborted(worker: &mut Worker, key: usize, error: TxError) {
    let remedy = remedy_of_body(worker, key, &error);
    act(worker, key, remedy, error);
}

/// Returns what to do about the error of a body.
fn remedy_of_body(worker: &mut Worker, key: usize, error: &TxError) -> Remedy {
    let now = worker.now();
    let layer = transactions(worker);
    layer.runs[key].state.of_body(error, now, layer.patience)
}

/// Ends a try with the error that [`fail`] received while the context of the transaction was in use.
fn fail_later(worker: &mut Worker, tx: TxHandle, (): ()) {
    let key = run_of(worker, tx);
    if let Some(error) = key.and_then(|key| transactions(worker).runs[key].failed.take()) {
        fail(worker, tx, error);
    }
}

/// Returns the key of the run to which a transaction belongs, if the transaction is open.
fn run_of(worker: &mut Worker, tx: TxHandle) -> Option<usize> {
    let run = open::run_of(worker, tx).ok()?;
    Some(run.unwrap_or_else(|| {
        panic!(
            "the transaction is not a try of `retry::run`; end it by `api::commit` or `api::abort`"
        )
    }))
}

/// Begins a try.
pub(crate) fn attempt(worker: &mut Worker, key: u64, (): ()) {
    let tx = open::begin_of_run(worker, key as usize);
    let body = transactions(worker).runs[key as usize].body;
    body.resume(worker, tx);
}

/// Handles the end of a commit, or of a validation of the reads.
fn tried(worker: &mut Worker, key: u64, result: Result<(), TxError>) {
    let key = key as usize;
    let run = &mut transactions(worker).runs[key];
    let (remedy, error) = match (result, run.doubt.take()) {
        (Ok(()), None) => return end(worker, key, Ok(())),
        (Ok(()), Some(validated)) => return end(worker, key, Err(validated)),
        (Err(error), None) => (run.state.of_commit(&error), error),
        (Err(error), Some(_)) => (Tries::of_validation(&error), error),
    };
    act(worker, key, remedy, error);
}

fn act(worker: &mut Worker, key: usize, remedy: Remedy, error: TxError) {
    let again = Cont::new(attempt, key as u64);
    match remedy {
        Remedy::Wait => {
            let state = &mut transactions(worker).runs[key].state;
            let before = state.next();
            let wait = conflict(worker, before);
            let admitted = transactions(worker).runs[key].admitted;
            if gate::wait_again(worker, admitted, again) {
                marks::mark("retry: transaction waits its turn again");
                transactions(worker).runs[key].admitted = Admitted::Runs;
            } else if wait.is_zero() {
                worker.defer(again);
            } else {
                worker.set_timer(wait, again);
            }
        }
        Remedy::Room => {
            gate::waits_for_room(worker);
            worker.when_room(again);
        }
        Remedy::Validate | Remedy::Report => end(worker, key, Err(error)),
    }
}

/// Ends a run that has no open try, without effect and without a call of `done`.
pub(crate) fn abandon(worker: &mut Worker, key: usize) {
    let run = transactions(worker).runs.remove(key);
    leave(worker, run.admitted, Left::Failed);
}

/// Lets another transaction run in place of one that waits for something outside of the cluster.
pub(crate) fn make_way(worker: &mut Worker, key: usize) {
    let run = transactions(worker).runs.get_mut(key);
    if let Some(run) = run
        && run.admitted == Admitted::Runs
    {
        run.admitted = Admitted::MadeWay;
        gate::make_way(worker);
    }
}

/// Ends a run; the event loop then calls `done`.
pub(crate) fn end(worker: &mut Worker, key: usize, outcome: Result<(), TxError>) {
    transactions(worker).runs[key].outcome = Some(outcome);
    worker.defer(Cont::new(report, key as u64));
}

fn report(worker: &mut Worker, key: u64, (): ()) {
    let run = transactions(worker).runs.remove(key as usize);
    let outcome = run
        .outcome
        .expect("a run stores its outcome before `report` is called");
    leave(worker, run.admitted, Left::of(&outcome));
    run.done.resume(worker, outcome);
}
