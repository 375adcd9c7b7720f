//! What the commands that measure have in common.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use farm_bench::report::{Header, Measured, Report, Started};
use farm_core::config::Config;
use farm_core::config::host::HostFacts;
use farm_kv::config::TableConfig;
use farm_kv::layout::Layout;
use farm_kv::{KEY_BYTES, TableSpec};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::Usage;
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

/// How long a run is.
#[derive(Clone, Copy)]
pub(crate) struct Length {
    /// Before it counts.
    pub(crate) warmup: Duration,
    /// Most time that counts.
    pub(crate) duration: Option<Duration>,
    /// Operations that count, where they are bounded.
    pub(crate) operations: Option<u64>,
}

impl Length {
    /// As in `for 10.0 s`.
    fn in_words(&self) -> String {
        let time = self
            .duration
            .map(|duration| format!("for {:.1} s", duration.as_secs_f64()));
        let operations = self
            .operations
            .map(|count| format!("until {count} operations are done"));
        match (time, operations) {
            (Some(time), Some(operations)) => format!("{operations}, at most {time}"),
            (time, operations) => time.or(operations).unwrap_or_default(),
        }
    }
}

/// Has all machines run something, and shows how far it is; `pick` takes each one's report.
pub(crate) fn run<T>(
    cluster: &mut Cluster,
    name: &str,
    length: Length,
    order: &Order,
    pick: impl Fn(News) -> Option<T>,
) -> anyhow::Result<Vec<T>> {
    let whole = length.duration.map(|it| (length.warmup + it).as_millis());
    let bar = match whole {
        Some(whole) => bar(whole as u64, name, "{msg} {wide_bar} {elapsed}"),
        None => bar(u64::MAX, name, "{msg} {elapsed}"),
    };
    crate::say(format_args!("running {name} {}", length.in_words()));
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

/// Measures so many times (`--repeat`), and stops at the first failure.
pub(crate) fn repeat<T>(
    times: u16,
    mut measure: impl FnMut() -> anyhow::Result<T>,
) -> anyhow::Result<Vec<T>> {
    let numbers = 1..=times;
    numbers
        .map(|number| {
            if times > 1 {
                crate::say(format_args!("run {number} of {times} (--repeat)"));
            }
            measure()
        })
        .collect()
}

/// The results of some runs, with where they are from.
pub(crate) fn report<R: Measured>(
    started: &Started,
    config: &Config,
    facts: &HostFacts,
    runs: Vec<R>,
) -> anyhow::Result<Report<R>> {
    let command = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned());
    let header = Header::new(started, command.collect(), COMMIT);
    let (host, config) = (serde_json::to_value(facts)?, serde_json::to_value(config)?);
    Ok(Report::new(header, host, config, runs))
}

/// Writes results to a file, and prints them with `end` after them. They are printed even if the file
/// cannot be written.
pub(crate) fn write<R: Serialize + fmt::Display + Measured>(
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
pub(crate) fn try_writing(path: &Path) -> anyhow::Result<()> {
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
    let table = TableConfig::of(config);
    if table.key_bytes != KEY_BYTES as u64 {
        let why = format!(
            "table.key_bytes is {}, but keys of the hashtable have {KEY_BYTES} bytes; leave it out",
            table.key_bytes
        );
        return Err(Usage::error(why));
    }
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
