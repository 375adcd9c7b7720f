//! `farm bench losses`: how long a cluster gives no service when a machine is killed.

use anyhow::Context;
use farm_bench::losses::{LossOptions, LossReport, draw};
use farm_core::config::{Config, Durability};

use super::{progress, publish};
use crate::Usage;
use crate::cli::BenchLossesArgs;
use crate::measure::try_writing;
use crate::scratch::Scratch;

/// Runs `farm bench losses`.
pub(crate) fn run(args: &BenchLossesArgs) -> anyhow::Result<()> {
    let mut config = args.common.config.resolve_temporary()?;
    if !config.is_logged() {
        config.durability.mode = Some(Durability::Memory);
    }
    // Names have at most 40 characters.
    let name: String = config.cluster.name.chars().take(32).collect();
    config.cluster.name = format!("{name}-losses");
    config.validate()?;
    let has_copies = config.replicas() > 1 && config.machines.len() > 1;
    if !config.survives_losses() || !has_copies {
        return Err(Usage::error(
            "this configuration does not survive the loss of a machine, so there is nothing to measure; that needs cluster.fabric = \
             \"shm\", two or more machines, and durability.replicas of 2 or more",
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

fn measure(args: &BenchLossesArgs, config: &Config) -> anyhow::Result<LossReport> {
    let scratch = Scratch::new(&std::env::temp_dir())?;
    let options = LossOptions {
        kills: args.kills.into(),
        stops: args.stop,
        after: args.common.duration,
        in_flight: args.in_flight.into(),
        ballast: args.ballast,
    };
    farm_bench::losses::run(config, &options, scratch.path(), &mut progress)
}
