//! Throughput over time: how many operations ended in each slice of the measured part of a run.
//!
//! A closed loop has a `Slicer`. Once per operation, the loop compares the time of the turn with the end of the slice;
//! all other work is done only when a slice ends. The [`Slices`] of several workers add up, also those of different
//! processes. A report contains [`SliceRates`], which also state whether the run was uneven.

use std::fmt;
use std::time::Duration;

use farm_core::time::Nanos;
use serde::{Deserialize, Serialize};

use crate::text::whole;

/// Shortest slice, and the slice of a run whose length is not known in advance.
const SHORTEST: Duration = Duration::from_millis(100);
/// Longest slice: a stall of a second must show in a long run.
const LONGEST: Duration = Duration::from_secs(1);
/// Number of slices of a run whose slices are between the shortest and the longest.
const SLICES: u32 = 10;
/// Number of slices for which memory is allocated in advance, which is enough for most runs.
const USUAL: usize = 64;
/// A run is uneven if its fastest slice has more than this many times the throughput of its slowest.
pub const UNEVEN: f64 = 2.0;

/// Operations that ended in each whole slice of the measured part, of one worker or of several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slices {
    /// Length of a slice in nanoseconds; 0 if nothing was measured.
    pub slice_ns: u64,
    /// Number of operations that ended in each slice.
    pub counts: Vec<u64>,
}

impl Slices {
    /// Adds the slices of another worker. If one worker ended earlier, the last slices of the other worker are dropped,
    /// because their sums would not be comparable.
    pub fn merge(&mut self, other: &Slices) {
        if other.slice_ns == 0 {
            return;
        }
        if self.slice_ns == 0 {
            self.clone_from(other);
            return;
        }
        self.counts.truncate(other.counts.len());
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
    }

    /// Returns the throughput of each slice; `None` if there are fewer than two slices.
    pub fn rates(&self) -> Option<SliceRates> {
        let slice_s = self.slice_ns as f64 / 1e9;
        let per_s: Vec<f64> = self
            .counts
            .iter()
            .map(|count| *count as f64 / slice_s)
            .collect();
        if slice_s <= 0.0 || per_s.len() < 2 {
            return None;
        }
        let least = per_s.iter().copied().fold(f64::INFINITY, f64::min);
        let most = per_s.iter().copied().fold(0.0, f64::max);
        Some(SliceRates {
            slice_s,
            per_s,
            least,
            most,
            uneven: is_uneven(least, most),
        })
    }
}

/// Returns whether the throughputs of slices differ so much that one figure for the whole run says little.
pub fn is_uneven(least: f64, most: f64) -> bool {
    most > UNEVEN * least
}

/// The throughput of a run by time slice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SliceRates {
    /// Length of a slice, in seconds.
    pub slice_s: f64,
    /// Operations per second of each slice, in their order.
    pub per_s: Vec<f64>,
    /// Operations per second of the slowest slice.
    pub least: f64,
    /// Operations per second of the fastest slice.
    pub most: f64,
    /// Whether `most` is more than [`UNEVEN`] times `least`.
    pub uneven: bool,
}

impl SliceRates {
    /// Returns the throughput of the slowest and of the fastest slice.
    pub(crate) fn range(&self) -> [f64; 2] {
        [self.least, self.most]
    }
}

impl fmt::Display for SliceRates {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slice_s, per_s, .. } = self;
        let [least, most] = self.range().map(whole);
        let uneven = if self.uneven { ": UNEVEN" } else { "" };
        write!(
            out,
            "{} of {slice_s:.1} s, {least} to {most} /s{uneven}",
            per_s.len()
        )
    }
}

/// Divides the measured part of one worker's run into slices.
#[derive(Clone, Debug)]
pub(crate) struct Slicer {
    slices: Slices,
    /// End of the current slice; the largest time until the measured part begins.
    ends: Nanos,
    /// Number of operations that ended before the current slice.
    before: u64,
}

impl Slicer {
    /// Creates the slicer of a measured part of this duration; `None` if the duration is not known in advance.
    pub(crate) fn new(duration: Option<Duration>) -> Self {
        let slice = duration.map_or(SHORTEST, |whole| (whole / SLICES).clamp(SHORTEST, LONGEST));
        Self {
            slices: Slices {
                slice_ns: slice.as_nanos() as u64,
                counts: Vec::with_capacity(USUAL),
            },
            ends: Nanos(u64::MAX),
            before: 0,
        }
    }

    /// Begins the measured part.
    pub(crate) fn start(&mut self, now: Nanos) {
        self.slices.counts.clear();
        self.ends = now + self.slices.slice_ns;
        self.before = 0;
    }

    /// Returns whether the current slice has ended. The caller must check this before it counts an operation that ends
    /// now.
    #[inline]
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        now >= self.ends
    }

    /// Ends the current slice, and all later slices that have passed without an operation. `total` is the number of
    /// operations that have ended in the measured part.
    #[cold]
    pub(crate) fn advance(&mut self, now: Nanos, total: u64) {
        while self.is_due(now) {
            self.slices.counts.push(total - self.before);
            self.before = total;
            self.ends = self.ends + self.slices.slice_ns;
        }
    }

    /// Returns the complete slices of a run that ends now.
    pub(crate) fn finish(mut self, now: Nanos, total: u64) -> Slices {
        if self.ends == Nanos(u64::MAX) {
            return Slices::default();
        }
        self.advance(now, total);
        self.slices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn slices(counts: &[u64]) -> Slices {
        Slices {
            slice_ns: 100 * MS,
            counts: counts.to_vec(),
        }
    }

    #[test]
    fn slices_are_a_tenth_of_the_run_within_bounds() {
        let of = |seconds: f64| {
            let slicer = Slicer::new(Some(Duration::from_secs_f64(seconds)));
            slicer.slices.slice_ns / MS
        };
        assert_eq!(
            [0.3, 1.0, 5.0, 10.0, 120.0].map(of),
            [100, 100, 500, 1000, 1000]
        );
        assert_eq!(Slicer::new(None).slices.slice_ns / MS, 100);
    }

    #[test]
    fn operations_count_in_the_slice_in_which_they_end() {
        let mut slicer = Slicer::new(Some(Duration::from_secs(1)));
        assert!(
            !slicer.is_due(Nanos(u64::MAX - 1)),
            "nothing is measured yet"
        );
        slicer.start(Nanos(5 * MS));
        let mut total = 0;
        // Three operations in the first slice, none in the second, one in the third and one in the fourth,
        // which is not whole at the end.
        for at in [10, 50, 104, 210, 306] {
            let now = Nanos(at * MS);
            if slicer.is_due(now) {
                slicer.advance(now, total);
            }
            total += 1;
        }
        assert_eq!(slicer.finish(Nanos(330 * MS), total), slices(&[3, 0, 1]));
        let idle = Slicer::new(None).finish(Nanos(MS), 0);
        assert_eq!(idle, Slices::default());
    }

    #[test]
    fn slices_of_workers_add_up_as_far_as_both_have_them() {
        let mut sum = Slices::default();
        sum.merge(&slices(&[1, 2, 3]));
        sum.merge(&Slices::default());
        sum.merge(&slices(&[10, 20]));
        assert_eq!(sum, slices(&[11, 22]));
        assert_eq!(slices(&[7]).rates(), None);
        assert_eq!(Slices::default().rates(), None);
    }

    #[test]
    fn a_run_is_uneven_if_a_slice_has_more_than_twice_anothers_throughput() {
        let even = slices(&[10, 20, 15]).rates().unwrap();
        assert_eq!((even.least, even.most, even.uneven), (100.0, 200.0, false));
        assert_eq!(even.slice_s, 0.1);
        assert!(slices(&[10, 21, 15]).rates().unwrap().uneven);
        assert!(slices(&[10, 0]).rates().unwrap().uneven);
        assert!(!slices(&[0, 0]).rates().unwrap().uneven);
    }
}
