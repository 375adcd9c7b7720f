//! Options of `farm taobench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{BesideArgs, ClusterArgs, LosingArgs, seconds, seconds_or_none};

/// Options of `farm taobench`.
#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
The workload files are those of TAOBench: one distribution per line, as JSON. Those of the mixes a and o
are built in (config/taobench). The command loads edges, each with two objects, and then performs reads,
writes, read transactions of up to 500 reads at one moment, and write transactions of up to 103 writes, all
or none. A new edge is refused, in the same transaction, if an edge exists that contradicts it. An update
applies only if no later one was made.

Edges of the types bidirectional and unique_and_bidirectional have an inverse edge, which the same
transaction writes. After the run, the command checks all objects, edges and inverse edges against the
writes that committed.

The reference program reads single edges where the workload has ranges, counts and times; so does --compat.

Examples:
  farm taobench
  farm taobench --mix o --duration 30 --json o.json
  farm taobench -c workload.json --edges 100000 --machines 1"
)]
pub(crate) struct TaobenchArgs {
    /// The mix of the requests.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "a",
        conflicts_with = "file"
    )]
    pub(crate) mix: TaoMix,

    /// A workload file of TAOBench, instead of a built-in mix.
    #[arg(short = 'c', long = "workload", value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Number of edges that are loaded.
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) edges: u64,

    /// Read single edges instead of ranges, counts and times, as the reference program does.
    #[arg(long)]
    pub(crate) compat: bool,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    #[command(flatten)]
    pub(crate) losing: LosingArgs,

    #[command(flatten)]
    pub(crate) beside: BesideArgs,

    /// Seconds that the requests are measured.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(crate) duration: Duration,

    /// Seconds that requests run before they are measured.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds_or_none)]
    pub(crate) warmup: Duration,

    /// Seed of the graph and of every random choice.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) seed: u64,

    /// File for the results as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// A mix of requests that TAOBench has published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TaoMix {
    /// Applications that use transactions: 70 % reads, 23 % writes, 6 % read transactions.
    A,
    /// All applications: 97 % reads, 3 % read transactions.
    O,
}
