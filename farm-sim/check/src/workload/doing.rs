//! A client and its current operation.

use farm_core::ids::WorkerRef;
use farm_core::worker::EpochGuard;
use farm_kv::shard::Changed;
use farm_txn::TxHandle;
use rand_xoshiro::Xoshiro256PlusPlus;

use farm_bench::oltp::Drawn;

use super::named::Named;
use crate::history::{KeyOperation, KeyRequest, KeyResult};

/// A client.
pub(super) struct Client {
    pub(super) rng: Xoshiro256PlusPlus,
    /// Its number in the whole cluster.
    pub(super) number: u32,
    pub(super) left: u64,
    pub(super) sequence: u64,
    /// The moment at which the current operation began.
    pub(super) begun: u64,
    pub(super) doing: Doing,
    /// The open operation of lock-free reads, from the read of an entry until the read of the object that the entry
    /// names.
    pub(super) guard: Option<EpochGuard>,
    /// The key operations that take effect if the pending transaction over rows commits.
    pub(super) unsure: Vec<KeyOperation>,
    /// The cents that it adds then.
    pub(super) unsure_cents: i64,
}

/// The current operation of a client.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Doing {
    #[default]
    Nothing,
    /// A transaction that was shipped to worker `to`.
    Transaction {
        number: u64,
        to: WorkerRef,
        seed: u64,
        attempt: u8,
    },
    /// A lock-free read of an object. `more`: number of reads that follow.
    Read { object: usize, more: u32 },
    /// A lock-free read of the object that an entry of churn named.
    Named(Named),
    /// An operation on the table.
    Table(TableOperation),
    /// A transaction over rows of tables.
    Rows(RowsTransaction),
}

/// An operation on the table that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableOperation {
    pub(super) key: u64,
    pub(super) request: KeyRequest,
    /// Whether the client's worker runs the operation as a transaction. Otherwise the owner of the key's shard changes
    /// the table.
    pub(super) in_tx: bool,
    /// Whether the transaction makes the change in two steps: an upsert removes and then inserts, a remove inserts and
    /// then removes. Other clients must not see the state between the steps.
    pub(super) in_two: bool,
    /// Whether a task makes the operation.
    pub(super) as_task: bool,
    /// The result of the first of the two steps.
    pub(super) first: Option<Changed>,
    pub(super) attempt: u8,
    pub(super) tx: Option<TxHandle>,
    /// The result of the operation if the transaction commits.
    pub(super) result: Option<KeyResult>,
}

impl TableOperation {
    /// Returns the record of the operation in the history.
    pub(super) fn record(
        self,
        client: u32,
        begun: u64,
        ended: u64,
        result: Option<KeyResult>,
    ) -> KeyOperation {
        KeyOperation {
            client,
            key: self.key,
            begun,
            ended,
            request: self.request,
            result,
        }
    }

    /// Returns the record of an operation that will get no result.
    pub(super) fn record_without_result(self, client: u32, begun: u64) -> KeyOperation {
        self.record(client, begun, begun, None)
    }
}

/// A transaction over rows that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowsTransaction {
    pub(super) what: Drawn,
    pub(super) attempt: u8,
    /// The index of this attempt in the log, set just before its commit.
    pub(super) tried: Option<usize>,
    /// The number of the transaction in the log.
    pub(super) asked: Option<u64>,
}
