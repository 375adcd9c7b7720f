//! Latencies in nanoseconds: which operations are timed, and histograms of what was found.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Latencies above this, one minute, count as this.
const MAX_LATENCY_NS: u64 = 60_000_000_000;
/// Decimal digits to which a recorded latency is exact.
const SIGNIFICANT_DIGITS: u8 = 3;

/// An empty histogram. All have the same bounds, so that they can be added up.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_LATENCY_NS, SIGNIFICANT_DIGITS)
        .expect("constant bounds: 1 ns to a minute, three digits")
}

/// Adds the latencies of one histogram to another.
pub(crate) fn add(ours: &mut Histogram<u64>, theirs: &Histogram<u64>) {
    ours.add(theirs)
        .expect("all recorders have the same bounds");
}

/// Chooses the operations that are timed: one in so many, the first among them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(into = "u32", try_from = "u32")]
pub(crate) struct Sampling {
    one_in: u32,
    until_next: u32,
}

impl Sampling {
    /// # Panics
    /// If it is one in 0.
    pub(crate) fn new(one_in: u32) -> Self {
        Self::try_from(one_in).unwrap_or_else(|why| panic!("{why}"))
    }

    pub(crate) fn one_in(self) -> u32 {
        self.one_in
    }

    /// Whether the operation that starts now is to be timed. Ask once per operation.
    #[inline]
    pub(crate) fn sample(&mut self) -> bool {
        if self.until_next == 0 {
            self.until_next = self.one_in - 1;
            true
        } else {
            self.until_next -= 1;
            false
        }
    }
}

impl From<Sampling> for u32 {
    fn from(sampling: Sampling) -> Self {
        sampling.one_in
    }
}

impl TryFrom<u32> for Sampling {
    type Error = &'static str;

    fn try_from(one_in: u32) -> Result<Self, &'static str> {
        match one_in {
            0 => Err("a recorder cannot sample 1 in 0"),
            _ => Ok(Self {
                one_in,
                until_next: 0,
            }),
        }
    }
}

/// A histogram between processes: pairs of a latency and how often it was recorded, which do not depend
/// on the machine.
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
