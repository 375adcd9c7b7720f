//! The distributions other than Zipf's.

use rand::{Rng, RngCore};

use super::zipfian::records_between;

/// `hotspot`: the first records are the hot set; the distribution is uniform within each set.
#[derive(Debug, Clone)]
pub struct Hotspot {
    start: u64,
    hot_items: u64,
    cold_items: u64,
    hot_share: f64,
}

impl Hotspot {
    /// Creates the distribution in which the first `data_fraction` of `items` records gets `operation_fraction` of the
    /// operations. If the hot or the cold set is empty, the other set gets all operations.
    pub fn new(start: u64, items: u64, data_fraction: f64, operation_fraction: f64) -> Self {
        assert!(
            items > 0,
            "a hotspot distribution needs at least one record"
        );
        let hot_items = ((items as f64 * data_fraction) as u64).min(items);
        let cold_items = items - hot_items;
        let hot_share = match (hot_items, cold_items) {
            (0, _) => 0.0,
            (_, 0) => 1.0,
            _ => operation_fraction,
        };
        Self {
            start,
            hot_items,
            cold_items,
            hot_share,
        }
    }

    /// Draws a record.
    #[inline]
    pub fn next<R: RngCore + ?Sized>(&self, rng: &mut R) -> u64 {
        if rng.random::<f64>() < self.hot_share {
            self.start + rng.random_range(0..self.hot_items)
        } else {
            self.start + self.hot_items + rng.random_range(0..self.cold_items)
        }
    }
}

/// `exponential`: the distance back from the newest record is exponentially distributed.
///
/// The reference client repeats a draw that is before the first record. This implementation draws once from the
/// distribution truncated at the first record, which is the same distribution.
#[derive(Debug, Clone)]
pub struct Exponential {
    start: u64,
    gamma: f64,
    records: u64,
    /// Probability that the untruncated distribution stays within `records`.
    within: f64,
}

impl Exponential {
    /// Creates the distribution in which `percentile` percent of the operations access the newest `fraction` of
    /// `record_count` records.
    pub fn new(start: u64, record_count: u64, percentile: f64, fraction: f64) -> Self {
        let gamma = -(-percentile / 100.0).ln_1p() / (record_count as f64 * fraction);
        Self {
            start,
            gamma,
            records: 0,
            within: 0.0,
        }
    }

    /// Draws a record; `last` is the newest one.
    #[inline]
    pub fn next<R: RngCore + ?Sized>(&mut self, rng: &mut R, last: u64) -> u64 {
        let records = records_between(self.start, last);
        if records != self.records {
            self.records = records;
            self.within = -(-self.gamma * records as f64).exp_m1();
        }
        let distance = -(-rng.random::<f64>() * self.within).ln_1p() / self.gamma;
        last - (distance as u64).min(records - 1)
    }
}

/// `sequential`: one record after the other; after the last record, the first one follows.
///
/// Worker `w` of `n` takes every `n`-th record from `w` on, so that all workers together access the records in order.
#[derive(Debug, Clone)]
pub struct Sequential {
    start: u64,
    items: u64,
    place: u64,
    step: u64,
}

impl Sequential {
    /// Creates the generator of worker `worker` of `workers` over `items` records from `start` on.
    pub fn new(start: u64, items: u64, worker: u64, workers: u64) -> Self {
        assert!(
            items > 0,
            "a sequential distribution needs at least one record"
        );
        Self {
            start,
            items,
            place: worker % items,
            step: workers % items,
        }
    }

    /// Returns the next record.
    #[inline]
    pub fn next_key(&mut self) -> u64 {
        let key = self.start + self.place;
        self.place = (self.place + self.step) % self.items;
        key
    }
}
