//! The results of TAOBench.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::audit::AuditResult;
use super::driver::TaoCosts;
use super::workload::Kind;
use crate::closed_loop::Ran;
use crate::graph::GraphCosts;
use crate::recorder::{LatencyUs, Outcome, RecorderError};
use crate::report::{self, Figure, Measured, Merged, ratio, ratio_of_counts, write_latencies};
use crate::slices::SliceRates;
use crate::text::{dash, decimal, grouped, whole};

/// The part of one machine in a run.
pub type MachineReport = report::MachineReport<Ran<TaoCosts>>;

/// The settings of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setup {
    /// The mix: `a`, `o`, or the name of a file.
    pub mix: String,
    /// Whether ranges, counts and times are read as single edges, as in the reference.
    pub compat: bool,
    /// Number of requests in flight, of all workers together.
    pub in_flight: u64,
    /// Seed of the graph and of the requests.
    pub seed: u64,
    /// Duration of the warm-up, whose requests do not count, in seconds.
    pub warmup_s: f64,
}

/// The graph that was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LoadResult {
    /// Number of edges, each with two objects.
    pub edges: u64,
    /// Seconds of the load.
    pub seconds: f64,
    /// Edges per second.
    pub edges_per_s: Option<f64>,
    /// Bytes of objects for each edge, with its inverse and its two objects.
    pub bytes_per_edge: Option<f64>,
}

/// The requests of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpResult {
    /// Number of requests that ended.
    pub count: u64,
    /// Number of requests whose object or edge does not exist.
    pub not_found: u64,
    /// Number of requests that were refused: by a rule, or because the object or edge was written at a later time.
    pub declined: u64,
    /// Requests per second.
    pub ops_per_s: Option<f64>,
    /// Latencies, in microseconds.
    pub latency_us: Option<LatencyUs>,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunResult {
    /// The settings.
    #[serde(flatten)]
    pub setup: Setup,
    /// The graph.
    pub load: LoadResult,
    /// Requests per second of all kinds. A transaction is one request.
    pub ops_per_s: Option<f64>,
    /// Requests per second of one worker.
    pub ops_per_s_per_worker: Option<f64>,
    /// The requests by kind.
    pub ops: BTreeMap<&'static str, OpResult>,
    /// Number of requests that failed.
    pub errors: u64,
    /// The first failure of each worker that had one.
    pub failures: Vec<String>,
    /// Reads and writes of a transaction, on average.
    pub transaction_size: Option<f64>,
    /// Objects read per read outside of transactions by one-sided reads, without reads of single edges.
    pub reads_per_read: Option<f64>,
    /// What was checked after the run.
    pub audit: AuditResult,
    /// Throughput by time slice, if the run was long enough.
    pub slices: Option<SliceRates>,
    /// Duration of the counted part on the slowest worker, in seconds.
    pub duration_s: f64,
    /// Costs of all workers.
    pub costs: GraphCosts,
}

impl RunResult {
    /// Merges the reports of the machines.
    ///
    /// # Errors
    /// If the machines sampled latencies at different rates.
    pub fn new(
        setup: Setup,
        load: LoadResult,
        machines: &[MachineReport],
        audit: AuditResult,
    ) -> Result<Self, RecorderError> {
        let merged = Merged::of(Kind::ALL.len(), machines)?;
        let recorder = &merged.recorder;
        let counters = recorder.counters;
        let costs = counters.graph;
        let total = recorder.executed();
        let workers: usize = machines.iter().map(|machine| machine.workers.len()).sum();
        let ran = machines.iter().flat_map(|machine| &machine.workers);
        let op = |kind: Kind| {
            let count = recorder.executed_of(kind.index());
            let op = OpResult {
                count,
                not_found: recorder.of(kind.index(), Outcome::NotFound),
                declined: recorder.of(kind.index(), Outcome::Declined),
                ops_per_s: merged.per_s(count),
                latency_us: recorder.latency_us(kind.index()),
            };
            (count > 0).then_some((kind.name(), op))
        };
        let of_kind = |kind: Kind| recorder.executed_of(kind.index());
        let transactions = of_kind(Kind::ReadTxn) + of_kind(Kind::WriteTxn);
        let ops_per_s = merged.per_s(total);
        Ok(Self {
            ops: Kind::ALL.into_iter().filter_map(op).collect(),
            setup,
            load,
            ops_per_s,
            ops_per_s_per_worker: ops_per_s.and_then(|rate| ratio(rate, workers as f64)),
            errors: counters.errors,
            failures: ran.filter_map(|ran| ran.failure.clone()).collect(),
            transaction_size: ratio_of_counts(counters.in_transactions, transactions),
            reads_per_read: ratio_of_counts(
                costs.node_reads + costs.count_reads + costs.range_reads,
                costs.nodes + costs.counts + costs.ranges,
            ),
            audit,
            slices: merged.slices.rates(),
            duration_s: merged.duration_s,
            costs,
        })
    }
}

impl Measured for RunResult {
    fn what(&self) -> String {
        let compat = if self.setup.compat {
            ", as the reference"
        } else {
            ""
        };
        let edges = grouped(self.load.edges);
        format!("mix {}, {edges} edges{compat}", self.setup.mix)
    }

    fn figures(&self) -> Vec<Figure> {
        let slices = self.slices.as_ref().map(SliceRates::range);
        let mut figures = vec![Figure::rate("ops/s", self.ops_per_s, slices)];
        let kinds = self.ops.iter();
        figures.extend(kinds.flat_map(|(name, op)| Figure::latencies(name, op.latency_us)));
        figures.push(Figure::new("load, edges/s", self.load.edges_per_s));
        figures
    }
}

impl fmt::Display for RunResult {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{}", self.what())?;
        let Setup {
            in_flight,
            seed,
            warmup_s,
            ..
        } = &self.setup;
        writeln!(
            out,
            "{} requests in flight; seed {seed}; warm-up {warmup_s:.1} s\n",
            grouped(*in_flight)
        )?;
        writeln!(
            out,
            "  {:<18} {:>12} {:>12} {:>11} {:>11}",
            "", "requests", "requests/s", "not found", "declined"
        )?;
        for (name, op) in &self.ops {
            writeln!(
                out,
                "  {name:<18} {:>12} {:>12} {:>11} {:>11}",
                grouped(op.count),
                op.ops_per_s.map_or_else(dash, whole),
                grouped(op.not_found),
                grouped(op.declined)
            )?;
        }
        writeln!(out)?;
        let kinds = self.ops.iter();
        let latencies = kinds.filter_map(|(name, op)| Some((*name, op.latency_us?)));
        write_latencies(out, 18, latencies)?;
        self.write_sums(out)
    }
}

impl RunResult {
    fn write_sums(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out)?;
        let mut line = |name: &str, text: String| writeln!(out, "  {name:<18} {text}");
        let each = self.ops_per_s_per_worker.map_or_else(dash, whole);
        let all = self.ops_per_s.map_or_else(dash, whole);
        line("requests/s", format!("{all} in all, {each} per worker"))?;
        let load = &self.load;
        let text = format!(
            "{} edges in {:.1} s, {} per second; {} bytes per edge with both objects",
            grouped(load.edges),
            load.seconds,
            load.edges_per_s.map_or_else(dash, whole),
            decimal(load.bytes_per_edge, 1)
        );
        line("load", text)?;
        let text = format!(
            "{} reads or writes on average",
            decimal(self.transaction_size, 2)
        );
        line("transactions", text)?;
        let text = format!(
            "{} of a read of an object, a count or a range",
            decimal(self.reads_per_read, 4)
        );
        line("one-sided reads", text)?;
        if let Some(slices) = &self.slices {
            line("slices", slices.to_string())?;
        }
        let audit = &self.audit;
        let text = match &audit.wrong {
            None => format!(
                "right: {} objects, {} edges, {} inverse edges, {} deleted",
                grouped(audit.objects),
                grouped(audit.edges),
                grouped(audit.inverses),
                grouped(audit.deleted)
            ),
            Some(wrong) => format!("WRONG: {wrong}"),
        };
        line("check", text)?;
        line("errors", grouped(self.errors))
    }
}
