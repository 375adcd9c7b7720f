//! The configuration of a cluster: one TOML file that all of its machines read.
//!
//! [`Config::load`] reads and checks a file. [`Config::set`] overrides keys from command-line
//! flags. [`Config::validate`] checks the result again. Machines compare their [`Config::digest`]
//! when they connect: machines with different configurations refuse each other instead of
//! misreading each other's memory. [`host`] determines whether this host has the resources that the
//! configuration needs.
//!
//! Everything here except [`host::probe`] and [`Config::load`] is a function of its arguments: the
//! same text yields the same configuration, the same errors in the same order, and the same digest.
//!
//! All mistakes are reported at once, each with file, line and key, with the expected value and
//! advice:
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
//! The files of `config/` document every key. The layers above this crate define their sections as [`Section`]s, and
//! pass them to [`Config::load_with`] or [`Config::with_section`].

mod check;
mod error;
mod flags;
pub mod host;
mod keys;
mod origin;
mod rdma;
mod read;
mod section;
mod size;
mod value;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::ids::MachineId;
use crate::limits::{
    DEFAULT_CONCURRENCY, DEFAULT_FILL_RATE, DEFAULT_LEASE_MS, DEFAULT_REGION_BYTES, KIB, Limits,
    MIB,
};
use crate::membership::configuration::Domain;

pub use check::Check;
pub use error::{ConfigError, Place, Problem, ProblemKind, one_of};
pub use keys::Key;
pub use rdma::{RdmaConfig, RdmaPlace};
pub use section::{Section, Sections};
pub use size::{exact_size, parse_size, rounded_size};
pub use value::{Misfit, Value};

/// The configuration of a cluster.
///
/// Equality compares the values and ignores where they were written.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Config {
    /// The cluster as a whole: `[cluster]`.
    pub cluster: ClusterConfig,
    /// The machines by ascending id, one per `[[machine]]`.
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
    /// Copies of regions: `[durability]`.
    pub durability: DurabilityConfig,
    /// The sections of the layers above this crate.
    #[serde(flatten)]
    sections: Sections,
    /// RDMA devices: `[rdma]`.
    pub rdma: RdmaConfig,
    /// For each key that a file or a flag sets, the place where it was written. Machines' keys have the names of
    /// [`origin::origin_of`].
    #[serde(skip)]
    origins: BTreeMap<String, Place>,
}

/// Number of copies of a region where the configuration names none.
const USUAL_REPLICAS: usize = 3;

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
    /// Where copies of data are; `None` for the usual place: see [`Config::durability`].
    #[serde(serialize_with = "rdma::or_auto")]
    pub mode: Option<Durability>,
    /// Number of copies of every region, its primary included; `None` for the usual number: see
    /// [`Config::replicas`].
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

impl PartialEq for Config {
    fn eq(&self, other: &Config) -> bool {
        self.cluster == other.cluster
            && self.machines == other.machines
            && self.memory == other.memory
            && self.rings == other.rings
            && self.worker == other.worker
            && self.transactions == other.transactions
            && self.durability == other.durability
            && self.sections == other.sections
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
        Config::load_with(path, &Sections::default())
    }

    /// Reads and checks the file at `path` as [`Config::load`] does, for a file that may also contain `sections`, which
    /// are sections of the layers above this crate. A key of these sections that the file does not contain has its
    /// value in `sections`.
    ///
    /// # Errors
    ///
    /// As [`Config::load`].
    pub fn load_with(path: impl AsRef<Path>, sections: &Sections) -> Result<Config, ConfigError> {
        read::load(path.as_ref(), sections, &Limits::PRODUCTION)
    }

    /// Reads and checks `text`. Errors use `name` as the file name.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] with all problems.
    pub fn from_str(text: &str, name: &str) -> Result<Config, ConfigError> {
        Config::from_str_with(text, name, &Sections::default())
    }

    /// Reads and checks `text` as [`Config::from_str`] does, with sections as in [`Config::load_with`].
    ///
    /// # Errors
    ///
    /// As [`Config::from_str`].
    pub fn from_str_with(
        text: &str,
        name: &str,
        sections: &Sections,
    ) -> Result<Config, ConfigError> {
        read::from_str(text, name, sections, &Limits::PRODUCTION)
    }

    /// As [`Config::from_str`], with `limits` instead of those of production.
    ///
    /// # Errors
    ///
    /// As [`Config::from_str`].
    pub fn from_str_within(text: &str, name: &str, limits: &Limits) -> Result<Config, ConfigError> {
        read::from_str(text, name, &Sections::default(), limits)
    }

    /// Returns the defaults for machines 1 ..= `machines` with `workers` workers each, of a cluster that leaves nothing behind:
    /// `durability.mode` is `"none"`.
    ///
    /// # Panics
    ///
    /// If `machines` exceeds [`MAX_MACHINES`](crate::limits::MAX_MACHINES).
    pub fn default_for(machines: u16, workers: u16) -> Config {
        let mut config = Config::default();
        config.durability.mode = Some(Durability::None);
        config.resize_machines(machines);
        config.set_workers(workers);
        config
    }

    /// As [`Config::default_for`], with memory and rings so small that tests and the simulator
    /// exhaust them. Valid within [`Limits::TINY`].
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

    /// Returns the configuration with `section`, a section of a layer above this crate. If the configuration already
    /// has a section of that type, its values are replaced.
    #[must_use]
    pub fn with_section<T: Section>(mut self, section: T) -> Config {
        self.sections = std::mem::take(&mut self.sections).with(section);
        self
    }

    /// Returns a section of a layer above this crate, if the configuration has it.
    pub fn section<T: Section>(&self) -> Option<&T> {
        self.sections.get()
    }

    /// Returns a section of a layer above this crate for changes, if the configuration has it.
    pub fn section_mut<T: Section>(&mut self) -> Option<&mut T> {
        self.sections.get_mut()
    }

    /// Returns the sizes of reads for which workers need slots: see [`Section::read_bytes`].
    pub(crate) fn read_bytes(&self) -> impl Iterator<Item = usize> {
        self.sections.read_bytes()
    }

    /// Sets a key, as the flag `--set key=value` does. The key is dotted, such as
    /// `memory.region_bytes`, `machine.3.workers`, or `machine.*.workers` for all machines. Values
    /// need no quotes.
    ///
    /// Checks only the value itself. [`Config::validate`] checks that all values fit together.
    ///
    /// # Errors
    ///
    /// When the key does not exist or does not accept the value.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        self.set_by("--set", key, value)
    }

    /// As [`Config::set`]. Errors about the value name `flag` as its origin.
    ///
    /// # Errors
    ///
    /// As [`Config::set`].
    pub fn set_by(&mut self, flag: &str, key: &str, value: &str) -> Result<(), ConfigError> {
        flags::set(self, flag, key, value)
    }

    /// Sets the number of machines: removes the last ones, or adds machines with the ids after the
    /// greatest id (then the lowest free ids) and with the last machine's number of workers.
    ///
    /// # Panics
    ///
    /// If `machines` exceeds [`MAX_MACHINES`](crate::limits::MAX_MACHINES).
    pub fn resize_machines(&mut self, machines: u16) {
        let workers = self.machines.last().map_or(1, |machine| machine.workers);
        for gone in self
            .machines
            .drain(usize::from(machines).min(self.machines.len())..)
        {
            for key in keys::MACHINE_KEYS {
                self.origins.remove(&origin::origin_of(gone.id, key.name()));
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
                .expect("a configuration has at most MAX_MACHINES machines");
            self.machines.push(MachineConfig::new(id, workers));
        }
        self.machines.sort_by_key(|machine| machine.id);
    }

    /// Sets the number of workers of every machine.
    pub fn set_workers(&mut self, workers: u16) {
        for machine in &mut self.machines {
            machine.workers = workers;
        }
    }

    /// Returns the machine with this id.
    pub fn machine(&self, id: MachineId) -> Option<&MachineConfig> {
        self.machines.iter().find(|machine| machine.id == id)
    }

    /// Returns the maximum number of bytes of regions on machine `id`; 0 for a machine that stores nothing, or that is not in
    /// the configuration.
    pub fn memory_of(&self, id: MachineId) -> u64 {
        let default = self.memory.per_machine_bytes;
        let own = self.machine(id);
        own.map_or(0, |own| own.memory_bytes.unwrap_or(default))
    }

    /// Returns the machines that store regions: all except those with 0 bytes of memory.
    pub fn storing_machines(&self) -> impl Iterator<Item = &MachineConfig> {
        let machines = self.machines.iter();
        machines.filter(|machine| self.memory_of(machine.id) > 0)
    }

    /// Returns where copies of data are: `durability.mode`. By default they are in memory, unless nothing would survive by them, as on RDMA
    /// devices.
    pub fn durability(&self) -> Durability {
        self.durability.mode.unwrap_or(match self.cluster.fabric {
            Fabric::Shm => Durability::Memory,
            Fabric::Verbs => Durability::None,
        })
    }

    /// Returns the number of copies of every region, its primary included: `durability.replicas`. By default it is 3, or the
    /// number of machines that store regions if that is less, and 1 without durability.
    pub fn replicas(&self) -> usize {
        match (self.durability(), self.durability.replicas) {
            (_, Some(replicas)) => replicas.into(),
            (Durability::None, None) => 1,
            (Durability::Memory, None) => self.storing_machines().count().min(USUAL_REPLICAS),
        }
    }

    /// Returns whether commits write records of all that they change, from which it can be recovered.
    pub fn is_logged(&self) -> bool {
        self.durability() != Durability::None
    }

    /// Returns whether the machines go on in another configuration when one of them is lost, if other machines have copies of what it
    /// stores, and otherwise when all have started again, if they [keep their memory](Config::keeps_memory): if commits are logged.
    pub fn survives_losses(&self) -> bool {
        self.is_logged()
    }

    /// Returns whether the memory of machines outlives their processes: if commits are logged, on shared memory.
    pub fn keeps_memory(&self) -> bool {
        self.is_logged() && self.cluster.fabric == Fabric::Shm
    }

    /// Returns the time of a lease: `durability.lease_ms`.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.durability.lease_ms.into())
    }

    /// Returns the number of workers of the machines that store regions.
    pub fn storing_workers(&self) -> u64 {
        let machines = self.storing_machines();
        machines.map(|machine| u64::from(machine.workers)).sum()
    }

    /// Returns the maximum number of bytes of regions on all machines together.
    pub fn total_memory(&self) -> u64 {
        let machines = self.machines.iter();
        let memory = machines.map(|machine| self.memory_of(machine.id));
        memory.fold(0, u64::saturating_add)
    }

    /// Returns the number of workers of all machines.
    pub fn total_workers(&self) -> usize {
        self.machines
            .iter()
            .map(|machine| usize::from(machine.workers))
            .sum()
    }

    /// Returns the machines on the host of machine `id`, including itself. Over shared memory these
    /// are all machines; over RDMA devices, the machines whose addresses have the same host.
    pub fn machines_beside(&self, id: MachineId) -> impl Iterator<Item = &MachineConfig> {
        let own = self.machine(id).map(|own| self.host_of(own));
        let machines = self.machines.iter();
        machines.filter(move |machine| Some(self.host_of(machine)) == own)
    }

    /// Returns the host of a machine: the host of its address; over shared memory, one name for all machines.
    fn host_of(&self, machine: &MachineConfig) -> String {
        match self.cluster.fabric {
            Fabric::Shm => "localhost".to_owned(),
            Fabric::Verbs => {
                let address = machine.rdma.address_of(machine.id);
                let host = address.rsplit_once(':').map(|(host, _)| host.to_owned());
                host.unwrap_or(address)
            }
        }
    }

    /// Returns where a machine stands.
    pub fn domain_of(&self, machine: &MachineConfig) -> Domain {
        Domain {
            host: self.host_of(machine),
            rack: machine.rack.clone().unwrap_or_default(),
        }
    }

    /// Checks that the values fit together and are within the limits of production.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] with all problems.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_within(&Limits::PRODUCTION)
    }

    /// As [`Config::validate`], with the given `limits`.
    ///
    /// # Errors
    ///
    /// As [`Config::validate`].
    pub fn validate_within(&self, limits: &Limits) -> Result<(), ConfigError> {
        let problems = check::problems(self, limits);
        let name = self
            .origins
            .get(origin::WHOLE)
            .unwrap_or(&Place::Program)
            .to_string();
        ConfigError::from_problems(&name, problems)
    }

    /// Returns the whole configuration as TOML that [`Config::load`] reads back, to pass it to
    /// another process with all overrides.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        for section in keys::sections(&self.sections)
            .into_iter()
            .filter(|section| *section != "machine")
        {
            text.push_str(&format!("[{section}]\n"));
            for key in keys::all(&self.sections).filter(|key| key.section() == section) {
                let value = keys::show(self, key.path);
                text.push_str(&format!("{} = {value}\n", key.name()));
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

    /// Returns all keys on which the machines must agree, with their values, one key per line, in a fixed order and
    /// spelling.
    pub fn canonical(&self) -> String {
        let mut text = String::new();
        for key in keys::all(&self.sections).filter(|key| key.shared) {
            text.push_str(&format!("{} = {}\n", key.path, keys::show(self, key.path)));
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

    /// Returns the keys that are not in [`Config::canonical`]: each machine may choose their values.
    pub fn own_keys(&self) -> Vec<&'static str> {
        let of_machine = keys::MACHINE_KEYS.iter().map(keys::Key::facts);
        let own = keys::all(&self.sections).chain(of_machine);
        own.filter(|key| !key.shared).map(|key| key.path).collect()
    }

    /// Returns a hash of [`Config::canonical`]: equal for machines that can work together. It
    /// excludes the [keys](Config::own_keys) that a machine may choose for itself (the directory of its sockets, how its
    /// workers idle and are pinned, how long its transactions may take).
    pub fn digest(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(self.canonical().as_bytes())
    }
}

#[cfg(test)]
mod tests;
