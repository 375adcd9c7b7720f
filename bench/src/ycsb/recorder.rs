//! What became of a worker's operations: counts and sampled latencies.
//!
//! Every worker has a [`Recorder`] of its own. They are merged after the run, across
//! processes too: a recorder serializes to the values its histograms hold, and to
//! nothing that depends on the machine.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::operation::OpKind;

/// Latencies above this, one minute, count as this.
const MAX_LATENCY_NS: u64 = 60_000_000_000;

/// Decimal digits to which a recorded latency is exact.
const SIGNIFICANT_DIGITS: u8 = 3;

/// Things counted about operations, whatever their kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Operations that failed.
    pub errors: u64,
    /// Lookups that found their record.
    pub hits: u64,
    /// Lookups that found no record.
    pub misses: u64,
    /// Reads of objects that the hits took.
    pub reads_of_hits: u64,
    /// Reads of objects that the misses took.
    pub reads_of_misses: u64,
    /// Reads done again because what they returned was not consistent.
    pub read_restarts: u64,
    /// Lookups of records whose primary is this machine.
    pub lookups_local: u64,
    /// Lookups of records whose primary is another machine.
    pub lookups_remote: u64,
    /// Values looked at and found right.
    pub verified: u64,
    /// Values looked at and found wrong.
    pub verify_failures: u64,
}

impl AddAssign<&Counters> for Counters {
    fn add_assign(&mut self, other: &Counters) {
        let Counters {
            errors,
            hits,
            misses,
            reads_of_hits,
            reads_of_misses,
            read_restarts,
            lookups_local,
            lookups_remote,
            verified,
            verify_failures,
        } = other;
        self.errors += errors;
        self.hits += hits;
        self.misses += misses;
        self.reads_of_hits += reads_of_hits;
        self.reads_of_misses += reads_of_misses;
        self.read_restarts += read_restarts;
        self.lookups_local += lookups_local;
        self.lookups_remote += lookups_remote;
        self.verified += verified;
        self.verify_failures += verify_failures;
    }
}

/// Recorders that do not go together, or bytes that are no recorder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecorderError {
    /// One sampled more often than the other: their latencies have unequal weights.
    #[error("latencies sampled 1 in {ours} and 1 in {theirs} cannot be merged")]
    MixedSampling {
        /// The rate of the recorder merged into.
        ours: u32,
        /// The rate of the other.
        theirs: u32,
    },
    /// A sampling rate of 1 in 0.
    #[error("a recorder cannot sample 1 in 0")]
    NoSampling,
}

/// Counts and latencies of one worker, or of several merged.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(into = "Wire", try_from = "Wire")]
pub struct Recorder {
    sampled_1_in: u32,
    until_sample: u32,
    kinds: [PerKind; OpKind::COUNT],
    /// What is counted; the driver adds to it directly.
    pub counters: Counters,
}

#[derive(Debug, Clone)]
struct PerKind {
    operations: u64,
    latency_ns: Histogram<u64>,
}

impl PerKind {
    fn new() -> Self {
        let latency_ns = Histogram::new_with_bounds(1, MAX_LATENCY_NS, SIGNIFICANT_DIGITS)
            .expect("constant bounds: 1 ns to a minute, three digits");
        Self {
            operations: 0,
            latency_ns,
        }
    }
}

impl Recorder {
    /// A recorder that times one operation in `sampled_1_in`; 1 times all.
    ///
    /// Takes about a megabyte, all of it now.
    ///
    /// # Panics
    /// If `sampled_1_in` is 0.
    pub fn new(sampled_1_in: u32) -> Self {
        assert!(sampled_1_in > 0, "a recorder cannot sample 1 in 0");
        Self {
            sampled_1_in,
            until_sample: 0,
            kinds: std::array::from_fn(|_| PerKind::new()),
            counters: Counters::default(),
        }
    }

    /// Whether the operation that starts now is to be timed. Ask once per operation.
    #[inline]
    pub fn sample(&mut self) -> bool {
        if self.until_sample == 0 {
            self.until_sample = self.sampled_1_in - 1;
            true
        } else {
            self.until_sample -= 1;
            false
        }
    }

    /// Counts an operation that succeeded, with its latency if it was timed.
    #[inline]
    pub fn finish(&mut self, kind: OpKind, latency_ns: Option<u64>) {
        let of_kind = &mut self.kinds[kind.index()];
        of_kind.operations += 1;
        if let Some(latency_ns) = latency_ns {
            of_kind.latency_ns.saturating_record(latency_ns);
        }
    }

    /// Forgets everything recorded, for the end of a warm-up.
    pub fn clear(&mut self) {
        for of_kind in &mut self.kinds {
            of_kind.operations = 0;
            of_kind.latency_ns.reset();
        }
        self.counters = Counters::default();
    }

    /// Adds what another recorder holds.
    ///
    /// # Errors
    /// [`RecorderError::MixedSampling`]; nothing is added then.
    pub fn merge(&mut self, other: &Recorder) -> Result<(), RecorderError> {
        if self.sampled_1_in != other.sampled_1_in {
            return Err(RecorderError::MixedSampling {
                ours: self.sampled_1_in,
                theirs: other.sampled_1_in,
            });
        }
        for (ours, theirs) in self.kinds.iter_mut().zip(&other.kinds) {
            ours.operations += theirs.operations;
            ours.latency_ns
                .add(&theirs.latency_ns)
                .expect("all recorders have the same bounds");
        }
        self.counters += &other.counters;
        Ok(())
    }

    /// One operation in this many is timed.
    pub fn sampled_1_in(&self) -> u32 {
        self.sampled_1_in
    }

    /// Operations of a kind that succeeded.
    pub fn operations(&self, kind: OpKind) -> u64 {
        self.kinds[kind.index()].operations
    }

    /// Operations that succeeded.
    pub fn total_operations(&self) -> u64 {
        self.kinds.iter().map(|of_kind| of_kind.operations).sum()
    }

    /// The latencies of a kind, in nanoseconds.
    pub fn latency_ns(&self, kind: OpKind) -> &Histogram<u64> {
        &self.kinds[kind.index()].latency_ns
    }
}

/// A recorder between processes.
#[derive(Debug, Serialize, Deserialize)]
struct Wire {
    sampled_1_in: u32,
    kinds: BTreeMap<OpKind, WireKind>,
    #[serde(default)]
    counters: Counters,
}

#[derive(Debug, Serialize, Deserialize)]
struct WireKind {
    operations: u64,
    /// Pairs of a latency and how often it was recorded.
    latency_ns: Vec<(u64, u64)>,
}

impl From<Recorder> for Wire {
    fn from(recorder: Recorder) -> Self {
        let kinds = OpKind::ALL
            .into_iter()
            .zip(&recorder.kinds)
            .filter(|(_, of_kind)| of_kind.operations > 0 || !of_kind.latency_ns.is_empty())
            .map(|(kind, of_kind)| {
                let recorded = of_kind.latency_ns.iter_recorded();
                let latency_ns = recorded
                    .map(|step| (step.value_iterated_to(), step.count_at_value()))
                    .collect();
                let wire = WireKind {
                    operations: of_kind.operations,
                    latency_ns,
                };
                (kind, wire)
            })
            .collect();
        Wire {
            sampled_1_in: recorder.sampled_1_in,
            kinds,
            counters: recorder.counters,
        }
    }
}

impl TryFrom<Wire> for Recorder {
    type Error = RecorderError;

    fn try_from(wire: Wire) -> Result<Self, RecorderError> {
        if wire.sampled_1_in == 0 {
            return Err(RecorderError::NoSampling);
        }
        let mut recorder = Recorder::new(wire.sampled_1_in);
        recorder.counters = wire.counters;
        for (kind, of_kind) in wire.kinds {
            let ours = &mut recorder.kinds[kind.index()];
            ours.operations = of_kind.operations;
            for (value, count) in of_kind.latency_ns {
                ours.latency_ns.saturating_record_n(value, count);
            }
        }
        Ok(recorder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorder(sampled_1_in: u32, latencies: std::ops::Range<u64>) -> Recorder {
        let mut recorder = Recorder::new(sampled_1_in);
        for latency_ns in latencies {
            let timed = recorder.sample();
            recorder.finish(OpKind::Read, timed.then_some(latency_ns));
        }
        recorder
    }

    #[test]
    fn one_in_n_is_timed_and_all_are_counted() {
        let recorder = recorder(8, 0..1000);
        assert_eq!(recorder.operations(OpKind::Read), 1000);
        assert_eq!(recorder.latency_ns(OpKind::Read).len(), 125);
        assert_eq!(recorder.total_operations(), 1000);
        assert_eq!(recorder.operations(OpKind::Insert), 0);
    }

    #[test]
    fn merging_adds_everything_up() {
        let mut one = recorder(1, 0..500);
        let mut two = recorder(1, 500..1000);
        two.counters.hits = 7;
        two.counters.verify_failures = 1;
        one.counters.hits = 3;
        one.merge(&two).unwrap();
        let whole = recorder(1, 0..1000);
        assert_eq!(one.latency_ns(OpKind::Read), whole.latency_ns(OpKind::Read));
        assert_eq!(one.total_operations(), 1000);
        assert_eq!((one.counters.hits, one.counters.verify_failures), (10, 1));
        assert_eq!(
            one.merge(&Recorder::new(4)),
            Err(RecorderError::MixedSampling { ours: 1, theirs: 4 })
        );
    }

    #[test]
    fn a_recorder_survives_the_way_between_processes() {
        let mut sent = recorder(1, 0..5000);
        sent.finish(OpKind::Insert, Some(u64::MAX));
        sent.counters.lookups_remote = 9;
        let text = serde_json::to_string(&sent).unwrap();
        let received: Recorder = serde_json::from_str(&text).unwrap();
        for kind in OpKind::ALL {
            assert_eq!(received.operations(kind), sent.operations(kind));
            assert_eq!(received.latency_ns(kind), sent.latency_ns(kind));
        }
        assert_eq!(received.counters, sent.counters);
        assert!(serde_json::from_str::<Recorder>(r#"{"sampled_1_in":0,"kinds":{}}"#).is_err());
    }

    #[test]
    fn clearing_keeps_the_rate_only() {
        let mut recorder = recorder(4, 0..100);
        recorder.counters.errors = 1;
        recorder.clear();
        assert_eq!(recorder.total_operations(), 0);
        assert!(recorder.latency_ns(OpKind::Read).is_empty());
        assert_eq!(recorder.counters, Counters::default());
        assert_eq!(recorder.sampled_1_in(), 4);
    }
}
