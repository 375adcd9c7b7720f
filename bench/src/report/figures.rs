//! The figures of lookups, and of raw reads for comparison.

use super::repeats::Figure;
use crate::lookups::LookupRate;
use crate::micro::limit::RawLimit;

/// Returns the figures of lookups and of raw reads.
pub fn limit_figures(raw: &RawLimit, lookups: &[LookupRate], misses: &LookupRate) -> Vec<Figure> {
    let of_lookups = |what: &str, rate: &LookupRate| {
        let name = format!("{what}/s, {} in flight", rate.in_flight);
        let slices = rate
            .repeats
            .first()
            .copied()
            .zip(rate.repeats.last().copied());
        Figure::rate(name, rate.lookups_per_s, slices.map(Into::into))
    };
    let mut figures: Vec<Figure> = lookups.iter().map(|it| of_lookups("lookups", it)).collect();
    let batched = raw.best_batched.reads_per_s;
    figures.extend([
        of_lookups("misses", misses),
        Figure::new("raw reads/s, best", raw.best.reads_per_s),
        Figure::new("raw reads/s, best in batches", batched),
        Figure::new("raw dependent read, ns", raw.dependent.ns_per_read),
    ]);
    // Repeated runs are compared by the best rates, but each rate may be uneven.
    figures.extend(raw.rates.iter().map(|rate| {
        let name = format!(
            "{} of {}, {}: raw reads/s",
            rate.access, rate.batch, rate.variant
        );
        Figure::rate(name, None, Some([rate.least, rate.most]))
    }));
    figures
}
