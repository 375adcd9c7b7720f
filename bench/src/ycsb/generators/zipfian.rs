//! Zipf's distribution, and the three ways in which workloads use it.

use rand::{Rng, RngCore};

use super::zeta::{zeta, zeta_step};
use crate::ycsb::key::fnv64_abs;

/// Zipf's constant in the reference client.
pub const ZIPFIAN_CONSTANT: f64 = 0.99;

/// Number of ranks of the scrambled zipfian distribution: 0 to 10^10, inclusive.
const SCRAMBLED_RANKS: u64 = 10_000_000_001;

/// The sum over those ranks that the reference client contains for the constant 0.99.
const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;

/// Maximum number of redraws while the drawn record is not inserted yet. After that, the last draw is mapped onto the
/// inserted records, which happens only if few records of the range are inserted.
const MAX_REDRAWS: u32 = 1000;

/// The ranks 0, 1, 2 … of Zipf's distribution, with rank 0 the most frequent, by the method of Gray et al., "Quickly
/// Generating Billion-Record Synthetic Databases" (SIGMOD'94).
///
/// The frequencies of ranks 0 and 1 are exact. From rank 2 on the method is a close approximation (rank 2 is 20 % too
/// frequent, rank 100 within 2 %).
#[derive(Debug, Clone)]
pub struct Zipfian {
    items: u64,
    theta: f64,
    alpha: f64,
    zeta_items: f64,
    zeta_two: f64,
    eta: f64,
}

impl Zipfian {
    /// Creates the distribution over the ranks `0..items` with constant `theta`.
    ///
    /// # Panics
    /// If there are no items, or if `theta` is not in [0, 1), the range of the method.
    pub fn new(items: u64, theta: f64) -> Self {
        Self::with_zeta(items, theta, zeta(items, theta))
    }

    /// Creates the distribution as [`Zipfian::new`] does, with a known `zeta(items, theta)`.
    fn with_zeta(items: u64, theta: f64, zeta_items: f64) -> Self {
        assert!(items > 0, "a zipfian distribution needs at least one item");
        assert!(
            (0.0..1.0).contains(&theta),
            "zipfian constant {theta} is not in [0, 1)"
        );
        let mut zipfian = Self {
            items,
            theta,
            alpha: 1.0 / (1.0 - theta),
            zeta_items,
            zeta_two: 1.0 + 0.5f64.powf(theta),
            eta: 0.0,
        };
        zipfian.set_eta();
        zipfian
    }

    fn set_eta(&mut self) {
        let spread = 1.0 - (2.0 / self.items as f64).powf(1.0 - self.theta);
        self.eta = spread / (1.0 - self.zeta_two / self.zeta_items);
    }

    /// Raises the number of ranks; no-op for a smaller number.
    ///
    /// The reference client also adds the new terms to the sum, but keeps the initial item count in one place of the
    /// formula. This implementation updates all places.
    pub fn grow_to(&mut self, items: u64) {
        if items > self.items {
            self.zeta_items += zeta_step(self.items, items, self.theta);
            self.items = items;
            self.set_eta();
        }
    }

    /// Returns the number of ranks.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Returns the rank at `u` in [0, 1); ranks increase with `u`.
    #[inline]
    pub fn rank(&self, u: f64) -> u64 {
        let uz = u * self.zeta_items;
        if uz < 1.0 {
            0
        } else if uz < self.zeta_two {
            // A single item has no rank 1, but rounding may lead here.
            1.min(self.items - 1)
        } else {
            let base = self.eta * u - self.eta + 1.0;
            // Close to u = 1, the base rounds to 1 and the product to `items`.
            ((self.items as f64 * base.powf(self.alpha)) as u64).min(self.items - 1)
        }
    }

    /// Draws a rank.
    #[inline]
    pub fn next<R: RngCore + ?Sized>(&self, rng: &mut R) -> u64 {
        self.rank(rng.random())
    }
}

/// Returns the number of records from `start` to `last`, inclusive.
#[inline]
pub(super) fn records_between(start: u64, last: u64) -> u64 {
    assert!(
        start <= last,
        "the newest record, {last}, is before the first, {start}"
    );
    last - start + 1
}

/// Repeats `draw` until it returns a record up to `last`; see [`MAX_REDRAWS`].
#[inline]
fn redraw(start: u64, last: u64, mut draw: impl FnMut() -> u64) -> u64 {
    let mut key = draw();
    for _ in 0..MAX_REDRAWS {
        if key <= last {
            return key;
        }
        key = draw();
    }
    start + (key - start) % records_between(start, last)
}

/// `zipfian` of the reference client: one of 10^10 + 1 ranks, hashed onto `start ..= start + items - 1`, and drawn
/// again while that record does not exist.
#[derive(Debug, Clone)]
pub struct Scrambled {
    start: u64,
    items: u64,
    ranks: Zipfian,
}

impl Scrambled {
    /// Creates the distribution over `items` records from `start` on.
    ///
    /// # Panics
    /// As [`Zipfian::new`].
    pub fn new(start: u64, items: u64, theta: f64) -> Self {
        assert!(
            items > 0,
            "a scrambled distribution needs at least one record"
        );
        let ranks = if theta == ZIPFIAN_CONSTANT {
            Zipfian::with_zeta(SCRAMBLED_RANKS, theta, SCRAMBLED_ZETA)
        } else {
            Zipfian::new(SCRAMBLED_RANKS, theta)
        };
        Self {
            start,
            items,
            ranks,
        }
    }

    /// Returns the record of a rank. That of rank 0 is the hottest, unless two hot ranks have the same record.
    #[inline]
    pub fn key_of_rank(&self, rank: u64) -> u64 {
        self.start + fnv64_abs(rank) % self.items
    }

    /// Draws a record that is at most `last`.
    #[inline]
    pub fn next<R: RngCore + ?Sized>(&self, rng: &mut R, last: u64) -> u64 {
        redraw(self.start, last, || self.key_of_rank(self.ranks.next(rng)))
    }
}

/// Zipf over the records themselves, with the ranks scattered over them one to one.
///
/// Rank `r` is record `start + (r * multiplier + offset) mod items`. The multiplier is near the golden section of
/// `items` and coprime to it. Without scattering, the hottest records would be those that were loaded first, which are
/// at the best places of the table. No two ranks share a record, so the shares of records equal those of ranks.
#[derive(Debug, Clone)]
pub struct ScatteredZipfian {
    start: u64,
    multiplier: u64,
    offset: u64,
    ranks: Zipfian,
}

impl ScatteredZipfian {
    /// Creates the distribution over `items` records from `start` on.
    ///
    /// # Panics
    /// As [`Zipfian::new`].
    pub fn new(start: u64, items: u64, theta: f64) -> Self {
        let ranks = Zipfian::new(items, theta);
        let golden = (items as f64 * 0.618_033_988_749_894_9) as u64;
        let multiplier = (golden.max(1)..)
            .find(|candidate| greatest_common_divisor(*candidate, items) == 1)
            .unwrap_or(1);
        Self {
            start,
            multiplier,
            offset: fnv64_abs(0) % items,
            ranks,
        }
    }

    /// Returns the record of a rank; that of rank 0 is the hottest.
    #[inline]
    pub fn key_of_rank(&self, rank: u64) -> u64 {
        let items = self.ranks.items();
        let place = if items <= u64::from(u32::MAX) {
            (rank * self.multiplier + self.offset) % items
        } else {
            let wide = u128::from(rank) * u128::from(self.multiplier) + u128::from(self.offset);
            (wide % u128::from(items)) as u64
        };
        self.start + place
    }

    /// Draws a record that is at most `last`.
    #[inline]
    pub fn next<R: RngCore + ?Sized>(&self, rng: &mut R, last: u64) -> u64 {
        redraw(self.start, last, || self.key_of_rank(self.ranks.next(rng)))
    }
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// `latest`: the distance back from the newest record is zipfian.
///
/// The distances cover every record from `start` to the newest, and grow with them.
#[derive(Debug, Clone)]
pub struct Latest {
    start: u64,
    distances: Zipfian,
}

impl Latest {
    /// Creates the distribution over records from `start` on, with `last` as the initially newest record.
    ///
    /// # Panics
    /// As [`Zipfian::new`].
    pub fn new(start: u64, last: u64, theta: f64) -> Self {
        Self {
            start,
            distances: Zipfian::new(records_between(start, last), theta),
        }
    }

    /// Draws a record; `last` is the newest one.
    #[inline]
    pub fn next<R: RngCore + ?Sized>(&mut self, rng: &mut R, last: u64) -> u64 {
        let records = records_between(self.start, last);
        if records != self.distances.items() {
            self.distances.grow_to(records);
        }
        // If `last` decreased (which no run does), the result must not be before the start.
        last - self.distances.next(rng).min(records - 1)
    }
}
