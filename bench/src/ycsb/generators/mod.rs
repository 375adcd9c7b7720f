//! The generators that choose the record of an operation.
//!
//! Each generator uses only the random numbers that are passed in, so that a run can be repeated with the same seed. No
//! generator allocates after its creation. [`KeyChooser`] selects the generator that a workload names.
//!
//! "Zipf 0.99" has two different meanings in published results. In the reference client, `zipfian` draws one of ten
//! thousand million ranks regardless of the number of records, and hashes it to a record ([`Scrambled`]): the hottest
//! record gets 3.8 % of the operations, and the long tail is an even background. In the C++ client and in FaRM's
//! papers, the distribution is over the records themselves ([`ScatteredZipfian`]): the hottest record gets 6.5 % at a
//! million records. This library always uses different names for the two.

use rand::{Rng, RngCore};

use super::spec::{Distribution, WorkloadSpec};

mod others;
mod zeta;
mod zipfian;

pub use others::{Exponential, Hotspot, Sequential};
pub use zeta::zeta;
pub use zipfian::{Latest, ScatteredZipfian, Scrambled, ZIPFIAN_CONSTANT, Zipfian};

/// The generator that a workload names.
#[derive(Debug, Clone)]
pub enum KeyChooser {
    /// All records are equally likely.
    Uniform {
        /// First record.
        start: u64,
        /// Number of records.
        items: u64,
    },
    /// The `zipfian` of the reference client.
    ZipfianScrambled(Scrambled),
    /// Zipf over the records.
    ZipfianPlain(ScatteredZipfian),
    /// Prefers the newest records, by a zipfian distribution.
    Latest(Latest),
    /// Prefers a hot set.
    Hotspot(Hotspot),
    /// Prefers the newest records, by an exponential distribution.
    Exponential(Exponential),
    /// All records in order.
    Sequential(Sequential),
}

impl KeyChooser {
    /// Creates the generator of `worker` out of `workers` for a workload.
    ///
    /// The two zipfian distributions include the records that the run is expected to insert (twice `operationcount ×
    /// insertproportion`), so that the hot records stay the same while the table grows.
    pub fn new(spec: &WorkloadSpec, worker: u64, workers: u64) -> Self {
        let (start, items) = (spec.insert_start, spec.insert_count);
        let growth = (spec.operation_count as f64 * spec.mix.insert * 2.0) as u64;
        match spec.distribution {
            Distribution::Uniform => KeyChooser::Uniform { start, items },
            Distribution::ZipfianScrambled { theta } => {
                // One more than the number of records: the upper bound of the reference client is the first key that is
                // not inserted yet, and a draw of it is repeated.
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

    /// Returns the record of the next operation, which is at most `last`, the newest record.
    ///
    /// # Panics
    /// If `last` is before the first record.
    #[inline]
    pub fn next<R: RngCore + ?Sized>(&mut self, rng: &mut R, last: u64) -> u64 {
        match self {
            KeyChooser::Uniform { start, items } => *start + rng.random_range(0..*items),
            KeyChooser::ZipfianScrambled(chooser) => chooser.next(rng, last),
            KeyChooser::ZipfianPlain(chooser) => chooser.next(rng, last),
            KeyChooser::Latest(chooser) => chooser.next(rng, last),
            KeyChooser::Hotspot(chooser) => chooser.next(rng),
            KeyChooser::Exponential(chooser) => chooser.next(rng, last),
            KeyChooser::Sequential(chooser) => chooser.next_key(),
        }
    }
}
