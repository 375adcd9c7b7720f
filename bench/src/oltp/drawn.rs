//! Transactions of either benchmark, for callers that are independent of the benchmark.

use rand::RngCore;

use super::{Step, StepError};
use crate::{smallbank, tatp};

/// The stream of transactions of a benchmark.
#[derive(Clone, Debug)]
pub enum Stream {
    /// TATP.
    Tatp(tatp::Stream),
    /// SmallBank.
    SmallBank(smallbank::Stream),
}

impl Stream {
    /// Returns the next transaction.
    pub fn next<R: RngCore + ?Sized>(&self, rng: &mut R) -> Drawn {
        match self {
            Stream::Tatp(stream) => Drawn::Tatp(stream.next(rng)),
            Stream::SmallBank(stream) => Drawn::SmallBank(stream.next(rng)),
        }
    }

    /// Returns the names of the kinds of transactions, in their order.
    pub fn kinds(&self) -> &'static [&'static str] {
        match self {
            Stream::Tatp(_) => tatp::Kind::NAMES,
            Stream::SmallBank(_) => smallbank::Kind::NAMES,
        }
    }
}

/// A transaction of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drawn {
    /// Of TATP.
    Tatp(tatp::Transaction),
    /// Of SmallBank.
    SmallBank(smallbank::Transaction),
}

impl Drawn {
    /// Returns the next step, given all rows read so far in the order of the requests; initially there are none.
    ///
    /// # Errors
    /// [`StepError`].
    pub fn step(&self, rows: &[Option<&[u8]>]) -> Result<Step, StepError> {
        match self {
            Drawn::Tatp(transaction) => transaction.step(rows),
            Drawn::SmallBank(transaction) => transaction.step(rows),
        }
    }

    /// Returns the index of its kind in [`Stream::kinds`].
    pub fn kind(&self) -> usize {
        match self {
            Drawn::Tatp(transaction) => transaction.kind().index(),
            Drawn::SmallBank(transaction) => transaction.kind().index(),
        }
    }

    /// Returns whether it may write.
    pub fn writes(&self) -> bool {
        match self {
            Drawn::Tatp(transaction) => transaction.kind().writes(),
            Drawn::SmallBank(transaction) => transaction.kind().writes(),
        }
    }
}
