//! Accounts of SmallBank: two tables by account number, of one balance each.

use crate::oltp::{BadRow, RowBytes, RowName, Table, sized};

/// SAVINGS, by account number.
pub const SAVINGS: Table = Table {
    id: 17,
    name: "SAVINGS",
    row_bytes: 8,
};

/// CHECKING, by account number.
pub const CHECKING: Table = Table {
    id: 18,
    name: "CHECKING",
    row_bytes: 8,
};

/// All tables.
pub const TABLES: [Table; 2] = [SAVINGS, CHECKING];

/// The savings of an account.
pub const fn savings(account: u64) -> RowName {
    RowName {
        table: SAVINGS,
        key: account,
    }
}

/// The checking of an account.
pub const fn checking(account: u64) -> RowName {
    RowName {
        table: CHECKING,
        key: account,
    }
}

/// A balance in cents, as a row of either table: 8 bytes, little-endian. A checking account may be
/// overdrawn.
///
/// The reference programs have 4 bytes of a magic number and a 32-bit float, which cannot even hold
/// the 10^9 they begin with to the cent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Balance {
    /// Cents.
    pub cents: i64,
}

impl Balance {
    /// Its bytes.
    pub fn encode(self) -> RowBytes {
        self.cents.to_le_bytes().into()
    }

    /// The balance that these bytes are.
    ///
    /// # Errors
    /// They are not 8.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadRow> {
        Ok(Self {
            cents: i64::from_le_bytes(*sized(bytes)?),
        })
    }
}

/// The two rows of an account at the beginning.
pub fn rows(account: u64, initial_cents: i64) -> [(RowName, RowBytes); 2] {
    let row = Balance {
        cents: initial_cents,
    }
    .encode();
    [(savings(account), row), (checking(account), row)]
}

/// What the two rows of an account are worth together, in cents.
///
/// # Errors
/// A row is missing or damaged.
pub fn worth(account: u64, rows: &[Option<RowBytes>]) -> Result<i64, String> {
    let mut worth: i64 = 0;
    for (at, (name, _)) in self::rows(account, 0).into_iter().enumerate() {
        let row = rows.get(at).copied().flatten();
        let row = row.ok_or_else(|| format!("the row {name} is missing"))?;
        let balance = Balance::decode(&row).map_err(|why| format!("the row {name}: {why}"))?;
        let sum = worth.checked_add(balance.cents);
        worth = sum.ok_or_else(|| format!("the row {name} has more cents than there are"))?;
    }
    Ok(worth)
}
