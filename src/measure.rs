//! What the commands that measure have in common.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use farm_bench::report::Report;
use farm_core::config::Config;
use farm_core::config::host::HostFacts;
use farm_kv::TableSpec;
use farm_kv::layout::Layout;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::cluster::Cluster;
use crate::cluster::protocol::{News, Order};

/// The commit this program was built from, if the build could tell.
const COMMIT: Option<&str> = option_env!("FARM_COMMIT");

/// Measures on a cluster that is started for it and stopped after.
pub(crate) fn on_cluster<T>(
    config: &Config,
    json: Option<&Path>,
    log: Option<&str>,
    measure: impl FnOnce(&mut Cluster) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    if let Some(path) = json {
        try_writing(path)?;
    }
    let mut cluster = Cluster::start(config, log)?;
    // The first error is the one that matters: a cluster that is dropped is stopped, and says no more.
    let measured = measure(&mut cluster)?;
    cluster.stop()?;
    Ok(measured)
}

/// Has all machines load, and shows how far they are on a bar of so many; what they loaded together, and
/// the seconds of the slowest.
pub(crate) fn load(
    cluster: &mut Cluster,
    order: &Order,
    bar: &ProgressBar,
) -> anyhow::Result<(u64, f64)> {
    cluster.order(order)?;
    let mut progress = vec![0; cluster.len()];
    let seconds = cluster.gather(|machine, news| {
        let (records, seconds) = match news {
            News::Loading { records } => (records, None),
            News::Loaded { records, seconds } => (records, Some(seconds)),
            _ => return None,
        };
        progress[machine] = records;
        bar.set_position(progress.iter().sum());
        seconds
    })?;
    bar.finish_and_clear();
    Ok((
        progress.iter().sum(),
        seconds.into_iter().fold(0.0, f64::max),
    ))
}

/// Has all machines run something, and shows how far it is; `pick` takes each one's report.
pub(crate) fn run<T>(
    cluster: &mut Cluster,
    name: &str,
    (warmup, duration): (Duration, Duration),
    order: &Order,
    pick: impl Fn(News) -> Option<T>,
) -> anyhow::Result<Vec<T>> {
    let whole = (warmup + duration).as_millis() as u64;
    let bar = bar(whole, name, "{msg} {wide_bar} {elapsed}");
    crate::say(format_args!(
        "running {name} for {:.1} s",
        duration.as_secs_f64()
    ));
    cluster.order(order)?;
    bar.enable_steady_tick(Duration::from_millis(100));
    let started = Instant::now();
    let reports = cluster.gather_with(
        |_, news| pick(news),
        || bar.set_position(started.elapsed().as_millis() as u64),
    )?;
    bar.finish_and_clear();
    Ok(reports)
}

/// The results of some runs, with what they were on.
pub(crate) fn report<R>(
    config: &Config,
    facts: &HostFacts,
    runs: Vec<R>,
) -> anyhow::Result<Report<R>> {
    Ok(Report {
        host: serde_json::to_value(facts)?,
        config: serde_json::to_value(config)?,
        commit: COMMIT.map(str::to_owned),
        runs,
    })
}

/// Writes results to a file, and prints them with `end` after them. They are printed even if the file
/// cannot be written.
pub(crate) fn write<R: Serialize + fmt::Display>(
    report: &Report<R>,
    json: Option<&Path>,
    end: &str,
) -> anyhow::Result<()> {
    let written = json.map_or(Ok(()), |path| {
        std::fs::write(path, report.to_json() + "\n")
            .with_context(|| format!("cannot write {}", path.display()))
    });
    io::stdout().write_all(format!("{report}{end}").as_bytes())?;
    written
}

/// Finds out before anything is measured whether the results can be written.
fn try_writing(path: &Path) -> anyhow::Result<()> {
    let is_new = !path.exists();
    std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .with_context(|| format!("cannot write the results to {} (--json)", path.display()))?;
    if is_new {
        std::fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

/// A progress bar, drawn only where a person sees it.
pub(crate) fn bar(len: u64, message: &str, template: &str) -> ProgressBar {
    let target = if io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(Some(len), target)
        .with_style(style)
        .with_message(message.to_owned())
}

/// A table for so many pairs: as many shards as the workers own, more where a shard would not fit a
/// region.
pub(crate) fn table_spec(
    config: &Config,
    id: u16,
    value_bytes: usize,
    pairs: u64,
) -> anyhow::Result<TableSpec> {
    let table = &config.table;
    let h = table.neighbourhood;
    let layout = Layout::new(h, value_bytes)?;
    let owners = config.total_workers() as u32;
    let region = config.memory.region_bytes - config.memory.block_bytes;
    let mut shards = owners * table.shards_per_worker;
    loop {
        let spec = TableSpec::sized(id, h, value_bytes, shards, pairs, table.occupancy)?;
        let bytes = (u64::from(spec.buckets) + 1) * layout.bucket_bytes() as u64;
        if bytes <= region {
            return Ok(spec);
        }
        shards += owners;
    }
}
