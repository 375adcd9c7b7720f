//! Which figures of each micro-benchmark are put beside those of a repeat.

use super::repeats::{Figure, Measured, SlicedRate};
use crate::lookups::LookupRate;
use crate::micro::fabric::{FabricReport, Operations};
use crate::micro::limit::RawLimit;
use crate::micro::ring::RingReport;
use crate::micro::verbs::VerbsReport;

impl Measured for RingReport {
    fn what(&self) -> String {
        "ring".to_owned()
    }

    fn figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        for row in &self.rows {
            let mut push = |name: &str, value: f64| {
                figures.push(Figure::new(format!("{} B {name}", row.bytes), value));
            };
            push("ring round trip p50, ns", row.ring_rtt.p50_ns as f64);
            push("worker's call p50, ns", row.call_rtt.p50_ns as f64);
            push("Unix socket p50, ns", row.unix_rtt.p50_ns as f64);
            push("loopback TCP p50, ns", row.tcp_rtt.p50_ns as f64);
            push("one-way messages/s", row.stream_msgs.per_s);
            push("ring calls/s", row.ring_calls.per_s);
            push("worker's calls/s", row.calls.per_s);
        }
        figures
    }

    fn sliced_rates(&self) -> Vec<SlicedRate> {
        let rows = self.rows.iter().flat_map(|row| {
            [
                ("one-way messages/s", &row.stream_msgs),
                ("ring calls/s", &row.ring_calls),
                ("worker's calls/s", &row.calls),
            ]
            .map(|(name, rate)| SlicedRate::of(format!("{} B {name}", row.bytes), rate))
        });
        rows.collect()
    }
}

/// The operations of a report, with their names.
fn operations(report: &FabricReport) -> Vec<(String, &Operations)> {
    let rows = report.rows.iter().flat_map(|row| {
        [
            ("read raw", Some(&row.read_raw)),
            ("read object", row.read_object.as_ref()),
            ("write", Some(&row.write)),
        ]
        .map(|(name, operations)| Some((format!("{} B {name}", row.bytes), operations?)))
    });
    rows.flatten().collect()
}

impl Measured for FabricReport {
    fn what(&self) -> String {
        "fabric".to_owned()
    }

    fn figures(&self) -> Vec<Figure> {
        let all = operations(self).into_iter().flat_map(|(name, it)| {
            [
                Figure::new(format!("{name} p50, ns"), it.latency.p50_ns as f64),
                Figure::new(format!("{name}s/s, 32 outstanding"), it.of_32.per_s),
                Figure::new(format!("{name}s/s, 256 outstanding"), it.of_256.per_s),
            ]
        });
        all.collect()
    }

    fn sliced_rates(&self) -> Vec<SlicedRate> {
        let all = operations(self).into_iter().flat_map(|(name, it)| {
            [(1, &it.one), (32, &it.of_32), (256, &it.of_256)].map(|(outstanding, rate)| {
                SlicedRate::of(format!("{name}s/s, {outstanding} outstanding"), rate)
            })
        });
        all.collect()
    }
}

impl Measured for VerbsReport {
    fn what(&self) -> String {
        "fabric over RDMA devices".to_owned()
    }

    fn figures(&self) -> Vec<Figure> {
        let rows = self.rows.iter().flat_map(|row| {
            let name = format!("{} B {}", row.bytes, row.measure.name());
            let scale = if row.measure.is_latency() { 1e-3 } else { 1.0 };
            let ours = Figure::new(&name, row.farm.median * scale);
            let beside = row.beside.as_ref();
            let ratio =
                beside.map(|it| Figure::new(format!("{name}: farm / perftest"), it.ratio.median));
            [Some(ours), ratio]
        });
        rows.flatten().collect()
    }

    fn sliced_rates(&self) -> Vec<SlicedRate> {
        let rates = self.rows.iter().filter(|row| !row.measure.is_latency());
        let rates = rates.map(|row| SlicedRate {
            name: format!("{} B {}", row.bytes, row.measure.name()),
            least: row.farm.least,
            most: row.farm.most,
        });
        rates.collect()
    }
}

/// Figures of raw reads and of lookups beside them.
pub fn limit_figures(raw: &RawLimit, lookups: &[LookupRate], misses: &LookupRate) -> Vec<Figure> {
    let mut figures = Vec::new();
    for rate in lookups {
        let name = format!("lookups/s, {} in flight", rate.in_flight);
        figures.push(Figure::new(name, rate.lookups_per_s));
    }
    let name = format!("misses/s, {} in flight", misses.in_flight);
    figures.push(Figure::new(name, misses.lookups_per_s));
    figures.push(Figure::new("raw reads/s, best", raw.best.reads_per_s));
    let batched = raw.best_batched.reads_per_s;
    figures.push(Figure::new("raw reads/s, best in batches", batched));
    figures.push(Figure::new(
        "raw dependent read, ns",
        raw.dependent.ns_per_read,
    ));
    figures
}

/// Their throughputs by slice.
pub fn limit_rates(raw: &RawLimit, lookups: &[LookupRate], misses: &LookupRate) -> Vec<SlicedRate> {
    let of_lookups = |what: &str, rate: &LookupRate| {
        let slices = rate.repeats.iter().copied();
        SlicedRate {
            name: format!("{what}/s, {} in flight", rate.in_flight),
            least: slices.clone().fold(f64::INFINITY, f64::min),
            most: slices.fold(0.0, f64::max),
        }
    };
    let lookups = lookups.iter().map(|rate| of_lookups("lookups", rate));
    let raw = raw.rates.iter().map(|rate| SlicedRate {
        name: format!(
            "{} of {}, {}: raw reads/s",
            rate.access, rate.batch, rate.variant
        ),
        least: rate.least,
        most: rate.most,
    });
    lookups
        .chain([of_lookups("misses", misses)])
        .chain(raw)
        .collect()
}
