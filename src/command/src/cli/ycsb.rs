//! Options of `farm ycsb`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use farm_bench::ycsb::spec::Distribution;
use farm_core::config::{Config, ConfigError};

use super::{ClusterArgs, LosingArgs, RepeatArgs, count, key_value, seconds, seconds_or_none};

/// Options of `farm ycsb`.
#[derive(Debug, Args)]
#[command(after_help = "\
Precedence, lowest first: defaults, the configuration, the property files, -p, the other options.

YCSB properties that bound a run:
  operationcount    number of operations of all workers together, failed ones included
  maxexecutiontime  seconds
  target            operations per second of all workers together, at most
  threadcount       operations in flight of all workers together (a thread of the reference client has one)
If operationcount is set, only --duration or maxexecutiontime bounds the time. --duration overrides an
operationcount of a property file, but not one of -p. The command warns of unknown properties, prints a
note for properties without effect, and refuses properties that request another kind of run.

Distributions: uniform; zipfian, as in the reference client (Zipf with constant 0.99 over 10^10 ranks,
hashed onto the records); zipfian-plain (Zipf with constant 0.99 over the records themselves); latest;
hotspot; exponential; sequential.

Examples:
  farm ycsb --workload b,c --records 1000000 --duration 10
  farm ycsb -P config/ycsb/workloada -p recordcount=5000000 --machines 2 --json a.json
  farm ycsb --workload b -p target=50000 -p threadcount=32 -p operationcount=1000000
  farm ycsb --workload c --duration 5 --repeat 5
  farm ycsb --workload c --distribution uniform --neighbourhood 8 --verify")]
pub(crate) struct YcsbArgs {
    /// A YCSB property file; may be repeated, and a later file overrides an earlier one.
    #[arg(short = 'P', long = "properties", value_name = "FILE")]
    pub(crate) property_files: Vec<PathBuf>,

    /// A YCSB property; may be repeated.
    #[arg(short = 'p', long = "property", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) properties: Vec<(String, String)>,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    #[command(flatten)]
    pub(crate) losing: LosingArgs,

    /// Number of pairs to load.
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) records: Option<u64>,

    /// Maximum number of seconds that each workload is measured; 10 if neither this option nor a property bounds the
    /// run.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) duration: Option<Duration>,

    /// Seconds that each workload runs before it is measured; 1 by default.
    #[arg(long, value_name = "SECONDS", value_parser = seconds_or_none)]
    pub(crate) warmup: Option<Duration>,

    /// The neighbourhood H of the table: 2, 4, 6, 8 or 12.
    #[arg(long, value_name = "H")]
    pub(crate) neighbourhood: Option<String>,

    /// The share of slots that are full after the load, above 0 and at most 1.
    #[arg(long, value_name = "X")]
    pub(crate) occupancy: Option<String>,

    /// Bytes of each value, as a number or a size as in 1KiB.
    #[arg(long, value_name = "N")]
    pub(crate) value_bytes: Option<String>,

    /// Workloads to run one after another, on the same table; C if neither this option nor -P is given.
    #[arg(long, value_name = "A,B,C…", value_delimiter = ',', ignore_case = true)]
    pub(crate) workload: Vec<Workload>,

    /// Distribution of the keys; overrides that of the workload.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(Distribution::NAMES), ignore_case = true)]
    pub(crate) distribution: Option<String>,

    /// Seed of every random choice; the same seed gives the same operations; 1 by default.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// Make commits lock exclusively from the start, to measure the benefit of the readable lock mode.
    #[arg(long, hide = true)]
    pub(crate) exclusive_locks: bool,

    /// Check every byte of every value that is read.
    #[arg(long)]
    pub(crate) verify: bool,

    #[command(flatten)]
    pub(crate) repeat: RepeatArgs,

    /// File for the results as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl YcsbArgs {
    /// Applies the options that set keys of the configuration, and validates the result.
    pub(crate) fn configure(&self, config: &mut Config) -> Result<(), ConfigError> {
        let keys = [
            (
                "--neighbourhood",
                "table.neighbourhood",
                &self.neighbourhood,
            ),
            ("--occupancy", "table.occupancy", &self.occupancy),
            ("--value-bytes", "table.value_bytes", &self.value_bytes),
        ];
        self.cluster.configure(config, &keys, self.losing.mode())
    }
}

/// One of YCSB's core workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// 50 % reads, 50 % updates; skewed.
    A,
    /// 95 % reads, 5 % updates; skewed.
    B,
    /// Reads only; skewed.
    C,
    /// 95 % reads, mostly of the latest inserts, 5 % inserts.
    D,
    /// Scans. Refused: scans need an ordered index, which is not implemented.
    E,
    /// 50 % reads, 50 % read-modify-writes; skewed.
    F,
}
