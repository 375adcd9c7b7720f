//! Options of `farm sim`.

use std::path::PathBuf;

use clap::Args;
use farm_sim::run::Scenario;

/// Options of `farm sim`.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "\
A seed decides everything: sizes, delays, who runs when, what breaks. The same seed of the same build
is the same run, to the last bit of its hash. A scenario is a workload (cycle, bank, append, table,
churn, smallbank, tatp), alone or with -loss, where a machine or a connection is lost on the way.

Examples:
  farm sim --seeds 1000                          a thousand runs over all scenarios
  farm sim --seeds 1000 --scenario bank --jobs 2
  farm sim --seed 17 --scenario bank             one run, with what happened
  farm sim --seed 17 --scenario bank --trace run.txt
  farm sim --mutants                             deliberate bugs, each to be found (see below)

--mutants needs a program that was built with them: cargo build --release --features mutants
docs/TESTING.md tells how to read a run and how to add a scenario, a mark or a mutant."
)]
pub(crate) struct SimArgs {
    /// Run this seed, and print what happened.
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "mutants"])]
    pub(crate) seed: Option<u64>,

    /// Run so many seeds, and print only what failed.
    #[arg(long, value_name = "N", value_parser = super::count, conflicts_with_all = ["mutants", "mutant"])]
    pub(crate) seeds: Option<u64>,

    /// The first of the seeds.
    #[arg(long, value_name = "N", default_value = "0")]
    pub(crate) first: u64,

    /// What the runs are of; all scenarios in turn unless given.
    #[arg(long, value_name = "NAME")]
    pub(crate) scenario: Option<Scenario>,

    /// Runs at one time; as many as there are cores unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) jobs: Option<u16>,

    /// Where the whole trace of a run goes, every event of its fabric included.
    #[arg(long, value_name = "FILE", requires = "seed", conflicts_with_all = ["seeds", "mutants"])]
    pub(crate) trace: Option<PathBuf>,

    /// Fail if the seeds did not reach every rare branch that carries a mark.
    #[arg(long, requires = "seeds")]
    pub(crate) reach_all: bool,

    /// Switch deliberate bugs on, one at a time, and demand that a checker finds each.
    #[arg(long, conflicts_with = "scenario")]
    pub(crate) mutants: bool,

    /// Only the deliberate bugs whose names contain this; with --seed, the run has the first of them.
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) mutant: Option<String>,
}
