//! Zipf distributions with a shape below 1, by the method of Gray et al. (SIGMOD 1994), with the approximations of the
//! reference implementation of LinkBench.

/// Number of items up to which harmonic numbers are summed.
const SUMMED: u64 = 100_000;

/// Ranks `0..n`, of which rank `r` is drawn with a probability of about `(r + 1)^-shape / zeta`.
#[derive(Clone, Debug)]
pub struct Zipf {
    n: u64,
    zeta: f64,
    /// Upper bound of `u * zeta` for rank 1.
    second: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    /// Creates the distribution of `n` ranks.
    ///
    /// # Panics
    /// If `n` is 0, or if the shape is not at least 0 and below 1.
    pub fn new(n: u64, shape: f64) -> Self {
        assert!(n > 0, "there are no ranks to draw");
        assert!((0.0..1.0).contains(&shape), "invalid shape {shape}");
        let zeta = harmonic(n, shape);
        let (items, two) = (n as f64, harmonic(2, shape));
        Self {
            n,
            zeta,
            second: 1.0 + 0.5f64.powf(shape),
            alpha: 1.0 / (1.0 - shape),
            eta: (1.0 - (2.0 / items).powf(1.0 - shape)) / (1.0 - two / zeta),
        }
    }

    /// Returns the rank for a random number from 0 to below 1.
    #[inline]
    pub fn rank(&self, u: f64) -> u64 {
        let scaled = u * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < self.second {
            return 1.min(self.n - 1);
        }
        let base = self.eta * u - self.eta + 1.0;
        let rank = (self.n as f64 * base.powf(self.alpha)) as u64;
        rank.min(self.n - 1)
    }

    /// Returns the probability of the first rank.
    pub fn share_of_first(&self) -> f64 {
        1.0 / self.zeta
    }
}

/// Returns the generalized harmonic number: exact for few items, approximated for many.
fn harmonic(n: u64, shape: f64) -> f64 {
    if n < SUMMED {
        return (1..=n).map(|i| (i as f64).powf(-shape)).sum();
    }
    (n as f64).powf(1.0 - shape) / (1.0 - shape) + 0.58 - 1.0 / (1.0 - shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_those_of_the_reference() {
        let million = 1_000_000;
        for (shape, n, ids, first) in [
            (
                0.8,
                million,
                [1, 70, 2031, 40370, 258_827, 607_930, 953_517],
                0.013_364_6,
            ),
            (
                0.8,
                10 * million,
                [2, 370, 15693, 367_881, 2_507_167, 6_014_516, 9_525_843],
                0.008_252_57,
            ),
            (
                0.741,
                million,
                [2, 276, 6052, 74807, 338_666, 672_038, 962_759],
                0.007_408_50,
            ),
            (
                0.625,
                million,
                [11, 2358, 25568, 159_098, 465_910, 755_912, 973_656],
                0.002_118_10,
            ),
            (
                0.606,
                million,
                [16, 3090, 30293, 173_425, 483_000, 765_975, 974_886],
                0.001_709_81,
            ),
        ] {
            let zipf = Zipf::new(n, shape);
            let drawn = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99].map(|u| zipf.rank(u) + 1);
            assert_eq!(drawn, ids, "shape {shape}, {n} ids");
            assert!((zipf.share_of_first() - first).abs() < 1e-7);
        }
    }

    #[test]
    fn all_ranks_are_below_the_number_of_items() {
        for n in [1, 2, 3, 99_999, 100_000] {
            let zipf = Zipf::new(n, 0.8);
            let ranks = (0..=1000).map(|u| zipf.rank(f64::from(u) / 1000.001));
            assert!(ranks.into_iter().all(|rank| rank < n));
        }
    }
}
