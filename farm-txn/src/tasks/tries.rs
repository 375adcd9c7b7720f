//! The transactions of tasks, on their worker.
//!
//! A task names its transaction by a key, and its context stays with the worker. [`crate::retry`] repeats it: each step of
//! the retried transaction is the answer of a call, with which the body is run again, or the outcome.
//!
//! A body may wait for anything, for example for another machine outside of the cluster. A transaction that waits without
//! a call under way does not count against the limit of transactions that run at the same time. One that is open for
//! too long ends, because memory that others free is not reused while it is open.

use std::time::Duration;

use farm_core::worker::{Cont, Worker};

use super::answers::{RunKey, Slot};
use super::here;
use super::queue::TaskQueue;
use super::reply::answer;
use super::run::{Run, Step, of_try};
use super::tasks;
use crate::api;
use crate::error::TxError;
use crate::handle::TxHandle;
use crate::retry;

/// Interval of the checks of open transactions.
const CHECK_EVERY: Duration = Duration::from_millis(2);

/// Begins a transaction that is tried once. The answer contains its key.
pub(super) fn begin_once(worker: &mut Worker, slot: Slot) {
    let index = insert(worker, slot);
    let tx = api::begin(worker);
    offer(worker, index, tx);
}

/// Begins a transaction that is retried. The answer is the first step. If it is `inner`, it does not wait for others.
pub(super) fn begin(worker: &mut Worker, slot: Slot, inner: bool) {
    let index = insert(worker, slot);
    let (body, done) = (Cont::new(offer, index), Cont::new(done, index));
    let (retried, first) = retry::prepare(worker, body, done, inner);
    if let Some(run) = tasks(worker).transactions.get_mut(index as usize) {
        run.retried = Some(retried);
    }
    if first {
        retry::attempt(worker, retried as u64, ());
    }
}

fn insert(worker: &mut Worker, slot: Slot) -> u32 {
    let now = worker.now();
    let index = tasks(worker).transactions.insert(Run {
        retried: None,
        tx: None,
        slot: Some(slot),
        conflict: None,
        ended: None,
        began: now,
        active: now,
        calls: 0,
    });
    index as u32
}

/// Offers a try to the body.
fn offer(worker: &mut Worker, index: u32, tx: TxHandle) {
    let now = worker.now();
    let run = tasks(worker).transactions.get_mut(index as usize);
    let Some(run) = run else {
        return;
    };
    run.tx = Some(tx);
    (run.began, run.active) = (now, now);
    let Some(slot) = run.slot.take() else {
        return;
    };
    watch(worker);
    let key = RunKey { index, tx };
    answer(worker, slot, |answer| {
        answer.words = Step::Try(key).to_words();
        answer.undo = Some(|worker, words| {
            if let Step::Try(key) = Step::from_words(words) {
                abandon(worker, key);
            }
        });
    });
}

/// Ends a try whose body has ended: commits it, unless the body has `failed`. The answer is the next step.
///
/// A transaction that is tried once is committed, or only validated if it has `failed`.
pub(super) fn end(worker: &mut Worker, key: RunKey, failed: bool, slot: Slot) {
    let Some(run) = of_try(&mut tasks(worker).transactions, key) else {
        return answer(worker, slot, |answer| answer.fail(TxError::Ended));
    };
    run.slot = Some(slot);
    run.tx = None;
    let (retried, ended, conflict) = (run.retried, run.ended.take(), run.conflict.take());
    let Some(retried) = retried else {
        return match (ended, failed) {
            (Some(error), _) => done(worker, key.index, Err(error)),
            (None, true) => api::validate(worker, key.tx, Cont::new(done, key.index)),
            (None, false) => api::commit(worker, key.tx, Cont::new(done, key.index)),
        };
    };
    match (ended, failed) {
        // The body has dropped other calls because one of them met a conflict.
        (Some(TxError::Ended), true) if conflict.is_some() => {
            retry::fail_aborted(worker, retried, conflict.unwrap_or(TxError::Ended));
        }
        (Some(error), _) => retry::end(worker, retried, Err(error)),
        (None, false) => retry::commit(worker, key.tx),
        (None, true) => retry::fail(worker, key.tx, conflict.unwrap_or(TxError::GivenUp)),
    }
}

/// Reports the outcome of a transaction.
fn done(worker: &mut Worker, index: u32, outcome: Result<(), TxError>) {
    let run = tasks(worker).transactions.remove(index as usize);
    let Some(slot) = run.slot else {
        return;
    };
    answer(worker, slot, |answer| match outcome {
        Ok(()) => answer.words = Step::Done.to_words(),
        // The body has failed, and its reads are valid.
        Err(TxError::GivenUp) => answer.words = Step::OwnError.to_words(),
        Err(error) => answer.fail(error),
    });
}

/// Ends a transaction whose body was dropped, or will not run.
pub(super) fn abandon(worker: &mut Worker, key: RunKey) {
    if of_try(&mut tasks(worker).transactions, key).is_none() {
        return;
    }
    let run = tasks(worker).transactions.remove(key.index as usize);
    api::abort(worker, key.tx);
    if let Some(retried) = run.retried {
        retry::abandon(worker, retried);
    }
}

/// As [`abandon`], from any thread.
pub(super) fn abandon_from(queue: &TaskQueue, key: RunKey) {
    here::on_worker(queue, move |worker| abandon(worker, key));
}

/// Ends a try, because a call of it was dropped before it completed.
fn spoil(worker: &mut Worker, key: RunKey, why: TxError) {
    let Some(run) = of_try(&mut tasks(worker).transactions, key) else {
        return;
    };
    run.ended.get_or_insert(why);
    api::abort(worker, key.tx);
}

/// Handles that a call of a transaction was dropped before it completed.
pub(super) fn spoil_from(queue: &TaskQueue, key: RunKey) {
    here::on_worker(queue, move |worker| spoil(worker, key, TxError::Ended));
}

/// Ensures that open transactions are checked.
fn watch(worker: &mut Worker) {
    if !std::mem::replace(&mut tasks(worker).watches, true) {
        worker.set_timer(CHECK_EVERY, Cont::new(check, ()));
    }
}

/// Ends transactions that are open for too long, and lets others run in place of those that wait for something outside.
fn check(worker: &mut Worker, (): (), (): ()) {
    let now = worker.now();
    let longest = tasks(worker).longest;
    let mut open = false;
    for index in 0..tasks(worker).transactions.capacity() {
        let Some(run) = tasks(worker).transactions.get(index) else {
            continue;
        };
        let Some(tx) = run.tx.filter(|_| run.ended.is_none()) else {
            continue;
        };
        open = true;
        let (retried, age) = (run.retried, now.since(run.began));
        let idle = run.calls == 0 && now.since(run.active) >= CHECK_EVERY;
        let index = index as u32;
        if age >= longest {
            spoil(worker, RunKey { index, tx }, TxError::OpenTooLong(longest));
        } else if let Some(retried) = retried.filter(|_| idle) {
            retry::make_way(worker, retried);
        }
    }
    tasks(worker).watches = open;
    if open {
        worker.set_timer(CHECK_EVERY, Cont::new(check, ()));
    }
}
