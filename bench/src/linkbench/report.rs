//! The results of LinkBench: as the reference prints them, with finer latencies beside, as CSV and as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::driver::LinkCosts;
use super::requests::Kind;
use crate::closed_loop::Ran;
use crate::graph::GraphCosts;
use crate::recorder::{LatencyUs, Outcome, RecorderError};
use crate::report::{self, Figure, Measured, Merged, ratio, ratio_of_counts, write_latencies};
use crate::slices::SliceRates;
use crate::text::{dash, decimal, grouped, percent, whole};

/// The part of one machine in a run.
pub type MachineReport = report::MachineReport<Ran<LinkCosts>>;

/// The settings of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setup {
    /// The mix of the requests: `linkbench` or `tao`.
    pub mix: String,
    /// Whether the oddities of the reference are reproduced.
    pub compat: bool,
    /// Whether each request looks up the name of its node by the id, instead of keeping all names.
    pub by_id: bool,
    /// Number of loaded nodes.
    pub nodes: u64,
    /// Where the distribution of the out-degrees is from.
    pub degrees: String,
    /// Maximum number of links that a request for a list returns.
    pub range_limit: u64,
    /// Number of first pages of lists that each worker caches.
    pub cached_heads: u64,
    /// Number of requests in flight, of all workers together.
    pub in_flight: u64,
    /// Seed of the loaded data.
    pub load_seed: u64,
    /// Seed of the requests.
    pub seed: u64,
    /// Duration of the warm-up, whose requests do not count, in seconds.
    pub warmup_s: f64,
}

/// The graph that was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LoadResult {
    /// Number of nodes.
    pub nodes: u64,
    /// Number of links.
    pub links: u64,
    /// Number of pairs of a node and a type that have links.
    pub counts: u64,
    /// Seconds of the load.
    pub seconds: f64,
    /// Seconds of these in which nodes were written.
    pub node_seconds: f64,
    /// Links written per second.
    pub links_per_s: Option<f64>,
    /// Bytes of objects for each node without its links.
    pub bytes_per_node: Option<f64>,
    /// Bytes of objects for each link.
    pub bytes_per_edge: Option<f64>,
}

/// The requests of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpResult {
    /// Number of requests that ended.
    pub count: u64,
    /// Number of requests whose node or link does not exist, or whose list is empty.
    pub not_found: u64,
    /// Requests per second.
    pub ops_per_s: Option<f64>,
    /// Latencies, in microseconds.
    pub latency_us: Option<LatencyUs>,
    /// Objects that a request read by one-sided reads, including those of lookups by id. Writes and [`Kind::Multiget`]
    /// read none: the owner of the node makes them.
    pub reads_per_op: Option<f64>,
    /// Latencies in the buckets of the reference.
    #[serde(skip)]
    buckets: Option<Buckets>,
}

/// The cache of first pages of lists.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HeadCache {
    /// Share of the reads of lists whose first page was in the cache.
    pub hit_rate: Option<f64>,
    /// Share of the reads of lists whose cached first page had been freed.
    pub stale_rate: Option<f64>,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunResult {
    /// The settings.
    #[serde(flatten)]
    pub setup: Setup,
    /// The graph.
    pub load: LoadResult,
    /// Requests per second of all kinds.
    pub ops_per_s: Option<f64>,
    /// Requests per second of one worker.
    pub ops_per_s_per_worker: Option<f64>,
    /// The requests by kind.
    pub ops: BTreeMap<&'static str, OpResult>,
    /// Number of requests that failed.
    pub errors: u64,
    /// Number of requests that were repeated, because a machine was lost and it was unknown whether they had taken effect.
    pub repeated: u64,
    /// The first failure of each machine that had one.
    pub failures: Vec<String>,
    /// Objects read per read of a node, of a number of links, or of a list, without lookups by id.
    pub reads_per_read: Option<f64>,
    /// Objects read per lookup by id.
    pub reads_per_find: Option<f64>,
    /// Links per request for a list.
    pub links_per_list: Option<f64>,
    /// Requests for lists that needed a transaction, because they extend over several pages.
    pub transactions: u64,
    /// The cache of first pages.
    pub heads: HeadCache,
    /// Operations per transaction at the owners of nodes.
    pub owned_per_transaction: Option<f64>,
    /// Throughput by time slice, if the run was long enough.
    pub slices: Option<SliceRates>,
    /// Duration of the counted part on the slowest worker, in seconds.
    pub duration_s: f64,
    /// Costs of all workers.
    pub costs: GraphCosts,
}

impl RunResult {
    /// Returns the result of a load without requests.
    pub fn of_load(setup: &Setup, load: LoadResult) -> Self {
        let none: [MachineReport; 0] = [];
        let merged = Self::new(setup, load, &none);
        merged.expect("no recorders differ if there are none")
    }

    /// Merges the reports of the machines.
    ///
    /// # Errors
    /// If the machines sampled latencies at different rates.
    pub fn new(
        setup: &Setup,
        load: LoadResult,
        machines: &[MachineReport],
    ) -> Result<Self, RecorderError> {
        let merged = Merged::of(Kind::ALL.len(), machines)?;
        let counters = merged.recorder.counters;
        let costs = counters.graph;
        let reads = costs.node_reads + costs.count_reads + costs.range_reads;
        let read = costs.nodes + costs.counts + costs.ranges;
        let total = merged.recorder.executed();
        let workers: usize = machines.iter().map(|machine| machine.workers.len()).sum();
        let ran = machines.iter().flat_map(|machine| &machine.workers);
        let kinds = Kind::ALL.into_iter();
        let kinds = kinds.filter(|kind| merged.recorder.executed_of(kind.index()) > 0);
        let lists = merged.recorder.executed_of(Kind::GetList.index())
            + merged.recorder.executed_of(Kind::GetTimeRange.index());
        let heads = |count| ratio_of_counts(count, costs.head_hits + costs.head_misses);
        Ok(Self {
            setup: setup.clone(),
            load,
            ops_per_s: merged.per_s(total),
            ops_per_s_per_worker: merged
                .per_s(total)
                .and_then(|rate| ratio(rate, workers as f64)),
            ops: kinds.map(|kind| (kind.name(), op(&merged, kind))).collect(),
            errors: counters.errors,
            repeated: counters.repeated,
            failures: ran.filter_map(|ran| ran.failure.clone()).collect(),
            reads_per_read: ratio_of_counts(reads, read),
            reads_per_find: ratio_of_counts(costs.find_reads, costs.finds),
            links_per_list: ratio_of_counts(counters.listed, lists),
            transactions: costs.transactions,
            heads: HeadCache {
                hit_rate: heads(costs.head_hits),
                stale_rate: heads(costs.head_stale),
            },
            owned_per_transaction: ratio_of_counts(costs.owned, costs.owned_transactions),
            slices: merged.slices.rates(),
            duration_s: merged.duration_s,
            costs,
        })
    }

    /// Returns the latencies as the reference writes them: a line of headings, and a line for each kind.
    pub fn to_csv(&self) -> String {
        let mut text = "op,count".to_owned();
        for percentile in PERCENTILES {
            text += &format!(",p{percentile}_low,p{percentile}_high");
        }
        text += ",max,mean\n";
        for (name, op) in &self.ops {
            let Some(buckets) = &op.buckets else {
                continue;
            };
            text += &format!("{name},{}", op.count);
            for [low, high] in buckets.percentiles {
                text += &format!(",{low},{high}");
            }
            text += &format!(",{:.3},{:.3}\n", buckets.max_ms, buckets.mean_ms);
        }
        text
    }
}

/// Percentiles that the reference reports.
const PERCENTILES: [u32; 5] = [25, 50, 75, 95, 99];

/// Latencies in milliseconds, each percentile as the bucket that contains it.
#[derive(Clone, Debug, PartialEq)]
struct Buckets {
    percentiles: [[f64; 2]; PERCENTILES.len()],
    max_ms: f64,
    mean_ms: f64,
}

/// Returns the bounds of the bucket of a latency: widths of 0.1 ms up to 1 ms, 1 ms up to 100 ms, 100 ms up to 1 s, and
/// 1 s.
fn bucket(ms: f64) -> [f64; 2] {
    let width = match ms {
        ms if ms < 1.0 => 0.1,
        ms if ms < 100.0 => 1.0,
        ms if ms < 1000.0 => 100.0,
        _ => 1000.0,
    };
    let low = (ms / width).floor();
    // Rounds to a tenth, so that no digits of binary fractions are written.
    let tenth = |ms: f64| (ms * 10.0).round() / 10.0;
    [tenth(low * width), tenth((low + 1.0) * width)]
}

fn op(merged: &Merged<LinkCosts>, kind: Kind) -> OpResult {
    let (recorder, index) = (&merged.recorder, kind.index());
    let costs = recorder.counters.graph;
    let latencies = recorder.latency_ns(index);
    let at = |percentile: u32| {
        let nanos = latencies.value_at_quantile(f64::from(percentile) / 100.0);
        bucket(nanos as f64 / 1e6)
    };
    let found = match kind {
        Kind::AddNode => Some(0.0),
        _ => Some(ratio_of_counts(costs.find_reads, costs.finds).unwrap_or(0.0)),
    };
    let reads = match kind {
        Kind::GetNode => ratio_of_counts(costs.node_reads, costs.nodes),
        Kind::CountLinks => ratio_of_counts(costs.count_reads, costs.counts),
        Kind::GetList | Kind::GetTimeRange => ratio_of_counts(costs.range_reads, costs.ranges),
        _ => Some(0.0),
    };
    let count = recorder.executed_of(index);
    OpResult {
        count,
        not_found: recorder.of(index, Outcome::NotFound),
        ops_per_s: merged.per_s(count),
        latency_us: recorder.latency_us(index),
        reads_per_op: reads.zip(found).map(|(reads, found)| reads + found),
        buckets: (!latencies.is_empty()).then(|| Buckets {
            percentiles: PERCENTILES.map(at),
            max_ms: latencies.max() as f64 / 1e6,
            mean_ms: latencies.mean() / 1e6,
        }),
    }
}

impl Measured for RunResult {
    fn what(&self) -> String {
        let Setup {
            mix,
            compat,
            by_id,
            nodes,
            ..
        } = &self.setup;
        let compat = if *compat { ", as the reference" } else { "" };
        let by_id = if *by_id { ", by id" } else { "" };
        format!("mix {mix}, {} nodes{by_id}{compat}", grouped(*nodes))
    }

    fn figures(&self) -> Vec<Figure> {
        let slices = self.slices.as_ref().map(SliceRates::range);
        let mut figures = vec![Figure::rate("ops/s", self.ops_per_s, slices)];
        let kinds = self.ops.iter();
        figures.extend(kinds.flat_map(|(name, op)| Figure::latencies(name, op.latency_us)));
        figures.push(Figure::new("reads per read", self.reads_per_read));
        figures.push(Figure::new("load, links/s", self.load.links_per_s));
        figures
    }
}

impl fmt::Display for RunResult {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{}", self.what())?;
        let Setup {
            degrees,
            range_limit,
            in_flight,
            load_seed,
            seed,
            warmup_s,
            ..
        } = &self.setup;
        writeln!(
            out,
            "out-degrees: {degrees}; at most {} links of a list; {} requests in flight; seeds {load_seed} and {seed}; \
             warm-up {warmup_s:.1} s\n",
            grouped(*range_limit),
            grouped(*in_flight),
        )?;
        self.write_load(out)?;
        if self.ops.is_empty() {
            return Ok(());
        }
        self.write_requests(out)?;
        let kinds = self.ops.iter();
        let latencies = kinds.filter_map(|(name, op)| Some((*name, op.latency_us?)));
        write_latencies(out, 20, latencies)?;
        self.write_costs(out)
    }
}

impl RunResult {
    fn write_load(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let load = &self.load;
        let per_node = ratio_of_counts(load.links, load.nodes);
        writeln!(
            out,
            "LOAD PHASE COMPLETED. Loaded {} nodes (Expected {}). Loaded {} links ({} links per node). Took {:.1} \
             seconds. Links/second = {}",
            load.nodes,
            self.setup.nodes,
            load.links,
            decimal(per_node, 2),
            load.seconds,
            load.links_per_s
                .map_or_else(dash, |rate| format!("{rate:.0}")),
        )?;
        writeln!(
            out,
            "  {} counts; {} bytes per node, {} bytes per link; nodes in {:.1} s, then links",
            grouped(load.counts),
            decimal(load.bytes_per_node, 1),
            decimal(load.bytes_per_edge, 1),
            load.node_seconds,
        )
    }

    fn write_requests(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requests: u64 = self.ops.values().map(|op| op.count).sum();
        writeln!(
            out,
            "REQUEST PHASE COMPLETED. {requests} requests done in {:.1} seconds. Requests/second = {}\n",
            self.duration_s,
            self.ops_per_s
                .map_or_else(dash, |rate| format!("{rate:.0}")),
        )?;
        for (name, op) in &self.ops {
            let Some(buckets) = &op.buckets else {
                continue;
            };
            write!(out, "{name} count = {}", op.count)?;
            for (percentile, [low, high]) in PERCENTILES.iter().zip(buckets.percentiles) {
                write!(out, "  p{percentile} = [{low},{high}]ms")?;
            }
            writeln!(
                out,
                "  max = {:.3}ms  mean = {:.3}ms",
                buckets.max_ms, buckets.mean_ms
            )?;
        }
        Ok(())
    }

    fn write_costs(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out)?;
        let mut line = |name: &str, text: String| writeln!(out, "  {name:<18} {text}");
        let each = self.ops_per_s_per_worker.map_or_else(dash, whole);
        line(
            "requests/s",
            format!(
                "{} in all, {each} per worker",
                self.ops_per_s.map_or_else(dash, whole)
            ),
        )?;
        let kinds = self
            .ops
            .iter()
            .filter(|(_, op)| op.reads_per_op > Some(0.0));
        let reads: Vec<String> = kinds
            .map(|(name, op)| format!("{name} {}", decimal(op.reads_per_op, 4)))
            .collect();
        line("reads per request", reads.join(", "))?;
        let kinds = self.ops.iter().filter(|(_, op)| op.not_found > 0);
        let shares = kinds.filter_map(|(name, op)| {
            let share = ratio_of_counts(op.not_found, op.count)?;
            Some(format!("{name} {}", percent(share)))
        });
        let shares: Vec<String> = shares.collect();
        if !shares.is_empty() {
            line("not found", shares.join(", "))?;
        }
        let text = format!(
            "{} of a read by pointer, {} of a lookup by id",
            decimal(self.reads_per_read, 4),
            decimal(self.reads_per_find, 4)
        );
        line("reads", text)?;
        let rate = |share: Option<f64>| share.map_or_else(dash, percent);
        let text = format!(
            "{} hits, {} stale; {} reads in transactions; {} links per list",
            rate(self.heads.hit_rate),
            rate(self.heads.stale_rate),
            grouped(self.transactions),
            decimal(self.links_per_list, 2)
        );
        line("first pages", text)?;
        let text = format!("{} per transaction", decimal(self.owned_per_transaction, 2));
        line("writes at owners", text)?;
        if let Some(slices) = &self.slices {
            line("slices", slices.to_string())?;
        }
        if self.repeated > 0 {
            line("repeated", grouped(self.repeated))?;
        }
        line("errors", grouped(self.errors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_in_the_buckets_of_the_reference() {
        for (ms, wanted) in [
            (0.0, [0.0, 0.1]),
            (0.05, [0.0, 0.1]),
            (0.35, [0.3, 0.4]),
            (0.95, [0.9, 1.0]),
            (1.0, [1.0, 2.0]),
            (57.3, [57.0, 58.0]),
            (100.0, [100.0, 200.0]),
            (1500.0, [1000.0, 2000.0]),
        ] {
            assert_eq!(bucket(ms), wanted, "{ms} ms");
        }
    }
}
