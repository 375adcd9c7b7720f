//! The section `[graph]` of the configuration.
//!
//! ```
//! use farm_graph::config::{self, GraphConfig};
//!
//! let text = "[[machine]]\nid = 1\n[graph]\npage_bytes = \"16KiB\"\n";
//! let config = config::from_str(text, "my.toml")?;
//! assert_eq!(GraphConfig::of(&config).page_bytes, 16384);
//! # Ok::<(), farm_core::config::ConfigError>(())
//! ```

use std::ops::RangeInclusive;
use std::path::Path;

use farm_core::config::exact_size;
use farm_core::config::{Check, Config, ConfigError, Key, ProblemKind, Section, Sections};
use serde::Serialize;

/// Sizes of pages that a graph can have.
pub(crate) const PAGE_BYTES: RangeInclusive<u64> = 1 << 10..=256 << 10;

/// Maximum number of lists in the cache of a worker.
pub(crate) const MAX_CACHED_HEADS: u64 = 1 << 24;

/// The graph store.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GraphConfig {
    /// See [`GraphSpec::page_bytes`](crate::GraphSpec::page_bytes).
    pub page_bytes: u64,
    /// See [`GraphSpec::cached_heads`](crate::GraphSpec::cached_heads).
    pub cached_heads: u64,
}

impl Default for GraphConfig {
    fn default() -> Self {
        GraphConfig {
            page_bytes: 8 << 10,
            cached_heads: 1 << 18,
        }
    }
}

impl GraphConfig {
    /// Returns the section of a configuration, or the default values if the configuration does not have the section.
    pub fn of(config: &Config) -> GraphConfig {
        config.section().cloned().unwrap_or_default()
    }
}

/// Returns the sections of a configuration with tables and a graph.
pub fn sections() -> Sections {
    farm_kv::config::sections().with(GraphConfig::default())
}

/// As [`Config::load`], for a file that may contain `[table]` and `[graph]`.
///
/// # Errors
///
/// As [`Config::load`].
pub fn load(path: impl AsRef<Path>) -> Result<Config, ConfigError> {
    Config::load_with(path, &sections())
}

/// As [`Config::from_str`], for text that may contain `[table]` and `[graph]`.
///
/// # Errors
///
/// As [`Config::from_str`].
pub fn from_str(text: &str, name: &str) -> Result<Config, ConfigError> {
    Config::from_str_with(text, name, &sections())
}

/// As [`Config::default_for`], with the default values of `[table]` and `[graph]`.
///
/// # Panics
///
/// As [`Config::default_for`].
pub fn default_for(machines: u16, workers: u16) -> Config {
    farm_kv::config::default_for(machines, workers).with_section(GraphConfig::default())
}

impl Section for GraphConfig {
    const KEYS: &'static [Key<Self>] = &[
        Key {
            path: "graph.page_bytes",
            shared: true,
            expected: |_| {
                let [least, most] =
                    [PAGE_BYTES.start(), PAGE_BYTES.end()].map(|it| exact_size(*it));
                format!("a size between {least} and {most}")
            },
            set: |graph, value| value.size().map(|bytes| graph.page_bytes = bytes),
            show: |graph| format!("\"{}\"", exact_size(graph.page_bytes)),
        },
        Key {
            path: "graph.cached_heads",
            shared: false,
            expected: |_| format!("a whole number between 0 and {MAX_CACHED_HEADS}"),
            set: |graph, value| value.whole().map(|heads| graph.cached_heads = heads),
            show: |graph| graph.cached_heads.to_string(),
        },
    ];

    fn check(&self, check: &mut Check<'_>) {
        let page = self.page_bytes;
        if !PAGE_BYTES.contains(&page) {
            let what = format!("pages of {page} bytes are too small or too large");
            let advice = match page < *PAGE_BYTES.start() {
                true => "write \"1KiB\" or more",
                false => "write \"256KiB\" or less",
            };
            let keys = ["graph.page_bytes"];
            check.report(ProblemKind::ImpossibleSize, &keys, what, advice);
        }
        if self.cached_heads > MAX_CACHED_HEADS {
            let heads = self.cached_heads;
            let what = format!("a worker caches at most {MAX_CACHED_HEADS} lists, not {heads}");
            let keys = ["graph.cached_heads"];
            let advice = format!("write {MAX_CACHED_HEADS} or less");
            check.report(ProblemKind::OutOfRange, &keys, what, advice);
        }
    }
}
