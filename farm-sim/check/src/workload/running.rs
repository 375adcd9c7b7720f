//! Transactions that a worker runs for clients.

use farm_core::messaging::Request;
use farm_core::worker::Worker;
use farm_txn::{TxError, TxHandle};

use super::script::Script;

/// A transaction that was shipped to this worker.
#[derive(Clone, Copy)]
pub(super) struct Shipped {
    pub(super) request: Request,
    pub(super) number: u64,
    pub(super) seed: u64,
    pub(super) attempt: u64,
    /// Number of tries so far.
    pub(super) tries: u64,
}

/// A transaction that runs by continuations.
pub(super) struct Running {
    pub(super) shipped: Shipped,
    pub(super) script: Script,
    pub(super) tx: TxHandle,
    /// Index of its try in the log, set when the try commits.
    pub(super) tried: usize,
    /// The functions that handle the end of the try if [`farm_txn::retry`] runs the transaction; otherwise `None`.
    pub(super) retry: Option<Retry>,
}

/// A try whose objects are all on this machine, while it commits.
pub(super) struct Committing {
    pub(super) shipped: Shipped,
    /// Index of the try in the log.
    pub(super) tried: usize,
    /// The invariants that its script found broken. They count only if the try takes effect.
    pub(super) broken: Vec<String>,
}

/// A try that reached its commit: its index in the log, and the invariants that its script found broken.
pub(super) type Tried = (usize, Vec<String>);

/// The functions that handle the end of a try of a transaction that [`farm_txn::retry`] runs.
#[derive(Clone, Copy)]
pub(super) struct Retry {
    /// Key of the [`Retried`] transaction.
    pub(super) key: usize,
    /// Called with a try that has reached its commit.
    pub(super) conclude: fn(&mut Worker, usize, TxHandle, Tried),
    /// Called if a try cannot reach its commit.
    pub(super) fail: fn(&mut Worker, TxHandle, Stop),
}

/// A transaction that [`farm_txn::retry`] runs until it commits.
pub(super) struct Retried {
    pub(super) shipped: Shipped,
    /// The last try, if it reached its commit.
    pub(super) tried: Option<Tried>,
}

/// The reason why a try failed.
pub(super) enum Stop {
    /// An error of the platform.
    Tx(TxError),
    /// Addresses are not known yet.
    NotReady,
    /// A torn value or a missing object. The violation is already recorded.
    Torn,
}

impl From<TxError> for Stop {
    fn from(error: TxError) -> Self {
        Stop::Tx(error)
    }
}
