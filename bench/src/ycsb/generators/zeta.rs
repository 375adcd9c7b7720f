//! Generalized harmonic numbers, the normalization of Zipf's distribution.
//!
//! `zeta(n, theta)` is the sum of `i^-theta` for `i` from 1 to `n`. Adding 10^8 terms takes seconds, so only the first
//! [`EXACT_TERMS`] are added. The rest is computed by the Euler–Maclaurin formula: with `f(x) = x^-theta`, the sum over
//! `a < i <= b` is
//!
//! ```text
//! ∫ f dx  +  (f(b) - f(a)) / 2  +  (f'(b) - f'(a)) / 12  -  (f'''(b) - f'''(a)) / 720  + …
//! ```
//!
//! The first omitted term is `theta (theta+1) … (theta+4) a^-(theta+5) / 30240`. It is less than 10^-20 for `a` = 1024,
//! so rounding dominates: the error of the result is at most 10^-10.

/// Number of terms that are added one by one; the formula computes the rest.
const EXACT_TERMS: u64 = 1024;

/// Returns the sum of `i^-theta` for `i` from 1 to `n`; 0 for `n` = 0.
pub fn zeta(n: u64, theta: f64) -> f64 {
    let head = n.min(EXACT_TERMS);
    // Add from the small terms to the large ones, which has the smallest rounding error.
    let sum = add_up(0, head, theta);
    if n > head {
        sum + formula(head, n, theta)
    } else {
        sum
    }
}

/// Returns the sum of `i^-theta` for `after < i <= to`, which is `zeta(to) - zeta(after)`.
///
/// Fast for a small step (a few powers) and for a large one (the formula).
pub(super) fn zeta_step(after: u64, to: u64, theta: f64) -> f64 {
    if to <= after {
        0.0
    } else if to - after <= 8 {
        add_up(after, to, theta)
    } else if after >= EXACT_TERMS {
        formula(after, to, theta)
    } else {
        zeta(to, theta) - zeta(after, theta)
    }
}

fn add_up(after: u64, to: u64, theta: f64) -> f64 {
    (after + 1..=to)
        .rev()
        .map(|i| (i as f64).powf(-theta))
        .sum()
}

/// Returns the Euler–Maclaurin formula over `(after, to]`, for `after >= EXACT_TERMS`.
fn formula(after: u64, to: u64, theta: f64) -> f64 {
    let (a, b) = (after as f64, to as f64);
    let (fa, fb) = (a.powf(-theta), b.powf(-theta));
    // (b^s - a^s) / s with s = 1 - theta, in a form without cancellation for a small s.
    let s = 1.0 - theta;
    let stretch = (b / a).ln();
    let area = if s.abs() < 1e-300 {
        stretch
    } else {
        a * fa * (s * stretch).exp_m1() / s
    };
    let first = |x: f64, f: f64| -theta * f / x;
    let third = |x: f64, f: f64| -theta * (theta + 1.0) * (theta + 2.0) * f / (x * x * x);
    area + (fb - fa) / 2.0 + (first(b, fb) - first(a, fa)) / 12.0
        - (third(b, fb) - third(a, fa)) / 720.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums that are published for the reference client, or hard-coded in it.
    const KNOWN: [(u64, f64); 9] = [
        (1_000, 7.728_953_217_284_7),
        (10_000, 10.224_361_459_596),
        (100_000, 12.778_338_062_551),
        (1_000_000, 15.391_849_746_037),
        (10_000_000, 18.066_242_574_97),
        (100_000_000, 20.802_930_490_025),
        (120_000_000, 21.022_329_157_187),
        (1_000_000_000, 23.603_364_104_125),
        (10_000_000_000, 26.469_028_201_752),
    ];

    #[test]
    fn published_sums_are_computed() {
        for (n, known) in KNOWN {
            let sum = zeta(n, 0.99);
            assert!(
                (sum - known).abs() < 1e-10,
                "zeta({n}) = {sum}, but {known} is expected"
            );
        }
    }

    #[test]
    fn the_formula_agrees_with_adding_up() {
        for theta in [0.0, 0.3, 0.606, 0.8, 0.99, 0.999_999, 1.0, 1.2] {
            for n in [1, 2, 1023, 1024, 1025, 1033, 5000, 300_000] {
                let (quick, slow) = (zeta(n, theta), add_up(0, n, theta));
                assert!(
                    (quick - slow).abs() <= 1e-10 * slow.max(1.0),
                    "zeta({n}, {theta}): {quick}, added up {slow}"
                );
            }
        }
    }

    #[test]
    fn steps_add_up_to_the_total() {
        for steps in [
            vec![0, 3, 11, 500, 2000, 2001, 40_000],
            vec![1500, 1508, 1509, 90_000],
        ] {
            let mut sum = zeta(steps[0], 0.99);
            for pair in steps.windows(2) {
                sum += zeta_step(pair[0], pair[1], 0.99);
            }
            let whole = zeta(*steps.last().unwrap(), 0.99);
            assert!((sum - whole).abs() < 1e-11, "{sum} {whole}");
        }
        assert_eq!(zeta_step(7, 7, 0.99), 0.0);
    }
}
