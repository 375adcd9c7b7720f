//! The options of a run of SmallBank.

use serde::{Deserialize, Serialize};

use super::transaction::Kind;
use crate::oltp::{OptionsError, check_mix};

/// The effect of TransactSavings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SavingsRule {
    /// Deposits 20.20: FaSST, FORD.
    #[default]
    Deposit,
    /// Withdraws 20.20, if the balance is sufficient: BenchBase.
    Withdraw,
}

/// Percentages of the transactions; they add up to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs)] // Each field is the share of the transaction with its name.
pub struct Mix {
    pub amalgamate: u8,
    pub balance: u8,
    pub deposit_checking: u8,
    pub send_payment: u8,
    pub transact_savings: u8,
    pub write_check: u8,
}

impl Default for Mix {
    /// The mix of SmallBank: 15 % only read.
    fn default() -> Self {
        Self {
            amalgamate: 15,
            balance: 15,
            deposit_checking: 15,
            send_payment: 25,
            transact_savings: 15,
            write_check: 15,
        }
    }
}

impl Mix {
    /// Returns the percentages in the order of [`Kind::ALL`].
    pub fn percents(&self) -> [u8; Kind::ALL.len()] {
        [
            self.amalgamate,
            self.balance,
            self.deposit_checking,
            self.send_payment,
            self.transact_savings,
            self.write_check,
        ]
    }
}

/// A run of SmallBank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Number of accounts, which are numbered from 0.
    pub accounts: u64,
    /// Number of hot accounts, which are the first ones.
    pub hot_accounts: u64,
    /// Percentage of transactions whose accounts are hot.
    pub hot_percent: u8,
    /// Initial balance of each savings and each checking account, in cents.
    pub initial_cents: i64,
    /// Effect of TransactSavings.
    pub savings_rule: SavingsRule,
    /// Shares of the transactions.
    pub mix: Mix,
}

impl Default for Options {
    /// The options of FORD and Smart: 100,000 accounts in total, 4 % of which get 90 % of the transactions, and 10^9 in
    /// each. FaSST has this number of accounts per worker.
    fn default() -> Self {
        Self {
            accounts: 100_000,
            hot_accounts: 4_000,
            hot_percent: 90,
            initial_cents: 1_000_000_000 * 100,
            savings_rule: SavingsRule::default(),
            mix: Mix::default(),
        }
    }
}

impl Options {
    /// Returns the initial sum of all money, in cents.
    pub fn initial_total_cents(&self) -> i128 {
        2 * i128::from(self.accounts) * i128::from(self.initial_cents)
    }

    /// Checks that a run with these options is possible.
    ///
    /// # Errors
    /// The first invalid option.
    pub fn validate(&self) -> Result<(), OptionsError> {
        if self.accounts < 2 {
            return Err(OptionsError {
                place: "smallbank.accounts",
                value: self.accounts.to_string(),
                wanted: "2 or more".into(),
                advice: "transactions are between two accounts; give 100000 for example".into(),
            });
        }
        if self.hot_percent > 100 {
            return Err(OptionsError {
                place: "smallbank.hot_percent",
                value: self.hot_percent.to_string(),
                wanted: "0 to 100".into(),
                advice: "give the percentage of transactions on hot accounts, or 0 for none".into(),
            });
        }
        let least_hot = if self.hot_percent == 0 { 0 } else { 2 };
        if !(least_hot..=self.accounts).contains(&self.hot_accounts) {
            return Err(OptionsError {
                place: "smallbank.hot_accounts",
                value: self.hot_accounts.to_string(),
                wanted: format!("{least_hot} to {}", self.accounts),
                advice: "give 4 % of the accounts, or set hot_percent = 0 for no hot accounts"
                    .into(),
            });
        }
        // Amalgamate may move all of the money to one account.
        let most = i64::MAX / 2 / i64::try_from(self.accounts).unwrap_or(i64::MAX) / 2;
        if !(0..=most).contains(&self.initial_cents) {
            return Err(OptionsError {
                place: "smallbank.initial_cents",
                value: self.initial_cents.to_string(),
                wanted: format!("0 to {most}"),
                advice: format!(
                    "all {} accounts together have to fit into half of 63 bits; load less money",
                    self.accounts
                ),
            });
        }
        check_mix("smallbank.mix", &self.mix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: impl FnOnce(&mut Options)) -> String {
        let mut options = Options::default();
        change(&mut options);
        options.validate().unwrap_err().to_string()
    }

    #[test]
    fn options_are_read_and_checked() {
        let options: Options =
            serde_json::from_str(r#"{"savings_rule": "withdraw", "mix": {"balance": 15}}"#)
                .unwrap();
        assert_eq!(options.savings_rule, SavingsRule::Withdraw);
        assert_eq!((options.validate(), options.mix), (Ok(()), Mix::default()));
        assert_eq!(Options::default().validate(), Ok(()));
        assert_eq!(options.initial_total_cents(), 20_000_000_000_000_000);
        assert!(serde_json::from_str::<Options>(r#"{"acounts": 5}"#).is_err());

        let known = [
            (
                refusal(|o| o.accounts = 1),
                "smallbank.accounts = 1 is not 2 or more",
            ),
            (
                refusal(|o| o.hot_percent = 101),
                "smallbank.hot_percent = 101 is not 0 to 100",
            ),
            (
                refusal(|o| o.hot_accounts = 1),
                "smallbank.hot_accounts = 1 is not 2 to 100000",
            ),
            (
                refusal(|o| o.hot_accounts = 100_001),
                "smallbank.hot_accounts = 100001 is not 2 to 100000",
            ),
            (
                refusal(|o| o.initial_cents = -1),
                "smallbank.initial_cents = -1 is not 0 to",
            ),
            (
                refusal(|o| o.accounts = u64::MAX),
                "smallbank.initial_cents = 100000000000 is not 0",
            ),
            (
                refusal(|o| o.mix.balance = 0),
                "smallbank.mix = [amalgamate 15, deposit_checking 15, send_payment 25, transact_savings 15, \
                 write_check 15] is not 100",
            ),
        ];
        for (found, start) in known {
            assert!(found.starts_with(start), "{found}");
        }
    }
}
