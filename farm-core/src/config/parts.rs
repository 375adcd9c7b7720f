//! The sections of the configuration that this crate defines, and their defaults.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::rdma::{self, RdmaPlace};
use crate::ids::MachineId;
use crate::limits::{
    DEFAULT_CONCURRENCY, DEFAULT_FILL_RATE, DEFAULT_LEASE_MS, DEFAULT_REGION_BYTES, KIB, MIB,
};

/// The cluster as a whole.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClusterConfig {
    /// Name by which machines find each other, and by which files left behind by a crashed cluster
    /// are recognised. Two clusters on one host need different names.
    pub name: String,
    /// Directory of sockets and locks.
    pub run_dir: RunDir,
    /// Transport between machines.
    pub fabric: Fabric,
}

/// The directory of sockets and locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunDir {
    /// `$XDG_RUNTIME_DIR/farm`, or `/tmp/farm-<uid>` where that is not set.
    Auto,
    /// An explicit directory.
    Path(PathBuf),
}

impl From<PathBuf> for RunDir {
    fn from(path: PathBuf) -> RunDir {
        if path == Path::new("auto") {
            RunDir::Auto
        } else {
            RunDir::Path(path)
        }
    }
}

impl fmt::Display for RunDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunDir::Auto => f.write_str("auto"),
            RunDir::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Serialize for RunDir {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The transport between machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Fabric {
    /// Shared memory of one host.
    Shm,
    /// RDMA devices.
    Verbs,
}

/// One machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MachineConfig {
    /// Id of the machine, unique in the cluster.
    pub id: MachineId,
    /// Number of workers.
    pub workers: u16,
    /// Cores to which the workers are pinned: worker `i` to the core at index `i` modulo the
    /// length. If empty, each worker gets one of the cores that the process may use, if there is a
    /// core for every worker on the host; otherwise workers are not pinned.
    pub cores: Vec<u32>,
    /// Maximum number of bytes of regions on this machine; `None`: `memory.per_machine_bytes`. A machine with 0 bytes stores
    /// nothing: it only runs operations, and can leave the cluster while the others continue.
    #[serde(serialize_with = "rdma::or_auto")]
    pub memory_bytes: Option<u64>,
    /// Rack of the machine's host; `None` if it is not known.
    #[serde(serialize_with = "rdma::or_auto")]
    pub rack: Option<String>,
    /// The machine's address and device on the verbs fabric.
    #[serde(flatten)]
    pub rdma: RdmaPlace,
}

/// Regions and their memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryConfig {
    /// Directory in which regions are files. A hugetlbfs or a tmpfs mounted with `huge=` provides
    /// huge pages.
    pub dir: PathBuf,
    /// Bytes of a region.
    pub region_bytes: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Maximum number of bytes of regions on one machine.
    pub per_machine_bytes: u64,
    /// Whether regions are mapped with huge pages.
    pub huge_pages: HugePages,
}

/// Whether regions are mapped with huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HugePages {
    /// Do not request huge pages.
    Off,
    /// Request huge pages, and continue without them if there are none.
    Try,
    /// Refuse to start without huge pages.
    Require,
}

/// Message rings: one per sending worker and receiving machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RingsConfig {
    /// Bytes of one ring.
    pub ring_bytes: u64,
    /// Bytes of the largest message, including its record's overhead.
    pub max_message_bytes: u64,
    /// Bytes of one log. There is one log per sending worker and other machine.
    pub log_bytes: u64,
    /// Whether records carry checksums, by which receivers determine that a record is complete.
    /// Needed if the bytes of a write do not land in increasing address order.
    pub checksums: bool,
}

/// How workers run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkerConfig {
    /// Idle policy of a worker without work.
    pub idle: IdlePolicy,
    /// Time for which an idle worker spins before it yields, in microseconds.
    pub spin_us: u32,
    /// Time for which an idle worker yields before it parks, in microseconds.
    pub yield_us: u32,
    /// Whether workers are pinned to cores.
    pub pin: bool,
    /// Maximum number of operations of the application in flight on one worker.
    pub operations_in_flight: u32,
}

/// The idle policy of a worker, as configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum IdlePolicy {
    /// Park if the workers outnumber the cores; otherwise spin while the core is not shared.
    Auto,
    /// Spin forever: the lowest latency, but a whole core per worker.
    Spin,
    /// Spin, then yield, then park.
    Park,
}

/// The idle policy of a worker, resolved for a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    /// Spin forever.
    Spin,
    /// Spin while no other thread shares the core, else yield.
    SpinOrYield,
    /// Spin, then yield, then park.
    Park,
}

impl IdlePolicy {
    /// Resolves the policy for `workers` workers on `cores` cores.
    pub fn resolve(self, workers: usize, cores: usize) -> Idle {
        match self {
            IdlePolicy::Spin => Idle::Spin,
            IdlePolicy::Park => Idle::Park,
            IdlePolicy::Auto if workers > cores => Idle::Park,
            IdlePolicy::Auto => Idle::SpinOrYield,
        }
    }
}

/// The limits of one transaction, and of its retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TransactionsConfig {
    /// Maximum number of objects of one transaction, including objects that it only reads.
    pub objects: u32,
    /// Maximum number of bytes of payloads that one transaction holds at a time.
    pub bytes: u64,
    /// Time for which a transaction that finds an object locked is retried, in milliseconds; 0 for
    /// a single attempt.
    pub patience_ms: u32,
    /// Time for which a transaction of an `async` function may stay open, in milliseconds. Memory that is freed meanwhile
    /// is not reused for objects of other sizes.
    pub open_ms: u32,
    /// Maximum number of transactions that a worker runs at a time. Conflicts reduce the number.
    pub concurrency: u32,
}

/// What survives the loss of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DurabilityConfig {
    /// Where copies of data are; `None` for the usual place: see [`Config::durability`](super::Config::durability).
    #[serde(serialize_with = "rdma::or_auto")]
    pub mode: Option<Durability>,
    /// Number of copies of every region, its primary included; `None` for the usual number: see
    /// [`Config::replicas`](super::Config::replicas).
    #[serde(serialize_with = "rdma::or_auto")]
    pub replicas: Option<u8>,
    /// Directory of the configuration of a replicated cluster; `None` for a directory in `cluster.run_dir`.
    #[serde(serialize_with = "rdma::or_auto")]
    pub dir: Option<PathBuf>,
    /// Bytes that a machine reads in a second at most while it fills new copies of regions.
    pub fill_rate: u64,
    /// Time without a sign of life, in milliseconds, after which the other machines go on without a machine.
    pub lease_ms: u32,
}

/// Where copies of data are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// There are none, and nothing survives the processes.
    None,
    /// In the memory of other machines, and in memory that survives the processes.
    Memory,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        ClusterConfig {
            name: "farm".to_owned(),
            run_dir: RunDir::Auto,
            fabric: Fabric::Shm,
        }
    }
}

impl Default for DurabilityConfig {
    fn default() -> Self {
        DurabilityConfig {
            mode: None,
            replicas: None,
            dir: None,
            fill_rate: DEFAULT_FILL_RATE,
            lease_ms: DEFAULT_LEASE_MS,
        }
    }
}

impl Default for MemoryConfig {
    fn default() -> Self {
        MemoryConfig {
            dir: PathBuf::from("/dev/shm"),
            region_bytes: DEFAULT_REGION_BYTES,
            block_bytes: MIB,
            per_machine_bytes: 2 * DEFAULT_REGION_BYTES,
            huge_pages: HugePages::Try,
        }
    }
}

impl Default for RingsConfig {
    fn default() -> Self {
        RingsConfig {
            ring_bytes: MIB,
            max_message_bytes: 64 * KIB,
            log_bytes: 8 * MIB,
            checksums: false,
        }
    }
}

impl Default for WorkerConfig {
    fn default() -> Self {
        WorkerConfig {
            idle: IdlePolicy::Auto,
            spin_us: 20,
            yield_us: 50,
            pin: true,
            operations_in_flight: 256,
        }
    }
}

impl Default for TransactionsConfig {
    fn default() -> Self {
        TransactionsConfig {
            objects: 16_384,
            bytes: 16 * MIB,
            patience_ms: 10_000,
            open_ms: 10_000,
            concurrency: DEFAULT_CONCURRENCY,
        }
    }
}

impl MachineConfig {
    /// Creates machine `id` with `workers` workers and without explicit cores.
    pub fn new(id: MachineId, workers: u16) -> MachineConfig {
        MachineConfig {
            id,
            workers,
            cores: Vec::new(),
            memory_bytes: None,
            rack: None,
            rdma: RdmaPlace::default(),
        }
    }
}
