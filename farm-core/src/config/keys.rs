//! The single list of keys. Reading a file, setting a key by a flag, listing expected values and
//! the canonical form all use it, so every key is known to all of them.

use std::path::{Path, PathBuf};

use super::error::one_of;
use super::rdma::{self, LEAST_SEND_DEPTH, MOST_INLINE_BYTES, MOST_SEND_DEPTH};
use super::size::exact_size;
use super::value::{Misfit, Value};
use super::{Config, Durability, Fabric, HugePages, IdlePolicy, MachineConfig, RunDir, Sections};
use crate::ids::MachineId;
use crate::limits::{
    Limits, MAX_CLUSTER_NAME, MAX_CORE, MAX_FILL_RATE, MAX_IDLE_US, MAX_LEASE_MS, MAX_MACHINE_ID,
    MAX_MACHINE_MEMORY_BYTES, MAX_OPERATIONS_IN_FLIGHT, MAX_PATIENCE_MS, MAX_REPLICAS,
    MAX_TRANSACTION_BYTES, MAX_TRANSACTION_OBJECTS, MESSAGES_PER_RING, MIN_FILL_RATE, MIN_LEASE_MS,
    MIN_MESSAGE_BYTES, MIN_TRANSACTION_BYTES,
};
use crate::membership::configuration::MOST_NAME_BYTES;

/// A key of a `T`: of the whole configuration, of one machine, or of a layer's [`Section`](super::Section).
pub struct Key<T> {
    /// Section and name, dotted.
    pub path: &'static str,
    /// Whether all machines of a cluster must have the same value: it is part of a format or protocol, of the placement of data, or
    /// of a place at which machines find the same files. These keys form the digest.
    pub shared: bool,
    /// Returns the description of the values that the key accepts.
    pub expected: fn(&Limits) -> String,
    /// Sets the key to a value.
    pub set: fn(&mut T, &Value) -> Result<(), Misfit>,
    /// Returns the value in canonical form, as TOML.
    pub show: fn(&T) -> String,
}

impl<T> Key<T> {
    /// Returns the key without its type.
    pub(super) fn facts(&self) -> KeyFacts {
        KeyFacts {
            path: self.path,
            shared: self.shared,
            expected: self.expected,
        }
    }

    /// Returns the section: `memory` of `memory.dir`.
    pub(super) fn section(&self) -> &'static str {
        self.facts().section()
    }

    /// Returns the name within the section: `dir` of `memory.dir`.
    pub(super) fn name(&self) -> &'static str {
        self.facts().name()
    }
}

/// A key of any type.
#[derive(Clone, Copy)]
pub(super) struct KeyFacts {
    pub(super) path: &'static str,
    pub(super) shared: bool,
    pub(super) expected: fn(&Limits) -> String,
}

impl KeyFacts {
    /// Returns the section: `memory` of `memory.dir`.
    pub(super) fn section(&self) -> &'static str {
        self.path.split_once('.').map_or("", |(section, _)| section)
    }

    /// Returns the name within the section: `dir` of `memory.dir`.
    pub(super) fn name(&self) -> &'static str {
        self.path
            .split_once('.')
            .map_or(self.path, |(_, name)| name)
    }
}

const FABRICS: [(&str, Fabric); 2] = [("shm", Fabric::Shm), ("verbs", Fabric::Verbs)];
const HUGE_PAGES: [(&str, HugePages); 3] = [
    ("off", HugePages::Off),
    ("try", HugePages::Try),
    ("require", HugePages::Require),
];
const DURABILITY: [(&str, Option<Durability>); 3] = [
    ("auto", None),
    ("none", Some(Durability::None)),
    ("memory", Some(Durability::Memory)),
];
const IDLE: [(&str, IdlePolicy); 3] = [
    ("auto", IdlePolicy::Auto),
    ("spin", IdlePolicy::Spin),
    ("park", IdlePolicy::Park),
];

/// Returns the words of a list, quoted and joined.
fn words<T>(list: &[(&str, T)]) -> String {
    one_of(
        &list
            .iter()
            .map(|(word, _)| format!("\"{word}\""))
            .collect::<Vec<_>>(),
    )
}

/// Returns the word of `value` in a list, quoted.
fn word<T: PartialEq>(list: &[(&str, T)], value: &T) -> String {
    let found = list.iter().find(|(_, candidate)| candidate == value);
    format!("{:?}", found.map_or("", |(word, _)| word))
}

/// Returns `text` as a TOML string.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

fn sized(bytes: u64) -> String {
    format!("{:?}", exact_size(bytes))
}

/// Shorthand for one row: how the key is read, and how it is written again.
macro_rules! key {
    ($path:literal, $shared:literal, $expected:expr, $($field:ident).+ = $read:expr, $show:expr) => {
        Key {
            path: $path,
            shared: $shared,
            expected: $expected,
            set: |target, value| {
                target.$($field).+ = $read(value)?;
                Ok(())
            },
            show: |target| $show(&target.$($field).+),
        }
    };
}

/// The keys of all sections except `[[machine]]`.
pub(super) const KEYS: &[Key<Config>] = &[
    key!(
        "cluster.name",
        true,
        |_| format!("1 to {MAX_CLUSTER_NAME} of a-z, 0-9 and -"),
        cluster.name = Value::text,
        |name: &String| quoted(name)
    ),
    key!(
        "cluster.run_dir",
        false,
        |_| "\"auto\" or the absolute path of a directory, short enough for a Unix socket"
            .to_owned(),
        cluster.run_dir = |value: &Value| value.path().map(RunDir::from),
        |run_dir: &RunDir| quoted(&run_dir.to_string())
    ),
    key!(
        "cluster.fabric",
        true,
        |_| words(&FABRICS),
        cluster.fabric = |value: &Value| value.choice(&FABRICS),
        |fabric| word(&FABRICS, fabric)
    ),
    key!(
        "memory.dir",
        true,
        |_| "the absolute path of a directory in memory, such as \"/dev/shm\"".to_owned(),
        memory.dir = Value::path,
        |dir: &PathBuf| quoted(&dir.to_string_lossy())
    ),
    key!(
        "memory.region_bytes",
        true,
        |limits| format!(
            "a size that is a multiple of memory.block_bytes, at most {}",
            exact_size(limits.max_region_bytes)
        ),
        memory.region_bytes = Value::size,
        |bytes: &u64| sized(*bytes)
    ),
    key!(
        "memory.block_bytes",
        true,
        |limits| format!(
            "a size that is a power of two between {} and {}",
            exact_size(limits.block_grain_bytes),
            exact_size(limits.max_block_bytes)
        ),
        memory.block_bytes = Value::size,
        |bytes: &u64| sized(*bytes)
    ),
    key!(
        "memory.per_machine_bytes",
        true,
        |_| format!(
            "a size that is a multiple of memory.region_bytes, at most {}",
            exact_size(MAX_MACHINE_MEMORY_BYTES)
        ),
        memory.per_machine_bytes = Value::size,
        |bytes: &u64| sized(*bytes)
    ),
    key!(
        "memory.huge_pages",
        false,
        |_| words(&HUGE_PAGES),
        memory.huge_pages = |value: &Value| value.choice(&HUGE_PAGES),
        |huge| word(&HUGE_PAGES, huge)
    ),
    key!(
        "rings.ring_bytes",
        true,
        |limits| format!(
            "a size that is a power of two between {} and {}",
            exact_size(limits.min_ring_bytes),
            exact_size(limits.max_ring_bytes)
        ),
        rings.ring_bytes = Value::size,
        |bytes: &u64| sized(*bytes)
    ),
    key!(
        "rings.max_message_bytes",
        true,
        |_| format!(
            "a size that is a multiple of 8, at least {MIN_MESSAGE_BYTES} bytes and at most \
             1/{MESSAGES_PER_RING} of rings.ring_bytes"
        ),
        rings.max_message_bytes = Value::size,
        |bytes: &u64| sized(*bytes)
    ),
    key!(
        "rings.log_bytes",
        true,
        |limits| format!(
            "a size that is a power of two between {} and {}",
            exact_size(limits.min_ring_bytes),
            exact_size(limits.max_ring_bytes)
        ),
        rings.log_bytes = Value::size,
        |bytes: &u64| sized(*bytes)
    ),
    key!(
        "rings.checksums",
        true,
        |_| "true or false".to_owned(),
        rings.checksums = Value::flag,
        bool::to_string
    ),
    key!(
        "worker.idle",
        false,
        |_| words(&IDLE),
        worker.idle = |value: &Value| value.choice(&IDLE),
        |idle| word(&IDLE, idle)
    ),
    key!(
        "worker.spin_us",
        false,
        |_| format!("a whole number of microseconds between 0 and {MAX_IDLE_US}"),
        worker.spin_us = Value::whole,
        u32::to_string
    ),
    key!(
        "worker.yield_us",
        false,
        |_| format!("a whole number of microseconds between 0 and {MAX_IDLE_US}"),
        worker.yield_us = Value::whole,
        u32::to_string
    ),
    key!(
        "worker.pin",
        false,
        |_| "true or false".to_owned(),
        worker.pin = Value::flag,
        bool::to_string
    ),
    key!(
        "worker.operations_in_flight",
        false,
        |_| format!("a whole number between 1 and {MAX_OPERATIONS_IN_FLIGHT}"),
        worker.operations_in_flight = Value::whole,
        u32::to_string
    ),
    key!(
        "transactions.objects",
        false,
        |_| format!("a whole number between 1 and {MAX_TRANSACTION_OBJECTS}"),
        transactions.objects = Value::whole,
        u32::to_string
    ),
    key!(
        "transactions.bytes",
        false,
        |_| format!(
            "a size between {} and {}",
            exact_size(MIN_TRANSACTION_BYTES),
            exact_size(MAX_TRANSACTION_BYTES)
        ),
        transactions.bytes = Value::size,
        |bytes: &u64| sized(*bytes)
    ),
    key!(
        "transactions.patience_ms",
        false,
        |_| format!("a whole number of milliseconds between 0 and {MAX_PATIENCE_MS}"),
        transactions.patience_ms = Value::whole,
        u32::to_string
    ),
    key!(
        "transactions.open_ms",
        false,
        |_| format!("a whole number of milliseconds between 1 and {MAX_PATIENCE_MS}"),
        transactions.open_ms = Value::whole,
        u32::to_string
    ),
    key!(
        "transactions.concurrency",
        false,
        |_| format!("a whole number between 1 and {MAX_OPERATIONS_IN_FLIGHT}"),
        transactions.concurrency = Value::whole,
        u32::to_string
    ),
    key!(
        "durability.mode",
        true,
        |_| words(&DURABILITY),
        durability.mode = |value: &Value| value.choice(&DURABILITY),
        |mode| word(&DURABILITY, mode)
    ),
    key!(
        "durability.replicas",
        true,
        |_| format!("\"auto\" or a whole number between 1 and {MAX_REPLICAS}"),
        durability.replicas = rdma::auto_or_whole,
        rdma::show_whole
    ),
    key!(
        // With another directory, a later manager, or a machine that joins, would find no configuration.
        "durability.dir",
        true,
        |_| "\"auto\" or an absolute path".to_owned(),
        durability.dir = |value: &Value| { Ok(rdma::auto_or_text(value)?.map(PathBuf::from)) },
        |path: &Option<PathBuf>| rdma::show_text(path.as_deref().and_then(Path::to_str))
    ),
    key!(
        "durability.fill_rate",
        false,
        |_| format!(
            "a size between {} and {}, the bytes of one second",
            exact_size(MIN_FILL_RATE),
            exact_size(MAX_FILL_RATE)
        ),
        durability.fill_rate = Value::size,
        |bytes: &u64| sized(*bytes)
    ),
    key!(
        "durability.lease_ms",
        false,
        |_| format!("a whole number of milliseconds between {MIN_LEASE_MS} and {MAX_LEASE_MS}"),
        durability.lease_ms = Value::whole,
        u32::to_string
    ),
    key!(
        "rdma.secret_file",
        false,
        |_| "\"auto\" or the absolute path of a file that only this user may read".to_owned(),
        rdma.secret_file = |value: &Value| { Ok(rdma::auto_or_text(value)?.map(PathBuf::from)) },
        |path: &Option<PathBuf>| rdma::show_text(path.as_deref().and_then(Path::to_str))
    ),
    key!(
        "rdma.workers_per_queue",
        false,
        |limits| format!("a whole number between 1 and {}", limits.max_workers),
        rdma.workers_per_queue = Value::whole,
        u32::to_string
    ),
    key!(
        "rdma.send_depth",
        false,
        |_| format!("a power of two between {LEAST_SEND_DEPTH} and {MOST_SEND_DEPTH}"),
        rdma.send_depth = Value::whole,
        u32::to_string
    ),
    key!(
        "rdma.receive_depth",
        false,
        |_| format!("a whole number between 1 and {MOST_SEND_DEPTH}"),
        rdma.receive_depth = Value::whole,
        u32::to_string
    ),
    key!(
        "rdma.inline_bytes",
        false,
        |_| format!("a multiple of 8 between 8 and {MOST_INLINE_BYTES}"),
        rdma.inline_bytes = Value::whole,
        u32::to_string
    ),
    key!(
        "rdma.mtu",
        false,
        |_| "\"auto\", 256, 512, 1024, 2048 or 4096".to_owned(),
        rdma.mtu = rdma::auto_or_whole,
        rdma::show_whole
    ),
    key!(
        "rdma.timeout",
        false,
        |_| "a whole number between 1 and 31".to_owned(),
        rdma.timeout = Value::whole,
        u8::to_string
    ),
    key!(
        "rdma.traffic_class",
        false,
        |_| "a whole number between 0 and 255".to_owned(),
        rdma.traffic_class = Value::whole,
        u8::to_string
    ),
    key!(
        "rdma.service_level",
        false,
        |_| "a whole number between 0 and 15".to_owned(),
        rdma.service_level = Value::whole,
        u8::to_string
    ),
    key!(
        "rdma.adaptive_throttle",
        false,
        |_| "true or false".to_owned(),
        rdma.adaptive_throttle = Value::flag,
        bool::to_string
    ),
    key!(
        "rdma.object_reads",
        false,
        |_| words(&rdma::OBJECT_READS),
        rdma.object_reads = |value: &Value| value.choice(&rdma::OBJECT_READS),
        |reads| word(&rdma::OBJECT_READS, reads)
    ),
];

/// The keys of one `[[machine]]`.
pub(super) const MACHINE_KEYS: &[Key<MachineConfig>] = &[
    key!(
        "machine.id",
        true,
        |_| format!("a whole number between 1 and {MAX_MACHINE_ID}"),
        id = |value: &Value| {
            value
                .whole()
                .and_then(|number: u16| MachineId::new(number).ok_or_else(|| value.out_of_range()))
        },
        |id: &MachineId| id.get().to_string()
    ),
    key!(
        "machine.workers",
        true,
        |limits| format!("a whole number between 1 and {}", limits.max_workers),
        workers = Value::whole,
        u16::to_string
    ),
    key!(
        "machine.cores",
        false,
        |_| format!("a list of different numbers of cores, each at most {MAX_CORE}; [] for any"),
        cores = Value::wholes,
        |cores: &Vec<u32>| format!("{cores:?}")
    ),
    key!(
        "machine.memory_bytes",
        true,
        |_| format!(
            "\"auto\" for memory.per_machine_bytes, 0 for a machine that stores nothing, or a size that is a multiple of \
             memory.region_bytes, at most {}",
            exact_size(MAX_MACHINE_MEMORY_BYTES)
        ),
        memory_bytes = rdma::auto_or_size,
        |bytes: &Option<u64>| match bytes {
            None => rdma::show_text(None),
            Some(bytes) => sized(*bytes),
        }
    ),
    key!(
        "machine.rack",
        true,
        |_| "\"auto\" or a name of at most 255 bytes".to_owned(),
        rack = |value: &Value| match rdma::auto_or_name(value)? {
            Some(name) if name.len() > MOST_NAME_BYTES => Err(value.out_of_range()),
            name => Ok(name),
        },
        |text: &Option<String>| rdma::show_text(text.as_deref())
    ),
    key!(
        "machine.address",
        false,
        |_| "\"auto\" or \"HOST:PORT\"".to_owned(),
        rdma.address = rdma::auto_or_text,
        |text: &Option<String>| rdma::show_text(text.as_deref())
    ),
    key!(
        "machine.device",
        false,
        |_| "\"auto\" or the name of an RDMA device".to_owned(),
        rdma.device = rdma::auto_or_name,
        |text: &Option<String>| rdma::show_text(text.as_deref())
    ),
    key!(
        "machine.device_port",
        false,
        |_| "\"auto\" or a whole number between 1 and 255".to_owned(),
        rdma.device_port = rdma::auto_or_port,
        rdma::show_whole
    ),
    key!(
        "machine.gid_index",
        false,
        |_| "\"auto\" or a whole number between 0 and 255".to_owned(),
        rdma.gid_index = rdma::auto_or_whole,
        rdma::show_whole
    ),
];

/// Returns the keys of all sections except `[[machine]]`, in the order in which they are listed and written. The
/// sections of higher layers are listed before `[rdma]`, which configures only the transport.
pub(super) fn all(sections: &Sections) -> impl Iterator<Item = KeyFacts> {
    let last = KEYS.partition_point(|key| key.section() != "rdma");
    let (first, last) = KEYS.split_at(last);
    let first = first.iter().map(Key::facts).chain(sections.keys());
    first.chain(last.iter().map(Key::facts))
}

/// Sets a key of any section except `[[machine]]`. Returns `None` if there is no such key.
pub(super) fn set(config: &mut Config, path: &str, value: &Value) -> Option<Result<(), Misfit>> {
    match KEYS.iter().find(|key| key.path == path) {
        Some(key) => Some((key.set)(config, value)),
        None => config.sections.set(path, value),
    }
}

/// Returns the value of a key of any section except `[[machine]]` in canonical form, as TOML.
pub(super) fn show(config: &Config, path: &str) -> String {
    match KEYS.iter().find(|key| key.path == path) {
        Some(key) => (key.show)(config),
        None => config.sections.show(path).unwrap_or_default(),
    }
}

/// Returns the description of the values that the key with this path accepts.
pub(super) fn expected(sections: &Sections, path: &str, limits: &Limits) -> String {
    let mut known = all(sections).chain(MACHINE_KEYS.iter().map(Key::facts));
    let found = known.find(|key| key.path == path);
    found.map_or_else(String::new, |key| (key.expected)(limits))
}

/// Returns the names of the sections, in the order of their keys.
pub(super) fn sections(sections: &Sections) -> Vec<&'static str> {
    let mut names = vec!["machine"];
    for key in all(sections) {
        if !names.contains(&key.section()) {
            names.push(key.section());
        }
    }
    names
}
