//! Options of `farm sim`.

use std::path::PathBuf;

use clap::Args;
use farm_sim::run::Scenario;

/// Options of `farm sim`.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "\
The seed determines the whole run: sizes, delays, the schedule of workers, faults. The same seed and the
same build give the same run and the same hash. A scenario is a workload (cycle, bank, append, table,
churn, smallbank, tatp, graph), or a workload with the suffix -loss: then the run loses a machine or a
connection. With the suffix -survived the others go on, with -parted the network is cut, with -restarted all processes are
killed and start again.

Examples:
  farm sim --seeds 1000                          run a thousand seeds over all scenarios
  farm sim --seeds 1000 --scenario bank --jobs 2
  farm sim --seed 17 --scenario bank             run one seed, and print its events
  farm sim --seed 17 --scenario bank --trace run.txt
  farm sim --mutants                             check that the checkers find every deliberate bug
  farm sim --pauses 100 --lease-ms 10            how long there is no service after a kill, with leases of 10 ms

--pauses kills a machine of each of N clusters under load. Nothing proves its end, so that the others go on when its lease has ended. The
times are those for which the protocol waits, in simulated time; processors take no time.

--mutants needs a program that contains the deliberate bugs: cargo build --release --features mutants
docs/TESTING.md describes how to read a run and how to add a scenario, a mark or a mutant."
)]
pub(crate) struct SimArgs {
    /// Run this seed, and print its events.
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "mutants", "first", "jobs", "reach_all"])]
    pub(crate) seed: Option<u64>,

    /// Run N seeds, and print only the failed runs.
    #[arg(long, value_name = "N", value_parser = super::count, conflicts_with_all = ["mutants", "mutant"])]
    pub(crate) seeds: Option<u64>,

    /// Kill a machine of each of N clusters, and another time the manager, and print how long there was no service.
    #[arg(long, value_name = "N", value_parser = super::count, conflicts_with_all = ["seed", "seeds", "mutants", "mutant", "scenario", "trace", "reach_all"])]
    pub(crate) pauses: Option<u64>,

    /// The time of a lease, in milliseconds, in the clusters of --pauses.
    #[arg(long, value_name = "MS", default_value = "10", requires = "pauses", conflicts_with_all = ["seed", "seeds", "mutants", "mutant"], value_parser = clap::value_parser!(u16).range(2..=100))]
    pub(crate) lease_ms: u16,

    /// Number of machines in the clusters of --pauses.
    #[arg(long, value_name = "N", default_value = "5", requires = "pauses", conflicts_with_all = ["seed", "seeds", "mutants", "mutant"], value_parser = clap::value_parser!(u8).range(3..=9))]
    pub(crate) machines: u8,

    /// The first seed of --seeds, --pauses, --mutants and --mutant.
    #[arg(long, value_name = "N", default_value = "0")]
    pub(crate) first: u64,

    /// The scenario of the runs; by default the seed determines it.
    #[arg(long, value_name = "NAME")]
    pub(crate) scenario: Option<Scenario>,

    /// Number of threads that run seeds; the number of cores by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) jobs: Option<u16>,

    /// File for the whole trace of the run, with every event of its fabric.
    #[arg(long, value_name = "FILE", requires = "seed", conflicts_with_all = ["seeds", "mutants"])]
    pub(crate) trace: Option<PathBuf>,

    /// Fail unless the seeds reach every mark: every rare branch of the code that is listed.
    #[arg(long, requires = "seeds")]
    pub(crate) reach_all: bool,

    /// Switch on the deliberate bugs, one at a time, and fail unless a checker finds each.
    #[arg(long, conflicts_with = "scenario")]
    pub(crate) mutants: bool,

    /// Switch on only the deliberate bugs whose names contain TEXT; with --seed, only the first of these.
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) mutant: Option<String>,
}
