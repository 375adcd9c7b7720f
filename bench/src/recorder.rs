//! The recorded operations of a worker: counts by kind and outcome, sampled latencies, and costs.
//!
//! Every worker has its own [`Recorder`]. They are merged after the run, also across processes: a recorder serializes
//! to the values of its histograms, and to nothing that depends on the machine.

use std::num::NonZeroU32;

use hdrhistogram::Histogram;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::counters::Counters;

/// Longest latency in a histogram, in nanoseconds: one minute. Longer latencies are recorded as this value.
const MAX_LATENCY_NS: u64 = 60_000_000_000;
/// Number of decimal digits to which a recorded latency is exact.
const SIGNIFICANT_DIGITS: u8 = 3;

/// Defines the kinds of operations of a workload, with their names in results.
macro_rules! kinds {
    (
        $(#[$meta:meta])*
        pub enum $name:ident { $($(#[$kind_meta:meta])* $kind:ident = $text:literal,)+ }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$kind_meta])* $kind,)+
        }

        impl $name {
            /// Names of all kinds in results, in the order of their indices.
            pub const NAMES: &[&'static str] = &[$($text),+];
            /// All kinds, in the order of their indices.
            pub const ALL: [Self; Self::NAMES.len()] = [$(Self::$kind),+];

            /// Returns its index in [`Self::ALL`] and in a recorder.
            pub const fn index(self) -> usize {
                self as usize
            }

            /// Returns its name in results.
            pub const fn name(self) -> &'static str {
                Self::NAMES[self as usize]
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.name())
            }
        }
    };
}
pub(crate) use kinds;

/// Outcome of an operation. All three count as executed; report them separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// The operation had its intended effect.
    Committed,
    /// A required row is absent: nothing is written.
    NotFound,
    /// The intended effect is not allowed (insufficient funds, the row exists): nothing is written.
    Declined,
}

/// Number of outcomes.
const OUTCOMES: usize = 3;

/// Why recorders cannot be merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecorderError {
    /// The sampling rates or the kinds of operations differ.
    #[error(
        "recorders with different kinds or sampling rates cannot be merged: {ours:?} and {theirs:?} \
         (kinds, sampled 1 in)"
    )]
    Mixed {
        /// Number of kinds and sampling rate of the recorder that is the target of the merge.
        ours: (usize, u32),
        /// Number of kinds and sampling rate of the other recorder.
        theirs: (usize, u32),
    },
}

/// Counts and latencies of one worker, or of several merged workers. The methods panic if a kind is not below the
/// number of kinds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "C: Serialize + DeserializeOwned")]
pub struct Recorder<C = ()> {
    sampled_1_in: NonZeroU32,
    /// Number of operations before the next one that is timed.
    #[serde(skip)]
    until_next: u32,
    kinds: Vec<PerKind>,
    /// Costs, and what the clients count themselves.
    pub counters: C,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct PerKind {
    executed: [u64; OUTCOMES],
    #[serde(with = "pairs")]
    latency_ns: Histogram<u64>,
}

impl<C: Counters> Recorder<C> {
    /// Creates a recorder for `kinds` kinds of operations. It times one operation in `sampled_1_in`, beginning with the
    /// first; 1 means all.
    ///
    /// Allocates about 200 KiB for each kind.
    ///
    /// # Panics
    /// If `sampled_1_in` is 0.
    pub fn new(kinds: usize, sampled_1_in: u32) -> Self {
        let kind = || PerKind {
            executed: [0; OUTCOMES],
            latency_ns: histogram(),
        };
        Self {
            sampled_1_in: NonZeroU32::new(sampled_1_in).expect("a recorder cannot sample 1 in 0"),
            until_next: 0,
            kinds: (0..kinds).map(|_| kind()).collect(),
            counters: C::default(),
        }
    }

    /// Creates a recorder that times no operation.
    pub(crate) fn untimed(kinds: usize) -> Self {
        Self {
            until_next: u32::MAX,
            ..Self::new(kinds, u32::MAX)
        }
    }

    /// Returns whether the operation that starts now is to be timed. Call it once per operation.
    #[inline]
    pub fn sample(&mut self) -> bool {
        let is_sampled = self.until_next == 0;
        self.until_next = match is_sampled {
            true => self.sampled_1_in.get() - 1,
            false => self.until_next - 1,
        };
        is_sampled
    }

    /// Counts an executed operation, with its latency in nanoseconds if it was timed.
    #[inline]
    pub fn finish(&mut self, kind: usize, outcome: Outcome, latency_ns: Option<u64>) {
        let of_kind = &mut self.kinds[kind];
        of_kind.executed[outcome as usize] += 1;
        if let Some(latency_ns) = latency_ns {
            of_kind.latency_ns.saturating_record(latency_ns);
        }
    }

    /// Clears everything recorded, for the end of a warm-up.
    pub fn clear(&mut self) {
        for of_kind in &mut self.kinds {
            of_kind.executed = Default::default();
            of_kind.latency_ns.reset();
        }
        self.counters = C::default();
    }

    /// Adds the counts and latencies of another recorder.
    ///
    /// # Errors
    /// [`RecorderError::Mixed`]; then nothing is added.
    pub fn merge(&mut self, other: &Self) -> Result<(), RecorderError> {
        let ours = (self.kinds.len(), self.sampled_1_in());
        let theirs = (other.kinds.len(), other.sampled_1_in());
        if ours != theirs {
            return Err(RecorderError::Mixed { ours, theirs });
        }
        for (ours, theirs) in self.kinds.iter_mut().zip(&other.kinds) {
            for (count, more) in ours.executed.iter_mut().zip(theirs.executed) {
                *count += more;
            }
            let added = ours.latency_ns.add(&theirs.latency_ns);
            added.expect("the histograms of all recorders have the same bounds");
        }
        self.counters.add(&other.counters);
        Ok(())
    }

    /// Returns the sampling rate: one operation in this many is timed.
    pub fn sampled_1_in(&self) -> u32 {
        self.sampled_1_in.get()
    }

    /// Returns the number of operations of a kind with this outcome.
    pub fn of(&self, kind: usize, outcome: Outcome) -> u64 {
        self.kinds[kind].executed[outcome as usize]
    }

    /// Returns the number of operations of all kinds with this outcome.
    pub fn total(&self, outcome: Outcome) -> u64 {
        let kinds = 0..self.kinds.len();
        kinds.map(|kind| self.of(kind, outcome)).sum()
    }

    /// Returns the number of executed operations of a kind, with any outcome.
    pub fn executed_of(&self, kind: usize) -> u64 {
        self.kinds[kind].executed.iter().sum()
    }

    /// Returns the number of executed operations, with any outcome.
    pub fn executed(&self) -> u64 {
        let kinds = 0..self.kinds.len();
        kinds.map(|kind| self.executed_of(kind)).sum()
    }

    /// Returns the latencies of a kind, in nanoseconds.
    pub fn latency_ns(&self, kind: usize) -> &Histogram<u64> {
        &self.kinds[kind].latency_ns
    }

    /// Returns the latencies of a kind in microseconds, unless none was sampled.
    pub fn latency_us(&self, kind: usize) -> Option<LatencyUs> {
        let histogram = self.latency_ns(kind);
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        (!histogram.is_empty()).then(|| LatencyUs {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max() as f64 / 1000.0,
            sampled_1_in: self.sampled_1_in(),
        })
    }
}

/// Latency of one kind of operation, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencyUs {
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// The longest sampled latency.
    pub max: f64,
    /// One operation in this many was timed.
    pub sampled_1_in: u32,
}

/// Returns an empty histogram. All histograms have the same bounds, so that they can be added up.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_LATENCY_NS, SIGNIFICANT_DIGITS)
        .expect("the constant bounds of the histogram are valid")
}

/// The serialized form of a histogram: pairs of a latency and the number of times that it was recorded.
pub(crate) mod pairs {
    use serde::{Deserializer, Serializer};

    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        histogram: &Histogram<u64>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let recorded = histogram.iter_recorded();
        to.collect_seq(recorded.map(|step| (step.value_iterated_to(), step.count_at_value())))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Histogram<u64>, D::Error> {
        let mut histogram = histogram();
        for (value, count) in Vec::<(u64, u64)>::deserialize(from)? {
            histogram.saturating_record_n(value, count);
        }
        Ok(histogram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kind 1 committed with these latencies, and one operation of kind 0 that found no row.
    fn recorder(sampled_1_in: u32, latencies: std::ops::Range<u64>) -> Recorder<u64> {
        let mut recorder = Recorder::new(2, sampled_1_in);
        for latency_ns in latencies {
            let timed = recorder.sample();
            recorder.finish(1, Outcome::Committed, timed.then_some(latency_ns));
        }
        recorder.finish(0, Outcome::NotFound, None);
        recorder.counters = 7;
        recorder
    }

    #[test]
    fn one_in_n_is_timed_and_all_are_counted() {
        let mut recorder = recorder(8, 0..1000);
        assert_eq!(recorder.of(1, Outcome::Committed), 1000);
        assert_eq!(recorder.latency_ns(1).len(), 125);
        assert_eq!(recorder.latency_us(0), None);
        let not_found = recorder.total(Outcome::NotFound);
        assert_eq!((recorder.executed(), not_found), (1001, 1));
        recorder.clear();
        assert_eq!((recorder.executed(), recorder.counters), (0, 0));
        assert!(recorder.latency_ns(1).is_empty());
        assert_eq!(recorder.sampled_1_in(), 8);
    }

    #[test]
    fn merged_recorders_add_all_counts_and_survive_serialization() {
        let mut one = recorder(1, 0..500);
        one.merge(&recorder(1, 500..1000)).unwrap();
        one.finish(0, Outcome::Declined, Some(u64::MAX));
        let text = serde_json::to_string(&one).unwrap();
        let received: Recorder<u64> = serde_json::from_str(&text).unwrap();
        let whole = recorder(1, 0..1000);
        for merged in [&one, &received] {
            assert_eq!(merged.latency_ns(0), one.latency_ns(0));
            assert_eq!(merged.latency_ns(1), whole.latency_ns(1));
            assert_eq!((merged.executed_of(0), merged.executed_of(1)), (3, 1000));
            assert_eq!(merged.total(Outcome::Declined), 1);
            assert_eq!(merged.counters, 14);
        }
        let mixed = |ours, theirs| Err(RecorderError::Mixed { ours, theirs });
        assert_eq!(one.merge(&Recorder::new(2, 4)), mixed((2, 1), (2, 4)));
        assert_eq!(one.merge(&Recorder::new(3, 1)), mixed((2, 1), (3, 1)));
        let none = text.replacen("\":1", "\":0", 1);
        assert!(serde_json::from_str::<Recorder<u64>>(&none).is_err());
    }
}
