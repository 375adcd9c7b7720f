//! Figures that were measured several times.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The spread of a figure that was measured several times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Median of the figures.
    pub median: f64,
    /// Least of the figures.
    pub least: f64,
    /// Greatest of the figures.
    pub most: f64,
}

impl Spread {
    /// Returns the spread of figures. The median of an even number of figures is the mean of the two in the middle.
    pub(crate) fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        let (Some(least), Some(most)) = (figures.first(), figures.last()) else {
            return Self::default();
        };
        let [below, above] = [(figures.len() - 1) / 2, figures.len() / 2];
        Self {
            median: f64::midpoint(figures[below], figures[above]),
            least: *least,
            most: *most,
        }
    }
}

/// A rate that was measured in several time slices, in operations per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rate {
    /// Rate of the median slice.
    pub per_s: f64,
    /// Rate of the slowest slice.
    pub least: f64,
    /// Rate of the fastest slice.
    pub most: f64,
}

impl Rate {
    /// Returns the median and the spread of the rates of the slices.
    pub(crate) fn of(slices: Vec<f64>) -> Self {
        let spread = Spread::of(slices);
        Self {
            per_s: spread.median,
            least: spread.least,
            most: spread.most,
        }
    }

    /// Returns the gigabytes (10⁹ bytes) a second at `bytes` bytes per operation.
    pub(super) fn gb_per_s(&self, bytes: usize) -> f64 {
        self.per_s * bytes as f64 / 1e9
    }
}

/// Latencies, in nanoseconds. Each includes one reading of the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Number of timed operations.
    pub samples: u64,
}

impl Latency {
    pub(crate) fn of(histogram: &Histogram<u64>) -> Self {
        Self {
            p50_ns: histogram.value_at_quantile(0.5),
            p99_ns: histogram.value_at_quantile(0.99),
            samples: histogram.len(),
        }
    }
}
