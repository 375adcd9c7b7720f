//! The stream of transactions of one worker.

use rand::{Rng, RngCore};

use super::options::Options;
use super::transaction::{Kind, Transaction};
use crate::oltp::{OptionsError, choose};

/// Draws transactions with their accounts. The result depends only on the random numbers that are passed in.
///
/// Each transaction is either hot or not. Both accounts of a hot transaction are hot; those of another transaction are
/// any accounts, including hot ones. The two accounts are always different.
#[derive(Clone, Debug)]
pub struct Stream {
    options: Options,
    percents: [u8; Kind::ALL.len()],
}

impl Stream {
    /// Creates the stream of a run.
    ///
    /// # Errors
    /// An invalid option.
    pub fn new(options: &Options) -> Result<Self, OptionsError> {
        options.validate()?;
        Ok(Self {
            options: options.clone(),
            percents: options.mix.percents(),
        })
    }

    /// Returns the next transaction. Does not allocate.
    pub fn next<R: RngCore + ?Sized>(&self, rng: &mut R) -> Transaction {
        let kind = Kind::ALL[choose(&self.percents, rng.random_range(0..100))];
        let is_hot = rng.random_range(0..100) < self.options.hot_percent;
        let among = match is_hot {
            true => self.options.hot_accounts,
            false => self.options.accounts,
        };
        let account = rng.random_range(0..among);
        match kind {
            Kind::Amalgamate => Transaction::Amalgamate {
                from: account,
                to: other(rng, account, among),
            },
            Kind::Balance => Transaction::Balance { account },
            Kind::DepositChecking => Transaction::DepositChecking { account },
            Kind::SendPayment => Transaction::SendPayment {
                from: account,
                to: other(rng, account, among),
            },
            Kind::TransactSavings => Transaction::TransactSavings {
                account,
                rule: self.options.savings_rule,
            },
            Kind::WriteCheck => Transaction::WriteCheck { account },
        }
    }
}

/// Returns another account out of `among`, with equal probabilities.
fn other<R: RngCore + ?Sized>(rng: &mut R, account: u64, among: u64) -> u64 {
    let drawn = rng.random_range(0..among - 1);
    drawn + u64::from(drawn >= account)
}
