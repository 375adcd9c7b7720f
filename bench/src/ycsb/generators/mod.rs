//! The generators that choose which record an operation touches.
//!
//! Each one draws from the random numbers handed in and nothing else, so that a seed
//! repeats a run. None allocates after it is made. [`KeyChooser`] is the choice among
//! them that a workload names.
//!
//! "Zipf 0.99" means two different things in published results. In the reference
//! client `zipfian` draws a rank among ten thousand million whatever the number of
//! records, and hashes it onto a record ([`Scrambled`]): the hottest record gets
//! 3.8 % and the long tail is an even background. In the C++ client and in FaRM's
//! papers the distribution is over the records themselves ([`ScatteredZipfian`]):
//! 6.5 % at a million records. They are named apart everywhere here.

use rand::RngCore;

use super::spec::{Distribution, WorkloadSpec};

mod others;
mod zeta;
mod zipfian;

pub use others::{Exponential, Hotspot, Sequential};
pub use zeta::zeta;
pub use zipfian::{Latest, ScatteredZipfian, Scrambled, Zipfian};

/// Zipf's constant in the reference client.
pub const ZIPFIAN_CONSTANT: f64 = 0.99;

/// A uniform number in [0, 1) with 53 random bits.
#[inline]
pub(in crate::ycsb) fn unit<R: RngCore + ?Sized>(rng: &mut R) -> f64 {
    (rng.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// A uniform number in `0..below`, off by at most `below / 2^64`.
#[inline]
fn uniform_below<R: RngCore + ?Sized>(rng: &mut R, below: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(below)) >> 64) as u64
}

/// How many records there are from `start` to `last`, both included.
#[inline]
fn records_between(start: u64, last: u64) -> u64 {
    assert!(
        start <= last,
        "the newest record, {last}, lies before the first, {start}"
    );
    last - start + 1
}

/// The generator a workload names, ready to draw.
#[derive(Debug, Clone)]
pub enum KeyChooser {
    /// Every record alike.
    Uniform {
        /// The first record.
        start: u64,
        /// How many there are.
        items: u64,
    },
    /// The reference client's `zipfian`.
    ZipfianScrambled(Scrambled),
    /// Zipf over the records.
    ZipfianPlain(ScatteredZipfian),
    /// The newest records most.
    Latest(Latest),
    /// A hot set.
    Hotspot(Hotspot),
    /// The newest records most, falling off exponentially.
    Exponential(Exponential),
    /// In order.
    Sequential(Sequential),
}

impl KeyChooser {
    /// The chooser of `worker` out of `workers` for a workload.
    ///
    /// The two zipfian distributions reach over the records that the run is expected
    /// to insert as well (twice `operationcount × insertproportion`), so that the hot
    /// records stay the same while the table grows.
    pub fn new(spec: &WorkloadSpec, worker: u64, workers: u64) -> Self {
        let (start, items) = (spec.insert_start, spec.insert_count);
        let growth = (spec.operation_count as f64 * spec.mix.insert * 2.0) as u64;
        match spec.distribution {
            Distribution::Uniform => KeyChooser::Uniform { start, items },
            Distribution::ZipfianScrambled { theta } => {
                // One more than there are records: the reference client's upper bound
                // is the first key not yet inserted, and is drawn again when met.
                KeyChooser::ZipfianScrambled(Scrambled::new(start, items + growth + 1, theta))
            }
            Distribution::ZipfianPlain { theta } => {
                KeyChooser::ZipfianPlain(ScatteredZipfian::new(start, items + growth, theta))
            }
            Distribution::Latest { theta } => {
                KeyChooser::Latest(Latest::new(start, spec.record_count - 1, theta))
            }
            Distribution::Hotspot {
                data_fraction,
                operation_fraction,
            } => KeyChooser::Hotspot(Hotspot::new(
                start,
                items,
                data_fraction,
                operation_fraction,
            )),
            Distribution::Exponential {
                percentile,
                fraction,
            } => KeyChooser::Exponential(Exponential::new(
                start,
                spec.record_count,
                percentile,
                fraction,
            )),
            Distribution::Sequential => {
                KeyChooser::Sequential(Sequential::new(start, items, worker, workers))
            }
        }
    }

    /// The record of the next operation, which is at most `last`, the newest record.
    ///
    /// # Panics
    /// If `last` lies before the first record.
    #[inline]
    pub fn next<R: RngCore + ?Sized>(&mut self, rng: &mut R, last: u64) -> u64 {
        match self {
            KeyChooser::Uniform { start, items } => *start + uniform_below(rng, *items),
            KeyChooser::ZipfianScrambled(chooser) => chooser.next(rng, last),
            KeyChooser::ZipfianPlain(chooser) => chooser.next(rng, last),
            KeyChooser::Latest(chooser) => chooser.next(rng, last),
            KeyChooser::Hotspot(chooser) => chooser.next(rng),
            KeyChooser::Exponential(chooser) => chooser.next(rng, last),
            KeyChooser::Sequential(chooser) => chooser.next_key(),
        }
    }
}
