//! A client, and what it is doing.

use farm_core::ids::WorkerRef;
use farm_core::worker::EpochGuard;
use farm_kv::shard::Changed;
use farm_txn::TxHandle;
use rand_xoshiro::Xoshiro256PlusPlus;

use farm_bench::oltp::Drawn;

use super::named::Named;
use crate::history::{Answered, Asked, KeyOperation};

/// A client.
pub(super) struct Client {
    pub(super) rng: Xoshiro256PlusPlus,
    /// Its number in the whole cluster.
    pub(super) number: u32,
    pub(super) left: u64,
    pub(super) sequence: u64,
    /// The moment at which what is under way was begun.
    pub(super) begun: u64,
    pub(super) doing: Doing,
    /// From the read of an entry until that of the object that it names.
    pub(super) guard: Option<EpochGuard>,
    /// What a transaction over rows does to keys, if it commits.
    pub(super) unsure: Vec<KeyOperation>,
}

/// What is under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Doing {
    #[default]
    Nothing,
    /// A transaction, by its number and where it runs.
    Transaction {
        number: u64,
        to: WorkerRef,
        seed: u64,
        attempt: u8,
    },
    /// A lock-free read of an object, and how many more are to follow.
    Read { object: usize, more: u32 },
    /// An object that churn's entry named.
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
    pub(super) asked: Asked,
    /// It is a transaction of its own, run by the client's worker; else the owner changes the table.
    pub(super) in_tx: bool,
    /// An upsert removes and then inserts, a remove inserts first: what one transaction did and undid, or
    /// moved, nobody may see.
    pub(super) in_two: bool,
    /// What the first of the two did.
    pub(super) first: Option<Changed>,
    pub(super) attempt: u8,
    pub(super) tx: Option<TxHandle>,
    /// What the transaction answers, if it commits.
    pub(super) answer: Option<Answered>,
}

impl TableOperation {
    pub(super) fn answered(
        self,
        client: u32,
        begun: u64,
        ended: u64,
        answered: Option<Answered>,
    ) -> KeyOperation {
        KeyOperation {
            client,
            key: self.key,
            begun,
            ended,
            asked: self.asked,
            answered,
        }
    }

    /// Returns the record of an operation that will get no answer.
    pub(super) fn unanswered(self, client: u32, begun: u64) -> KeyOperation {
        self.answered(client, begun, begun, None)
    }
}

/// A transaction over rows that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowsTransaction {
    pub(super) what: Drawn,
    pub(super) attempt: u8,
    /// The place of this attempt in the log, from just before its commit on.
    pub(super) tried: Option<usize>,
    /// The place of the transaction there.
    pub(super) asked: Option<usize>,
}
