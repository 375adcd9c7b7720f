//! One worker's stream of transactions.

use rand::{Rng, RngCore};

use super::names::{START_TIMES, SubNbr, TYPES};
use super::options::{Choice, Options};
use super::population::random_numberx;
use super::transaction::{Kind, Transaction};
use crate::oltp::{OptionsError, choose};

/// Draws subscribers.
///
/// TATP's non-uniform draw, as FaSST and FORD have it but from 1: of two numbers, one below P and
/// one up to A, the bits of either, modulo P. A has all bits set, so that numbers with many bits
/// come often. For P = 10^6 the 1000 most frequent get 12 % of the draws, the top 10 % get 81 %.
#[derive(Clone, Copy, Debug)]
pub struct SubscriberDraw {
    subscribers: u32,
    /// A, or 0: then the draw is uniform.
    mask: u32,
}

impl SubscriberDraw {
    /// Draws from `1..=subscribers`, of which there is at least one.
    fn new(subscribers: u32, choice: Choice) -> Self {
        let mask = match (choice, subscribers) {
            (Choice::Uniform, _) => 0,
            (Choice::NonUniform, ..=1_000_000) => 65_535,
            (Choice::NonUniform, ..=10_000_000) => 1_048_575,
            (Choice::NonUniform, _) => 2_097_151,
        };
        Self { subscribers, mask }
    }

    /// An `s_id`.
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

/// Draws transactions with their parameters. A function of the random numbers handed in.
#[derive(Clone, Debug)]
pub struct Stream {
    percents: [u8; Kind::ALL.len()],
    subscribers: SubscriberDraw,
}

impl Stream {
    /// The stream of a run.
    ///
    /// # Errors
    /// An option that cannot be.
    pub fn new(options: &Options) -> Result<Self, OptionsError> {
        options.validate()?;
        Ok(Self {
            percents: options.mix.percents(),
            subscribers: SubscriberDraw::new(options.subscribers, options.choice),
        })
    }

    /// How it draws subscribers.
    pub fn subscribers(&self) -> SubscriberDraw {
        self.subscribers
    }

    /// The next transaction. Allocates nothing.
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
