//! Zipf's distribution, and the three ways in which workloads use it.

use rand::RngCore;

use super::zeta::{zeta, zeta_step};
use super::{ZIPFIAN_CONSTANT, records_between, unit};
use crate::ycsb::key::fnv64_abs;

/// Ranks of the scrambled zipfian distribution: 0 to 10^10, both included.
const SCRAMBLED_RANKS: u64 = 10_000_000_001;

/// The sum over those ranks that the reference client carries for constant 0.99.
const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;

/// Redraws of a record that is not inserted yet before the draw is folded onto the
/// records that are. Only a range that is nearly empty ever gets there.
const MAX_REDRAWS: u32 = 1000;

/// Ranks 0, 1, 2 … of Zipf's distribution, rank 0 the most frequent, by the method of
/// Gray et al., "Quickly Generating Billion-Record Synthetic Databases" (SIGMOD'94).
///
/// Ranks 0 and 1 come with their exact share; from rank 2 on the method is a close
/// approximation (rank 2 comes 20 % too often, rank 100 within 2 %).
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
    /// Ranks `0..items` with constant `theta`.
    ///
    /// # Panics
    /// If there are no items or `theta` is not in [0, 1): the method has no other.
    pub fn new(items: u64, theta: f64) -> Self {
        Self::with_zeta(items, theta, zeta(items, theta))
    }

    /// As [`Zipfian::new`], with `zeta(items, theta)` known to the caller.
    fn with_zeta(items: u64, theta: f64, zeta_items: f64) -> Self {
        assert!(items > 0, "a zipfian distribution needs an item");
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

    /// Raises the number of ranks; a smaller number changes nothing.
    ///
    /// The reference client adds the new terms to the sum too, but goes on with the
    /// item count of the start in one place of the formula; here all follow.
    pub fn grow_to(&mut self, items: u64) {
        if items > self.items {
            self.zeta_items += zeta_step(self.items, items, self.theta);
            self.items = items;
            self.set_eta();
        }
    }

    /// The number of ranks.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// The rank at `u` in [0, 1): ranks rise with `u`.
    #[inline]
    pub fn rank(&self, u: f64) -> u64 {
        let uz = u * self.zeta_items;
        if uz < 1.0 {
            0
        } else if uz < self.zeta_two {
            // A single item has no rank 1; rounding alone could ask for it.
            1.min(self.items - 1)
        } else {
            let base = self.eta * u - self.eta + 1.0;
            // Close to u = 1 the base rounds to 1 and the product to `items`.
            ((self.items as f64 * base.powf(self.alpha)) as u64).min(self.items - 1)
        }
    }

    /// Draws a rank.
    #[inline]
    pub fn next<R: RngCore + ?Sized>(&self, rng: &mut R) -> u64 {
        self.rank(unit(rng))
    }
}

/// Tries `draw` until it gives a record up to `last`; see [`MAX_REDRAWS`].
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

/// `zipfian` of the reference client: a rank among 10^10 + 1, hashed onto
/// `start ..= start + items - 1`, drawn again while that record does not exist.
#[derive(Debug, Clone)]
pub struct Scrambled {
    start: u64,
    items: u64,
    ranks: Zipfian,
}

impl Scrambled {
    /// Over `items` records from `start` on.
    ///
    /// # Panics
    /// As [`Zipfian::new`].
    pub fn new(start: u64, items: u64, theta: f64) -> Self {
        assert!(items > 0, "a scrambled distribution needs a record");
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

    /// The record of a rank: that of rank 0 is the hottest, unless two hot ranks meet.
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

/// Zipf over the records themselves, its ranks scattered over them one to one.
///
/// Rank `r` is record `start + (r * multiplier + offset) mod items`, the multiplier
/// near the golden section of `items` and prime to it. Without that the hottest
/// records would be the ones loaded first, and would sit in the best places of the
/// table. No two ranks share a record, so that shares are exactly those of the ranks.
#[derive(Debug, Clone)]
pub struct ScatteredZipfian {
    start: u64,
    multiplier: u64,
    offset: u64,
    ranks: Zipfian,
}

impl ScatteredZipfian {
    /// Over `items` records from `start` on.
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

    /// The record of a rank; that of rank 0 is the hottest.
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

/// `latest`: a zipfian distance back from the newest record.
///
/// The distances cover every record from `start` to the newest and grow with them.
#[derive(Debug, Clone)]
pub struct Latest {
    start: u64,
    distances: Zipfian,
}

impl Latest {
    /// For records from `start` on, the newest being `last` at first.
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
        // A `last` that went back (never in a run) must not lead below the start.
        last - self.distances.next(rng).min(records - 1)
    }
}
