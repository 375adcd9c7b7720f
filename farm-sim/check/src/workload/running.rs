//! Transactions that a worker runs for clients.

use farm_core::messaging::Request;
use farm_core::worker::Worker;
use farm_txn::{TxError, TxHandle};

use super::script::Script;

/// A transaction that was shipped here.
#[derive(Clone, Copy)]
pub(super) struct Shipped {
    pub(super) request: Request,
    pub(super) number: u64,
    pub(super) seed: u64,
    pub(super) attempt: u64,
    /// Tries so far.
    pub(super) tries: u64,
}

/// A transaction that runs by continuations.
pub(super) struct Running {
    pub(super) shipped: Shipped,
    pub(super) script: Script,
    pub(super) tx: TxHandle,
    /// Where in the log its try is, once it commits.
    pub(super) tried: usize,
    /// What runs the transaction again, if the platform's helper retries it until it commits.
    pub(super) retry: Option<Retry>,
}

/// A try whose objects are all on this machine, while it commits.
pub(super) struct Committing {
    pub(super) shipped: Shipped,
    /// Its place in the log.
    pub(super) tried: usize,
    /// The invariants that its script found broken, if it takes effect.
    pub(super) broken: Vec<String>,
}

/// A try that came to its commit: its place in the log, and the invariants that its script found broken.
pub(super) type Tried = (usize, Vec<String>);

/// What continues with a transaction that is retried until it commits, after one of its tries.
#[derive(Clone, Copy)]
pub(super) struct Retry {
    /// Its place among those.
    pub(super) key: usize,
    /// Called with a try that has come to its commit.
    pub(super) conclude: fn(&mut Worker, usize, TxHandle, Tried),
    /// Called if a try cannot come to its commit.
    pub(super) fail: fn(&mut Worker, TxHandle, Stop),
}

/// A transaction that is retried until it commits.
pub(super) struct Retried {
    pub(super) shipped: Shipped,
    /// The last try, if it came to its commit.
    pub(super) tried: Option<Tried>,
}

/// Why a try did not end well.
pub(super) enum Stop {
    /// An error of the platform.
    Tx(TxError),
    /// Addresses are not known yet.
    NotReady,
    /// A value that no write wrote: already reported.
    Torn,
}

impl From<TxError> for Stop {
    fn from(error: TxError) -> Self {
        Stop::Tx(error)
    }
}
