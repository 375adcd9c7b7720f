//! Results: a table for people and JSON for programs.
//!
//! Each machine hands in a [`MachineReport`]; [`RunResult::from_machines`] merges them,
//! and a [`Report`] holds the runs of one invocation with its [`Header`], the median and spread of runs that
//! were repeated, and the measurements that were uneven. The names of the JSON fields are
//! a contract with the programs that read result files, pinned by the test
//! `the_json_fields_are_pinned`. A number that does not apply (reads per lookup of a
//! run without lookups) is `null` in JSON and a dash in the table.
//!
//! ```
//! use farm_bench::report::{MachineReport, RunResult, Setup, TableFacts};
//! use farm_bench::slices::Slices;
//! use farm_bench::ycsb::{OpKind, Recorder, WorkloadSpec, spec};
//!
//! let workload = WorkloadSpec::from_properties("c", &spec::builtin('c')?)?.spec;
//! let mut recorder = Recorder::new(1);
//! recorder.finish(OpKind::Read, Some(2_500));
//! let machine = MachineReport {
//!     machine: "0".to_owned(),
//!     duration_s: 1.0,
//!     load_s: 0.5,
//!     load_pairs: 1000,
//!     table: TableFacts::default(),
//!     recorder,
//!     slices: Slices::default(),
//! };
//! let setup = Setup::new(&workload, 1);
//! let run = RunResult::from_machines(&setup, &[machine])?;
//! assert_eq!(run.ops_per_s, Some(1.0));
//! println!("{run}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod figures;
mod header;
mod repeats;

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::slices::{SliceRates, Slices};
use crate::ycsb::recorder::{Recorder, RecorderError};
use crate::ycsb::{OpKind, OperationMix, WorkloadSpec};

pub use figures::{limit_figures, limit_rates};
pub use header::{Header, SCHEMA_VERSION, Started};
pub use repeats::{Figure, Measured, Repeated, SlicedRate, SpreadFigure, Uneven};

/// The contents of a result file, of every command that measures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report<R = RunResult> {
    /// Where it is from.
    #[serde(flatten)]
    pub header: Header,
    /// The machine or machines it ran on: cores, memory.
    pub host: serde_json::Value,
    /// The settings it ran with.
    pub config: serde_json::Value,
    /// The runs in their order.
    pub runs: Vec<R>,
    /// Median and spread of the runs that were made several times.
    pub repeated: Vec<Repeated>,
    /// Measurements whose time slices differ by more than 2x in throughput.
    pub uneven: Vec<Uneven>,
}

/// What one machine contributes to a run. Travels between processes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MachineReport {
    /// Its name.
    pub machine: String,
    /// How long the measured part of the run took, in seconds.
    pub duration_s: f64,
    /// How long its part of the load took, in seconds; 0 if nothing was loaded.
    pub load_s: f64,
    /// How many pairs it loaded.
    pub load_pairs: u64,
    /// Its part of the table at the end.
    pub table: TableFacts,
    /// Its workers' recorders, merged.
    pub recorder: Recorder,
    /// Its workers' operations by time slice, added up.
    pub slices: Slices,
}

/// The settings of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// The workload's name.
    pub workload: String,
    /// How records were chosen, with parameters.
    pub distribution: String,
    /// Shares of the operations.
    pub mix: OperationMix,
    /// Records that were loaded.
    pub record_count: u64,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// Seed of all choices.
    pub seed: u64,
    /// Seconds before it counted.
    pub warmup_s: f64,
    /// Every value that was read was checked.
    pub verify: bool,
    /// Operations that were to count, where that was bounded.
    pub operation_count: Option<u64>,
    /// Operations per second that the run was held to.
    pub target_ops_per_s: Option<u64>,
    /// Operations in flight at a time, of all workers together.
    pub in_flight: u64,
}

impl Setup {
    /// The settings of a workload that is run without warm-up and without bounds, one operation at a time.
    pub fn new(spec: &WorkloadSpec, seed: u64) -> Self {
        Self {
            workload: spec.name.clone(),
            distribution: spec.distribution.to_string(),
            mix: spec.mix,
            record_count: spec.insert_count,
            value_bytes: spec.value_bytes as u64,
            seed,
            warmup_s: 0.0,
            verify: false,
            operation_count: None,
            target_ops_per_s: None,
            in_flight: 1,
        }
    }
}

/// How full a part of the table is. Parts add up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableFacts {
    /// Pairs stored.
    pub pairs: u64,
    /// Slots of the buckets; overflow blocks are not counted, as in the paper's occupancy.
    pub slots: u64,
    /// Bytes of the keys and values of the pairs.
    pub pair_bytes: u64,
    /// Bytes of memory the table takes.
    pub table_bytes: u64,
}

/// One workload on one cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// The workload's name.
    pub workload: String,
    /// How records were chosen, with parameters; "zipfian" is never said without which.
    pub distribution: String,
    /// Shares of the operations.
    pub mix: OperationMix,
    /// Records that were loaded.
    pub record_count: u64,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// Seed of all choices.
    pub seed: u64,
    /// Seconds before it counted.
    pub warmup_s: f64,
    /// Every value that was read was checked.
    pub verify: bool,
    /// Operations that were to count, where that was bounded.
    pub operation_count: Option<u64>,
    /// Operations per second that the run was held to.
    pub target_ops_per_s: Option<u64>,
    /// Operations in flight at a time, of all workers together.
    pub in_flight: u64,
    /// Operations that succeeded.
    pub ops: u64,
    /// The same per second of the longest machine's run.
    pub ops_per_s: Option<f64>,
    /// The same by time slice, where the run was long enough.
    pub slices: Option<SliceRates>,
    /// Operations that failed.
    pub errors: u64,
    /// Latencies of the kinds of operation that occurred, in microseconds.
    pub latency_us: BTreeMap<OpKind, Latency>,
    /// Object reads of a lookup that finds its record.
    pub reads_per_lookup: Option<f64>,
    /// Object reads of a lookup that finds none.
    pub reads_per_miss: Option<f64>,
    /// Reads done again per lookup, because what they returned was inconsistent.
    pub read_restarts_per_lookup: Option<f64>,
    /// Share of the lookups whose record's primary is the asking machine.
    pub local_share: Option<f64>,
    /// Pairs per slot of the table's buckets. More than 1 after inserts beyond its size: overflow blocks hold
    /// the rest.
    pub occupancy: Option<f64>,
    /// Share of the table's memory that is keys and values.
    pub space_utilization: Option<f64>,
    /// Memory of the table per pair, in bytes.
    pub bytes_per_pair: Option<f64>,
    /// Each machine's part.
    pub machines: Vec<MachineResult>,
    /// Lookups of records whose primary is the asking machine.
    pub lookups_local: u64,
    /// Lookups of records whose primary is another machine.
    pub lookups_remote: u64,
    /// Values checked and found right.
    pub verified: u64,
    /// Values checked and found wrong.
    pub verify_failures: u64,
    /// Length of the measured part, of the slowest machine, in seconds.
    pub duration_s: f64,
    /// Length of the load, of the slowest machine, in seconds.
    pub load_s: Option<f64>,
    /// Pairs loaded per second by all machines together.
    pub load_pairs_per_s: Option<f64>,
}

/// One machine's part of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MachineResult {
    /// Its name.
    pub machine: String,
    /// Operations that succeeded.
    pub ops: u64,
    /// The same per second of its own run.
    pub ops_per_s: Option<f64>,
}

/// Latency of one kind of operation, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// The longest one sampled.
    pub max: f64,
    /// One operation in this many was timed.
    pub sampled_1_in: u32,
}

/// `part / whole`, if there is a whole and the quotient is a number.
pub(crate) fn ratio(part: f64, whole: f64) -> Option<f64> {
    let quotient = part / whole;
    (whole > 0.0 && quotient.is_finite()).then_some(quotient)
}

pub(crate) fn ratio_of_counts(part: u64, whole: u64) -> Option<f64> {
    ratio(part as f64, whole as f64)
}

impl Latency {
    /// The latencies of `kind`, unless none was sampled.
    pub fn of(recorder: &Recorder, kind: OpKind) -> Option<Self> {
        Self::of_histogram(recorder.latency_ns(kind), recorder.sampled_1_in())
    }

    /// The latencies of a histogram in nanoseconds, unless it is empty.
    pub fn of_histogram(histogram: &Histogram<u64>, sampled_1_in: u32) -> Option<Self> {
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        (!histogram.is_empty()).then(|| Self {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max() as f64 / 1000.0,
            sampled_1_in,
        })
    }
}

impl RunResult {
    /// Merges what the machines of a run report.
    ///
    /// # Errors
    /// If the machines sampled latencies at different rates.
    pub fn from_machines(setup: &Setup, reports: &[MachineReport]) -> Result<Self, RecorderError> {
        let longest = |of: fn(&MachineReport) -> f64| reports.iter().map(of).fold(0.0, f64::max);
        let (duration_s, load_s) = (longest(|it| it.duration_s), longest(|it| it.load_s));
        let load_pairs: u64 = reports.iter().map(|it| it.load_pairs).sum();
        let mut recorder =
            Recorder::new(reports.first().map_or(1, |it| it.recorder.sampled_1_in()));
        let mut table = TableFacts::default();
        let mut slices = Slices::default();
        for report in reports {
            recorder.merge(&report.recorder)?;
            slices.merge(&report.slices);
            table.pairs += report.table.pairs;
            table.slots += report.table.slots;
            table.pair_bytes += report.table.pair_bytes;
            table.table_bytes += report.table.table_bytes;
        }
        let counters = &recorder.counters;
        let lookups = counters.hits + counters.misses;
        let placed = counters.lookups_local + counters.lookups_remote;
        let ops = recorder.total_operations();
        Ok(Self {
            workload: setup.workload.clone(),
            distribution: setup.distribution.clone(),
            mix: setup.mix,
            record_count: setup.record_count,
            value_bytes: setup.value_bytes,
            seed: setup.seed,
            warmup_s: setup.warmup_s,
            verify: setup.verify,
            operation_count: setup.operation_count,
            target_ops_per_s: setup.target_ops_per_s,
            in_flight: setup.in_flight,
            ops,
            ops_per_s: ratio(ops as f64, duration_s),
            slices: slices.rates(),
            errors: counters.errors,
            latency_us: OpKind::ALL
                .into_iter()
                .filter_map(|kind| Some((kind, Latency::of(&recorder, kind)?)))
                .collect(),
            reads_per_lookup: ratio_of_counts(counters.reads_of_hits, counters.hits),
            reads_per_miss: ratio_of_counts(counters.reads_of_misses, counters.misses),
            read_restarts_per_lookup: ratio_of_counts(counters.read_restarts, lookups),
            local_share: ratio_of_counts(counters.lookups_local, placed),
            occupancy: ratio_of_counts(table.pairs, table.slots),
            space_utilization: ratio_of_counts(table.pair_bytes, table.table_bytes),
            bytes_per_pair: ratio_of_counts(table.table_bytes, table.pairs),
            machines: reports.iter().map(MachineResult::of).collect(),
            lookups_local: counters.lookups_local,
            lookups_remote: counters.lookups_remote,
            verified: counters.verified,
            verify_failures: counters.verify_failures,
            duration_s,
            load_s: (load_pairs > 0).then_some(load_s),
            load_pairs_per_s: (load_pairs > 0)
                .then(|| ratio(load_pairs as f64, load_s))
                .flatten(),
        })
    }
}

impl MachineResult {
    fn of(report: &MachineReport) -> Self {
        let ops = report.recorder.total_operations();
        Self {
            machine: report.machine.clone(),
            ops,
            ops_per_s: ratio(ops as f64, report.duration_s),
        }
    }
}

impl<R: Measured> Report<R> {
    /// The report of some runs.
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
    /// The report as indented JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report holds strings, numbers and lists only")
    }
}

impl<R: fmt::Display + Measured> fmt::Display for Report<R> {
    /// The header, the tables of all runs, and what was uneven. Of a run that was repeated, the table of the
    /// median and the spread of all.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.header)?;
        for (index, run) in self.runs.iter().enumerate() {
            let what = run.what();
            match self.repeated.iter().find(|group| group.what == what) {
                None => write!(out, "\n{run}")?,
                Some(group) if group.median_run == index => {
                    let (number, all) = (index + 1, self.runs.len());
                    writeln!(
                        out,
                        "\nrun {number} of {all}, the median of {}:",
                        group.repeats
                    )?;
                    write!(out, "\n{run}\n{group}")?;
                }
                Some(_) => {}
            }
        }
        repeats::write_uneven(out, &self.uneven)
    }
}

impl fmt::Display for RunResult {
    /// The table of a run.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            "workload {}, {}, {:.1} s measured",
            self.workload, self.distribution, self.duration_s
        )?;
        self.write_setup(out)?;
        self.write_machines(out)?;
        let latencies = self.latency_us.iter();
        write_latencies(out, 18, latencies.map(|(kind, it)| (kind.name(), *it)))?;
        self.write_facts(out)
    }
}

impl RunResult {
    fn write_setup(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = OpKind::ALL.into_iter();
        let shares = kinds
            .map(|kind| (kind.name(), self.mix.share(kind)))
            .filter(|(_, share)| *share > 0.0);
        let mix: Vec<String> = shares
            .map(|(name, share)| format!("{name} {}", percent(share)))
            .collect();
        writeln!(
            out,
            "{}; {} records of {} bytes; {} operations in flight; seed {}; warm-up {:.1} s",
            mix.join(", "),
            grouped(self.record_count),
            self.value_bytes,
            grouped(self.in_flight),
            self.seed,
            self.warmup_s
        )?;
        if let Some(count) = self.operation_count {
            writeln!(out, "bounded by {} operations", grouped(count))?;
        }
        if let Some(target) = self.target_ops_per_s {
            writeln!(out, "held to {} operations/s", grouped(target))?;
        }
        Ok(())
    }

    fn write_machines(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "\n  {:<16} {:>16} {:>16}", "machine", "ops", "ops/s")?;
        let mut line = |name: &str, ops: u64, rate: Option<f64>| {
            let (ops, rate) = (grouped(ops), rate.map_or_else(dash, whole));
            writeln!(out, "  {name:<16} {ops:>16} {rate:>16}")
        };
        for machine in &self.machines {
            line(&machine.machine, machine.ops, machine.ops_per_s)?;
        }
        line("total", self.ops, self.ops_per_s)
    }

    fn write_facts(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let local = self.local_share.map_or_else(dash, percent);
        let number = |of: Option<f64>, digits: usize| {
            of.map_or_else(dash, |number| format!("{number:.digits$}"))
        };
        writeln!(out)?;
        let mut line = |name: &str, text: String| writeln!(out, "  {name:<18} {text}");
        line(
            "lookups",
            format!(
                "{} local ({local}), {} remote",
                grouped(self.lookups_local),
                grouped(self.lookups_remote)
            ),
        )?;
        line(
            "reads per lookup",
            format!(
                "{} of a hit, {} of a miss, {} restarts",
                number(self.reads_per_lookup, 4),
                number(self.reads_per_miss, 4),
                number(self.read_restarts_per_lookup, 6)
            ),
        )?;
        line(
            "table",
            format!(
                "{}, space utilization {}, {} bytes per pair",
                fullness(self.occupancy),
                self.space_utilization.map_or_else(dash, percent),
                number(self.bytes_per_pair, 1)
            ),
        )?;
        if let Some(slices) = &self.slices {
            line("slices", slices.to_string())?;
        }
        if let Some(load_s) = self.load_s {
            let rate = self.load_pairs_per_s.map_or_else(dash, whole);
            line("load", format!("{load_s:.1} s, {rate} pairs/s"))?;
        }
        if self.verified + self.verify_failures > 0 {
            let (right, wrong) = (grouped(self.verified), grouped(self.verify_failures));
            line("values checked", format!("{right} right, {wrong} wrong"))?;
        }
        line("errors", grouped(self.errors))
    }
}

/// How full a table is, in words that are right for one that has grown beyond its slots.
fn fullness(occupancy: Option<f64>) -> String {
    match occupancy {
        None => "occupancy -".to_owned(),
        Some(pairs) if pairs > 1.0 => {
            format!("{pairs:.1} pairs per slot, those beyond 1 in overflow blocks")
        }
        Some(share) => format!("occupancy {}", percent(share)),
    }
}

/// A table of latencies, with so many columns for what they are of; nothing if there are none.
pub(crate) fn write_latencies<'a>(
    out: &mut fmt::Formatter<'_>,
    columns: usize,
    latencies: impl Iterator<Item = (&'a str, Latency)>,
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

pub(crate) fn dash() -> String {
    "-".to_owned()
}

pub(crate) fn whole(rate: f64) -> String {
    grouped(rate.round() as u64)
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A number with commas between its thousands.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
