//! The figures of each micro-benchmark that are compared with those of its repetitions.

use super::repeats::{Figure, Measured, SlicedRate};
use crate::lookups::LookupRate;
use crate::micro::limit::RawLimit;
use crate::micro::{MicroReport, Row};

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

/// Returns the figures of lookups, and of raw reads for comparison.
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

/// Returns the throughputs of lookups and of raw reads, with their slowest and fastest slices.
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
