//! Messages between the launcher and its nodes: one JSON object per line.

use std::path::PathBuf;

use farm_bench::edges::import::{Batch, Imported};
use farm_bench::edges::report::SearchResult;
use farm_bench::oltp::audit::AuditResult;
use farm_bench::oltp::{self, Benchmark};
use farm_bench::{edges, linkbench, taobench, ycsb};
use farm_check::workload::{FinalState, Log, Spec};
use farm_graph::{GraphSpec, Schema};
use farm_kv::TableSpec;
use farm_txn::BackoffConfig;
use serde::{Deserialize, Serialize};

/// A message from the launcher to a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub(crate) enum Order {
    /// Open a table on every worker.
    Open(TableSpec),
    /// Load this machine's part of the records.
    Load(WorkloadOrder),
    /// Run a workload, and send a report ([`News::Ran`]).
    Run {
        /// The workload.
        workload: WorkloadOrder,
        /// Seconds of the warm-up, which is not measured.
        warmup_s: f64,
        /// Maximum number of measured seconds.
        duration_s: Option<f64>,
        /// Number of measured operations of all workers together.
        operations: Option<u64>,
        /// Maximum number of operations per second of all workers together.
        target_per_s: Option<u64>,
        /// Operations in flight of all workers together.
        threads: Option<u64>,
        /// Seed of all random choices.
        seed: u64,
        /// Whether every value that is read is checked.
        verify: bool,
        /// The latency of one in this many operations is measured.
        sampled_1_in: u32,
    },
    /// Check that this machine's part of the records is there ([`News::RecordAudit`]). The launcher sends this order after the workload has
    /// ended on all machines.
    CheckRecords(WorkloadOrder),
    /// Take no part in runs from now on.
    GiveNoLoad,
    /// From now on, lock exclusively from the start in commits of one machine, on all workers.
    LockExclusively,
    /// A step of a benchmark of transactions.
    Oltp(OltpOrder),
    /// A step of LinkBench.
    Link(LinkOrder),
    /// A step of TAOBench.
    Tao(TaoOrder),
    /// A step of `farm edges`.
    Edges(EdgesOrder),
    /// Run a judged workload.
    Work(Spec),
    /// Begin a judged workload whose processes are killed, and report when the clients have begun ([`News::Begun`]).
    Begin(Beginning),
    /// End the clients of that workload ([`News::Worked`]).
    Enough,
    /// Send the records of the judged workload ([`News::Work`]). The launcher sends this order after the workload
    /// has ended on all machines.
    SendWork {
        /// Longest wait until the allocators know all slots and have received all freed objects, in seconds.
        settle_s: u64,
    },
    /// Stop the machine and end the process.
    Stop,
}

/// The start of a judged workload whose processes are killed and started again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Beginning {
    /// The workload.
    pub(crate) spec: Spec,
    /// Number of earlier starts.
    pub(crate) starts: u32,
    /// The addresses of its objects; none at the first start.
    pub(crate) known: Vec<u64>,
    /// Directory for the records of the workers.
    pub(crate) logs: PathBuf,
}

/// A step of a benchmark of transactions.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub(crate) enum OltpOrder {
    /// Open the tables of a benchmark of transactions on every worker.
    Open {
        /// The benchmark.
        benchmark: Benchmark,
        /// Seed of its population and of all random choices.
        seed: u64,
        /// The specifications of its tables, in the order of [`Benchmark::tables`].
        tables: Vec<TableSpec>,
    },
    /// Load this machine's part of the rows.
    Load,
    /// Run the transactions, and send a report ([`News::RanOltp`]).
    Run {
        /// Conflict avoidance of each worker, with its maximum number of transactions in flight.
        avoidance: BackoffConfig,
        /// Seconds of the warm-up, which is not measured.
        warmup_s: f64,
        /// Measured seconds.
        duration_s: f64,
        /// The latency of one in this many transactions is measured.
        sampled_1_in: u32,
        /// Whether transactions run as tasks, and not by continuations.
        tasks: bool,
    },
    /// Check this machine's part of the tables. The launcher sends this order after the transactions have ended on
    /// all machines.
    Audit,
}

/// A step of LinkBench.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub(crate) enum LinkOrder {
    /// Open the graph on every worker.
    Open {
        /// The graph.
        graph: GraphOrder,
        /// The workload.
        workload: LinkWorkload,
    },
    /// Write this machine's part of the nodes ([`News::Loaded`]).
    LoadNodes,
    /// Write the links of this machine's nodes ([`News::Loaded`]).
    LoadLinks,
    /// Send [`News::LinkFacts`].
    Facts,
    /// Look up the names that the requests need ([`News::Opened`]).
    FindNames {
        /// Whether these are the names of all nodes.
        all: bool,
    },
    /// Run requests, and send a report ([`News::RanLink`]).
    Run(LinkRun),
    /// Check this machine's part of the lists ([`News::LinkAudit`]). The launcher sends this order after the requests have ended on all
    /// machines.
    Audit,
}

/// A step of TAOBench.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub(crate) enum TaoOrder {
    /// Open the graph on every worker.
    Open {
        /// The graph.
        graph: GraphOrder,
        /// The workload.
        workload: TaoWorkload,
    },
    /// Write this machine's part of the edges ([`News::Loaded`]).
    Load,
    /// Send [`News::ObjectBytes`].
    ObjectBytes,
    /// Look up the names of the edges' first objects ([`News::Opened`]).
    FindNames,
    /// Run requests, and send a report ([`News::RanTao`]).
    Run(TaoRun),
    /// Write what this machine's workers have written to files in a directory ([`News::Opened`]).
    SaveWritten {
        /// The directory.
        dir: PathBuf,
    },
    /// Check this machine's part of the graph ([`News::TaoAudit`]). The launcher sends this order after all machines have
    /// written their files.
    Audit {
        /// The directory of the files.
        dir: PathBuf,
    },
}

/// A step of `farm edges`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub(crate) enum EdgesOrder {
    /// Open the graph on every worker.
    Open {
        /// The graph.
        graph: GraphOrder,
        /// Whether each edge has an edge back.
        undirected: bool,
        /// Maximum size of a sample of the nodes.
        sampled: usize,
    },
    /// Write edges ([`News::Imported`]). The launcher sends the next batch before the answer, so that a machine does not wait.
    Import(Batch),
    /// Send [`News::ObjectBytes`].
    ObjectBytes,
    /// Search breadth-first, on the first machine ([`News::Searched`]).
    Search {
        /// Id of the start.
        start: u64,
    },
    /// Send a sample of the nodes that this machine has added ([`News::Sample`]). No batch follows.
    SendSample,
    /// Look up the names of the nodes from which queries begin ([`News::Opened`]).
    FindStarts {
        /// Their ids.
        ids: Vec<u64>,
    },
    /// Run two-hop queries, and send a report ([`News::RanTwoHop`]).
    TwoHop(TwoHopRun),
}

/// A run of two-hop queries.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TwoHopRun {
    /// Seconds of the warm-up, which is not measured.
    pub(crate) warmup_s: f64,
    /// Measured seconds.
    pub(crate) duration_s: f64,
    /// Seed of all random choices.
    pub(crate) seed: u64,
    /// The latency of one in this many queries is measured.
    pub(crate) sampled_1_in: u32,
}

/// The workload of TAOBench, which the node parses in the same way as the launcher.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TaoWorkload {
    /// Name of the workload file.
    pub(crate) name: String,
    /// Its text.
    pub(crate) text: String,
    /// Number of edges that are loaded.
    pub(crate) edges: u64,
    /// Seed of the graph and of the requests.
    pub(crate) seed: u64,
    /// Whether ranges, counts and times are read as single edges.
    pub(crate) compat: bool,
}

/// A run of the requests of TAOBench.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TaoRun {
    /// Seconds of the warm-up, which is not measured.
    pub(crate) warmup_s: f64,
    /// Measured seconds.
    pub(crate) duration_s: f64,
    /// The latency of one in this many requests is measured.
    pub(crate) sampled_1_in: u32,
}

/// A run of the requests of LinkBench.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LinkRun {
    /// Whether the requests have the mix of Tao.
    pub(crate) tao: bool,
    /// Maximum number of links that a request for a list returns.
    pub(crate) range_limit: u64,
    /// Seconds of the warm-up, which is not measured.
    pub(crate) warmup_s: f64,
    /// Maximum number of measured seconds.
    pub(crate) duration_s: Option<f64>,
    /// Number of measured requests of all workers together.
    pub(crate) operations: Option<u64>,
    /// Maximum number of requests per second of all workers together.
    pub(crate) target_per_s: Option<u64>,
    /// Requests in flight of all workers together.
    pub(crate) threads: Option<u64>,
    /// Seed of all random choices.
    pub(crate) seed: u64,
    /// The latency of one in this many requests is measured.
    pub(crate) sampled_1_in: u32,
}

/// The properties of LinkBench, which the node parses in the same way as the launcher.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LinkWorkload {
    /// Keys and values.
    pub(crate) properties: Vec<(String, String)>,
    /// Whether oddities of the reference are reproduced.
    pub(crate) compat: bool,
    /// Seed of the loaded data.
    pub(crate) load_seed: u64,
}

/// The specification of a graph, in a form that can be serialized.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct GraphOrder {
    schema: Schema,
    ids: TableSpec,
    page_bytes: usize,
    cached_heads: usize,
}

impl From<GraphSpec> for GraphOrder {
    fn from(spec: GraphSpec) -> Self {
        let GraphSpec {
            schema,
            ids,
            page_bytes,
            cached_heads,
        } = spec;
        Self {
            schema,
            ids,
            page_bytes,
            cached_heads,
        }
    }
}

impl From<GraphOrder> for GraphSpec {
    fn from(order: GraphOrder) -> Self {
        let GraphOrder {
            schema,
            ids,
            page_bytes,
            cached_heads,
        } = order;
        Self {
            schema,
            ids,
            page_bytes,
            cached_heads,
        }
    }
}

/// A workload as its properties. The node parses them in the same way as the launcher.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WorkloadOrder {
    /// Name of the workload.
    pub(crate) name: String,
    /// Keys and values of its properties.
    pub(crate) properties: Vec<(String, String)>,
    /// Bytes of a value.
    pub(crate) value_bytes: usize,
}

/// A message from a node to the launcher.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "news", rename_all = "snake_case")]
pub(crate) enum News {
    /// The machine is connected to all other machines.
    Ready,
    /// The clients of a judged workload have begun.
    Begun {
        /// The addresses of its objects.
        addresses: Vec<u64>,
    },
    /// The tables of [`Order::Open`] or [`OltpOrder::Open`], or the graph of [`LinkOrder::Open`], are open on all workers of
    /// the machine; or an order of a step without other results is executed.
    Opened,
    /// Progress of the load.
    Loading {
        /// Number of records that this machine has loaded so far.
        records: u64,
    },
    /// The machine has loaded its part.
    Loaded {
        /// Number of records.
        records: u64,
        /// Seconds of the slowest worker.
        seconds: f64,
    },
    /// The report of [`Order::Run`].
    Ran(Box<ycsb::report::MachineReport>),
    /// The report of [`OltpOrder::Run`].
    RanOltp(Box<oltp::report::MachineReport>),
    /// The answer to [`LinkOrder::Facts`].
    LinkFacts {
        /// Number of pairs of a node and a type that have links.
        counts: u64,
        /// Bytes of the objects of the machine.
        object_bytes: u64,
    },
    /// The report of [`LinkOrder::Run`].
    RanLink(Box<linkbench::report::MachineReport>),
    /// The bytes of the objects of the machine.
    ObjectBytes {
        /// Number of bytes.
        bytes: u64,
    },
    /// The report of [`TaoOrder::Run`].
    RanTao(Box<taobench::report::MachineReport>),
    /// The answer to [`EdgesOrder::Import`].
    Imported(Imported),
    /// The answer to [`EdgesOrder::Search`].
    Searched {
        /// The result: `None` of a machine that did not search, or if there is no such node.
        found: Option<SearchResult>,
    },
    /// The answer to [`EdgesOrder::SendSample`].
    Sample {
        /// Ids of nodes.
        ids: Vec<u64>,
    },
    /// The report of [`EdgesOrder::TwoHop`].
    RanTwoHop(Box<edges::report::MachineReport>),
    /// The result of [`Order::CheckRecords`].
    RecordAudit(ycsb::audit::AuditResult),
    /// The result of [`LinkOrder::Audit`].
    LinkAudit(linkbench::audit::AuditResult),
    /// The result of [`TaoOrder::Audit`].
    TaoAudit(taobench::audit::AuditResult),
    /// The result of [`OltpOrder::Audit`].
    AuditResult(AuditResult),
    /// The clients of the judged workload have ended.
    Worked,
    /// The records of a judged workload.
    Work {
        /// The logs of all workers.
        logs: Vec<Log>,
        /// The final state of all workers together.
        finished: FinalState,
    },
    /// The machine failed, and the node ends.
    Failed {
        /// The reason.
        why: String,
    },
}
