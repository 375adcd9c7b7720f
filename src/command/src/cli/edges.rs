//! Options of `farm edges`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{ClusterArgs, RepeatArgs, count, seconds, seconds_or_none};

/// Options of `farm edges`.
#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
A line of the file has the ids of two nodes, from 0 to below 2^63, separated by spaces or tabs. Lines that
begin with # are comments. This is the format of the collection SNAP. The file may be compressed with gzip.

The file is read once, in order. Every line that is not an edge is reported with its number (the first 20,
then their number), and is skipped; the exit status is then 1. With --strict the command ends at the first
such line. A file without an edge among its first 100,000 lines is refused. The import counts duplicates and edges from a node to itself.

The memory of the machines and the table of ids are sized from the comment '# Nodes: N Edges: M', or from
an estimate; --config and --set override it (memory.per_machine_bytes, graph.cached_heads).

Without a file, the command generates a graph: a node has 0 to twice DEGREE edges, to uniformly chosen nodes.

Examples:
  farm edges soc-LiveJournal1.txt.gz --bfs 0
  farm edges com-friendster.ungraph.txt.gz --undirected --two-hop --json friendster.json
  farm edges --nodes 1000000 --degree 10 --two-hop --duration 10 --repeat 3
  farm edges edges.txt --strict --machines 2 --set memory.per_machine_bytes=4GiB"
)]
pub(crate) struct EdgesArgs {
    /// The edge list: a text, or a text that is compressed with gzip.
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Number of nodes of the generated graph; 100000 by default.
    #[arg(long, value_name = "N", value_parser = count, conflicts_with = "file")]
    pub(crate) nodes: Option<u64>,

    /// Mean number of edges of a node of the generated graph; 10 by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000), conflicts_with = "file")]
    pub(crate) degree: Option<u32>,

    /// Add an edge back for each edge.
    #[arg(long)]
    pub(crate) undirected: bool,

    /// End at the first line that is not an edge.
    #[arg(long, requires = "file")]
    pub(crate) strict: bool,

    /// Search breadth-first from the node with this id.
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u64).range(..1 << 63))]
    pub(crate) bfs: Option<u64>,

    /// Measure two-hop queries (the neighbours of the neighbours of a random node) on all workers.
    #[arg(long)]
    pub(crate) two_hop: bool,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    /// Seconds that the two-hop queries are measured.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(crate) duration: Duration,

    /// Seconds that two-hop queries run before they are measured.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds_or_none)]
    pub(crate) warmup: Duration,

    /// Seed of the generated graph and of every random choice.
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) seed: u64,

    #[command(flatten)]
    pub(crate) repeat: RepeatArgs,

    /// File for the results as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}
