//! The command line: every subcommand and option, with its help text.
//!
//! Options that set a key of the configuration call [`Config::set_by`]. An error in such an option therefore has
//! the same text as an error in a file, with the option as its origin.

mod bench;
mod edges;
mod linkbench;
mod oltp;
mod sim;
mod taobench;
mod tools;
mod workload;
mod ycsb;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use farm_bench::report::Engine;
use farm_core::config::{Config, ConfigError, Durability};
use farm_core::ids::MachineId;

pub(crate) use bench::{
    Bench, BenchAllocArgs, BenchArgs, BenchCommitArgs, BenchCommonArgs, BenchFabricArgs,
    BenchLimitArgs, BenchLossesArgs, BenchPairArgs,
};
pub(crate) use edges::EdgesArgs;
pub(crate) use linkbench::{LinkMix, LinkbenchArgs};
pub(crate) use oltp::{OltpArgs, SmallbankArgs, TatpArgs};
pub(crate) use sim::SimArgs;
pub(crate) use taobench::{TaoMix, TaobenchArgs};
pub(crate) use tools::{CleanArgs, DestroyArgs, DoctorArgs, StatusArgs, VerifyArgs};
pub(crate) use workload::{CampaignArgs, Losses, WorkloadArgs};
pub(crate) use ycsb::{Workload, YcsbArgs};

/// The text of `config/local.toml`, the configuration without `--config`.
const LOCAL: &str = include_str!("../../../config/local.toml");
/// The name of [`LOCAL`] in messages.
const LOCAL_NAME: &str = "config/local.toml (built in)";

/// One address space over the memory of many machines, with one-sided reads, transactions and a hashtable.
#[derive(Debug, Parser)]
#[command(
    name = "farm",
    version,
    arg_required_else_help = true,
    after_help = "\
Examples:
  farm demo                                      load three machines on this host and measure lookups
  farm doctor                                    check this host, and print what to change
  farm ycsb --workload c --records 1000000       measure lookups on a temporary cluster
  farm ycsb -P config/ycsb/workloadb --verify    run a YCSB property file, and check every value read
  farm tatp --subscribers 100000                 measure transactions on subscribers of a telecom
  farm smallbank --accounts 100000               measure transfers between accounts, and check the sum
  farm linkbench --mix tao                       measure requests on a social graph
  farm taobench --mix a                          measure transactions on a social graph, and check it
  farm edges graph.txt.gz --two-hop              import an edge list, and measure two-hop queries
  farm workload bank --verify                    run transactions on three processes, and check the history
  farm campaign --kills 100                      kill all processes of clusters 100 times, and check each
  farm sim --seeds 1000                          simulate 1,000 clusters with faults, and check each
  farm bench limit                               compare lookups with random reads of this host's memory
  farm verify --config my.toml                   compare the copies of data of a running cluster
  farm clean --dry-run                           list files that killed clusters left in memory

`farm <command> --help` documents each command. config/local.toml documents the configuration.
Exit status: 0 if no operation failed and every check passed; 2 if the command line or the configuration
is wrong; 130 after SIGINT or SIGTERM; 1 after any other failure. `farm verify` ends with 3 if it could not compare."
)]
pub(crate) struct Cli {
    /// Filter of log messages on standard error, as in `info` or `farm_core=debug,warn`; overrides RUST_LOG.
    #[arg(long, global = true, value_name = "FILTER")]
    pub(crate) log: Option<String>,

    /// The subcommand.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// A subcommand.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start three machines on this host, run YCSB workloads C and B, and print the results.
    Demo(DemoArgs),
    /// Run YCSB workloads on a temporary cluster.
    Ycsb(YcsbArgs),
    /// Run the TATP benchmark (transactions on subscribers of a telecom) on a temporary cluster.
    Tatp(TatpArgs),
    /// Run the SmallBank benchmark (transactions between accounts) on a temporary cluster.
    Smallbank(SmallbankArgs),
    /// Run LinkBench, a social graph and the requests on it, on a temporary cluster.
    Linkbench(LinkbenchArgs),
    /// Run TAOBench, transactions on a social graph, on a temporary cluster.
    Taobench(TaobenchArgs),
    /// Import an edge list, search it breadth-first, and measure two-hop queries, on a temporary cluster.
    Edges(EdgesArgs),
    /// Run one machine of a cluster until it is stopped.
    Node(NodeArgs),
    /// Print what the machines of a running cluster do and use.
    Status(StatusArgs),
    /// Compare all replicas of all regions of an idle running cluster.
    Verify(VerifyArgs),
    /// Measure one part of the platform by itself.
    Bench(BenchArgs),
    /// Run a workload on a temporary cluster, record its history, and check the history.
    Workload(WorkloadArgs),
    /// Kill all processes of temporary clusters under load, again and again, and check what they have left.
    Campaign(CampaignArgs),
    /// Run the platform in a simulator that injects faults, and check the results.
    Sim(SimArgs),
    /// Check this host against a configuration, and print what to change, with commands.
    Doctor(DoctorArgs),
    /// Remove the shared memory, locks and sockets that killed machines left.
    Clean(CleanArgs),
    /// Remove the data of a cluster with copies that has ended.
    Destroy(DestroyArgs),
}

/// The options that select the configuration.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ConfigArgs {
    /// The configuration file; without it, the built-in copy of config/local.toml.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Override a key of the configuration, as in memory.region_bytes=1GiB; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) set: Vec<(String, String)>,
}

impl ConfigArgs {
    /// Reads the file, without the overrides of `--set`.
    pub(crate) fn load(&self) -> Result<Config, ConfigError> {
        match &self.config {
            Some(path) => farm_graph::config::load(path),
            None => farm_graph::config::from_str(LOCAL, LOCAL_NAME),
        }
    }

    /// Returns the name of the file in messages.
    pub(crate) fn name(&self) -> String {
        self.config
            .as_ref()
            .map_or_else(|| LOCAL_NAME.to_owned(), |path| path.display().to_string())
    }

    /// Returns these options as a shell reads them, each after a space.
    pub(crate) fn options(&self) -> String {
        let quoted = |text: &str| {
            shlex::try_quote(text).map_or_else(|_| text.to_owned(), |text| text.into_owned())
        };
        let file = self
            .config
            .as_ref()
            .map(|path| format!(" --config {}", quoted(&path.display().to_string())));
        let set = self
            .set
            .iter()
            .map(|(key, value)| format!(" --set {}", quoted(&format!("{key}={value}"))));
        file.into_iter().chain(set).collect()
    }

    /// Applies the overrides of `--set`.
    pub(crate) fn apply(&self, config: &mut Config) -> Result<(), ConfigError> {
        self.set
            .iter()
            .try_for_each(|(key, value)| config.set(key, value))
    }

    /// Reads the file, applies the overrides of `--set`, and validates the result.
    pub(crate) fn resolve(&self) -> Result<Config, ConfigError> {
        let mut config = self.load()?;
        self.apply(&mut config)?;
        config.validate()?;
        Ok(config)
    }

    /// As [`ConfigArgs::resolve`], for a cluster that ends with the command, with this mode unless the configuration has one.
    pub(crate) fn resolve_temporary(&self, mode: Durability) -> Result<Config, ConfigError> {
        let mut config = self.load()?;
        self.apply(&mut config)?;
        config.durability.mode.get_or_insert(mode);
        config.validate()?;
        Ok(config)
    }
}

/// The options for the cluster that a command starts.
#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// Number of machines; overrides the list in the configuration.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1023))]
    pub(crate) machines: Option<u16>,

    /// Number of workers on every machine.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) workers: Option<u16>,
}

impl ClusterArgs {
    /// Returns the validated configuration, with the options that set its keys applied.
    pub(crate) fn resolve(&self, mode: Durability) -> Result<Config, ConfigError> {
        let mut config = self.config.load()?;
        self.configure(&mut config, &[], mode)?;
        Ok(config)
    }

    /// Applies `--set`, `--machines`, `--workers` and the options in `keys` (option, key, value) to `config`,
    /// and validates the result. It has this mode of durability unless the configuration has one: the cluster ends with the command.
    pub(crate) fn configure(
        &self,
        config: &mut Config,
        keys: &[(&str, &str, &Option<String>)],
        mode: Durability,
    ) -> Result<(), ConfigError> {
        self.config.apply(config)?;
        if let Some(machines) = self.machines {
            config.resize_machines(machines);
        }
        if let Some(workers) = self.workers {
            config.set_by("--workers", "machine.*.workers", &workers.to_string())?;
        }
        for (option, key, value) in keys {
            if let Some(value) = value {
                config.set_by(option, key, value)?;
            }
        }
        config.durability.mode.get_or_insert(mode);
        config.validate()
    }
}

/// The option to lose machines while a benchmark runs.
#[derive(Debug, Args)]
pub(crate) struct LosingArgs {
    /// Lose machines with memory while the benchmark runs, one after another: they are killed, or stopped for up to two leases, and started
    /// again if the others have gone on without them. The machines without memory give the load; the last machine, if all have memory.
    #[arg(long)]
    pub(crate) lose_machines: bool,
}

impl LosingArgs {
    /// Returns the mode of durability, unless the configuration has one.
    pub(crate) fn mode(&self) -> Durability {
        match self.lose_machines {
            true => Durability::Memory,
            false => Durability::None,
        }
    }
}

/// The options for the comparison with other engines.
#[derive(Debug, Args)]
pub(crate) struct BesideArgs {
    /// Run the same requests on other engines afterwards: sqlite and rocksdb in this process, postgres as a server that
    /// this command starts. Needs a program that was built with `--features engines`.
    #[arg(long, value_name = "ENGINE,...", value_delimiter = ',', value_parser = engines())]
    pub(crate) beside: Vec<Engine>,

    /// Number of client threads of each of these engines; by default the number of workers of the cluster.
    #[arg(long, value_name = "N", requires = "beside", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) beside_threads: Option<u16>,
}

fn engines() -> impl TypedValueParser<Value = Engine> {
    let named = |name: String| Engine::ALL.into_iter().find(|engine| engine.name() == name);
    PossibleValuesParser::new(Engine::NAMES)
        .map(move |name| named(name).expect("the parser accepts the names of engines only"))
}

/// The option for the number of measurements.
#[derive(Debug, Args)]
pub(crate) struct RepeatArgs {
    /// Start, load and measure N times, and report the median and the range (least to most) of each figure; the
    /// printed table is that of the median run.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=999))]
    pub(crate) repeat: u16,
}

/// Options of `farm demo`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  farm demo
  farm demo --records 10000000 --duration 30 --set memory.per_machine_bytes=4GiB")]
pub(crate) struct DemoArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// Number of pairs to load.
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = count)]
    pub(crate) records: u64,

    /// Seconds that each workload is measured.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(crate) duration: Duration,

    /// File for the results as JSON.
    #[arg(long, value_name = "FILE", default_value = "farm-demo.json")]
    pub(crate) json: PathBuf,
}

/// Options of `farm node`.
#[derive(Debug, Args)]
#[command(after_help = "\
All machines of a cluster should use the same file. The machines find each other by cluster.name in
cluster.run_dir. When two machines connect, they compare the list of machines and the values of all keys, except of
those that each machine may choose for itself. If these differ, both machines refuse the connection; a
cluster that already runs continues.

Keys that may differ:
  cluster.run_dir (with the fabric \"shm\", machines of different directories do not find each other)
  memory.huge_pages, graph.cached_heads, durability.fill_rate, durability.lease_ms
  worker.idle, worker.spin_us, worker.yield_us, worker.pin, worker.operations_in_flight
  transactions.objects, transactions.bytes, transactions.patience_ms, transactions.open_ms, transactions.concurrency
  rdma.*, and of a [[machine]] cores, address, device, device_port and gid_index

A node stops after SIGINT or SIGTERM, and when another machine of the cluster left, or was lost without copies of
its data; it prints the reason. A machine that was lost is started again by the same command: it joins the others, if
these run (docs/LOSSES.md). Exit status: 0 if this node or the machine that left received a signal, 1 after a failure.

Example, each line in its own terminal:
  farm node --config my.toml --machine 1
  farm node --config my.toml --machine 2")]
pub(crate) struct NodeArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// The id of the machine to run; required if the configuration has several machines.
    #[arg(long, value_name = "ID", value_parser = machine_id)]
    pub(crate) machine: Option<MachineId>,

    /// Execute the orders that the launcher writes to standard input.
    #[arg(long, hide = true)]
    pub(crate) driven: bool,

    /// Attach the handlers of judged workloads to every worker.
    #[arg(long, hide = true, requires = "driven")]
    pub(crate) judged: bool,

    /// Switch on the first deliberate bug whose name contains TEXT, on every worker, from its start.
    #[arg(long, value_name = "TEXT", hide = true, requires = "driven")]
    pub(crate) mutant: Option<String>,
}

/// Parses `KEY=VALUE`.
fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

/// Parses a positive whole number, with or without underscores: `1_000_000`.
fn count(text: &str) -> Result<u64, String> {
    match text.replace('_', "").parse() {
        Ok(0) | Err(_) => Err("expected a whole number of at least 1".to_owned()),
        Ok(number) => Ok(number),
    }
}

/// Parses a positive number of seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    match seconds_or_none(text) {
        Ok(duration) if duration.is_zero() => Err("expected more than 0 seconds".to_owned()),
        result => result,
    }
}

/// Parses a number of seconds, at least 0.
fn seconds_or_none(text: &str) -> Result<Duration, String> {
    let number: f64 = text
        .parse()
        .map_err(|_| "expected a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(number) {
        Ok(duration) if number <= 1e6 => Ok(duration),
        _ => Err("expected a number of seconds between 0 and 1000000".to_owned()),
    }
}

/// Parses the id of a machine.
fn machine_id(text: &str) -> Result<MachineId, String> {
    text.parse()
        .ok()
        .and_then(MachineId::new)
        .ok_or_else(|| "expected the id of a machine, between 1 and 1023".to_owned())
}

#[cfg(test)]
mod tests;
