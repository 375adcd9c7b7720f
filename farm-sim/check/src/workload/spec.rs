//! What a workload is of.

use std::fmt;
use std::str::FromStr;

use farm_kv::TableSpec;
use serde::{Deserialize, Serialize};

use super::value::LEAST_BYTES;

/// What every account of the bank begins with.
pub(super) const BALANCE: u64 = 1_000;

/// A workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// Objects that name each other in a circle; transactions turn two of them round.
    Cycle,
    /// Accounts whose sum stays what it was.
    Bank,
    /// Reads and writes of some objects, of any.
    #[default]
    Append,
    /// A hashtable, whose keys are read and changed from everywhere.
    Table,
    /// Objects that are allocated, freed and replaced, named by fat pointers.
    Churn,
    /// The accounts of SmallBank, in tables.
    SmallBank,
    /// The subscribers of TATP, in tables, with more changes than TATP has.
    Tatp,
}

impl Kind {
    /// All there are.
    pub const ALL: [Kind; 7] = [
        Kind::Cycle,
        Kind::Bank,
        Kind::Append,
        Kind::Table,
        Kind::Churn,
        Kind::SmallBank,
        Kind::Tatp,
    ];

    /// Whether it is over objects, not over tables.
    pub fn has_objects(self) -> bool {
        self != Kind::Table && !self.has_rows()
    }

    /// Whether it is over rows of tables.
    pub fn has_rows(self) -> bool {
        matches!(self, Kind::SmallBank | Kind::Tatp)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Cycle => "cycle",
            Kind::Bank => "bank",
            Kind::Append => "append",
            Kind::Table => "table",
            Kind::Churn => "churn",
            Kind::SmallBank => "smallbank",
            Kind::Tatp => "tatp",
        })
    }
}

/// There is no such workload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no workload {0:?}; there are cycle, bank, append, table, churn, smallbank and tatp"
)]
pub struct NoKind(String);

impl FromStr for Kind {
    type Err = NoKind;

    fn from_str(name: &str) -> Result<Self, NoKind> {
        let found = Self::ALL.into_iter().find(|kind| kind.to_string() == name);
        found.ok_or_else(|| NoKind(name.into()))
    }
}

/// What a workload is of. Shares are out of 100.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// Which.
    pub kind: Kind,
    /// Objects on each machine; of churn, entries that name an object or none.
    pub objects_per_machine: usize,
    /// Transactions are over the objects of all machines; else each is over those of one.
    pub spread: bool,
    /// Bytes of an object's payload, at least 40.
    pub payload_bytes: usize,
    /// Most bytes of an object that an entry of churn names, at least 40.
    pub named_bytes: usize,
    /// Clients of each worker, each of which does one thing at a time.
    pub clients: usize,
    /// Operations of each client.
    pub operations: u64,
    /// Share of transactions that only read.
    pub read_only: u32,
    /// Share of operations that are lock-free reads.
    pub lock_free: u32,
    /// Share of operations on the table that are transactions of their own, run where the client is.
    pub in_transactions: u32,
    /// Keys of the table; accounts of SmallBank; four for each subscriber of TATP.
    pub keys: u64,
    /// The table's neighbourhood H.
    pub neighbourhood: u32,
    /// Its shards.
    pub shards: u32,
    /// Buckets of a shard.
    pub buckets: u32,
    /// Bytes of its values, at least 8.
    pub value_bytes: usize,
    /// Seed of every choice.
    pub seed: u64,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            kind: Kind::default(),
            objects_per_machine: 8,
            spread: true,
            payload_bytes: 200,
            named_bytes: 640,
            clients: 2,
            operations: 100,
            read_only: 25,
            lock_free: 40,
            in_transactions: 30,
            keys: 24,
            neighbourhood: 6,
            shards: 3,
            buckets: 3,
            value_bytes: 32,
            seed: 0,
        }
    }
}

impl Spec {
    /// Objects of all machines.
    pub(super) fn objects(&self, machines: usize) -> usize {
        match self.kind {
            Kind::Table | Kind::SmallBank | Kind::Tatp => 0,
            _ => self.objects_per_machine * machines,
        }
    }

    /// The objects that one transaction on `object` may touch: the first, and how many.
    pub(super) fn range_of(&self, object: usize, machines: usize) -> (usize, usize) {
        let per_machine = self.objects_per_machine;
        match self.spread {
            true => (0, per_machine * machines),
            false => (object / per_machine * per_machine, per_machine),
        }
    }

    /// Bytes asked for when an object is made.
    pub(super) fn payload(&self) -> usize {
        self.payload_bytes.max(LEAST_BYTES)
    }

    /// The table.
    pub(super) fn table(&self) -> TableSpec {
        TableSpec {
            id: 1,
            neighbourhood: self.neighbourhood,
            value_bytes: self.value_bytes,
            shards: self.shards,
            buckets: self.buckets,
        }
    }
}
