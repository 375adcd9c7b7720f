//! `--beside`: the same requests by other engines, after the cluster has stopped.

use anyhow::Context;
use farm_bench::engines::AVAILABLE;
use farm_bench::report::{Beside, Compared, Engine};
use farm_core::config::Config;

use crate::Usage;
use crate::cli::BesideArgs;

/// Returns an error if this program cannot run the engines of the command line.
pub(crate) fn check(args: &BesideArgs) -> anyhow::Result<()> {
    if args.beside.is_empty() || AVAILABLE {
        return Ok(());
    }
    Err(Usage::error(
        "--beside: this program was built without the other engines; build it by ./x engines, or by cargo build \
         --release --package farm-command --features engines",
    ))
}

/// Runs the engines of the command line one after the other, each with an empty directory, and returns their results with
/// the one of the platform. `one` runs an engine with a number of threads.
pub(crate) fn compare<R>(
    args: &BesideArgs,
    config: &Config,
    run: R,
    mut one: impl FnMut(&R, Engine, &std::path::Path, usize) -> anyhow::Result<Beside<R>>,
) -> anyhow::Result<Compared<R>> {
    let threads = args
        .beside_threads
        .map_or(config.total_workers(), usize::from);
    let mut beside = Vec::new();
    for engine in &args.beside {
        let name = engine.name();
        crate::write_stderr(format_args!("beside: {name}, {threads} client threads"));
        let dir = tempfile::Builder::new()
            .prefix("farm-beside-")
            .tempdir_in(&config.memory.dir);
        let dir = dir.with_context(|| {
            format!(
                "cannot create a directory for {name} in {}",
                config.memory.dir.display()
            )
        })?;
        let result = one(&run, *engine, dir.path(), threads);
        beside.push(result.with_context(|| format!("cannot compare with {name}"))?);
    }
    Ok(Compared { run, beside })
}
