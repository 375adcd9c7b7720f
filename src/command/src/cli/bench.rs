//! Options of `farm bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use farm_bench::losses::Killed;
use farm_core::config::parse_size;

use super::{ConfigArgs, RepeatArgs, seconds};

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
--duration is the time that is observed after the signal, without --all. The time without service ends when the commits of the other
machines in 10 ms reach 80 % of their rate in the second half of that time. Without an override, copies are kept in
memory: durability.mode = \"memory\".

Examples:
  farm bench losses
  farm bench losses --kills 100 --duration 10 --svg losses.svg --json losses.json
  farm bench losses --stop --only manager
  farm bench losses --all --ballast 1GiB
  farm bench losses --set durability.replicas=3")]
pub(crate) struct BenchLossesArgs {
    /// Number of kills.
    #[arg(long, value_name = "N", default_value = "6", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) kills: u16,

    /// Stop machines (SIGSTOP) instead of killing them: the others go on after a lease (durability.lease_ms).
    #[arg(long)]
    pub(crate) stop: bool,

    /// Kill all processes each time, and measure how long the next ones take to go on.
    #[arg(long, conflicts_with_all = ["stop", "only", "svg"])]
    pub(crate) all: bool,

    /// Kill only these machines: with memory, but not the manager; the manager; or without memory. By default all take turns.
    #[arg(long, value_name = "WHAT", value_parser = killed())]
    pub(crate) only: Option<Killed>,

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

fn killed() -> impl TypedValueParser<Value = Killed> {
    PossibleValuesParser::new(["machine", "manager", "program"]).map(|name| match name.as_str() {
        "manager" => Killed::Manager,
        "program" => Killed::Program,
        _ => Killed::Machine,
    })
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
