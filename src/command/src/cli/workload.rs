//! Options of `farm workload`.

use std::path::PathBuf;

use clap::Args;
use farm_check::workload::Kind;
use farm_core::config::{Config, ConfigError};

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

impl WorkloadArgs {
    /// Returns the validated configuration, with the options that set its keys applied.
    pub(crate) fn config(&self) -> Result<Config, ConfigError> {
        let mut config = self.cluster.config.load()?;
        self.cluster.configure(&mut config, &[])?;
        Ok(config)
    }
}
