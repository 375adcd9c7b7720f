//! Which figures of each result are put beside those of a repeat.

use super::{Figure, Measured, RunResult, SlicedRate};
use crate::alloc::AllocReport;
use crate::commits::CommitReport;
use crate::lookups::LookupRate;
use crate::micro::limit::RawLimit;
use crate::micro::{MicroReport, Rate, Row};
use crate::oltp;
use crate::slices::SliceRates;

impl SlicedRate {
    fn of(name: impl Into<String>, rate: &Rate) -> Self {
        Self {
            name: name.into(),
            least: rate.least,
            most: rate.most,
        }
    }

    fn of_slices(name: &str, slices: Option<&SliceRates>) -> Vec<Self> {
        let slices = slices.into_iter();
        slices
            .map(|slices| Self {
                name: name.to_owned(),
                least: slices.least,
                most: slices.most,
            })
            .collect()
    }
}

impl Measured for RunResult {
    fn what(&self) -> String {
        format!("workload {}, {}", self.workload, self.distribution)
    }

    fn figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        let mut push = |name: &str, value: Option<f64>| {
            figures.extend(value.map(|value| Figure::new(name, value)));
        };
        push("ops/s", self.ops_per_s);
        for (kind, latency) in &self.latency_us {
            let name = kind.name();
            push(&format!("{name} p50, us"), Some(latency.p50));
            push(&format!("{name} p99, us"), Some(latency.p99));
        }
        push("reads per lookup", self.reads_per_lookup);
        push("load, pairs/s", self.load_pairs_per_s);
        figures
    }

    fn sliced_rates(&self) -> Vec<SlicedRate> {
        SlicedRate::of_slices("ops/s", self.slices.as_ref())
    }
}

impl Measured for oltp::report::RunResult {
    fn what(&self) -> String {
        self.benchmark.clone()
    }

    fn figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        let mut push = |name: &str, value: Option<f64>| {
            figures.extend(value.map(|value| Figure::new(name, value)));
        };
        push("committed/s", self.committed_per_s);
        push("executed/s", self.executed_per_s);
        push("share of attempts made again", self.abort_share);
        for kind in &self.kinds {
            let of = |of: fn(&super::Latency) -> f64| kind.latency_us.as_ref().map(of);
            push(&format!("{} p50, us", kind.kind), of(|it| it.p50));
            push(&format!("{} p99, us", kind.kind), of(|it| it.p99));
        }
        push("load, rows/s", self.load_rows_per_s);
        figures
    }

    fn sliced_rates(&self) -> Vec<SlicedRate> {
        SlicedRate::of_slices("executed/s", self.slices.as_ref())
    }
}

impl Measured for MicroReport {
    fn what(&self) -> String {
        self.what.to_owned()
    }

    fn figures(&self) -> Vec<Figure> {
        let named = self.rows.iter().flat_map(Row::named);
        let figures = named.filter_map(|(name, cell)| {
            let (value, suffix) = cell.figure?;
            Some(Figure::new(name + suffix, value))
        });
        figures.collect()
    }

    fn sliced_rates(&self) -> Vec<SlicedRate> {
        let named = self.rows.iter().flat_map(Row::named);
        let rates = named.filter_map(|(name, cell)| {
            let (least, most) = cell.rates?;
            Some(SlicedRate { name, least, most })
        });
        rates.collect()
    }
}

impl Measured for AllocReport {
    fn what(&self) -> String {
        "alloc".to_owned()
    }

    fn figures(&self) -> Vec<Figure> {
        let timings = self.timings.iter().flat_map(|timing| {
            [
                ("fill", timing.fill_ns),
                ("replace", timing.replace_ns),
                ("replace near", timing.replace_near_ns),
                ("drain", timing.drain_ns),
            ]
            .map(|(name, ns)| Figure::new(format!("{} B {name}, ns", timing.payload_bytes), ns))
        });
        let mixed = Figure::new("mixed sizes replace, ns", self.mixed.replace_ns);
        timings.chain([mixed]).collect()
    }
}

impl Measured for CommitReport {
    fn what(&self) -> String {
        "commit".to_owned()
    }

    fn figures(&self) -> Vec<Figure> {
        let rows = self.rows.iter().flat_map(|row| {
            let name = row.name();
            [
                Figure::new(format!("{name}: commits/s"), row.commits.per_s),
                Figure::new(format!("{name}: p50, ns"), row.commit.p50_ns as f64),
            ]
        });
        let bracket = Figure::new("begin and end of an operation, ns", self.bracket_ns);
        rows.chain([bracket]).collect()
    }

    fn sliced_rates(&self) -> Vec<SlicedRate> {
        let rows = self.rows.iter();
        rows.map(|row| SlicedRate::of(format!("{}: commits/s", row.name()), &row.commits))
            .collect()
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
