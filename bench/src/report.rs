//! Results: a table for people and JSON for programs.
//!
//! Each machine sends a [`MachineReport`]; the results of a workload merge them. A [`Report`] contains the runs of one
//! command with its [`Header`], the median and spread of repeated runs, and the measurements that were uneven. The
//! names of the JSON fields are a contract with the programs that read result files, pinned by the tests
//! `the_json_fields_are_pinned`. A number that does not apply (reads per lookup of a run without lookups) is `null` in
//! JSON and a dash in the table.

mod beside;
mod figures;
mod header;
mod repeats;

use std::borrow::Borrow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::closed_loop::Ran;
use crate::counters::Counters;
use crate::recorder::{LatencyUs, Recorder, RecorderError};
use crate::slices::Slices;

pub use beside::{Beside, Compared, Engine};
pub use figures::limit_figures;
pub use header::{Header, SCHEMA_VERSION, Started};
pub use repeats::{Figure, Measured, Repeated, SpreadFigure, Uneven};

/// The contents of a result file, of every command that measures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report<R> {
    /// Origin of the report.
    #[serde(flatten)]
    pub header: Header,
    /// The host or hosts of the runs: cores, memory.
    pub host: serde_json::Value,
    /// The settings of the runs.
    pub config: serde_json::Value,
    /// The runs in their order.
    pub runs: Vec<R>,
    /// Median and spread of the measurements that were repeated.
    pub repeated: Vec<Repeated>,
    /// Measurements whose time slices differ by more than 2x in throughput.
    pub uneven: Vec<Uneven>,
}

impl<R: Measured> Report<R> {
    /// Creates the report of some runs.
    pub fn new(
        header: Header,
        host: serde_json::Value,
        config: serde_json::Value,
        runs: Vec<R>,
    ) -> Self {
        Self {
            header,
            host,
            config,
            repeated: repeats::repeated(&runs),
            uneven: repeats::uneven(&runs),
            runs,
        }
    }
}

impl<R: Serialize> Report<R> {
    /// Returns the report as indented JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self)
            .expect("every value in a report can be serialized as JSON")
    }
}

impl<R: Serialize> Report<R> {
    /// Returns a report with one run as indented JSON. The fields of the run are fields of the report.
    ///
    /// # Panics
    /// If the report has no run.
    pub fn to_single_json(&self) -> String {
        #[derive(Serialize)]
        struct Single<'a, R> {
            #[serde(flatten)]
            header: &'a Header,
            host: &'a serde_json::Value,
            config: &'a serde_json::Value,
            #[serde(flatten)]
            run: &'a R,
            uneven: &'a [Uneven],
        }
        let single = Single {
            header: &self.header,
            host: &self.host,
            config: &self.config,
            run: &self.runs[0],
            uneven: &self.uneven,
        };
        serde_json::to_string_pretty(&single)
            .expect("every value in a report can be serialized as JSON")
    }
}

impl<R: fmt::Display + Measured> fmt::Display for Report<R> {
    /// Formats the header, the tables of the runs, and the uneven measurements. For a run that was repeated, formats
    /// only the table of the median run, and the spread of all repeats.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.header)?;
        for (index, run) in self.runs.iter().enumerate() {
            let what = run.what();
            match self.repeated.iter().find(|group| group.what == what) {
                None => write!(out, "\n{run}")?,
                Some(group) if group.median_run == index => {
                    let (number, all) = (index + 1, self.runs.len());
                    let times = group.repeats;
                    writeln!(out, "\nrun {number} of {all}, the median of {times}:")?;
                    write!(out, "\n{run}\n{group}")?;
                }
                Some(_) => {}
            }
        }
        repeats::write_uneven(out, &self.uneven)
    }
}

/// The part of one machine in a run, with the reports `W` of its workers. It is serializable for the exchange between
/// processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MachineReport<W, T = ()> {
    /// Name of the machine.
    pub machine: String,
    /// Duration of its part of the load, in seconds; 0 if nothing was loaded.
    pub load_s: f64,
    /// Number of pairs that it loaded.
    pub loaded: u64,
    /// Its part of the tables at the end.
    pub tables: T,
    /// Its workers, in their order.
    pub workers: Vec<W>,
}

/// The merged reports of all workers of some machines.
pub(crate) struct Merged<C> {
    pub(crate) recorder: Recorder<C>,
    pub(crate) slices: Slices,
    /// Duration of the counted part of the slowest worker.
    pub(crate) duration_s: f64,
    /// Duration of the load on the slowest machine.
    pub(crate) load_s: f64,
    pub(crate) loaded: u64,
}

impl<C: Counters> Merged<C> {
    /// Merges the reports of machines, whose recorders are for `kinds` kinds of operations.
    ///
    /// # Errors
    /// If the recorders cannot be merged.
    pub(crate) fn of<W: Borrow<Ran<C>>, T>(
        kinds: usize,
        machines: &[MachineReport<W, T>],
    ) -> Result<Self, RecorderError> {
        let workers = machines.iter().flat_map(|machine| &machine.workers);
        let mut workers = workers
            .map(|worker| -> &Ran<C> { worker.borrow() })
            .peekable();
        let sampled_1_in = workers.peek().map_or(1, |ran| ran.recorder.sampled_1_in());
        let mut merged = Self {
            recorder: Recorder::new(kinds, sampled_1_in),
            slices: Slices::default(),
            duration_s: 0.0,
            load_s: machines.iter().map(|it| it.load_s).fold(0.0, f64::max),
            loaded: machines.iter().map(|it| it.loaded).sum(),
        };
        for ran in workers {
            merged.recorder.merge(&ran.recorder)?;
            merged.slices.merge(&ran.slices);
            merged.duration_s = merged.duration_s.max(ran.duration_s);
        }
        Ok(merged)
    }

    /// Returns a count divided by the seconds of the counted part.
    pub(crate) fn per_s(&self, count: u64) -> Option<f64> {
        ratio(count as f64, self.duration_s)
    }

    /// Returns the pairs loaded per second by all machines together.
    pub(crate) fn loaded_per_s(&self) -> Option<f64> {
        ratio(self.loaded as f64, self.load_s)
    }
}

/// Returns `part / whole`, if there is a whole and the quotient is a number.
pub(crate) fn ratio(part: f64, whole: f64) -> Option<f64> {
    let quotient = part / whole;
    (whole > 0.0 && quotient.is_finite()).then_some(quotient)
}

pub(crate) fn ratio_of_counts(part: u64, whole: u64) -> Option<f64> {
    ratio(part as f64, whole as f64)
}

/// Writes a table of latencies, whose first column is `columns` wide; nothing if there are none.
pub(crate) fn write_latencies<'a>(
    out: &mut fmt::Formatter<'_>,
    columns: usize,
    latencies: impl Iterator<Item = (&'a str, LatencyUs)>,
) -> fmt::Result {
    let mut latencies = latencies.peekable();
    if latencies.peek().is_none() {
        return Ok(());
    }
    writeln!(
        out,
        "\n  {:<columns$} {:>10} {:>10} {:>10} {:>10} {:>12}  sampled",
        "latency, us", "p50", "p90", "p99", "p99.9", "max"
    )?;
    for (name, it) in latencies {
        writeln!(
            out,
            "  {name:<columns$} {:>10.2} {:>10.2} {:>10.2} {:>10.2} {:>12.2}  1 in {}",
            it.p50, it.p90, it.p99, it.p999, it.max, it.sampled_1_in
        )?;
    }
    Ok(())
}
