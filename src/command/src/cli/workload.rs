//! Options of `farm workload`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use farm_check::workload::Kind;
use serde::{Deserialize, Serialize};

use super::ClusterArgs;

/// Options of `farm workload`.
#[derive(Debug, Args)]
#[command(after_help = "\
Workloads: cycle, bank, append, table, churn, smallbank, tatp, graph. Each has an invariant that a correct
platform keeps: for example a cycle that stays whole, or accounts whose sum stays the same.
Every client runs one operation at a time. The history has every operation and its result. With --verify
the command checks the histories of all machines: strict serializability of the transactions, by its own
checker and by the independent checker adya, linearizability of the operations on every key, and strict
serializability of the operations on a graph.

Examples:
  farm workload bank --verify
  farm workload append --operations 2000 --clients 8 --verify --history history.jsonl
  adya history.jsonl                             check the same history with adya alone; ./x setup
                                                 installs adya")]
pub(crate) struct WorkloadArgs {
    /// The workload.
    #[arg(value_name = "NAME")]
    pub(crate) kind: Kind,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    /// Number of clients of every worker.
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) clients: u16,

    /// Number of operations of every client.
    #[arg(long, value_name = "N", default_value = "500", value_parser = super::count)]
    pub(crate) operations: u64,

    /// Number of objects on every machine.
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u16).range(3..=1024))]
    pub(crate) objects: u16,

    /// Bytes of the payload of every object.
    #[arg(long, value_name = "N", default_value = "200", value_parser = clap::value_parser!(u32).range(40..=65536))]
    pub(crate) payload_bytes: u32,

    /// Percentage of operations that run as tasks, that is as async functions; the others run by continuations. 0 by
    /// default for append, and 100 for the other workloads, except operations on the graph outside of transactions.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) tasks: Option<u32>,

    /// Seed of every random choice; the schedule of threads does not depend on it, so runs are not repeatable.
    #[arg(long, value_name = "N", default_value = "0")]
    pub(crate) seed: u64,

    /// Check the history.
    #[arg(long)]
    pub(crate) verify: bool,

    /// Switch on the first deliberate bug whose name contains TEXT, on every worker; the checkers must find it.
    #[arg(long, value_name = "TEXT", hide = true, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) mutant: Option<String>,

    /// File for the history of the transactions, as list-append operations in JSON lines.
    #[arg(long, value_name = "FILE")]
    pub(crate) history: Option<PathBuf>,
}

/// What is lost at a time in `farm campaign`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Losses {
    /// All processes are killed.
    #[default]
    All,
    /// One machine is killed, or stopped, while the others go on.
    One,
}

impl Losses {
    /// Returns the least number of copies, with which the clusters survive it.
    pub(crate) fn least_copies(self) -> usize {
        match self {
            Self::All => 1,
            Self::One => 2,
        }
    }

    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Self::All => "all processes were killed",
            Self::One => "one machine was killed or stopped",
        }
    }
}

/// Options of `farm campaign`.
#[derive(Debug, Args)]
#[command(after_help = "\
A run is a temporary cluster with copies of its data, and a workload of `farm workload` on it. Again and again all
of its processes are killed (SIGKILL) at a random moment, in a third of the cases once or more while they start, and
started again: they go on with the memory that they have kept. At the end, the history of all processes and the final
state are checked as by `farm workload --verify`, by adya in one run of twenty, and all copies are compared. With --losses one, a single machine is
killed, or stopped (SIGSTOP) for up to two leases, while the others go on, and is started again if they went on without it;
when all copies are full again, the next one is lost. The seed of a run determines its workload,
the number of copies, and its moments; the schedule of threads differs from run to run.

With --results, each run adds a line of JSON to the file. Runs that it has are not repeated, so that a campaign can be
interrupted at any time and continued with the same command. It ends after five wrong runs. Small memory makes starts
shorter: --set memory.region_bytes=16MiB --set memory.per_machine_bytes=64MiB.

Examples:
  farm campaign --kills 100
  farm campaign --kills 10000 --results campaign.jsonl --note \"$(git rev-parse --short HEAD)\"
  farm campaign --losses one --kills 100 --set durability.lease_ms=100
  farm campaign --first 17 --kills 10 --workload bank")]
pub(crate) struct CampaignArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    /// What is lost each time.
    #[arg(long, value_name = "WHAT", default_value = "all")]
    pub(crate) losses: Losses,

    /// Number of times that all processes are killed, or one is lost, of all runs together.
    #[arg(long, value_name = "N", default_value = "50", value_parser = super::count)]
    pub(crate) kills: u64,

    /// Number of times that this happens in a run.
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) kills_per_run: u32,

    /// Seed of the first run. The next run has the next seed.
    #[arg(long, value_name = "N", default_value = "0")]
    pub(crate) first: u64,

    /// The workload of all runs; by default the seed determines it.
    #[arg(long, value_name = "NAME")]
    pub(crate) workload: Option<Kind>,

    /// Number of copies of the data in all runs; by default the seed determines it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=5))]
    pub(crate) copies: Option<u8>,

    /// Longest time for the machines to start, to recover, or to end all operations; after it, the run is wrong.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) patience: u32,

    /// Switch on the first deliberate bug whose name contains TEXT, on every worker; the checkers must find it.
    #[arg(long, value_name = "TEXT", hide = true, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) mutant: Option<String>,

    /// File to which each run adds its result, as a line of JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) results: Option<PathBuf>,

    /// A text for the results, for example the commit of the program.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) note: String,
}
