//! Options of `farm workload`.

use std::path::PathBuf;

use clap::Args;
use farm_check::workload::Kind;
use farm_core::config::{Config, ConfigError};

use super::ClusterArgs;

/// Options of `farm workload`.
#[derive(Debug, Args)]
#[command(after_help = "\
Workloads: cycle, bank, append, table, churn, smallbank, tatp. Each knows what a correct platform answers: a
cycle that stays whole, accounts whose sum stays, values that describe themselves, keys that hold what was
put last.
Every client does one thing at a time, and what it asked and was answered is a history. With --verify
the histories of all machines are judged: strict serializability by two checkers, one of which others
wrote, and linearizability of every key.

Examples:
  farm workload bank --verify
  farm workload append --operations 2000 --clients 8 --verify --history history.jsonl
  adya history.jsonl                             the same history, judged by that checker alone; ./x setup
                                                 installs it")]
pub(crate) struct WorkloadArgs {
    /// Which workload.
    #[arg(value_name = "NAME")]
    pub(crate) kind: Kind,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    /// Clients of every worker.
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) clients: u16,

    /// Operations of every client.
    #[arg(long, value_name = "N", default_value = "500", value_parser = super::count)]
    pub(crate) operations: u64,

    /// Objects on every machine.
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u16).range(3..=1024))]
    pub(crate) objects: u16,

    /// Bytes of an object's payload.
    #[arg(long, value_name = "N", default_value = "200", value_parser = clap::value_parser!(u32).range(40..=65536))]
    pub(crate) payload_bytes: u32,

    /// Seed of every choice; what runs at the same time is not chosen by it.
    #[arg(long, value_name = "N", default_value = "0")]
    pub(crate) seed: u64,

    /// Judge the history.
    #[arg(long)]
    pub(crate) verify: bool,

    /// Give every worker the first deliberate bug whose name contains this: the judges must find it.
    #[arg(long, value_name = "TEXT", hide = true, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) mutant: Option<String>,

    /// Where the history of the transactions goes, as list-append operations in JSON lines.
    #[arg(long, value_name = "FILE")]
    pub(crate) history: Option<PathBuf>,
}

impl WorkloadArgs {
    /// The configuration with the options that are its keys, checked.
    pub(crate) fn config(&self) -> Result<Config, ConfigError> {
        let mut config = self.cluster.config.load()?;
        self.cluster.configure(&mut config, &[])?;
        Ok(config)
    }
}
