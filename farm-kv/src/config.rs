//! The section `[table]` of the configuration.
//!
//! `farm_core` reads, overrides and compares this section like its own sections, in a configuration that has it.
//! [`load`], [`from_str`] and [`default_for`] create such configurations.
//!
//! ```
//! use farm_kv::config::{self, TableConfig};
//!
//! let text = "[[machine]]\nid = 1\n[table]\nneighbourhood = 8\n";
//! let config = config::from_str(text, "my.toml")?;
//! assert_eq!(TableConfig::of(&config).neighbourhood, 8);
//! # Ok::<(), farm_core::config::ConfigError>(())
//! ```

use std::path::Path;

use farm_core::alloc::class_for_payload;
use farm_core::config::{
    Check, Config, ConfigError, Key, ProblemKind, Section, Sections, exact_size, one_of,
};
use farm_core::limits::{
    MAX_OBJECT_BYTES, MAX_RING_BYTES, MAX_VALUE_BYTES, MESSAGES_PER_RING, WORD_BYTES, object_bytes,
};
use serde::Serialize;

use crate::layout::NEIGHBOURHOODS;

/// Maximum number of bytes in a key.
pub const MAX_KEY_BYTES: u64 = crate::MAX_KEY_BYTES as u64;

/// Maximum number of shards that one worker owns.
pub const MAX_SHARDS_PER_WORKER: u32 = 64;

/// Maximum number of bytes that a shipped operation adds to its key and value: the ring's record, the call's token, and
/// the operation's own fields.
pub const SHIPPED_OVERHEAD_BYTES: u64 = 128;

/// Bytes of a bucket in addition to its pairs.
const BUCKET_LINKS_BYTES: usize = 20;

// The largest pair fits into one slot of the smallest bucket, which is one object.
const _: () = assert!(object_bytes(MAX_KEY_BYTES + MAX_VALUE_BYTES) <= MAX_OBJECT_BYTES);
// The largest pair can be shipped through the largest ring.
const _: () = assert!(
    MAX_KEY_BYTES + MAX_VALUE_BYTES + SHIPPED_OVERHEAD_BYTES <= MAX_RING_BYTES / MESSAGES_PER_RING
);

/// The hashtable.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TableConfig {
    /// The neighbourhood H: a pair is at most H - 1 slots away from its hash (FaRM'14 §3.6).
    pub neighbourhood: u32,
    /// Target share of full slots, from which shards are sized.
    pub occupancy: f64,
    /// Bytes of a key.
    pub key_bytes: u64,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// Number of shards that each worker owns.
    pub shards_per_worker: u32,
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

impl TableConfig {
    /// Returns the section of a configuration, or the default values if the configuration does not have the section.
    pub fn of(config: &Config) -> TableConfig {
        config.section().cloned().unwrap_or_default()
    }
}

/// Returns the sections of a configuration with tables.
pub fn sections() -> Sections {
    Sections::default().with(TableConfig::default())
}

/// As [`Config::load`], for a file that may contain `[table]`.
///
/// # Errors
///
/// As [`Config::load`].
pub fn load(path: impl AsRef<Path>) -> Result<Config, ConfigError> {
    Config::load_with(path, &sections())
}

/// As [`Config::from_str`], for text that may contain `[table]`.
///
/// # Errors
///
/// As [`Config::from_str`].
pub fn from_str(text: &str, name: &str) -> Result<Config, ConfigError> {
    Config::from_str_with(text, name, &sections())
}

/// As [`Config::default_for`], with the default values of `[table]`.
///
/// # Panics
///
/// As [`Config::default_for`].
pub fn default_for(machines: u16, workers: u16) -> Config {
    Config::default_for(machines, workers).with_section(TableConfig::default())
}

impl Section for TableConfig {
    const KEYS: &'static [Key<Self>] = &[
        Key {
            path: "table.neighbourhood",
            shared: true,
            expected: |_| one_of(&NEIGHBOURHOODS.map(|h| h.to_string())),
            set: |table, value| value.whole().map(|h| table.neighbourhood = h),
            show: |table| table.neighbourhood.to_string(),
        },
        Key {
            path: "table.occupancy",
            shared: true,
            expected: |_| "a number above 0 and at most 1".to_owned(),
            set: |table, value| value.number().map(|share| table.occupancy = share),
            show: |table| table.occupancy.to_string(),
        },
        Key {
            path: "table.key_bytes",
            shared: true,
            expected: |_| format!("a whole number of bytes between 1 and {MAX_KEY_BYTES}"),
            set: |table, value| value.size().map(|bytes| table.key_bytes = bytes),
            show: |table| table.key_bytes.to_string(),
        },
        Key {
            path: "table.value_bytes",
            shared: true,
            expected: |_| format!("a size between 1 byte and {}", exact_size(MAX_VALUE_BYTES)),
            set: |table, value| value.size().map(|bytes| table.value_bytes = bytes),
            show: |table| table.value_bytes.to_string(),
        },
        Key {
            path: "table.shards_per_worker",
            shared: true,
            expected: |_| format!("a whole number between 1 and {MAX_SHARDS_PER_WORKER}"),
            set: |table, value| value.whole().map(|shards| table.shards_per_worker = shards),
            show: |table| table.shards_per_worker.to_string(),
        },
    ];

    fn check(&self, check: &mut Check<'_>) {
        let h = self.neighbourhood;
        if !NEIGHBOURHOODS.contains(&h) {
            let near = NEIGHBOURHOODS
                .into_iter()
                .min_by_key(|near| near.abs_diff(h))
                .unwrap_or(6);
            let what = format!("no layout of buckets exists for the neighbourhood {h}");
            let advice = format!("write {near}");
            let keys = ["table.neighbourhood"];
            check.report(ProblemKind::OutOfRange, &keys, what, advice);
        }
        if !(self.occupancy > 0.0 && self.occupancy <= 1.0) {
            let what = format!(
                "{} is not a possible share of occupied slots",
                self.occupancy
            );
            let keys = ["table.occupancy"];
            check.report(ProblemKind::OutOfRange, &keys, what, "write 0.9");
        }
        let shards = self.shards_per_worker;
        check.whole_between("table.shards_per_worker", shards, 1, MAX_SHARDS_PER_WORKER);
        let key_fits = check_part(check, "table.key_bytes", self.key_bytes, MAX_KEY_BYTES);
        let value_fits = check_part(
            check,
            "table.value_bytes",
            self.value_bytes,
            MAX_VALUE_BYTES,
        );
        if key_fits && value_fits && NEIGHBOURHOODS.contains(&h) {
            self.check_pair(check);
        }
    }

    /// Returns the bytes that a lookup reads: two adjacent buckets, each of H/2 pairs and the bytes of links, or a
    /// block of two pairs, if that is larger.
    fn read_bytes(&self) -> Option<usize> {
        let pair = (self.key_bytes + self.value_bytes) as usize;
        let object = |pairs: usize| class_for_payload(pairs * pair + BUCKET_LINKS_BYTES);
        match (object(self.neighbourhood as usize / 2), object(2)) {
            (Ok(bucket), Ok(block)) => Some((2 * bucket.object_bytes()).max(block.object_bytes())),
            // Such a table cannot be opened.
            _ => None,
        }
    }
}

impl TableConfig {
    /// Checks that a bucket of pairs fits one object, and that a pair fits one message.
    fn check_pair(&self, check: &mut Check<'_>) {
        let pair = self.key_bytes + self.value_bytes;
        let bucket = object_bytes(u64::from(self.neighbourhood / 2) * pair);
        let most = check.block_bytes().map(|block| MAX_OBJECT_BYTES.min(block));
        if let Some(most) = most.filter(|most| bucket > *most) {
            let what = format!(
                "a bucket of {} pairs of {} and {} bytes needs {} bytes, more than the {most} that \
                 one object can have",
                self.neighbourhood / 2,
                self.key_bytes,
                self.value_bytes,
                bucket
            );
            let keys = [
                "table.value_bytes",
                "table.key_bytes",
                "table.neighbourhood",
                "memory.block_bytes",
            ];
            let advice = "lower table.value_bytes or table.neighbourhood";
            check.report(ProblemKind::Inconsistent, &keys, what, advice);
        }
        let needed = (pair + SHIPPED_OVERHEAD_BYTES).next_multiple_of(WORD_BYTES);
        let message = check.message_bytes();
        if let Some(message) = message.filter(|message| needed > *message) {
            let what = format!(
                "a pair of {} and {} bytes is shipped in a message of {needed} bytes, more than \
                 rings.max_message_bytes, which is {}",
                self.key_bytes,
                self.value_bytes,
                exact_size(message)
            );
            let keys = [
                "table.value_bytes",
                "table.key_bytes",
                "rings.max_message_bytes",
            ];
            let ring = (needed * MESSAGES_PER_RING).next_power_of_two();
            let advice = format!(
                "raise rings.max_message_bytes to {needed} and rings.ring_bytes to at least \"{}\"",
                exact_size(ring)
            );
            check.report(ProblemKind::Inconsistent, &keys, what, advice);
        }
    }
}

/// Checks the bytes of a key or a value. Returns whether they are within the limits.
fn check_part(check: &mut Check<'_>, key: &'static str, bytes: u64, most: u64) -> bool {
    let fits = (1..=most).contains(&bytes);
    if !fits {
        let what = format!("{bytes} bytes are too few or too many");
        let advice = match bytes {
            0 => "write 1 or more".to_owned(),
            _ => format!("write {most} or less"),
        };
        check.report(ProblemKind::ImpossibleSize, &[key], what, advice);
    }
    fits
}
