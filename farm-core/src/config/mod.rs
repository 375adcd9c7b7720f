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
mod differences;
mod error;
mod flags;
pub mod host;
mod keys;
mod machines;
mod origin;
mod parts;
mod rdma;
mod read;
mod section;
mod size;
mod value;

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::limits::{KIB, Limits, MIB};

pub use check::Check;
pub use error::{ConfigError, Place, Problem, ProblemKind, one_of};
pub use keys::Key;
pub use parts::{
    ClusterConfig, Durability, DurabilityConfig, Fabric, HugePages, Idle, IdlePolicy,
    MachineConfig, MemoryConfig, RingsConfig, RunDir, TransactionsConfig, WorkerConfig,
};
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
