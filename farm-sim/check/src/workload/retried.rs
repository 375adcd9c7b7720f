//! Some of the shipped transactions: [`farm_txn::retry`], the platform's helper, runs them until they commit.

use farm_core::worker::{Cont, Worker};
use farm_txn::{BackoffConfig, TxError, TxHandle, retry};

use super::attempt::{known, settle};
use super::execute;
use super::message::{DONE, IN_DOUBT, REFUSED};
use super::running::{Retried, Retry, Shipped, Stop, Tried};
use super::state::work;

/// One in this many transactions on objects of all machines is run by [`farm_txn::retry`].
const ONE_IN: u64 = 4;
/// Maximum number of tries of a transaction. Each try has its own write ids.
const MOST_TRIES: u64 = 1_000;

/// Returns true if [`farm_txn::retry`] runs this transaction.
pub(super) fn is_of(shipped: &Shipped) -> bool {
    shipped.seed.is_multiple_of(ONE_IN)
}

/// Limits the transactions that run at once on a worker to a few, so that others have to wait.
pub(super) fn configure(worker: &mut Worker) {
    let concurrency = 1 + work(worker).spec.seed as usize % 3;
    let config = BackoffConfig {
        concurrency,
        ..BackoffConfig::default()
    };
    retry::configure(worker, config);
}

pub(super) fn begin(worker: &mut Worker, shipped: Shipped) {
    let key = work(worker).retried.insert(Retried {
        shipped,
        tried: None,
    });
    retry::run(worker, Cont::new(attempt, key), Cont::new(ended, key));
}

fn attempt(worker: &mut Worker, key: usize, tx: TxHandle) {
    let run = &mut work(worker).retried[key];
    let (shipped, before) = (run.shipped, run.tried.take());
    run.shipped.tries += 1;
    if let Some(before) = before {
        settle(worker, before, Some(false));
    }
    if shipped.tries == MOST_TRIES {
        return retry::fail(worker, tx, TxError::GivenUp);
    }
    let retry = Retry {
        key,
        conclude,
        fail,
    };
    execute::run_by_continuations(worker, shipped, tx, Some(retry));
}

/// Handles a try that has reached its commit: commits it. If its script found an invariant broken, the try refuses to
/// commit instead. The platform returns the refusal only if the try's reads are consistent; then the broken invariant
/// is a violation.
fn conclude(worker: &mut Worker, key: usize, tx: TxHandle, tried: Tried) {
    let broken = tried.1.first().cloned();
    work(worker).retried[key].tried = Some(tried);
    match broken {
        Some(broken) => retry::fail(worker, tx, TxError::Refused(broken)),
        None => retry::commit(worker, tx),
    }
}

/// Handles a try that did not reach its commit.
fn fail(worker: &mut Worker, tx: TxHandle, stop: Stop) {
    let error = match stop {
        Stop::Tx(error) => error,
        Stop::NotReady | Stop::Torn => TxError::GivenUp,
    };
    retry::fail(worker, tx, error);
}

fn ended(worker: &mut Worker, key: usize, outcome: Result<(), TxError>) {
    let Retried { shipped, tried } = work(worker).retried.remove(key);
    if let Some(tried) = tried {
        settle(worker, tried, known(&outcome));
    }
    let code = match outcome {
        Ok(()) => DONE,
        // `REFUSED`, so that the client does not ship the transaction again: its tries have used up their write ids.
        Err(TxError::GivenUp) => REFUSED,
        Err(error) => match execute::code(worker, shipped.number, Stop::Tx(error)) {
            Some(IN_DOUBT) => IN_DOUBT,
            _ => REFUSED,
        },
    };
    worker.reply(shipped.request, &[&[code]]);
}
