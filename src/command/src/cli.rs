//! The command line: every subcommand and option, with its help text.
//!
//! Options that set a key of the configuration call [`Config::set_by`]. An error in such an option therefore has
//! the same text as an error in a file, with the option as its origin.

mod edges;
mod linkbench;
mod oltp;
mod sim;
mod taobench;
mod workload;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use farm_bench::report::Engine;
use farm_bench::ycsb::spec::Distribution;
use farm_core::config::{Config, ConfigError, Durability, parse_size};
use farm_core::ids::MachineId;

pub(crate) use edges::EdgesArgs;
pub(crate) use linkbench::{LinkMix, LinkbenchArgs};
pub(crate) use oltp::{OltpArgs, SmallbankArgs, TatpArgs};
pub(crate) use sim::SimArgs;
pub(crate) use taobench::{TaoMix, TaobenchArgs};
pub(crate) use workload::{CampaignArgs, WorkloadArgs};

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

    /// As [`ConfigArgs::resolve`], for a cluster that ends with the command and leaves nothing, unless the configuration asks for it.
    pub(crate) fn resolve_temporary(&self) -> Result<Config, ConfigError> {
        let mut config = self.load()?;
        self.apply(&mut config)?;
        config.durability.mode.get_or_insert(Durability::None);
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
    pub(crate) fn resolve(&self) -> Result<Config, ConfigError> {
        let mut config = self.config.load()?;
        self.configure(&mut config, &[])?;
        Ok(config)
    }

    /// Applies `--set`, `--machines`, `--workers` and the options in `keys` (option, key, value) to `config`,
    /// and validates the result.
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
        // It ends with the command.
        config.durability.mode.get_or_insert(Durability::None);
        config.validate()
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
        self.cluster.configure(config, &keys)
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
    /// The part to measure.
    #[command(subcommand)]
    pub(crate) what: Bench,
}

/// A subcommand of `farm bench`.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Measure lookups of one worker in another machine's memory, and their limit: raw random reads of the same
    /// number of bytes from the same memory.
    Limit(BenchLimitArgs),
    /// Measure round trips and messages per second over rings between two processes.
    Ring(BenchPairArgs),
    /// Measure one-sided reads and writes, and compare them with plain memory accesses, or over RDMA devices with
    /// perftest.
    Fabric(BenchFabricArgs),
    /// Measure the fragmentation of the allocator by size class.
    Alloc(BenchAllocArgs),
    /// Measure commits of transactions of 1, 2 and 4 objects on 1, 2 and 3 machines, with and without conflicts,
    /// and compare them with a round trip over rings and a one-sided write.
    Commit(BenchCommitArgs),
    /// Kill machines of running clusters, and measure how long the others give no service.
    Losses(BenchLossesArgs),
}

/// Options of `farm bench losses`.
#[derive(Debug, Args)]
#[command(after_help = "\
Machines are processes that move money between accounts of all machines. For each kill a cluster is started, and one of
its machines gets SIGKILL, or with --stop SIGSTOP. The machines take turns, those without memory, too; the first one is the manager.
--duration is the time that is observed after the signal. The time without service ends when the commits of the other
machines in 10 ms reach 80 % of their rate in the second half of that time. Without an override, copies are kept in
memory: durability.mode = \"memory\".

Examples:
  farm bench losses
  farm bench losses --kills 100 --duration 10 --svg losses.svg --json losses.json
  farm bench losses --stop
  farm bench losses --set durability.replicas=3")]
pub(crate) struct BenchLossesArgs {
    /// Number of kills.
    #[arg(long, value_name = "N", default_value = "6", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) kills: u16,

    /// Stop machines (SIGSTOP) instead of killing them: the others go on after a lease (durability.lease_ms).
    #[arg(long)]
    pub(crate) stop: bool,

    /// Transactions in flight on each worker.
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) in_flight: u16,

    /// Bytes of further objects that each machine creates, which a machine that comes back has to copy.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_size)]
    pub(crate) ballast: u64,

    /// File for a figure: throughput around the signal, and the times of all kills.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) common: BenchCommonArgs,
}

/// Options of `farm bench commit`.
#[derive(Debug, Args)]
pub(crate) struct BenchCommitArgs {
    /// Transactions in flight in measurements of throughput.
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) in_flight: u16,

    #[command(flatten)]
    pub(crate) common: BenchCommonArgs,
}

/// Options of `farm bench limit`.
#[derive(Debug, Args)]
pub(crate) struct BenchLimitArgs {
    /// Bytes of the memory that lookups read; use many times the size of the cache.
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = parse_size)]
    pub(crate) bytes: u64,

    /// The neighbourhood H of the table; it determines the bytes that a lookup reads.
    #[arg(long, value_name = "H", default_value = "6")]
    pub(crate) neighbourhood: u32,

    /// Lookups in flight; several numbers are measured one after another.
    #[arg(
        long,
        value_name = "N,N…",
        value_delimiter = ',',
        default_value = "16,32,64,128,256",
        value_parser = clap::value_parser!(u32).range(1..=4096)
    )]
    pub(crate) in_flight: Vec<u32>,

    /// Measure lookups in the maps of hashbrown and papaya, too, with as many pairs in the memory of this process.
    #[arg(long)]
    pub(crate) maps: bool,

    #[command(flatten)]
    pub(crate) common: BenchCommonArgs,
}

/// Options of the benches with two processes.
#[derive(Debug, Args)]
pub(crate) struct BenchPairArgs {
    /// Bytes of one message or operation; several sizes are measured one after another.
    #[arg(
        long,
        value_name = "N,N…",
        value_delimiter = ',',
        default_value = "16,64,256,1024,4096",
        value_parser = parse_size
    )]
    pub(crate) sizes: Vec<u64>,

    /// The cores to which the two processes are pinned; `farm bench fabric` over shared memory uses the first.
    #[arg(long, value_name = "A,B", value_delimiter = ',', num_args = 1..=2)]
    pub(crate) cores: Vec<u32>,

    #[command(flatten)]
    pub(crate) common: BenchCommonArgs,
}

/// Options of `farm bench fabric`.
#[derive(Debug, Args)]
pub(crate) struct BenchFabricArgs {
    /// The fabric; by default cluster.fabric of the configuration. With verbs, the first two machines of the
    /// configuration determine the devices.
    #[arg(long, value_name = "shm|verbs")]
    pub(crate) fabric: Option<String>,

    /// Repetitions of each measurement over RDMA devices, alternating with perftest.
    #[arg(long, value_name = "N", default_value = "9", value_parser = clap::value_parser!(u16).range(1..=999))]
    pub(crate) pairs: u16,

    /// Operations of one repetition over RDMA devices, rounded up to a multiple of 32.
    #[arg(long, value_name = "N", default_value = "2000", value_parser = clap::value_parser!(u32).range(10..=10_000_000))]
    pub(crate) operations: u32,

    #[command(flatten)]
    pub(crate) pair: BenchPairArgs,
}

/// Options of `farm bench alloc`.
#[derive(Debug, Args)]
pub(crate) struct BenchAllocArgs {
    /// Seed of the random sizes that are allocated and freed.
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

    /// Seconds of each measurement.
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = seconds)]
    pub(crate) duration: Duration,

    #[command(flatten)]
    pub(crate) repeat: RepeatArgs,

    /// File for the results as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Options of `farm doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
Levels of findings: ok; note (a fact to know); advice (something to improve); problem (the configuration
cannot run on this host). Exit status: 1 if there is a problem, otherwise 0.

Examples:
  farm doctor
  farm doctor --config config/local.toml --set memory.per_machine_bytes=8GiB
  farm doctor --json | jq '.findings[] | select(.level == \"problem\")'")]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// Print the host, the configuration and the findings as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `farm status`.
#[derive(Debug, Args)]
#[command(after_help = "\
The machines are those of the configuration, and are found by cluster.name and cluster.run_dir. They run on
this host, in any process of this user: `farm node`, or a program with Cluster::local, from_file or join. Nothing is
stopped. Rates are those of one interval. Tables have their numbers, not their names.

Exit status: 0 if all machines run, 1 if one does not.

Examples:
  farm status --config my.toml
  farm status --config my.toml --watch
  farm status --config my.toml --json | jq '.machines[].per_second.committed'")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// Report again after each interval, until interrupted.
    #[arg(long)]
    pub(crate) watch: bool,

    /// Print JSON, one line for each report.
    #[arg(long)]
    pub(crate) json: bool,

    /// Seconds over which rates are measured.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(crate) interval: f64,
}

/// Options of `farm verify`.
#[derive(Debug, Args)]
#[command(after_help = "\
A cluster with durability.mode = \"memory\" stores every region on durability.replicas machines: a primary, and
backups, which apply commits later, from their logs. This command compares them: the allocated objects with
versions, incarnations and bytes, the freed objects without their bytes, and the blocks with size classes, lengths
and bases. Each machine computes digests of its replicas; only these are compared, and the objects of blocks whose
digests differ. Memory that transactions reserved and never committed may differ.

The machines are those of the configuration, found as `farm status` finds them: on this host, in any process of
this user. All that store regions must run. Programs may read, but must not write meanwhile: the command waits until all
log records are applied, and compares again if there were new ones.

Exit status: 0 if all replicas are equal; 1 if some differ: the output names the objects and machines; 3 if they
could not be compared, because a machine does not answer, the cluster is not idle, or there is one replica only;
2 if the command line or the configuration is wrong.

Examples:
  farm verify --config my.toml
  farm verify --config my.toml --wait 60
  farm verify --config my.toml --json | jq '.differences[] | [.machine, .address, .differs]'")]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,

    /// Seconds to wait for the cluster to become idle.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds_or_none)]
    pub(crate) wait: Duration,
}

/// Parses a number of seconds.
fn interval(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.05..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected a number of seconds between 0.05 and 3600".to_owned()),
    }
}

/// Options of `farm clean`.
#[derive(Debug, Args)]
#[command(after_help = "\
A killed process (kill -9, or the out-of-memory killer) leaves its shared memory in memory.dir, and its
lock and socket in cluster.run_dir. This command removes such files of all clusters that used these two
directories. The next start of a machine with the same memory.dir removes the shared memory, too.
A running machine holds locks on its files. The command never removes locked files or files of other users.

A cluster with durability.mode = \"memory\" and copies keeps its data when it ends, for the next start. This command only
reports that; farm destroy removes it.

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

/// Options of `farm destroy`.
#[derive(Debug, Args)]
#[command(after_help = "\
A cluster with durability.mode = \"memory\" and copies keeps its data when all of its processes have ended: its configuration in
durability.dir, the memory of its machines in memory.dir, and journals in cluster.run_dir. The next start goes on with them.
This command says what there is of the cluster of --config and --set, and with --yes it removes all of it. It refuses if a
machine of that cluster runs, and if durability.dir has something else: another cluster's configuration, a damaged one, or one
of a newer program.

Examples:
  farm destroy --config my.toml
  farm destroy --yes --config my.toml")]
pub(crate) struct DestroyArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// Remove it, after saying what it is.
    #[arg(long)]
    pub(crate) yes: bool,
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
