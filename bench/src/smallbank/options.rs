//! The options of a run of SmallBank.

use serde::{Deserialize, Serialize};

use super::transaction::{Mix, SavingsRule};
use crate::oltp::{OptionsError, check_mix, check_option};

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
        let Self {
            accounts,
            hot_accounts,
            hot_percent,
            initial_cents,
            ..
        } = *self;
        let advice = "some transactions need two accounts; give 100000 for example";
        check_option(
            accounts >= 2,
            "smallbank.accounts",
            accounts,
            "2 or more",
            advice,
        )?;
        let advice = "give the percentage of transactions on hot accounts, or 0 for none";
        let valid = hot_percent <= 100;
        check_option(
            valid,
            "smallbank.hot_percent",
            hot_percent,
            "0 to 100",
            advice,
        )?;
        let least = if hot_percent == 0 { 0 } else { 2 };
        let wanted = format!("{least} to {accounts}");
        let advice = "give 4 % of the accounts, or set hot_percent = 0 for no hot accounts";
        let valid = (least..=accounts).contains(&hot_accounts);
        check_option(
            valid,
            "smallbank.hot_accounts",
            hot_accounts,
            &wanted,
            advice,
        )?;
        // Amalgamate may move all of the money to one account.
        let most = i64::MAX / 2 / i64::try_from(accounts).unwrap_or(i64::MAX) / 2;
        let wanted = format!("0 to {most}");
        let advice = format!(
            "the balances of all {accounts} accounts together must be at most half of the largest signed 64-bit \
             number; load less money"
        );
        let valid = (0..=most).contains(&initial_cents);
        check_option(
            valid,
            "smallbank.initial_cents",
            initial_cents,
            &wanted,
            &advice,
        )?;
        check_mix("smallbank.mix", &self.mix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = fn(&mut Options);

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

        let mix = "smallbank.mix = [amalgamate 15, deposit_checking 15, send_payment 25, transact_savings 15, \
                   write_check 15] is not 100";
        let known: [(Change, &str); 7] = [
            (
                |o| o.accounts = 1,
                "smallbank.accounts = 1 is not 2 or more",
            ),
            (
                |o| o.hot_percent = 101,
                "smallbank.hot_percent = 101 is not 0 to 100",
            ),
            (
                |o| o.hot_accounts = 1,
                "smallbank.hot_accounts = 1 is not 2 to 100000",
            ),
            (
                |o| o.hot_accounts = 100_001,
                "smallbank.hot_accounts = 100001 is not 2 to 100000",
            ),
            (
                |o| o.initial_cents = -1,
                "smallbank.initial_cents = -1 is not 0 to",
            ),
            (
                |o| o.accounts = u64::MAX,
                "smallbank.initial_cents = 100000000000 is not 0",
            ),
            (|o| o.mix.balance = 0, mix),
        ];
        for (change, start) in known {
            let mut options = Options::default();
            change(&mut options);
            let found = options.validate().unwrap_err().to_string();
            assert!(found.starts_with(start), "{found}");
        }
    }
}
