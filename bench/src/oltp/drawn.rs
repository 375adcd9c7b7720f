//! Transactions of either benchmark, for those who run them and do not care which.

use rand::RngCore;

use super::{Step, StepError};
use crate::{smallbank, tatp};

/// A benchmark, as it is to be run.
#[derive(Clone, Debug)]
pub enum Stream {
    /// TATP.
    Tatp(tatp::Stream),
    /// SmallBank.
    SmallBank(smallbank::Stream),
}

impl Stream {
    /// The next transaction.
    pub fn next<R: RngCore + ?Sized>(&self, rng: &mut R) -> Drawn {
        match self {
            Stream::Tatp(stream) => Drawn::Tatp(stream.next(rng)),
            Stream::SmallBank(stream) => Drawn::SmallBank(stream.next(rng)),
        }
    }

    /// Names of the kinds of transactions, in their order.
    pub fn kinds(&self) -> Vec<&'static str> {
        match self {
            Stream::Tatp(_) => tatp::Kind::ALL.map(tatp::Kind::name).into(),
            Stream::SmallBank(_) => smallbank::Kind::ALL.map(smallbank::Kind::name).into(),
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
    /// What to do next, given all rows read so far, in the order asked: none at first.
    ///
    /// # Errors
    /// [`StepError`].
    pub fn step(&self, rows: &[Option<&[u8]>]) -> Result<Step, StepError> {
        match self {
            Drawn::Tatp(transaction) => transaction.step(rows),
            Drawn::SmallBank(transaction) => transaction.step(rows),
        }
    }

    /// The place of its kind in [`Stream::kinds`].
    pub fn kind(&self) -> usize {
        match self {
            Drawn::Tatp(transaction) => transaction.kind().index(),
            Drawn::SmallBank(transaction) => transaction.kind().index(),
        }
    }

    /// Whether it may write.
    pub fn writes(&self) -> bool {
        match self {
            Drawn::Tatp(transaction) => transaction.kind().writes(),
            Drawn::SmallBank(transaction) => transaction.kind().writes(),
        }
    }
}
