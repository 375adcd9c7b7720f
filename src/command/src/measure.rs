//! Code that all measuring commands use: clusters, loads, runs, repeats, results and tables.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::ops::AddAssign;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use farm_bench::report::{Header, Measured, Report, Started};
use farm_core::config::Config;
use farm_core::config::host::HostFacts;
use farm_kv::config::TableConfig;
use farm_kv::{KEY_BYTES, TableSpec};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::Usage;
use crate::cluster::Cluster;
use crate::cluster::protocol::{News, Order};

/// The commit of this program, if git was available to the build.
const COMMIT: Option<&str> = option_env!("FARM_COMMIT");

/// Starts a cluster, calls `measure`, and stops the cluster. Before that it checks that the file `json` can be written.
pub(crate) fn on_cluster<T>(
    config: &Config,
    json: Option<&Path>,
    log: Option<&str>,
    measure: impl FnOnce(&mut Cluster) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    if let Some(path) = json {
        try_writing(path, "--json")?;
    }
    let mut cluster = Cluster::start(config, log)?;
    // If `measure` fails, dropping the cluster stops it, and errors while it stops are not reported.
    let measured = measure(&mut cluster)?;
    cluster.stop()?;
    Ok(measured)
}

/// Sends an order, and waits until all machines have executed it.
pub(crate) fn execute(cluster: &mut Cluster, order: &Order) -> anyhow::Result<()> {
    cluster.order(order)?;
    cluster.gather(|_, news| matches!(news, News::Opened).then_some(()))?;
    Ok(())
}

/// Sends an order to load, and shows the progress on `bar`. Returns the records of all machines together, and the
/// seconds of the slowest machine.
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

/// Sends an order to report the bytes of all objects ([`News::ObjectBytes`]). Returns those of all machines together.
pub(crate) fn object_bytes(cluster: &mut Cluster, order: &Order) -> anyhow::Result<u64> {
    cluster.order(order)?;
    let bytes = cluster.gather(|_, news| match news {
        News::ObjectBytes { bytes } => Some(bytes),
        _ => None,
    })?;
    Ok(bytes.into_iter().sum())
}

/// Sends an order to check something. Returns what all machines together have found.
pub(crate) fn check<R: AddAssign + Default>(
    cluster: &mut Cluster,
    order: &Order,
    pick: impl Fn(News) -> Option<R>,
) -> anyhow::Result<R> {
    cluster.order(order)?;
    Ok(sum(cluster.gather(|_, news| pick(news))?))
}

/// Adds up results.
pub(crate) fn sum<R: AddAssign + Default>(all: impl IntoIterator<Item = R>) -> R {
    let mut whole = R::default();
    all.into_iter().for_each(|one| whole += one);
    whole
}

/// The bounds of a run.
#[derive(Clone, Copy)]
pub(crate) struct Length {
    /// Time before the measurement.
    pub(crate) warmup: Duration,
    /// Longest time of the measurement, if it is bounded.
    pub(crate) duration: Option<Duration>,
    /// Number of measured operations, if it is bounded.
    pub(crate) operations: Option<u64>,
}

impl Length {
    /// Returns the milliseconds of the whole run; 0 if no time bounds it.
    pub(crate) fn whole_ms(self) -> u64 {
        self.duration
            .map_or(0, |duration| (self.warmup + duration).as_millis() as u64)
    }

    /// Formats the bounds: `for 10.0 s`.
    pub(crate) fn in_words(&self) -> String {
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

/// Sends an order to run, and shows the elapsed time. Returns one report of each machine, as `pick` returns it.
pub(crate) fn run<T>(
    cluster: &mut Cluster,
    name: &str,
    length: Length,
    order: &Order,
    pick: impl Fn(News) -> Option<T>,
) -> anyhow::Result<Vec<T>> {
    let bar = match length.whole_ms() {
        0 => bar(u64::MAX, name, "{msg} {elapsed}"),
        whole => bar(whole, name, "{msg} {wide_bar} {elapsed}"),
    };
    crate::write_stderr(format_args!("running {name} {}", length.in_words()));
    cluster.order(order)?;
    bar.enable_steady_tick(Duration::from_millis(100));
    let started = Instant::now();
    let reports = cluster.gather_with(
        |_, news| pick(news),
        |_| {
            bar.set_position(started.elapsed().as_millis() as u64);
            Ok(())
        },
    )?;
    bar.finish_and_clear();
    Ok(reports)
}

/// Calls `measure` `times` times (`--repeat`). Returns the first error at once.
pub(crate) fn repeat<T>(
    times: u16,
    mut measure: impl FnMut() -> anyhow::Result<T>,
) -> anyhow::Result<Vec<T>> {
    let numbers = 1..=times;
    numbers
        .map(|number| {
            if times > 1 {
                crate::write_stderr(format_args!("run {number} of {times} (--repeat)"));
            }
            measure()
        })
        .collect()
}

/// Returns a report of `runs` with its origin: command line, start time, commit, host and configuration.
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

/// Writes the report to the file `json`, and prints it with `end` appended. Prints it even if the file cannot be
/// written.
pub(crate) fn write<R: Serialize + fmt::Display + Measured>(
    report: &Report<R>,
    json: Option<&Path>,
    end: &str,
) -> anyhow::Result<()> {
    let written = json.map_or(Ok(()), |path| {
        std::fs::write(path, report.to_json() + "\n")
            .with_context(|| format!("cannot write the results to {} (--json)", path.display()))
    });
    crate::Output.write_all(format!("{report}{end}").as_bytes())?;
    written
}

/// As [`write`], for a report with one run, whose fields are those of the report in JSON.
pub(crate) fn write_single<R: Serialize + fmt::Display + Measured>(
    report: &Report<R>,
    json: Option<&Path>,
) -> anyhow::Result<()> {
    let written = json.map_or(Ok(()), |path| {
        std::fs::write(path, report.to_single_json() + "\n")
            .with_context(|| format!("cannot write the results to {} (--json)", path.display()))
    });
    crate::Output.write_all(report.to_string().as_bytes())?;
    written
}

/// Returns the run of a report that has one.
pub(crate) fn only_run<R>(report: &Report<R>) -> anyhow::Result<&R> {
    match &report.runs[..] {
        [run] => Ok(run),
        runs => bail!("internal error: the report has {} runs", runs.len()),
    }
}

/// Prints the failures of a run, and returns the exit status of its command. `errors`: number of requests that failed.
pub(crate) fn end<'a>(errors: u64, failures: impl IntoIterator<Item = &'a String>) -> ExitCode {
    let mut exit = match errors {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    };
    for why in failures {
        crate::write_stderr(format_args!("farm: error: {why}"));
        exit = ExitCode::FAILURE;
    }
    exit
}

/// Checks, before anything is measured, that the results can be written to `path`, the value of `option`.
pub(crate) fn try_writing(path: &Path, option: &str) -> anyhow::Result<()> {
    let is_new = !path.exists();
    std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .with_context(|| format!("cannot write the results to {} ({option})", path.display()))?;
    if is_new {
        std::fs::remove_file(path).with_context(|| {
            format!(
                "cannot remove {}, which was created to test whether {option} can be written",
                path.display()
            )
        })?;
    }
    Ok(())
}

/// Returns a progress bar, which is drawn only if standard error is a terminal.
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

/// Raises the memory of each machine so that `bytes` of a graph fit into the cluster. `machines` is the number of
/// machines, if it differs from that of the configuration.
pub(crate) fn make_room(
    config: &mut Config,
    machines: Option<u16>,
    bytes: u64,
) -> anyhow::Result<()> {
    let machines = machines.map_or(config.machines.len() as u64, u64::from);
    // Requests add to the graph, and each size of objects has blocks that are not full.
    let needed = bytes / machines * 3 / 2 + (512 << 20);
    let needed = needed.next_multiple_of(config.memory.region_bytes);
    if needed > config.memory.per_machine_bytes {
        let text = needed.to_string();
        config.set_by("the size of the graph", "memory.per_machine_bytes", &text)?;
    }
    Ok(())
}

/// Returns the specification of a table for `pairs` pairs. Each worker owns `table.shards_per_worker` shards, or more
/// if a shard would not fit in a region.
pub(crate) fn table_spec(
    config: &Config,
    id: u16,
    value_bytes: usize,
    pairs: u64,
) -> anyhow::Result<TableSpec> {
    let table = TableConfig::of(config);
    if table.key_bytes != KEY_BYTES as u64 {
        let why = format!(
            "table.key_bytes is {}, but the benchmarks use keys of {KEY_BYTES} bytes; \
             remove table.key_bytes from the configuration, or set it to {KEY_BYTES}",
            table.key_bytes
        );
        return Err(Usage::error(why));
    }
    let spec = farm_kv::spec_for(config, id, (KEY_BYTES, value_bytes), pairs);
    spec.map_err(|error| Usage::error(error.to_string()))
}
