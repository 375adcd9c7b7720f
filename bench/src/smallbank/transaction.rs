//! The reads, decisions and writes of each transaction of SmallBank (`WORKLOADS.md` §4.2), in cents. If a transaction
//! has two accounts, they are distinct.
//!
//! | transaction | reads | writes | sum of all money |
//! |---|---|---|---|
//! | Amalgamate | savings and checking of `from`, checking of `to` | all three: moves all money of `from` to the checking of `to` | unchanged |
//! | Balance | savings, checking | | unchanged |
//! | DepositChecking | checking | checking + 130 | + 130 |
//! | SendPayment | checking of `from` and of `to` | moves 500; declined if `from` has less | unchanged |
//! | TransactSavings | savings | savings + 2020; with [`SavingsRule::Withdraw`] savings - 2020, declined if savings are less | + 2020 or - 2020 |
//! | WriteCheck | savings, checking | checking - 500, or checking - 600 if savings and checking together are less than 500 | - 500 or - 600 |

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::account::{Balance, checking, savings};
use crate::oltp::{
    Decision, Names, Outcome, Row, RowName, Step, StepError, Write, present, transactions,
};

/// Deposit of DepositChecking, in cents.
pub const DEPOSIT_CENTS: i64 = 130;
/// Payment of SendPayment, in cents.
pub const PAYMENT_CENTS: i64 = 500;
/// Deposit or withdrawal of TransactSavings, in cents.
pub const SAVINGS_CENTS: i64 = 2_020;
/// Amount of WriteCheck, in cents.
pub const CHECK_CENTS: i64 = 500;
/// Additional amount of WriteCheck if the account has less than the check, in cents.
pub const PENALTY_CENTS: i64 = 100;

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

// 15 % of the standard mix only read.
transactions! {
    Amalgamate = "Amalgamate", amalgamate: 15 { from: u64, to: u64 }
    Balance = "Balance", balance: 15 { account: u64 }
    DepositChecking = "DepositChecking", deposit_checking: 15 { account: u64 }
    SendPayment = "SendPayment", send_payment: 25 { from: u64, to: u64 }
    TransactSavings = "TransactSavings", transact_savings: 15 { account: u64, rule: SavingsRule }
    WriteCheck = "WriteCheck", write_check: 15 { account: u64 }
}

impl Kind {
    /// Returns whether it may write.
    pub const fn writes(self) -> bool {
        !matches!(self, Kind::Balance)
    }
}

impl Transaction {
    /// Returns the next step, given all rows read so far in the order of the requests; initially there are none.
    ///
    /// # Errors
    /// [`StepError`]: an account is missing or damaged, or the rows do not match the request.
    pub fn step(&self, rows: &[Option<&[u8]>]) -> Result<Step, StepError> {
        let names = self.names();
        if rows.is_empty() {
            return Ok(Step::Read(names));
        }
        if rows.len() != names.len() {
            return Err(StepError::Rows {
                given: rows.len(),
                asked: names.len(),
            });
        }
        let mut cents: SmallVec<[i64; 4]> = SmallVec::new();
        for (name, row) in names.iter().zip(rows) {
            cents.push(present::<Balance>(*name, *row)?.cents);
        }
        self.decide(&names, &cents).map(Step::End)
    }

    /// Returns the names of the rows that it reads.
    fn names(&self) -> Names {
        let mut names = Names::new();
        match *self {
            Transaction::Amalgamate { from, to } => {
                names.extend([savings(from), checking(from), checking(to)]);
            }
            Transaction::SendPayment { from, to } => names.extend([checking(from), checking(to)]),
            Transaction::Balance { account } | Transaction::WriteCheck { account } => {
                names.extend([savings(account), checking(account)]);
            }
            Transaction::DepositChecking { account } => names.push(checking(account)),
            Transaction::TransactSavings { account, .. } => names.push(savings(account)),
        }
        names
    }

    /// Returns the decision, given the balances of the rows that it reads.
    fn decide(&self, names: &[RowName], cents: &[i64]) -> Result<Decision, StepError> {
        // Sums are `None` if they exceed 64 bits.
        let put = |place: usize, cents: Option<i64>| {
            let row: RowName = names[place];
            let cents = cents.ok_or(StepError::Overflow { row })?;
            Ok(Write::Update(row, Balance { cents }.encode()))
        };
        let plus = |place: usize, more: i64| put(place, cents[place].checked_add(more));
        match *self {
            Transaction::Amalgamate { .. } => {
                let all = cents[0].checked_add(cents[1]);
                let sum = all.and_then(|all| cents[2].checked_add(all));
                commit(0, [put(0, Some(0)), put(1, Some(0)), put(2, sum)])
            }
            Transaction::Balance { .. } => commit(0, []),
            Transaction::DepositChecking { .. } => commit(DEPOSIT_CENTS, [plus(0, DEPOSIT_CENTS)]),
            Transaction::SendPayment { .. } if cents[0] < PAYMENT_CENTS => declined(),
            Transaction::SendPayment { .. } => {
                commit(0, [plus(0, -PAYMENT_CENTS), plus(1, PAYMENT_CENTS)])
            }
            Transaction::TransactSavings { rule, .. } => match rule {
                SavingsRule::Deposit => commit(SAVINGS_CENTS, [plus(0, SAVINGS_CENTS)]),
                SavingsRule::Withdraw if cents[0] < SAVINGS_CENTS => declined(),
                SavingsRule::Withdraw => commit(-SAVINGS_CENTS, [plus(0, -SAVINGS_CENTS)]),
            },
            Transaction::WriteCheck { .. } => {
                let both = i128::from(cents[0]) + i128::from(cents[1]);
                let covered = both >= i128::from(CHECK_CENTS);
                let taken = CHECK_CENTS + if covered { 0 } else { PENALTY_CENTS };
                commit(-taken, [plus(1, -taken)])
            }
        }
    }
}

fn commit<const N: usize>(
    delta_cents: i64,
    writes: [Result<Write, StepError>; N],
) -> Result<Decision, StepError> {
    let mut decision = Decision::commit([]);
    decision.delta_cents = delta_cents;
    for write in writes {
        decision.writes.push(write?);
    }
    Ok(decision)
}

fn declined() -> Result<Decision, StepError> {
    Ok(Decision::none(Outcome::Declined))
}
