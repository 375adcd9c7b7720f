//! The state of the transaction layer on one worker. Its parts are values; the modules that work on them with the
//! worker import this one.

use std::time::Duration;

use farm_core::worker::{EpochGuard, Worker};

use crate::calls::{ArrayCall, DeferredResult, RemoteCall, WaitingCommit};
use crate::commit::coordinator::Coordinator;
use crate::commit::id::CommitId;
use crate::commit::primary::{LogState, Primary};
use crate::commit::queues::Queues;
use crate::commit::truncations::Truncations;
use crate::counters::TxCounters;
use crate::error::TxError;
use crate::handle::{OpenTx, TxHandle};
use crate::lent::Lent;
use crate::limits::TxLimits;
use crate::object_run::Release;
use crate::recovery::Recovering;
use crate::retry::state::{Gate, Run};
use crate::tx::Tx;

/// Number of results for which memory is allocated in advance.
const EXPECTED_RESULTS: usize = 256;

/// State of the layer on one worker.
#[derive(Default)]
pub(crate) struct Transactions {
    /// Contexts without a transaction. Boxed, because they are moved out and back.
    #[allow(clippy::vec_box)]
    pub(crate) pool: Vec<Box<Tx>>,
    /// Transactions that are open by handles.
    pub(crate) open: slab::Slab<OpenTx>,
    /// Results whose continuations are not called yet.
    pub(crate) results: slab::Slab<DeferredResult>,
    /// Reads and allocations that wait for other machines, or for locks.
    pub(crate) calls: slab::Slab<RemoteCall>,
    /// Arrays that are being read or allocated.
    pub(crate) arrays: slab::Slab<ArrayCall>,
    /// The number of the last handle.
    pub(crate) generation: u32,
    /// Transactions that are retried until they commit.
    pub(crate) runs: slab::Slab<Run>,
    /// Limit of the retried transactions that run at the same time.
    pub(crate) gate: Gate,
    /// Limits of the transactions of this worker.
    pub(crate) limits: TxLimits,
    /// The time for which reads of one transaction that time out are retried.
    pub(crate) patience: Duration,
    /// Released slots that are to be sent to the workers that own their blocks.
    pub(crate) releases: Vec<Release>,
    /// Slots of this machine that are reserved for transactions of others.
    pub(crate) lent: Lent,
    /// Number of slots that could not be released: one is an error.
    pub(crate) not_released: usize,
    /// Commits that have not ended; `None` while one runs.
    pub(crate) commits: slab::Slab<Option<Box<Coordinator>>>,
    /// Commits that have not begun, because regions of their new objects are not recorded.
    pub(crate) waiting_for_regions: slab::Slab<WaitingCommit>,
    /// Commits that have ended, for reuse of their memory.
    #[allow(clippy::vec_box)]
    pub(crate) spare_commits: Vec<Box<Coordinator>>,
    /// The configuration under which transactions commit.
    pub(crate) configuration: u64,
    /// The configuration whose records were in the logs since they were drained last.
    pub(crate) logs_since: u64,
    /// Whether no commit begins, because objects of undecided transactions may not be locked.
    pub(crate) recovers: bool,
    /// Recovery, on the first worker.
    pub(crate) recovering: Recovering,
    pub(crate) truncations: Truncations,
    /// The two parts of the log record that is being appended.
    pub(crate) record_head: Vec<u8>,
    pub(crate) record_rest: Vec<u8>,
    /// Commits that wait for room in logs.
    pub(crate) queues: Queues,
    pub(crate) primary: Primary,
    /// The records of the worker's own log.
    pub(crate) own: LogState,
    /// The body of the VALIDATE message that is being sent.
    pub(crate) validate_body: Vec<u8>,
    pub(crate) counters: TxCounters,
    /// Whether commits whose objects are all on this machine lock exclusively from the start.
    pub(crate) locks_exclusively: bool,
    /// Whether the machine leaves the cluster: no commit begins.
    pub(crate) leaving: bool,
}

impl Transactions {
    /// Returns the state of a worker without transactions, in the configuration of this number.
    pub(crate) fn new(configuration: u64) -> Self {
        Self {
            results: slab::Slab::with_capacity(EXPECTED_RESULTS),
            configuration,
            logs_since: configuration,
            ..Self::default()
        }
    }

    /// Returns a context for a transaction that runs within the operation of `guard`.
    pub(crate) fn context(&mut self, guard: EpochGuard) -> Box<Tx> {
        let mut tx = match self.pool.pop() {
            Some(tx) => tx,
            None => Box::new(Tx::new()),
        };
        tx.set_limits(self.limits);
        tx.configuration = self.configuration;
        tx.guard = Some(guard);
        tx
    }

    /// Takes a commit out while it runs.
    pub(crate) fn take(&mut self, id: CommitId) -> Box<Coordinator> {
        let commit = self.commits[id.index()].take();
        commit.expect("replies and acknowledgements arrive only for commits that have not ended")
    }

    /// Returns an open transaction.
    ///
    /// # Errors
    /// [`TxError::Ended`].
    pub(crate) fn entry(&mut self, tx: TxHandle) -> Result<&mut OpenTx, TxError> {
        let open = self.open.get_mut(tx.key as usize);
        open.filter(|open| open.generation == tx.generation)
            .ok_or(TxError::Ended)
    }

    /// Stores a context whose transaction has ended.
    pub(crate) fn keep(&mut self, tx: Box<Tx>) {
        self.pool.push(tx);
    }
}

pub(crate) fn transactions(worker: &mut Worker) -> &mut Transactions {
    worker
        .layer()
        .expect("farm_txn::attach must be called for a worker before it runs transactions")
}
