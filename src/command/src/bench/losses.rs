//! `farm bench losses`: how long a cluster gives no service when a machine is killed.

use anyhow::Context;
use farm_bench::losses::{Killed, LossOptions, LossReport, draw, restart_all};
use farm_core::config::{Config, Durability};

use super::{progress, publish};
use crate::Usage;
use crate::cli::BenchLossesArgs;
use crate::measure::try_writing;
use crate::scratch::{Scratch, forget_abandoned};

/// Runs `farm bench losses`.
pub(crate) fn run(args: &BenchLossesArgs) -> anyhow::Result<()> {
    let mut config = args.common.config.resolve_temporary(Durability::Memory)?;
    // Names have at most 40 characters.
    let name: String = config.cluster.name.chars().take(32).collect();
    config.cluster.name = format!("{name}-losses");
    config.validate()?;
    if args.all {
        return restart(args, &config);
    }
    let has_copies = config.replicas() > 1 && config.machines.len() > 1;
    if !config.survives_losses() || !has_copies {
        return Err(Usage::error(
            "this configuration does not survive the loss of a machine, so there is nothing to measure; that needs durability.mode = \
             \"memory\", cluster.fabric = \"shm\", two or more machines, and durability.replicas of 2 or more",
        ));
    }
    let (lease, observed) = (config.lease(), args.common.duration);
    if args.stop && observed < 2 * lease {
        return Err(Usage::error(format!(
            "the others go on {lease:?} after a machine was stopped (--stop, durability.lease_ms), and {observed:?} are observed (--duration): \
             observe twice as long or more"
        )));
    }
    let has_programs = config.storing_machines().count() < config.machines.len();
    if args.only == Some(Killed::Program) && !has_programs {
        return Err(Usage::error(
            "all machines of the configuration have memory, so that there is no program to kill (--only program)",
        ));
    }
    let svg = args.svg.as_deref();
    svg.map(|path| try_writing(path, "--svg")).transpose()?;
    let mut runs = 0;
    publish(&args.common, &config, || {
        runs += 1;
        let report = measure(args, &config)?;
        // With --repeat, the figure is that of the first run.
        if let (Some(path), 1) = (svg, runs) {
            let figure = draw(&report)?;
            std::fs::write(path, figure).with_context(|| {
                format!("cannot write the figure to {} (--svg)", path.display())
            })?;
        }
        Ok(report)
    })
}

/// Kills all processes, and measures how long the next ones take to go on.
fn restart(args: &BenchLossesArgs, config: &Config) -> anyhow::Result<()> {
    if !config.keeps_memory() {
        return Err(Usage::error(
            "the memory of this configuration ends with its processes, so there is nothing to measure (--all); that needs \
             cluster.fabric = \"shm\"",
        ));
    }
    publish(&args.common, config, || {
        let scratch = scratch(config)?;
        restart_all(config, &options(args), scratch.path(), &mut progress)
    })
}

fn measure(args: &BenchLossesArgs, config: &Config) -> anyhow::Result<LossReport> {
    let scratch = scratch(config)?;
    farm_bench::losses::run(config, &options(args), scratch.path(), &mut progress)
}

/// Creates the directory of all clusters of a run. Removes what a run has left that was killed.
fn scratch(config: &Config) -> anyhow::Result<Scratch> {
    forget_abandoned(config);
    Scratch::new(&std::env::temp_dir())
}

fn options(args: &BenchLossesArgs) -> LossOptions {
    LossOptions {
        kills: args.kills.into(),
        only: args.only,
        stops: args.stop,
        after: args.common.duration,
        in_flight: args.in_flight.into(),
        ballast: args.ballast,
    }
}
