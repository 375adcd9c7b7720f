//! The command line: every subcommand and option, with the help that teaches them.
//!
//! Options that stand for keys of the configuration end in [`Config::set_by`], so that what is wrong
//! with them is told in the same words as in a file, with the option as its origin.

mod oltp;
mod sim;
mod workload;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use farm_bench::ycsb::spec::Distribution;
use farm_core::config::{Config, ConfigError, parse_size};
use farm_core::ids::MachineId;

pub(crate) use oltp::{OltpArgs, SmallbankArgs, TatpArgs};
pub(crate) use sim::SimArgs;
pub(crate) use workload::WorkloadArgs;

/// The text of `config/local.toml`, used where no file is named.
const LOCAL: &str = include_str!("../../../config/local.toml");
/// What errors call it.
const LOCAL_NAME: &str = "config/local.toml (built in)";

/// Memory of many machines as one address space, read one-sidedly, with a hashtable on top.
#[derive(Debug, Parser)]
#[command(
    name = "farm",
    version,
    arg_required_else_help = true,
    after_help = "\
Examples:
  farm demo                                      three machines on this host, loaded and measured
  farm doctor                                    what this host offers, and what to change
  farm ycsb --workload c --records 1000000       lookups only, on a cluster started for the purpose
  farm ycsb -P config/ycsb/workloadb --verify    a YCSB property file, every read checked
  farm tatp --subscribers 100000                 transactions on a telecom's subscribers
  farm smallbank --accounts 100000               transactions between accounts, the money counted after
  farm workload bank --verify                    transactions of three processes, judged
  farm sim --seeds 1000                          a thousand clusters in a simulator, and a verdict
  farm bench limit                               how fast this host's memory is: the bound of all
  farm clean --dry-run                           what killed clusters left in memory

`farm <command> --help` tells about each. Configuration files are documented in config/local.toml.
Exit status: 0 only if nothing failed and nothing was read wrong; 2 for a wrong command line or
configuration; 1 for everything else."
)]
pub(crate) struct Cli {
    /// What is logged to standard error, as in `info` or `farm_core=debug,warn`; overrides RUST_LOG.
    #[arg(long, global = true, value_name = "FILTER")]
    pub(crate) log: Option<String>,

    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Load three machines on this host, run YCSB C and B, and print what they did.
    Demo(DemoArgs),
    /// Run YCSB workloads on a cluster that is started for them and stopped after.
    Ycsb(YcsbArgs),
    /// Run TATP, transactions on a telecom's subscribers, on a cluster that is started for it.
    Tatp(TatpArgs),
    /// Run SmallBank, transactions between accounts, on a cluster that is started for it.
    Smallbank(SmallbankArgs),
    /// Run one machine of a cluster until it is stopped.
    Node(NodeArgs),
    /// Measure one part of the platform by itself.
    Bench(BenchArgs),
    /// Run a workload whose every answer is judged, on a cluster that is started for it.
    Workload(WorkloadArgs),
    /// Run the platform in a simulator that breaks what can break, and judge what it did.
    Sim(SimArgs),
    /// Tell what this host offers a cluster, and what to change, with the command.
    Doctor(DoctorArgs),
    /// Remove the shared memory, locks and sockets of machines that were killed.
    Clean(CleanArgs),
}

/// Where the configuration comes from.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ConfigArgs {
    /// The configuration; config/local.toml, which is built in, unless given.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Overrides a key of the configuration, as in memory.region_bytes=1GiB; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) set: Vec<(String, String)>,
}

impl ConfigArgs {
    /// The file, without overrides.
    pub(crate) fn load(&self) -> Result<Config, ConfigError> {
        match &self.config {
            Some(path) => Config::load(path),
            None => Config::from_str(LOCAL, LOCAL_NAME),
        }
    }

    /// What messages call the file.
    pub(crate) fn name(&self) -> String {
        self.config
            .as_ref()
            .map_or_else(|| LOCAL_NAME.to_owned(), |path| path.display().to_string())
    }

    /// Applies the overrides.
    pub(crate) fn apply(&self, config: &mut Config) -> Result<(), ConfigError> {
        self.set
            .iter()
            .try_for_each(|(key, value)| config.set(key, value))
    }

    /// The file with the overrides applied, checked.
    pub(crate) fn resolve(&self) -> Result<Config, ConfigError> {
        let mut config = self.load()?;
        self.apply(&mut config)?;
        config.validate()?;
        Ok(config)
    }
}

/// The cluster that a command starts.
#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// So many machines, whatever the configuration lists.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1023))]
    pub(crate) machines: Option<u16>,

    /// So many workers on every machine.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) workers: Option<u16>,
}

impl ClusterArgs {
    /// Applies the options that are keys of the configuration, with `keys` as further ones (option, key
    /// and value), and checks the whole.
    pub(crate) fn configure(
        &self,
        config: &mut Config,
        keys: &[(&str, &str, &Option<String>)],
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
        config.validate()
    }
}

/// How often a command measures.
#[derive(Debug, Args)]
pub(crate) struct RepeatArgs {
    /// Measure N times, from the start and load on, and report the median and the spread (least to most) of
    /// each figure; the table is that of the median run.
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

    /// Pairs to load.
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = count)]
    pub(crate) records: u64,

    /// How long each workload is measured.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(crate) duration: Duration,

    /// Where the results are written as JSON.
    #[arg(long, value_name = "FILE", default_value = "farm-demo.json")]
    pub(crate) json: PathBuf,
}

/// Options of `farm ycsb`.
#[derive(Debug, Args)]
#[command(after_help = "\
What is said later counts: defaults, the configuration, the property file, -p, then the options.

Properties of YCSB that bound a run: operationcount, operations of all workers together, failed ones
included; maxexecutiontime, in seconds; target, operations per second that it is held to; threadcount,
operations in flight at a time, of all workers together (a thread of the reference client has one).
With operationcount there is no other bound of time than --duration or maxexecutiontime, and --duration
overrides an operationcount that a file sets. Unknown properties are named in a warning, those without
effect in a note; those that ask for another workload are refused.

Distributions: uniform; zipfian, which is the meaning of the reference client (constant 0.99 over ten
thousand million ranks, hashed onto the records); zipfian-plain, Zipf 0.99 over the records
themselves; latest; hotspot; exponential; sequential.

Examples:
  farm ycsb --workload b,c --records 1000000 --duration 10
  farm ycsb -P config/ycsb/workloada -p recordcount=5000000 --machines 2 --json a.json
  farm ycsb --workload b -p target=50000 -p threadcount=32 -p operationcount=1000000
  farm ycsb --workload c --duration 5 --repeat 5
  farm ycsb --workload c --distribution uniform --neighbourhood 8 --verify")]
pub(crate) struct YcsbArgs {
    /// A YCSB property file; may be repeated, and later ones count.
    #[arg(short = 'P', long = "properties", value_name = "FILE")]
    pub(crate) property_files: Vec<PathBuf>,

    /// A YCSB property; may be repeated.
    #[arg(short = 'p', long = "property", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) properties: Vec<(String, String)>,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    /// Pairs to load.
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) records: Option<u64>,

    /// How long each workload is measured at most; 10 unless given, or a property bounds it.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) duration: Option<Duration>,

    /// How long each workload runs before it is measured.
    #[arg(long, value_name = "SECONDS", value_parser = seconds_or_none)]
    pub(crate) warmup: Option<Duration>,

    /// The neighbourhood H of the table: 2, 4, 6, 8 or 12.
    #[arg(long, value_name = "H")]
    pub(crate) neighbourhood: Option<String>,

    /// The share of slots that are full after loading, above 0 and at most 1.
    #[arg(long, value_name = "X")]
    pub(crate) occupancy: Option<String>,

    /// Bytes of each value.
    #[arg(long, value_name = "N")]
    pub(crate) value_bytes: Option<String>,

    /// Workloads to run one after the other, on the same table.
    #[arg(long, value_name = "A,B,C…", value_delimiter = ',', ignore_case = true)]
    pub(crate) workload: Vec<Workload>,

    /// How keys are chosen, whatever the workload says.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(Distribution::NAMES), ignore_case = true)]
    pub(crate) distribution: Option<String>,

    /// Seed of every choice; the same seed gives the same operations.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// Commits lock exclusively from the start: to measure what the readable mode of locks is worth.
    #[arg(long, hide = true)]
    pub(crate) exclusive_locks: bool,

    /// Check every value that is read, whole.
    #[arg(long)]
    pub(crate) verify: bool,

    #[command(flatten)]
    pub(crate) repeat: RepeatArgs,

    /// Where the results are written as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl YcsbArgs {
    /// Applies the options that are keys of the configuration, and checks the whole.
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
        self.cluster.configure(config, &keys)
    }
}

/// A core workload of YCSB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// Half reads, half updates; skewed.
    A,
    /// 95 % reads, 5 % updates; skewed.
    B,
    /// Reads only; skewed.
    C,
    /// 95 % reads of what was inserted latest, 5 % inserts.
    D,
    /// Scans: needs an ordered index, which there is none of yet.
    E,
    /// Half reads, half reads that are written back changed; skewed.
    F,
}

/// Options of `farm node`.
#[derive(Debug, Args)]
#[command(after_help = "\
Every machine of a cluster is given the same file. The machines find each other by cluster.name in
cluster.run_dir; one whose file differs is refused at once, on both sides, also by a cluster that runs.

A node stops at SIGINT or SIGTERM, and when another machine of the cluster left or was lost; it says
which. Exit status: 0 after a signal to it or to the machine that left, 1 after a failure.

Example, each in its own terminal:
  farm node --config my.toml --machine 1
  farm node --config my.toml --machine 2")]
pub(crate) struct NodeArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// The id of the machine to run; needed unless the configuration has only one.
    #[arg(long, value_name = "ID", value_parser = machine_id)]
    pub(crate) machine: Option<MachineId>,

    /// Take orders from the command that started it, on standard input.
    #[arg(long, hide = true)]
    pub(crate) driven: bool,

    /// Attach the handlers of judged workloads to every worker.
    #[arg(long, hide = true, requires = "driven")]
    pub(crate) judged: bool,
}

/// Options of `farm bench`.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "\
Examples:
  farm bench limit --bytes 4GiB
  farm bench ring --sizes 16,64,256 --cores 0,1
  farm bench fabric --fabric verbs --set machine.1.device=mlx5_0 --set machine.2.device=mlx5_1
  farm bench commit --repeat 5
  farm bench alloc --json alloc.json"
)]
pub(crate) struct BenchArgs {
    /// What to measure.
    #[command(subcommand)]
    pub(crate) what: Bench,
}

/// What `farm bench` measures.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// One worker's lookups in another machine's memory, beside the limit: random reads of the same
    /// bytes of the same memory, as fast as this host can do them.
    Limit(BenchLimitArgs),
    /// Round trips and messages per second over rings between two processes.
    Ring(BenchPairArgs),
    /// One-sided reads and writes, beside the memory itself; over RDMA devices beside perftest.
    Fabric(BenchFabricArgs),
    /// Fragmentation of the allocator by size class.
    Alloc(BenchAllocArgs),
    /// Commits of transactions of 1, 2 and 4 objects over 1, 2 and 3 machines, alone and where they meet,
    /// beside a round trip over rings and a one-sided write.
    Commit(BenchCommitArgs),
}

/// Options of `farm bench commit`.
#[derive(Debug, Args)]
pub(crate) struct BenchCommitArgs {
    /// Transactions under way at a time where throughput is measured.
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) in_flight: u16,

    #[command(flatten)]
    pub(crate) common: BenchCommonArgs,
}

/// Options of `farm bench limit`.
#[derive(Debug, Args)]
pub(crate) struct BenchLimitArgs {
    /// Bytes to read from, which should be many times the cache.
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = parse_size)]
    pub(crate) bytes: u64,

    /// The neighbourhood H of the table: how many bytes a lookup reads.
    #[arg(long, value_name = "H", default_value = "6")]
    pub(crate) neighbourhood: u32,

    /// Lookups in flight at a time; several are measured one after the other.
    #[arg(
        long,
        value_name = "N,N…",
        value_delimiter = ',',
        default_value = "16,32,64,128,256",
        value_parser = clap::value_parser!(u32).range(1..=4096)
    )]
    pub(crate) in_flight: Vec<u32>,

    #[command(flatten)]
    pub(crate) common: BenchCommonArgs,
}

/// Options of the benches between two processes.
#[derive(Debug, Args)]
pub(crate) struct BenchPairArgs {
    /// Bytes of one message or operation; several are measured one after the other.
    #[arg(
        long,
        value_name = "N,N…",
        value_delimiter = ',',
        default_value = "16,64,256,1024,4096",
        value_parser = parse_size
    )]
    pub(crate) sizes: Vec<u64>,

    /// The cores the two processes are pinned to.
    #[arg(long, value_name = "A,B", value_delimiter = ',', num_args = 1..=2)]
    pub(crate) cores: Vec<u32>,

    #[command(flatten)]
    pub(crate) common: BenchCommonArgs,
}

/// Options of `farm bench fabric`.
#[derive(Debug, Args)]
pub(crate) struct BenchFabricArgs {
    /// The fabric: the configuration's unless given. RDMA devices are those of its first two machines.
    #[arg(long, value_name = "shm|verbs")]
    pub(crate) fabric: Option<String>,

    /// Turns of each measurement over RDMA devices, taken in turn with perftest's.
    #[arg(long, value_name = "N", default_value = "9", value_parser = clap::value_parser!(u16).range(1..=999))]
    pub(crate) pairs: u16,

    /// Operations of one such turn, rounded up to a multiple of 32.
    #[arg(long, value_name = "N", default_value = "2000", value_parser = clap::value_parser!(u32).range(10..=10_000_000))]
    pub(crate) operations: u32,

    #[command(flatten)]
    pub(crate) pair: BenchPairArgs,
}

/// Options of `farm bench alloc`.
#[derive(Debug, Args)]
pub(crate) struct BenchAllocArgs {
    /// Seed of the sizes that are allocated and freed.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    #[command(flatten)]
    pub(crate) common: BenchCommonArgs,
}

/// Options of every bench.
#[derive(Debug, Args)]
pub(crate) struct BenchCommonArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// How long each measurement takes.
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = seconds)]
    pub(crate) duration: Duration,

    #[command(flatten)]
    pub(crate) repeat: RepeatArgs,

    /// Where the results are written as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Options of `farm doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
Findings are marked ok, note (a fact to know), advice (something to improve), or problem (the
configuration cannot run); the exit status is 1 if there is a problem.

Examples:
  farm doctor
  farm doctor --config config/local.toml --set memory.per_machine_bytes=8GiB
  farm doctor --json | jq '.findings[] | select(.level == \"problem\")'")]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// Print everything as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `farm clean`.
#[derive(Debug, Args)]
#[command(after_help = "\
Processes that are killed (kill -9, or for want of memory) leave their shared memory in memory.dir, and
their locks and sockets in cluster.run_dir. The next start with the same memory.dir removes them, too.
Every running machine holds locks on its files; what is locked is never touched, and neither are files of
other users. Of all clusters that used these two directories, not only of the configuration's.

Examples:
  farm clean --dry-run
  farm clean
  farm clean --set memory.dir=/mnt/farm-huge --set cluster.run_dir=/tmp/farm-0")]
pub(crate) struct CleanArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// Only list what would be removed.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// `KEY=VALUE`.
fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

/// A positive whole number, which may be grouped: `1_000_000`.
fn count(text: &str) -> Result<u64, String> {
    match text.replace('_', "").parse() {
        Ok(0) | Err(_) => Err("expected a whole number of at least 1".to_owned()),
        Ok(number) => Ok(number),
    }
}

/// A positive number of seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    match seconds_or_none(text) {
        Ok(duration) if duration.is_zero() => Err("expected more than 0 seconds".to_owned()),
        result => result,
    }
}

/// A number of seconds, which may be 0.
fn seconds_or_none(text: &str) -> Result<Duration, String> {
    let number: f64 = text
        .parse()
        .map_err(|_| "expected a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(number) {
        Ok(duration) if number <= 1e6 => Ok(duration),
        _ => Err("expected a number of seconds between 0 and 1000000".to_owned()),
    }
}

/// The id of a machine.
fn machine_id(text: &str) -> Result<MachineId, String> {
    text.parse()
        .ok()
        .and_then(MachineId::new)
        .ok_or_else(|| "expected the id of a machine, between 1 and 1023".to_owned())
}

#[cfg(test)]
mod tests;
