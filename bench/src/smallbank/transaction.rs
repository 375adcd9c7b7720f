//! The reads, decisions and writes of each transaction of SmallBank (`WORKLOADS.md` §4.2), in cents.
//!
//! | transaction | reads | writes | sum of all money |
//! |---|---|---|---|
//! | Amalgamate | savings and checking of `from`, checking of `to` | all three: everything is moved to the last | unchanged |
//! | Balance | savings, checking | | unchanged |
//! | DepositChecking | checking | checking + 130 | + 130 |
//! | SendPayment | checking of `from` and of `to` | moves 500; declined if `from` has less | unchanged |
//! | TransactSavings | savings | savings + 2020, or - 2020 and declined if there is less | ± 2020 |
//! | WriteCheck | savings, checking | checking - 500, or - 600 if both together have less than 500 | - 500 or - 600 |

use smallvec::SmallVec;

use super::account::{Balance, checking, savings};
use super::options::SavingsRule;
use crate::oltp::{Decision, Names, Outcome, RowName, Step, StepError, Write};

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

/// The transactions of SmallBank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // The table in the module documentation describes them.
pub enum Kind {
    Amalgamate,
    Balance,
    DepositChecking,
    SendPayment,
    TransactSavings,
    WriteCheck,
}

impl Kind {
    /// All kinds, in the order of the benchmark's description.
    pub const ALL: [Kind; 6] = [
        Kind::Amalgamate,
        Kind::Balance,
        Kind::DepositChecking,
        Kind::SendPayment,
        Kind::TransactSavings,
        Kind::WriteCheck,
    ];

    /// Returns its index in [`Kind::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns its name in the benchmark's description.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Amalgamate => "Amalgamate",
            Kind::Balance => "Balance",
            Kind::DepositChecking => "DepositChecking",
            Kind::SendPayment => "SendPayment",
            Kind::TransactSavings => "TransactSavings",
            Kind::WriteCheck => "WriteCheck",
        }
    }

    /// Returns whether it may write.
    pub const fn writes(self) -> bool {
        !matches!(self, Kind::Balance)
    }
}

/// A transaction with its accounts; if there are two, they are distinct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // As above.
pub enum Transaction {
    Amalgamate { from: u64, to: u64 },
    Balance { account: u64 },
    DepositChecking { account: u64 },
    SendPayment { from: u64, to: u64 },
    TransactSavings { account: u64, rule: SavingsRule },
    WriteCheck { account: u64 },
}

impl Transaction {
    /// Returns its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Transaction::Amalgamate { .. } => Kind::Amalgamate,
            Transaction::Balance { .. } => Kind::Balance,
            Transaction::DepositChecking { .. } => Kind::DepositChecking,
            Transaction::SendPayment { .. } => Kind::SendPayment,
            Transaction::TransactSavings { .. } => Kind::TransactSavings,
            Transaction::WriteCheck { .. } => Kind::WriteCheck,
        }
    }

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
            cents.push(balance(*name, *row)?);
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

/// Decodes a balance that was read. It must be present: accounts are never removed.
fn balance(row: RowName, bytes: Option<&[u8]>) -> Result<i64, StepError> {
    let bytes = bytes.ok_or(StepError::Missing { row })?;
    let balance = Balance::decode(bytes).map_err(|why| StepError::Bad { row, why })?;
    Ok(balance.cents)
}
