//! Accounts of SmallBank: two tables by account number, of one balance each.

use bytemuck::{Pod, Zeroable};

use crate::oltp::{BadRow, Row, RowBytes, RowName, Table, present};

/// SAVINGS, by account number.
pub const SAVINGS: Table = Table::of::<Balance>(17, "SAVINGS");

/// CHECKING, by account number.
pub const CHECKING: Table = Table::of::<Balance>(18, "CHECKING");

/// All tables.
pub const TABLES: [Table; 2] = [SAVINGS, CHECKING];

/// Returns the name of the savings row of an account.
pub const fn savings(account: u64) -> RowName {
    RowName {
        table: SAVINGS,
        key: account,
    }
}

/// Returns the name of the checking row of an account.
pub const fn checking(account: u64) -> RowName {
    RowName {
        table: CHECKING,
        key: account,
    }
}

/// A balance in cents, as a row of either table: 8 bytes, little-endian. A checking account may be overdrawn.
///
/// The reference programs use 4 bytes of a magic number and a 32-bit float, which cannot represent the initial 10^9
/// with a precision of one cent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Pod, Zeroable)]
#[repr(transparent)]
pub struct Balance {
    /// Cents.
    pub cents: i64,
}

impl Row for Balance {
    fn check(&self) -> Result<(), BadRow> {
        Ok(())
    }
}

/// Returns the two initial rows of an account.
pub fn rows(account: u64, initial_cents: i64) -> [(RowName, RowBytes); 2] {
    let row = Balance {
        cents: initial_cents,
    }
    .encode();
    [(savings(account), row), (checking(account), row)]
}

/// Returns the sum of the two rows of an account, in cents.
///
/// # Errors
/// If a row is missing or damaged.
pub fn worth(account: u64, rows: &[Option<RowBytes>]) -> Result<i64, String> {
    let mut worth: i64 = 0;
    for (at, (name, _)) in self::rows(account, 0).into_iter().enumerate() {
        let row = rows.get(at).and_then(Option::as_deref);
        let balance: Balance = present(name, row).map_err(|why| why.to_string())?;
        let sum = worth.checked_add(balance.cents);
        worth = sum.ok_or_else(|| {
            format!("with the balance {name}, the sum of the account exceeds 64 bits")
        })?;
    }
    Ok(worth)
}
