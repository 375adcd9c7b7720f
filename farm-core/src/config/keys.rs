//! The single table of keys. Reading a file, setting a key by a flag, listing expected values and
//! the canonical form all use it, so every key is known to all of them.

use std::path::{Path, PathBuf};

use super::error::one_of;
use super::rdma::{self, LEAST_SEND_DEPTH, MOST_INLINE_BYTES, MOST_SEND_DEPTH};
use super::size::exact_size;
use super::value::{Misfit, Value};
use super::{Config, Fabric, HugePages, IdlePolicy, MachineConfig, RunDir};
use crate::ids::MachineId;
use crate::limits::{
    Limits, MAX_CLUSTER_NAME, MAX_CORE, MAX_IDLE_US, MAX_KEY_BYTES, MAX_MACHINE_ID,
    MAX_MACHINE_MEMORY_BYTES, MAX_OPERATIONS_IN_FLIGHT, MAX_PATIENCE_MS, MAX_SHARDS_PER_WORKER,
    MAX_TRANSACTION_BYTES, MAX_TRANSACTION_OBJECTS, MAX_VALUE_BYTES, MESSAGES_PER_RING,
    MIN_MESSAGE_BYTES, MIN_TRANSACTION_BYTES, NEIGHBOURHOODS,
};

/// A key of a `T`: of the whole configuration, or of one machine.
pub(super) struct Key<T> {
    /// Section and name, dotted.
    pub(super) path: &'static str,
    /// Whether all machines of a cluster must have the same value. These keys form the digest.
    pub(super) shared: bool,
    /// Returns the description of the values that the key accepts.
    pub(super) expected: fn(&Limits) -> String,
    /// Sets the key to a value.
    pub(super) set: fn(&mut T, &Value) -> Result<(), Misfit>,
    /// Returns the value in canonical form, as TOML.
    pub(super) show: fn(&T) -> String,
}

impl<T> Key<T> {
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
const IDLE: [(&str, IdlePolicy); 3] = [
    ("auto", IdlePolicy::Auto),
    ("spin", IdlePolicy::Spin),
    ("park", IdlePolicy::Park),
];

/// Returns the words of a table, quoted and joined.
fn words<T>(table: &[(&str, T)]) -> String {
    one_of(
        &table
            .iter()
            .map(|(word, _)| format!("\"{word}\""))
            .collect::<Vec<_>>(),
    )
}

/// Returns the word of `value` in a table, quoted.
fn word<T: PartialEq>(table: &[(&str, T)], value: &T) -> String {
    let found = table.iter().find(|(_, candidate)| candidate == value);
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
        "transactions.concurrency",
        false,
        |_| format!("a whole number between 1 and {MAX_OPERATIONS_IN_FLIGHT}"),
        transactions.concurrency = Value::whole,
        u32::to_string
    ),
    key!(
        "table.neighbourhood",
        true,
        |_| one_of(&NEIGHBOURHOODS.map(|h| h.to_string())),
        table.neighbourhood = Value::whole,
        u32::to_string
    ),
    key!(
        "table.occupancy",
        true,
        |_| "a number above 0 and at most 1".to_owned(),
        table.occupancy = Value::number,
        f64::to_string
    ),
    key!(
        "table.key_bytes",
        true,
        |_| format!("a whole number of bytes between 1 and {MAX_KEY_BYTES}"),
        table.key_bytes = Value::size,
        u64::to_string
    ),
    key!(
        "table.value_bytes",
        true,
        |_| format!("a size between 1 byte and {}", exact_size(MAX_VALUE_BYTES)),
        table.value_bytes = Value::size,
        u64::to_string
    ),
    key!(
        "table.shards_per_worker",
        true,
        |_| format!("a whole number between 1 and {MAX_SHARDS_PER_WORKER}"),
        table.shards_per_worker = Value::whole,
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

/// Returns the description of the values that the key with this path accepts.
pub(super) fn expected(path: &str, limits: &Limits) -> String {
    let of_config = KEYS
        .iter()
        .find(|key| key.path == path)
        .map(|key| key.expected);
    let of_machine = MACHINE_KEYS
        .iter()
        .find(|key| key.path == path)
        .map(|key| key.expected);
    of_config
        .or(of_machine)
        .map_or_else(String::new, |expected| expected(limits))
}

/// Returns the sections, in the order of the table.
pub(super) fn sections() -> Vec<&'static str> {
    let mut sections = vec!["machine"];
    for key in KEYS {
        if !sections.contains(&key.section()) {
            sections.push(key.section());
        }
    }
    sections
}
