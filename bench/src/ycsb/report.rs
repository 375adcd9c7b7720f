//! Results of a run of YCSB, in the form of [`crate::report`].
//!
//! ```
//! use farm_bench::closed_loop::Ran;
//! use farm_bench::report::MachineReport;
//! use farm_bench::slices::Slices;
//! use farm_bench::ycsb::report::{RunResult, Setup, TableFacts, recorder};
//! use farm_bench::ycsb::{OpKind, WorkloadSpec, spec};
//! use farm_bench::recorder::Outcome;
//!
//! let workload = WorkloadSpec::from_properties("c", &spec::builtin('c')?)?.spec;
//! let mut recorder = recorder(1);
//! recorder.finish(OpKind::Read.index(), Outcome::Committed, Some(2_500));
//! let machine = MachineReport {
//!     machine: "0".to_owned(),
//!     load_s: 0.5,
//!     loaded: 1000,
//!     tables: TableFacts::default(),
//!     workers: vec![Ran {
//!         recorder,
//!         slices: Slices::default(),
//!         duration_s: 1.0,
//!         failure: None,
//!     }],
//! };
//! let run = RunResult::new(&Setup::new(&workload, 1), &[machine])?;
//! assert_eq!(run.ops_per_s, Some(1.0));
//! println!("{run}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::BTreeMap;
use std::fmt;

use farm_core::worker::Worker;
use serde::Serialize;

use super::operation::{OpKind, OperationMix};
use super::spec::WorkloadSpec;
use crate::closed_loop::Ran;
use crate::counters::{Costs, Counters as _, counters};
use crate::recorder::{LatencyUs, RecorderError};
use crate::report::{self, Figure, Measured, Merged, ratio, ratio_of_counts, write_latencies};
use crate::slices::SliceRates;
use crate::text::{cells, dash, decimal, grouped, headings, percent, table, whole};

counters! {
    /// Counters of operations of all kinds.
    pub struct Counters {
        /// Operations that failed.
        pub errors: u64,
        /// Operations that were repeated, because a machine was lost and it was unknown whether they had taken effect.
        pub repeated: u64,
        /// Lookups that found their record.
        pub hits: u64,
        /// Lookups that found no record.
        pub misses: u64,
        /// Reads of objects by hits.
        pub reads_of_hits: u64,
        /// Reads of objects by misses.
        pub reads_of_misses: u64,
        /// Reads that were repeated because their result was not consistent.
        pub read_restarts: u64,
        /// Lookups of records whose primary is this machine.
        pub lookups_local: u64,
        /// Lookups of records whose primary is another machine.
        pub lookups_remote: u64,
        /// Values that were checked and are right.
        pub verified: u64,
        /// Values that were checked and are wrong.
        pub verify_failures: u64,
    }
}

impl Costs for Counters {
    fn of(worker: &mut Worker) -> Self {
        let (lookups, reads) = (farm_kv::counters(worker), worker.read_counters());
        Self {
            hits: lookups.hits,
            misses: lookups.misses,
            reads_of_hits: lookups.reads_of_hits,
            reads_of_misses: lookups.reads_of_misses,
            read_restarts: lookups.restarts + reads.restarts,
            lookups_local: lookups.local,
            lookups_remote: lookups.remote,
            ..Self::default()
        }
    }
}

counters! {
    /// The occupancy of a part of a table. The numbers of all parts can be added up.
    pub struct TableFacts {
        /// Pairs stored.
        pub pairs: u64,
        /// Slots of the buckets; overflow blocks are not counted, as in the paper's occupancy.
        pub slots: u64,
        /// Bytes of the keys and values of the pairs.
        pub pair_bytes: u64,
        /// Bytes of the table's memory.
        pub table_bytes: u64,
    }
}

/// The recorder of a run.
pub type Recorder = crate::recorder::Recorder<Counters>;
/// The part of one machine in a run.
pub type MachineReport = report::MachineReport<Ran<Counters>, TableFacts>;

/// Creates the recorder of a run, which times one operation in `sampled_1_in`. Its kinds are those of [`OpKind`].
///
/// # Panics
/// If `sampled_1_in` is 0.
pub fn recorder(sampled_1_in: u32) -> Recorder {
    Recorder::new(OpKind::ALL.len(), sampled_1_in)
}

/// The settings of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setup {
    /// The workload's name.
    pub workload: String,
    /// Distribution of the requested records, with its parameters. It is never only "zipfian", which has two meanings.
    pub distribution: String,
    /// Shares of the operations.
    pub mix: OperationMix,
    /// Number of loaded records.
    pub record_count: u64,
    /// Bytes of a value.
    pub value_bytes: u64,
    /// Seed of all random choices.
    pub seed: u64,
    /// Duration of the warm-up, whose operations do not count, in seconds.
    pub warmup_s: f64,
    /// Whether every value that was read was checked.
    pub verify: bool,
    /// Number of operations to count, if it was bounded.
    pub operation_count: Option<u64>,
    /// Limit of operations per second.
    pub target_ops_per_s: Option<u64>,
    /// Number of operations in flight, of all workers together.
    pub in_flight: u64,
}

impl Setup {
    /// Returns the settings of a workload that is run without warm-up and without bounds, one operation at a time.
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

/// The result of one workload on one cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunResult {
    /// The settings.
    #[serde(flatten)]
    pub setup: Setup,
    /// Number of operations that succeeded.
    pub ops: u64,
    /// Successful operations per second of the slowest worker's run.
    pub ops_per_s: Option<f64>,
    /// Successful operations by time slice, if the run was long enough.
    pub slices: Option<SliceRates>,
    /// Operations that failed.
    pub errors: u64,
    /// Operations that were repeated, because a machine was lost and it was unknown whether they had taken effect.
    pub repeated: u64,
    /// Latencies of the kinds of operation that occurred, in microseconds.
    pub latency_us: BTreeMap<OpKind, LatencyUs>,
    /// Object reads per lookup that found its record.
    pub reads_per_lookup: Option<f64>,
    /// Object reads per lookup that found no record.
    pub reads_per_miss: Option<f64>,
    /// Reads per lookup that were repeated because their result was inconsistent.
    pub read_restarts_per_lookup: Option<f64>,
    /// Share of the lookups whose record's primary is the machine of the client.
    pub local_share: Option<f64>,
    /// Pairs per slot of the table's buckets. More than 1 after inserts beyond its size: overflow blocks contain the
    /// rest.
    pub occupancy: Option<f64>,
    /// Share of the table's memory that is keys and values.
    pub space_utilization: Option<f64>,
    /// Memory of the table per pair, in bytes.
    pub bytes_per_pair: Option<f64>,
    /// The part of each machine.
    pub machines: Vec<MachineResult>,
    /// Lookups of records whose primary is the machine of the client.
    pub lookups_local: u64,
    /// Lookups of records whose primary is another machine.
    pub lookups_remote: u64,
    /// Values that were checked and are right.
    pub verified: u64,
    /// Values that were checked and are wrong.
    pub verify_failures: u64,
    /// Duration of the counted part on the slowest worker, in seconds.
    pub duration_s: f64,
    /// Duration of the load on the slowest machine, in seconds.
    pub load_s: Option<f64>,
    /// Pairs loaded per second by all machines together.
    pub load_pairs_per_s: Option<f64>,
}

/// One machine's part of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MachineResult {
    /// Name of the machine.
    pub machine: String,
    /// Number of operations that succeeded.
    pub ops: u64,
    /// Successful operations per second of the machine's own run.
    pub ops_per_s: Option<f64>,
}

impl RunResult {
    /// Merges the reports of the machines of a run.
    ///
    /// # Errors
    /// If the machines sampled latencies at different rates.
    pub fn new(setup: &Setup, machines: &[MachineReport]) -> Result<Self, RecorderError> {
        let merged = Merged::of(OpKind::ALL.len(), machines)?;
        let (recorder, counters) = (&merged.recorder, &merged.recorder.counters);
        let mut table = TableFacts::default();
        machines.iter().for_each(|it| table.add(&it.tables));
        let lookups = counters.hits + counters.misses;
        let placed = counters.lookups_local + counters.lookups_remote;
        let latency = |kind: OpKind| Some((kind, recorder.latency_us(kind.index())?));
        let ops = recorder.executed();
        let is_loaded = merged.loaded > 0;
        Ok(Self {
            setup: setup.clone(),
            ops,
            ops_per_s: merged.per_s(ops),
            slices: merged.slices.rates(),
            errors: counters.errors,
            repeated: counters.repeated,
            latency_us: OpKind::ALL.into_iter().filter_map(latency).collect(),
            reads_per_lookup: ratio_of_counts(counters.reads_of_hits, counters.hits),
            reads_per_miss: ratio_of_counts(counters.reads_of_misses, counters.misses),
            read_restarts_per_lookup: ratio_of_counts(counters.read_restarts, lookups),
            local_share: ratio_of_counts(counters.lookups_local, placed),
            occupancy: ratio_of_counts(table.pairs, table.slots),
            space_utilization: ratio_of_counts(table.pair_bytes, table.table_bytes),
            bytes_per_pair: ratio_of_counts(table.table_bytes, table.pairs),
            machines: machines.iter().map(MachineResult::of).collect(),
            lookups_local: counters.lookups_local,
            lookups_remote: counters.lookups_remote,
            verified: counters.verified,
            verify_failures: counters.verify_failures,
            duration_s: merged.duration_s,
            load_s: is_loaded.then_some(merged.load_s),
            load_pairs_per_s: merged.loaded_per_s().filter(|_| is_loaded),
        })
    }
}

impl MachineResult {
    fn of(report: &MachineReport) -> Self {
        let workers = report.workers.iter();
        let ops = workers.clone().map(|ran| ran.recorder.executed()).sum();
        let duration_s = workers.map(|ran| ran.duration_s).fold(0.0, f64::max);
        Self {
            machine: report.machine.clone(),
            ops,
            ops_per_s: ratio(ops as f64, duration_s),
        }
    }
}

impl Measured for RunResult {
    fn what(&self) -> String {
        let Setup {
            workload,
            distribution,
            ..
        } = &self.setup;
        format!("workload {workload}, {distribution}")
    }

    fn figures(&self) -> Vec<Figure> {
        let slices = self.slices.as_ref().map(SliceRates::range);
        let mut figures = vec![Figure::rate("ops/s", self.ops_per_s, slices)];
        let kinds = self.latency_us.iter();
        figures.extend(kinds.flat_map(|(kind, it)| Figure::latencies(kind.name(), Some(*it))));
        figures.push(Figure::new("reads per lookup", self.reads_per_lookup));
        figures.push(Figure::new("load, pairs/s", self.load_pairs_per_s));
        figures
    }
}

impl fmt::Display for RunResult {
    /// Formats the table of a run.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{}, {:.1} s measured", self.what(), self.duration_s)?;
        self.setup.write(out)?;
        self.write_machines(out)?;
        let latencies = self.latency_us.iter();
        write_latencies(out, 18, latencies.map(|(kind, it)| (kind.name(), *it)))?;
        self.write_facts(out)
    }
}

impl Setup {
    fn write(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shares = OpKind::ALL.map(|kind| (kind.name(), self.mix.share(kind)));
        let shares = shares.iter().filter(|(_, share)| *share > 0.0);
        let mix: Vec<String> = shares
            .map(|(name, share)| format!("{name} {}", percent(*share)))
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
}

impl RunResult {
    fn write_machines(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = vec![headings("machine|ops|ops/s")];
        let machines = self.machines.iter();
        let machines = machines.map(|it| (it.machine.as_str(), it.ops, it.ops_per_s));
        for (name, ops, rate) in machines.chain([("total", self.ops, self.ops_per_s)]) {
            lines.push(cells![name, grouped(ops), rate.map_or_else(dash, whole)]);
        }
        write!(out, "\n{}", table(&lines, [16, 15]))
    }

    fn write_facts(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out)?;
        let mut line = |name: &str, text: String| writeln!(out, "  {name:<18} {text}");
        let local = self.local_share.map_or_else(dash, percent);
        let [near, far] = [self.lookups_local, self.lookups_remote].map(grouped);
        line("lookups", format!("{near} local ({local}), {far} remote"))?;
        let text = format!(
            "{} of a hit, {} of a miss, {} restarts",
            decimal(self.reads_per_lookup, 4),
            decimal(self.reads_per_miss, 4),
            decimal(self.read_restarts_per_lookup, 6)
        );
        line("reads per lookup", text)?;
        let text = format!(
            "{}, space utilization {}, {} bytes per pair",
            fullness(self.occupancy),
            self.space_utilization.map_or_else(dash, percent),
            decimal(self.bytes_per_pair, 1)
        );
        line("table", text)?;
        if let Some(slices) = &self.slices {
            line("slices", slices.to_string())?;
        }
        if let Some(load_s) = self.load_s {
            let rate = self.load_pairs_per_s.map_or_else(dash, whole);
            line("load", format!("{load_s:.1} s, {rate} pairs/s"))?;
        }
        if self.verified + self.verify_failures > 0 {
            let [right, wrong] = [self.verified, self.verify_failures].map(grouped);
            line("values checked", format!("{right} right, {wrong} wrong"))?;
        }
        if self.repeated > 0 {
            line("repeated", grouped(self.repeated))?;
        }
        line("errors", grouped(self.errors))
    }
}

/// Formats how full a table is. If it has more pairs than slots, formats the pairs per slot and not a percentage.
fn fullness(occupancy: Option<f64>) -> String {
    match occupancy {
        None => "occupancy -".to_owned(),
        Some(pairs) if pairs > 1.0 => {
            format!("{pairs:.1} pairs per slot, those beyond 1 in overflow blocks")
        }
        Some(share) => format!("occupancy {}", percent(share)),
    }
}
