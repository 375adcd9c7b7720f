//! What the launcher and its nodes say to each other: a JSON object a line.

use farm_bench::oltp::audit::Audited;
use farm_bench::oltp::{self, Benchmark};
use farm_bench::ycsb;
use farm_check::workload::{Finished, Log, Spec};
use farm_kv::TableSpec;
use farm_txn::BackoffConfig;
use serde::{Deserialize, Serialize};

/// From the launcher to a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub(crate) enum Order {
    /// Open a table on every worker.
    Open(TableOrder),
    /// Load this machine's part of the records.
    Load(WorkloadOrder),
    /// Run a workload, and report.
    Run {
        /// The workload.
        workload: WorkloadOrder,
        /// Seconds before it counts.
        warmup_s: f64,
        /// Most seconds that count.
        duration_s: Option<f64>,
        /// Operations of all workers together that count.
        operations: Option<u64>,
        /// Operations per second of all workers together.
        target_per_s: Option<u64>,
        /// Operations in flight at a time, of all workers together.
        threads: Option<u64>,
        /// Seed of all choices.
        seed: u64,
        /// Check every value that is read.
        verify: bool,
        /// One operation in so many is timed.
        sampled_1_in: u32,
    },
    /// Have a deliberate bug from now on, on all workers: only in a program built with them.
    Mutant {
        /// Its name.
        name: String,
    },
    /// Lock exclusively from the start in commits of one machine, on all workers.
    LockExclusively,
    /// A step of a benchmark of transactions.
    Oltp(OltpOrder),
    /// Run a workload that is judged.
    Work(Spec),
    /// Tell what it recorded, now that it has ended everywhere.
    TellWork,
    /// Stop.
    Stop,
}

/// A step of a benchmark of transactions.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub(crate) enum OltpOrder {
    /// Open the tables of a benchmark of transactions on every worker.
    Open {
        /// The benchmark.
        benchmark: Benchmark,
        /// Seed of its population and of all choices.
        seed: u64,
        /// Its tables, in its order.
        tables: Vec<TableOrder>,
    },
    /// Load this machine's part of its rows.
    Load,
    /// Run its transactions, and report.
    Run {
        /// How each worker avoids conflicts, and how many transactions it has in flight at most.
        avoidance: BackoffConfig,
        /// Seconds before it counts.
        warmup_s: f64,
        /// Seconds that count.
        duration_s: f64,
        /// One transaction in so many is timed.
        sampled_1_in: u32,
    },
    /// Look at what its transactions left, now that they have ended everywhere.
    Audit,
}

/// A table to be opened.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct TableOrder {
    id: u16,
    neighbourhood: u32,
    value_bytes: usize,
    shards: u32,
    buckets: u32,
}

impl From<TableSpec> for TableOrder {
    fn from(spec: TableSpec) -> Self {
        let TableSpec {
            id,
            neighbourhood,
            value_bytes,
            shards,
            buckets,
        } = spec;
        Self {
            id,
            neighbourhood,
            value_bytes,
            shards,
            buckets,
        }
    }
}

impl From<TableOrder> for TableSpec {
    fn from(order: TableOrder) -> Self {
        let TableOrder {
            id,
            neighbourhood,
            value_bytes,
            shards,
            buckets,
        } = order;
        Self {
            id,
            neighbourhood,
            value_bytes,
            shards,
            buckets,
        }
    }
}

/// A workload as its properties, which the node reads as the launcher did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WorkloadOrder {
    /// Its name.
    pub(crate) name: String,
    /// Its properties.
    pub(crate) properties: Vec<(String, String)>,
    /// Bytes of a value.
    pub(crate) value_bytes: usize,
}

/// From a node to the launcher.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "news", rename_all = "snake_case")]
pub(crate) enum News {
    /// It has met the others.
    Ready,
    /// The table is open on all of its workers.
    Opened,
    /// So many records are in so far.
    Loading {
        /// Records.
        records: u64,
    },
    /// Its part is loaded.
    Loaded {
        /// Records.
        records: u64,
        /// Seconds.
        seconds: f64,
    },
    /// A workload has ended.
    Ran(Box<ycsb::report::MachineReport>),
    /// Transactions have ended.
    RanOltp(Box<oltp::report::MachineReport>),
    /// What transactions left.
    Audited(Audited),
    /// The clients of a workload that is judged have ended.
    Worked,
    /// What its workers recorded, and hold.
    Work {
        /// Of every worker.
        logs: Vec<Log>,
        /// Of all together.
        finished: Finished,
    },
    /// It stops, because of this.
    Failed {
        /// The reason.
        why: String,
    },
}
