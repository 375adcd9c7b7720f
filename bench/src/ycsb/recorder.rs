//! The recorded operations of a worker: counts and sampled latencies.
//!
//! Every worker has its own [`Recorder`]. They are merged after the run, also across processes: a recorder serializes
//! to the values of its histograms, and to nothing that depends on the machine.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::operation::OpKind;
use crate::latency::{self, Sampling};

/// Counters of operations of all kinds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    /// Operations that failed.
    pub errors: u64,
    /// Lookups that found their record.
    pub hits: u64,
    /// Lookups that found no record.
    pub misses: u64,
    /// Reads of objects by hits.
    pub reads_of_hits: u64,
    /// Reads of objects by misses.
    pub reads_of_misses: u64,
    /// Reads that were repeated because their result was not consistent.
    pub read_restarts: u64,
    /// Lookups of records whose primary is this machine.
    pub lookups_local: u64,
    /// Lookups of records whose primary is another machine.
    pub lookups_remote: u64,
    /// Values that were checked and are right.
    pub verified: u64,
    /// Values that were checked and are wrong.
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

/// Why recorders cannot be merged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecorderError {
    /// The sampling rates differ, so the latencies have unequal weights.
    #[error("latencies sampled 1 in {ours} and 1 in {theirs} cannot be merged")]
    MixedSampling {
        /// Rate of the recorder that is the target of the merge.
        ours: u32,
        /// Rate of the other recorder.
        theirs: u32,
    },
}

/// Counts and latencies of one worker, or of several merged workers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(into = "Wire", from = "Wire")]
pub struct Recorder {
    sampling: Sampling,
    kinds: [PerKind; OpKind::COUNT],
    /// Counters; the driver adds to them directly.
    pub counters: Counters,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct PerKind {
    operations: u64,
    #[serde(with = "latency::pairs")]
    latency_ns: Histogram<u64>,
}

impl PerKind {
    fn new() -> Self {
        Self {
            operations: 0,
            latency_ns: latency::histogram(),
        }
    }
}

impl Recorder {
    /// Creates a recorder that times one operation in `sampled_1_in`; 1 means all.
    ///
    /// Allocates about a megabyte at once.
    ///
    /// # Panics
    /// If `sampled_1_in` is 0.
    pub fn new(sampled_1_in: u32) -> Self {
        Self {
            sampling: Sampling::new(sampled_1_in),
            kinds: std::array::from_fn(|_| PerKind::new()),
            counters: Counters::default(),
        }
    }

    /// Returns whether the operation that starts now is to be timed. Call it once per operation.
    #[inline]
    pub fn sample(&mut self) -> bool {
        self.sampling.sample()
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

    /// Clears everything recorded, for the end of a warm-up.
    pub fn clear(&mut self) {
        for of_kind in &mut self.kinds {
            of_kind.operations = 0;
            of_kind.latency_ns.reset();
        }
        self.counters = Counters::default();
    }

    /// Adds the counts and latencies of another recorder.
    ///
    /// # Errors
    /// [`RecorderError::MixedSampling`]; then nothing is added.
    pub fn merge(&mut self, other: &Recorder) -> Result<(), RecorderError> {
        let (ours, theirs) = (self.sampled_1_in(), other.sampled_1_in());
        if ours != theirs {
            return Err(RecorderError::MixedSampling { ours, theirs });
        }
        for (ours, theirs) in self.kinds.iter_mut().zip(&other.kinds) {
            ours.operations += theirs.operations;
            latency::add(&mut ours.latency_ns, &theirs.latency_ns);
        }
        self.counters += &other.counters;
        Ok(())
    }

    /// Returns the sampling rate: one operation in this many is timed.
    pub fn sampled_1_in(&self) -> u32 {
        self.sampling.one_in()
    }

    /// Returns the number of operations of a kind that succeeded.
    pub fn operations(&self, kind: OpKind) -> u64 {
        self.kinds[kind.index()].operations
    }

    /// Returns the number of operations that succeeded.
    pub fn total_operations(&self) -> u64 {
        self.kinds.iter().map(|of_kind| of_kind.operations).sum()
    }

    /// Returns the latencies of a kind, in nanoseconds.
    pub fn latency_ns(&self, kind: OpKind) -> &Histogram<u64> {
        &self.kinds[kind.index()].latency_ns
    }
}

/// The serialized form of a recorder; only the kinds that occurred.
#[derive(Debug, Serialize, Deserialize)]
struct Wire {
    #[serde(rename = "sampled_1_in")]
    sampling: Sampling,
    kinds: BTreeMap<OpKind, PerKind>,
    #[serde(default)]
    counters: Counters,
}

impl From<Recorder> for Wire {
    fn from(recorder: Recorder) -> Self {
        let kinds = OpKind::ALL.into_iter().zip(recorder.kinds);
        Wire {
            sampling: recorder.sampling,
            kinds: kinds
                .filter(|(_, of_kind)| of_kind.operations > 0 || !of_kind.latency_ns.is_empty())
                .collect(),
            counters: recorder.counters,
        }
    }
}

impl From<Wire> for Recorder {
    fn from(wire: Wire) -> Self {
        let mut recorder = Recorder::new(wire.sampling.one_in());
        recorder.counters = wire.counters;
        for (kind, of_kind) in wire.kinds {
            recorder.kinds[kind.index()] = of_kind;
        }
        recorder
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
    fn merging_adds_all_counts() {
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
    fn a_recorder_survives_serialization() {
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
    fn clearing_keeps_only_the_sampling_rate() {
        let mut recorder = recorder(4, 0..100);
        recorder.counters.errors = 1;
        recorder.clear();
        assert_eq!(recorder.total_operations(), 0);
        assert!(recorder.latency_ns(OpKind::Read).is_empty());
        assert_eq!(recorder.counters, Counters::default());
        assert_eq!(recorder.sampled_1_in(), 4);
    }
}
