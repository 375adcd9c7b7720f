//! The stream of transactions of one worker.

use rand::{Rng, RngCore};

use super::names::{START_TIMES, TYPES};
use super::options::{Choice, Options};
use super::population::random_numberx;
use super::row::SubNbr;
use super::transaction::{Kind, Transaction};
use crate::oltp::{OptionsError, choose};

/// Draws subscribers.
///
/// The non-uniform distribution of TATP, as in FaSST and FORD but starting at 1: the bitwise or of two random numbers,
/// one below P and one up to A, modulo P. All bits of A are set, so that numbers with many bits are frequent. For P =
/// 10^6 the 1000 most frequent subscribers get 12 % of the draws, and the top 10 % get 81 %.
#[derive(Clone, Copy, Debug)]
pub struct SubscriberDraw {
    subscribers: u32,
    /// A, or 0 for a uniform distribution.
    mask: u32,
}

impl SubscriberDraw {
    /// Creates a draw from `1..=subscribers`; there must be at least one subscriber.
    fn new(subscribers: u32, choice: Choice) -> Self {
        let mask = match (choice, subscribers) {
            (Choice::Uniform, _) => 0,
            (Choice::NonUniform, ..=1_000_000) => 65_535,
            (Choice::NonUniform, ..=10_000_000) => 1_048_575,
            (Choice::NonUniform, _) => 2_097_151,
        };
        Self { subscribers, mask }
    }

    /// Returns a random `s_id`.
    #[inline]
    pub fn next<R: RngCore + ?Sized>(&self, rng: &mut R) -> u32 {
        let uniform = rng.random_range(0..self.subscribers);
        let from_zero = match self.mask {
            0 => uniform,
            mask => (uniform | rng.random_range(0..=mask)) % self.subscribers,
        };
        from_zero + 1
    }
}

/// Draws transactions with their parameters. The result depends only on the random numbers that are passed in.
#[derive(Clone, Debug)]
pub struct Stream {
    percents: [u8; Kind::ALL.len()],
    subscribers: SubscriberDraw,
}

impl Stream {
    /// Creates the stream of a run.
    ///
    /// # Errors
    /// An invalid option.
    pub fn new(options: &Options) -> Result<Self, OptionsError> {
        options.validate()?;
        Ok(Self {
            percents: options.mix.percents(),
            subscribers: SubscriberDraw::new(options.subscribers, options.choice),
        })
    }

    /// Returns the draw of subscribers.
    pub fn subscribers(&self) -> SubscriberDraw {
        self.subscribers
    }

    /// Returns the next transaction. Does not allocate.
    pub fn next<R: RngCore + ?Sized>(&self, rng: &mut R) -> Transaction {
        let kind = Kind::ALL[choose(&self.percents, rng.random_range(0..100))];
        let s_id = self.subscribers.next(rng);
        let sub_nbr = SubNbr::of(s_id);
        match kind {
            Kind::GetSubscriberData => Transaction::GetSubscriberData { s_id },
            Kind::GetNewDestination => Transaction::GetNewDestination {
                s_id,
                sf_type: random_type(rng),
                start_time: random_start(rng),
                end_time: rng.random_range(1..=24),
            },
            Kind::GetAccessData => Transaction::GetAccessData {
                s_id,
                ai_type: random_type(rng),
            },
            Kind::UpdateSubscriberData => Transaction::UpdateSubscriberData {
                s_id,
                bit_1: rng.random(),
                sf_type: random_type(rng),
                data_a: rng.random(),
            },
            Kind::UpdateLocation => Transaction::UpdateLocation {
                sub_nbr,
                vlr_location: rng.random(),
            },
            Kind::InsertCallForwarding => Transaction::InsertCallForwarding {
                sub_nbr,
                sf_type: random_type(rng),
                start_time: random_start(rng),
                end_time: rng.random_range(1..=24),
                numberx: random_numberx(rng),
            },
            Kind::DeleteCallForwarding => Transaction::DeleteCallForwarding {
                sub_nbr,
                sf_type: random_type(rng),
                start_time: random_start(rng),
            },
        }
    }
}

fn random_type<R: RngCore + ?Sized>(rng: &mut R) -> u8 {
    rng.random_range(TYPES)
}

fn random_start<R: RngCore + ?Sized>(rng: &mut R) -> u8 {
    START_TIMES[rng.random_range(0..START_TIMES.len())]
}
