//! The configuration of a cluster: one TOML file that all of its machines read.
//!
//! [`Config::load`] reads and checks a file, [`Config::set`] lets flags of the command line
//! override keys, [`Config::validate`] checks again afterwards, and [`Config::digest`] is what
//! machines compare when they meet: two that were given different files refuse each other instead
//! of misreading each other's memory. [`host`] tells whether this host can carry what the
//! configuration asks for.
//!
//! Everything here but [`host::probe`] and [`Config::load`] is a function of its arguments: the
//! same text gives the same configuration, the same errors in the same order, and the same digest.
//!
//! Every mistake is reported with file, line and key, with what was expected, and what to do, all
//! of them at once:
//!
//! ```
//! use farm_core::config::Config;
//! let text = "[[machine]]\nid = 1\n[memory]\nregoin_bytes = \"2GiB\"\n";
//! let error = Config::from_str(text, "my.toml").unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     "my.toml:4: memory.regoin_bytes: there is no such key; expected one of dir, region_bytes, \
//!      block_bytes, per_machine_bytes or huge_pages; did you mean \"region_bytes\"?"
//! );
//! ```
//!
//! The files of `config/` document every key.

mod check;
mod error;
mod flags;
pub mod host;
mod keys;
mod rdma;
mod read;
mod size;
mod value;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::ids::MachineId;
use crate::limits::{DEFAULT_CONCURRENCY, DEFAULT_REGION_BYTES, KIB, Limits, MIB};

pub use error::{ConfigError, Place, Problem, ProblemKind};
pub use rdma::{RdmaConfig, RdmaPlace};
pub use size::{exact_size, parse_size, rounded_size};

/// What a cluster is configured to.
///
/// Equality compares values, not where they were written.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Config {
    /// The cluster as a whole: `[cluster]`.
    pub cluster: ClusterConfig,
    /// The machines by ascending id: one `[[machine]]` each.
    #[serde(rename = "machine")]
    pub machines: Vec<MachineConfig>,
    /// Regions and their memory: `[memory]`.
    pub memory: MemoryConfig,
    /// Message rings: `[rings]`.
    pub rings: RingsConfig,
    /// How workers run: `[worker]`.
    pub worker: WorkerConfig,
    /// Transactions: `[transactions]`.
    pub transactions: TransactionsConfig,
    /// The hashtable: `[table]`.
    pub table: TableConfig,
    /// RDMA devices: `[rdma]`.
    pub rdma: RdmaConfig,
    /// Where each key that is not a default was written; machines' keys by their place in the list.
    #[serde(skip)]
    origins: BTreeMap<String, Place>,
}

/// The cluster as a whole.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClusterConfig {
    /// The name by which machines find each other, and by which the leavings of a crashed cluster
    /// are recognised. Two clusters on one host need two names.
    pub name: String,
    /// Where sockets and locks live.
    pub run_dir: RunDir,
    /// What moves bytes between machines.
    pub fabric: Fabric,
}

/// The directory of sockets and locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunDir {
    /// `$XDG_RUNTIME_DIR/farm`, or `/tmp/farm-<uid>` where that is not set.
    Auto,
    /// This one.
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

/// What moves bytes between machines.
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
    /// Its id, which no other machine has.
    pub id: MachineId,
    /// How many workers it runs.
    pub workers: u16,
    /// The cores its workers are pinned to, worker `i` to the one at `i` modulo their number. Empty:
    /// a core each of those the process may use, if there is one for every worker of the cluster;
    /// else any.
    pub cores: Vec<u32>,
    /// Its place on the verbs fabric.
    #[serde(flatten)]
    pub rdma: RdmaPlace,
}

/// Regions and their memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryConfig {
    /// The directory in which regions are files; a hugetlbfs or a tmpfs mounted with `huge=` gives
    /// huge pages.
    pub dir: PathBuf,
    /// Bytes of a region.
    pub region_bytes: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Most bytes of regions on one machine.
    pub per_machine_bytes: u64,
    /// Whether regions are to be mapped by huge pages.
    pub huge_pages: HugePages,
}

/// Whether regions are to be mapped by huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HugePages {
    /// Do not ask for them.
    Off,
    /// Ask, and go on without.
    Try,
    /// Refuse to start without.
    Require,
}

/// Message rings: one per sending worker and receiving machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RingsConfig {
    /// Bytes of one ring.
    pub ring_bytes: u64,
    /// Bytes of the largest message, its record's overhead included.
    pub max_message_bytes: u64,
    /// Bytes of one log: one per sending worker and other machine that receives.
    pub log_bytes: u64,
    /// Whether records carry checksums, by which the receivers know that they are whole: needed where the
    /// bytes of a write do not land in increasing address order.
    pub checksums: bool,
}

/// How workers run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkerConfig {
    /// What a worker does that has nothing to do.
    pub idle: IdlePolicy,
    /// How long it spins before it yields, in microseconds.
    pub spin_us: u32,
    /// How long it yields before it parks, in microseconds.
    pub yield_us: u32,
    /// Whether workers are pinned to cores.
    pub pin: bool,
    /// Most operations of the application in flight on one worker.
    pub operations_in_flight: u32,
}

/// What a worker does that has nothing to do, as configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum IdlePolicy {
    /// Park where workers outnumber cores, else spin while the core is not shared.
    Auto,
    /// Spin for ever: the least latency, a whole core per worker.
    Spin,
    /// Spin, then yield, then park.
    Park,
}

/// What a worker does that has nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    /// Spin for ever.
    Spin,
    /// Spin while the core is not shared with other threads, else yield.
    SpinOrYield,
    /// Spin, then yield, then park.
    Park,
}

impl IdlePolicy {
    /// What the policy comes to where so many workers share so many cores.
    pub fn resolve(self, workers: usize, cores: usize) -> Idle {
        match self {
            IdlePolicy::Spin => Idle::Spin,
            IdlePolicy::Park => Idle::Park,
            IdlePolicy::Auto if workers > cores => Idle::Park,
            IdlePolicy::Auto => Idle::SpinOrYield,
        }
    }
}

/// What one transaction may hold, and how long it is retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TransactionsConfig {
    /// Most objects of one transaction, those that it only reads included.
    pub objects: u32,
    /// Most bytes of payloads that one transaction holds at one time.
    pub bytes: u64,
    /// How long a transaction is retried that finds an object locked each time, in milliseconds; 0 for once.
    pub patience_ms: u32,
    /// Most transactions that a worker runs at once; conflicts make them fewer.
    pub concurrency: u32,
}

/// The hashtable.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TableConfig {
    /// The neighbourhood H: a pair is at most H - 1 slots away from its hash (FaRM'14 §3.6).
    pub neighbourhood: u32,
    /// The share of slots that are meant to be full; shards are sized by it.
    pub occupancy: f64,
    /// Bytes of a key.
    pub key_bytes: u64,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// Shards that each worker owns.
    pub shards_per_worker: u32,
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
            log_bytes: 4 * MIB,
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
            concurrency: DEFAULT_CONCURRENCY,
        }
    }
}

impl Default for TableConfig {
    fn default() -> Self {
        TableConfig {
            neighbourhood: 6,
            occupancy: 0.9,
            key_bytes: 16,
            value_bytes: 32,
            shards_per_worker: 1,
        }
    }
}

impl MachineConfig {
    /// The machine `id` with so many workers, pinned to any cores.
    pub fn new(id: MachineId, workers: u16) -> MachineConfig {
        MachineConfig {
            id,
            workers,
            cores: Vec::new(),
            rdma: RdmaPlace::default(),
        }
    }
}

impl PartialEq for Config {
    fn eq(&self, other: &Config) -> bool {
        self.cluster == other.cluster
            && self.machines == other.machines
            && self.memory == other.memory
            && self.rings == other.rings
            && self.worker == other.worker
            && self.transactions == other.transactions
            && self.table == other.table
            && self.rdma == other.rdma
    }
}

impl Config {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Read`] when the file cannot be read, else as [`Config::from_str`].
    pub fn load(path: impl AsRef<Path>) -> Result<Config, ConfigError> {
        read::load(path.as_ref(), &Limits::PRODUCTION)
    }

    /// Reads and checks `text`; `name` is what errors call it.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] with everything that is wrong with it.
    pub fn from_str(text: &str, name: &str) -> Result<Config, ConfigError> {
        Config::from_str_within(text, name, &Limits::PRODUCTION)
    }

    /// As [`Config::from_str`], within other limits than those of production.
    ///
    /// # Errors
    ///
    /// As [`Config::from_str`].
    pub fn from_str_within(text: &str, name: &str, limits: &Limits) -> Result<Config, ConfigError> {
        read::from_str(text, name, limits)
    }

    /// Defaults for machines 1 ..= `machines` of so many workers each.
    ///
    /// # Panics
    ///
    /// When there cannot be so many machines.
    pub fn default_for(machines: u16, workers: u16) -> Config {
        let mut config = Config::default();
        config.resize_machines(machines);
        config.set_workers(workers);
        config
    }

    /// As [`Config::default_for`], with memory and rings so small that tests and the simulator reach
    /// their ends: valid within [`Limits::TINY`].
    ///
    /// # Panics
    ///
    /// As [`Config::default_for`].
    pub fn tiny_for(machines: u16, workers: u16) -> Config {
        let mut config = Config::default_for(machines, workers);
        config.memory.block_bytes = 4 * KIB;
        config.memory.region_bytes = MIB;
        config.memory.per_machine_bytes = 8 * MIB;
        config.memory.huge_pages = HugePages::Off;
        config.rings = RingsConfig {
            ring_bytes: 4 * KIB,
            max_message_bytes: 512,
            log_bytes: 32 * KIB,
            checksums: false,
        };
        config.transactions.objects = 1024;
        config.transactions.bytes = 4 * MIB;
        config.worker.operations_in_flight = 16;
        config.worker.pin = false;
        config
    }

    /// Sets a key as a flag `--set key=value` does: dotted, such as `memory.region_bytes`,
    /// `machine.3.workers`, or `machine.*.workers` for all machines. Values need no quotes.
    ///
    /// Only the value itself is checked here; [`Config::validate`] checks whether all fit together.
    ///
    /// # Errors
    ///
    /// When there is no such key or it takes no such value.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        self.set_by("--set", key, value)
    }

    /// As [`Config::set`]; errors about the value will name `flag` as its origin.
    ///
    /// # Errors
    ///
    /// As [`Config::set`].
    pub fn set_by(&mut self, flag: &str, key: &str, value: &str) -> Result<(), ConfigError> {
        flags::set(self, flag, key, value)
    }

    /// Makes it `machines` machines: the last ones go, or more are added with the ids that follow
    /// the greatest (then the lowest free ones) and as many workers as the last one has.
    ///
    /// # Panics
    ///
    /// When there cannot be so many machines.
    pub fn resize_machines(&mut self, machines: u16) {
        let workers = self.machines.last().map_or(1, |machine| machine.workers);
        for gone in self
            .machines
            .drain(usize::from(machines).min(self.machines.len())..)
        {
            for key in keys::MACHINE_KEYS {
                self.origins.remove(&read::origin_of(gone.id, key.name()));
            }
        }
        while self.machines.len() < usize::from(machines) {
            let taken = |id: &MachineId| self.machines.iter().any(|machine| machine.id == *id);
            let greatest = self
                .machines
                .iter()
                .map(|machine| machine.id.get())
                .max()
                .unwrap_or(0);
            let id = MachineId::new(greatest + 1)
                .or_else(|| {
                    (1..greatest)
                        .filter_map(MachineId::new)
                        .find(|id| !taken(id))
                })
                .expect("no more than MAX_MACHINES machines");
            self.machines.push(MachineConfig::new(id, workers));
        }
        self.machines.sort_by_key(|machine| machine.id);
    }

    /// Gives every machine `workers` workers.
    pub fn set_workers(&mut self, workers: u16) {
        for machine in &mut self.machines {
            machine.workers = workers;
        }
    }

    /// The machine with this id.
    pub fn machine(&self, id: MachineId) -> Option<&MachineConfig> {
        self.machines.iter().find(|machine| machine.id == id)
    }

    /// Workers of all machines together.
    pub fn total_workers(&self) -> usize {
        self.machines
            .iter()
            .map(|machine| usize::from(machine.workers))
            .sum()
    }

    /// The machines on the host of machine `id`, it included: over shared memory all; over RDMA devices those
    /// with addresses of the same host.
    pub fn machines_beside(&self, id: MachineId) -> impl Iterator<Item = &MachineConfig> {
        let host = |machine: &MachineConfig| {
            let address = machine.rdma.address_of(machine.id);
            address
                .rsplit_once(':')
                .map_or(address.clone(), |(host, _)| host.to_owned())
        };
        let own = self.machine(id).map(host);
        let shared = self.cluster.fabric == Fabric::Shm;
        let machines = self.machines.iter();
        machines.filter(move |machine| shared || Some(host(machine)) == own)
    }

    /// Checks that the values fit together, and the limits of production.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] with everything that does not.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_within(&Limits::PRODUCTION)
    }

    /// As [`Config::validate`], within other limits.
    ///
    /// # Errors
    ///
    /// As [`Config::validate`].
    pub fn validate_within(&self, limits: &Limits) -> Result<(), ConfigError> {
        let problems = check::problems(self, limits);
        let name = self
            .origins
            .get(read::WHOLE)
            .unwrap_or(&Place::Program)
            .to_string();
        ConfigError::from_problems(&name, problems)
    }

    /// The whole configuration as a file that [`Config::load`] reads back, for a process that is to be
    /// given it with all overrides.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        for section in keys::sections()
            .into_iter()
            .filter(|section| *section != "machine")
        {
            text.push_str(&format!("[{section}]\n"));
            for key in keys::KEYS.iter().filter(|key| key.section() == section) {
                text.push_str(&format!("{} = {}\n", key.name(), (key.show)(self)));
            }
        }
        for machine in &self.machines {
            text.push_str("[[machine]]\n");
            for key in keys::MACHINE_KEYS {
                text.push_str(&format!("{} = {}\n", key.name(), (key.show)(machine)));
            }
        }
        text
    }

    /// Everything that all machines must agree on, one key a line, in a fixed order and spelling.
    pub fn canonical(&self) -> String {
        let mut text = String::new();
        for key in keys::KEYS.iter().filter(|key| key.shared) {
            text.push_str(&format!("{} = {}\n", key.path, (key.show)(self)));
        }
        let mut machines: Vec<&MachineConfig> = self.machines.iter().collect();
        machines.sort_by_key(|machine| machine.id);
        for machine in machines {
            for key in keys::MACHINE_KEYS.iter().filter(|key| key.shared) {
                text.push_str(&format!("{} = {}\n", key.path, (key.show)(machine)));
            }
        }
        text
    }

    /// A hash of [`Config::canonical`]: equal for machines that can work together. It leaves out what
    /// a machine may decide for itself (where its sockets are, how its workers idle and are pinned).
    pub fn digest(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(self.canonical().as_bytes())
    }
}

#[cfg(test)]
mod tests;
