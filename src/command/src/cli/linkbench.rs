//! Options of `farm linkbench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{BesideArgs, ClusterArgs, LosingArgs, key_value, seconds, seconds_or_none};

/// Options of `farm linkbench`.
#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Precedence, lowest first: config/linkbench/facebook.properties (built in), the file of -c, -D, the other
options. The properties have the names of LinkBench:
  startid1, maxid1     the first id, and the id after the last one that is loaded
  data_file            a Distribution.dat of LinkBench, for the out-degrees; without it, a built-in table
  requesters           requests in flight of all workers together
  requests             requests of each requester, after which the run ends
  requestrate          requests per second of each requester, at most
  maxtime, warmup_time seconds; --duration and --warmup override them
The built-in table gives the node with most links a million of them, however few nodes there are; a
small graph needs a data_file.
The command warns of unknown properties, and prints a note for properties without effect.

The mix linkbench is that of the properties, and a list has at most 10,000 links. The mix tao is that of
Tao: 99.8 % of the requests read, and a list has at most 50 links. --compat reproduces the oddities of the
reference program: more links than the out-degrees, fewer correlated writes, larger multigets, new ids
without gaps, requests for older links that take no time.

Examples:
  farm linkbench
  farm linkbench --mix tao --duration 30 --json tao.json
  farm linkbench -D maxid1=10000001 -D data_file=Distribution.dat --compat --csv linkbench.csv
  farm linkbench -c config/linkbench/facebook.properties --load-only --machines 2"
)]
pub(crate) struct LinkbenchArgs {
    /// A property file of LinkBench.
    #[arg(short = 'c', long = "properties", value_name = "FILE")]
    pub(crate) property_file: Option<PathBuf>,

    /// A property of LinkBench; may be repeated.
    #[arg(short = 'D', long = "property", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) properties: Vec<(String, String)>,

    /// The mix of the requests.
    #[arg(long, value_name = "NAME", default_value = "linkbench")]
    pub(crate) mix: LinkMix,

    /// Reproduce the oddities of the reference program.
    #[arg(long)]
    pub(crate) compat: bool,

    /// Load the graph, print what was loaded, and run no requests.
    #[arg(long, conflicts_with = "beside")]
    pub(crate) load_only: bool,

    /// Maximum number of links that a request for a list returns; 10000 by default, 50 with the mix tao.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) range_limit: Option<u32>,

    /// Look up the name of the node by its id for every request, instead of keeping the names of all nodes.
    #[arg(long)]
    pub(crate) by_id: bool,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    #[command(flatten)]
    pub(crate) losing: LosingArgs,

    #[command(flatten)]
    pub(crate) beside: BesideArgs,

    /// Seconds that the requests are measured; 10 if neither this option nor a property bounds the run.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) duration: Option<Duration>,

    /// Seconds that requests run before they are measured; 1 by default.
    #[arg(long, value_name = "SECONDS", value_parser = seconds_or_none)]
    pub(crate) warmup: Option<Duration>,

    /// Seed of the graph and of every random choice; 1 by default.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// File for the results as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// File for the latencies as CSV, in the columns of the reference program.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
}

/// A mix of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LinkMix {
    /// That of the properties: two thirds of the requests read.
    Linkbench,
    /// That of Tao: 99.8 % of the requests read.
    Tao,
}

impl LinkMix {
    /// Returns the name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            LinkMix::Linkbench => "linkbench",
            LinkMix::Tao => "tao",
        }
    }
}
