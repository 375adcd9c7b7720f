//! One worker's stream of transactions.

use rand::{Rng, RngCore};

use super::options::{Options, SavingsRule};
use super::transaction::{Kind, Transaction};
use crate::oltp::{OptionsError, choose};

/// Draws transactions with their accounts. A function of the random numbers handed in.
///
/// Hot or not is decided once for each transaction: both accounts of a hot one are hot, those of
/// another are any, hot ones included. Two accounts are never the same.
#[derive(Clone, Debug)]
pub struct Stream {
    percents: [u8; Kind::ALL.len()],
    accounts: u64,
    hot_accounts: u64,
    hot_percent: u8,
    savings_rule: SavingsRule,
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
            accounts: options.accounts,
            hot_accounts: options.hot_accounts,
            hot_percent: options.hot_percent,
            savings_rule: options.savings_rule,
        })
    }

    /// The next transaction. Allocates nothing.
    pub fn next<R: RngCore + ?Sized>(&self, rng: &mut R) -> Transaction {
        let kind = Kind::ALL[choose(&self.percents, rng.random_range(0..100))];
        let hot = rng.random_range(0..100) < self.hot_percent;
        let among = if hot {
            self.hot_accounts
        } else {
            self.accounts
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
                rule: self.savings_rule,
            },
            Kind::WriteCheck => Transaction::WriteCheck { account },
        }
    }
}

/// Another account out of `among`, each alike.
fn other<R: RngCore + ?Sized>(rng: &mut R, account: u64, among: u64) -> u64 {
    let drawn = rng.random_range(0..among - 1);
    drawn + u64::from(drawn >= account)
}
