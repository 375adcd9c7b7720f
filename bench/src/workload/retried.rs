//! Transactions that the platform's own helper tries until they commit ([`farm_txn::retry`]): some of those
//! that are shipped.

use farm_core::worker::{Cont, Worker};
use farm_txn::{BackoffConfig, TxError, TxHandle, retry};

use super::execute::{self, DONE, IN_DOUBT, REFUSED, Shipped, Stop};
use super::work;

/// Of so many that may be tried so one is.
const ONE_IN: u64 = 4;
/// Tries, each of which has write ids of its own.
const MOST_TRIES: u64 = 1_000;

/// A transaction that is tried until it commits.
pub(super) struct Retried {
    shipped: Shipped,
    /// Where in the log the last try is that came to its commit.
    tried: Option<usize>,
    /// What its script found broken, if that try commits.
    broken: Vec<String>,
}

/// Whether a transaction is one of these.
pub(super) fn is_of(shipped: &Shipped) -> bool {
    shipped.seed.is_multiple_of(ONE_IN)
}

/// How many a worker runs at once, and that it does little else.
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
        broken: Vec::new(),
    });
    retry::run(
        worker,
        Cont::new(attempt, key as u64),
        Cont::new(ended, key as u64),
    );
}

fn attempt(worker: &mut Worker, key: u64, tx: TxHandle) {
    let key = key as usize;
    settle(worker, key, Some(false));
    let run = &mut work(worker).retried[key];
    let shipped = run.shipped;
    run.shipped.tries += 1;
    if shipped.tries == MOST_TRIES {
        return retry::fail(worker, tx, TxError::GivenUp);
    }
    execute::go(worker, shipped, tx, Some(key));
}

/// A try has come to its commit.
pub(super) fn commit(
    worker: &mut Worker,
    key: usize,
    tx: TxHandle,
    (tried, broken): (usize, Vec<String>),
) {
    let run = &mut work(worker).retried[key];
    (run.tried, run.broken) = (Some(tried), broken);
    retry::commit(worker, tx);
}

/// A try has not.
pub(super) fn fail(worker: &mut Worker, tx: TxHandle, stop: Stop) {
    let error = match stop {
        Stop::Tx(error) => error,
        Stop::NotReady | Stop::Torn => TxError::GivenUp,
    };
    retry::fail(worker, tx, error);
}

/// What became of the last try that came to its commit.
fn settle(worker: &mut Worker, key: usize, committed: Option<bool>) {
    let work = work(worker);
    let run = &mut work.retried[key];
    let broken = std::mem::take(&mut run.broken);
    if committed == Some(true) {
        work.log.violations.extend(broken);
    }
    let Some(tried) = run.tried.take() else {
        return;
    };
    // The log was taken already if the cluster was lost.
    if let Some(tried) = work.log.tried.get_mut(tried) {
        tried.committed = committed;
    }
}

fn ended(worker: &mut Worker, key: u64, outcome: Result<(), TxError>) {
    let known = match &outcome {
        Ok(()) => Some(true),
        Err(TxError::InDoubt(_)) => None,
        Err(_) => Some(false),
    };
    settle(worker, key as usize, known);
    let shipped = work(worker).retried.remove(key as usize).shipped;
    let code = match outcome {
        Ok(()) => DONE,
        // It is not shipped again: its tries have used up their write ids.
        Err(TxError::GivenUp) => REFUSED,
        Err(error) => match execute::code(worker, shipped.number, Stop::Tx(error)) {
            Some(IN_DOUBT) => IN_DOUBT,
            _ => REFUSED,
        },
    };
    worker.reply(shipped.request, &[&[code]]);
}
