//! The common part of [`tatp`](crate::tatp) and [`smallbank`](crate::smallbank): named rows, and transactions as steps
//! from the rows that were read to the rows to write.
//!
//! A transaction is independent of the platform. Its driver performs the [`Step`]s:
//!
//! ```
//! use std::collections::BTreeMap;
//! use farm_bench::oltp::{Outcome, RowBytes, RowName, Step, Write};
//! use farm_bench::tatp::{Transaction, rows};
//!
//! let mut store: BTreeMap<RowName, RowBytes> = rows(42, 7).encoded().collect();
//! let transaction = Transaction::GetSubscriberData { s_id: 7 };
//! let mut read: Vec<Option<RowBytes>> = Vec::new();
//! let decision = loop {
//!     let given: Vec<Option<&[u8]>> = read.iter().map(Option::as_deref).collect();
//!     match transaction.step(&given)? {
//!         Step::Read(names) => read.extend(names.iter().map(|name| store.get(name).copied())),
//!         Step::End(decision) => break decision,
//!     }
//! };
//! for write in decision.writes {
//!     match write {
//!         Write::Insert(name, row) | Write::Update(name, row) => store.insert(name, row),
//!         Write::Remove(name) => store.remove(&name),
//!     };
//! }
//! assert_eq!(decision.outcome, Outcome::Committed);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Requirements on a driver:
//! - All reads of a transaction are part of one transaction of the platform, which commits for every outcome: "not
//!   found" is valid only if the commit validates that the row is still absent. A transaction that reads one row and
//!   writes none may be a lock-free read.
//! - After a conflict, the driver restarts the transaction without rows.
//! - A [`StepError`] is an error of the store or of the driver, and not an outcome: the run is invalid. The rows of one
//!   attempt may be mutually inconsistent, but each row is intact.
//!
//! The submodules contain such a driver. In reading order:
//!
//! * [`benchmark`]: either benchmark as data: its rows, and what must hold of them at the end.
//! * [`attempt`]: one attempt of a transaction, inside of a transaction of the platform. [`task`]: the same as an `async`
//!   function.
//! * [`driver`]: a closed loop of transactions on one worker, with retries. [`costs`]: the operations that they need.
//! * [`audit`]: a check of all rows when no transaction runs any more.
//! * [`report`]: the results.

pub mod attempt;
pub mod audit;
pub mod benchmark;
pub mod costs;
mod drawn;
pub mod driver;
pub mod report;
pub mod task;
mod trail;
mod transactions;

use std::fmt;
use std::ops::Deref;

use bytemuck::{Pod, bytes_of, try_pod_read_unaligned};
use farm_kv::{KEY_BYTES, Key};
use serde::Serialize;
use smallvec::SmallVec;

pub use crate::recorder::Outcome;
pub use benchmark::Benchmark;
pub use drawn::{Drawn, Stream};
pub(crate) use transactions::transactions;

/// Length of the longest row of any table, in bytes.
pub const MAX_ROW_BYTES: usize = 40;

/// A table of a benchmark.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table {
    /// Id, unique among the tables of these benchmarks.
    pub id: u8,
    /// Name in the benchmark's description.
    pub name: &'static str,
    /// Length of each row, in bytes.
    pub row_bytes: usize,
}

impl Table {
    /// Creates a table with rows of type `R`.
    pub(crate) const fn of<R: Row>(id: u8, name: &'static str) -> Self {
        Self {
            id,
            name,
            row_bytes: size_of::<R>(),
        }
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name)
    }
}

/// The name of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowName {
    /// The table of the row.
    pub table: Table,
    /// Key of the row in its table.
    pub key: u64,
}

impl RowName {
    /// Returns the key of the row in a hashtable of the platform; one hashtable may contain all tables.
    ///
    /// ```text
    ///  0          1                     8                   16
    ///  ┌──────────┬─────────────────────┬───────────────────┐
    ///  │ table id │ 0                   │ key, big-endian   │
    ///  └──────────┴─────────────────────┴───────────────────┘
    /// ```
    #[inline]
    pub fn table_key(self) -> Key {
        let mut bytes = [0; KEY_BYTES];
        bytes[0] = self.table.id;
        bytes[8..].copy_from_slice(&self.key.to_be_bytes());
        bytes
    }
}

impl fmt::Display for RowName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {:#x}", self.table.name, self.key)
    }
}

/// The bytes of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RowBytes {
    /// Zeroes from `len` on.
    bytes: [u8; MAX_ROW_BYTES],
    len: u8,
}

impl RowBytes {
    /// Returns a copy of bytes, if they are not longer than the longest row.
    pub fn copied(row: &[u8]) -> Option<Self> {
        let mut bytes = [0; MAX_ROW_BYTES];
        bytes.get_mut(..row.len())?.copy_from_slice(row);
        Some(Self {
            bytes,
            len: row.len() as u8,
        })
    }
}

impl Deref for RowBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for RowBytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:02x?}", &**self)
    }
}

/// Why the bytes of a row are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRow {
    /// The row is too long or too short.
    #[error("the row has {found} bytes, not {wanted}")]
    Size {
        /// Length of the row, in bytes.
        found: usize,
        /// Required length, in bytes.
        wanted: usize,
    },
    /// A field has a value that is never written.
    #[error("field {field} is not {wanted}")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// Description of the valid values.
        wanted: &'static str,
    },
}

/// A row of a table, whose fields are in memory as in the table. Numbers are little-endian, as on all hosts that the
/// platform supports.
///
/// Encodings are exact: `decode` accepts the result of `encode` and nothing else, including the padding.
pub trait Row: Pod {
    /// Checks that the benchmark writes such a row.
    ///
    /// # Errors
    /// [`BadRow::Field`] for the first field with another value.
    fn check(&self) -> Result<(), BadRow>;

    /// Returns the bytes of the row.
    fn encode(&self) -> RowBytes {
        const { assert!(size_of::<Self>() <= MAX_ROW_BYTES) };
        let mut bytes = [0; MAX_ROW_BYTES];
        bytes[..size_of::<Self>()].copy_from_slice(bytes_of(self));
        let len = size_of::<Self>() as u8;
        RowBytes { bytes, len }
    }

    /// Returns the row with these bytes, which need not be aligned.
    ///
    /// # Errors
    /// [`BadRow`] for bytes that are not the encoding of a row.
    fn decode(bytes: &[u8]) -> Result<Self, BadRow> {
        let row: Self = try_pod_read_unaligned(bytes).map_err(|_| BadRow::Size {
            found: bytes.len(),
            wanted: size_of::<Self>(),
        })?;
        row.check()?;
        Ok(row)
    }
}

/// Why a transaction cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// A row was not written by the benchmark.
    #[error(
        "the row {row} is damaged: {why}; pass exactly the bytes that were written; if they are, \
         look for a lost or torn write"
    )]
    Bad {
        /// The row.
        row: RowName,
        /// Why its bytes are invalid.
        why: BadRow,
    },
    /// A row that is never removed is missing.
    #[error(
        "the row {row} is missing, though nothing removes it: load it first, or look for a lost write"
    )]
    Missing {
        /// The row.
        row: RowName,
    },
    /// A sum exceeds 64 bits.
    #[error("the balance {row} would exceed 64 bits; load the bank with less money")]
    Overflow {
        /// The row.
        row: RowName,
    },
    /// The driver passed more or fewer rows than requested.
    #[error(
        "{given} rows were passed, but {asked} were requested; pass all rows read so far, in the order of the requests"
    )]
    Rows {
        /// Number of rows that were passed.
        given: usize,
        /// Number of rows that were requested so far.
        asked: usize,
    },
}

/// Decodes a row that was read; `None` if it was absent.
#[inline]
pub(crate) fn decode<R: Row>(row: RowName, bytes: Option<&[u8]>) -> Result<Option<R>, StepError> {
    let decoded = bytes.map(R::decode).transpose();
    decoded.map_err(|why| StepError::Bad { row, why })
}

/// Decodes a row that must exist, because such rows are never removed.
#[inline]
pub(crate) fn present<R: Row>(row: RowName, bytes: Option<&[u8]>) -> Result<R, StepError> {
    decode(row, bytes)?.ok_or(StepError::Missing { row })
}

/// Names of rows to read.
pub type Names = SmallVec<[RowName; 4]>;

/// A write of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Adds a row, which was read as absent.
    Insert(RowName, RowBytes),
    /// Replaces a row, which was read.
    Update(RowName, RowBytes),
    /// Removes a row, which was read.
    Remove(RowName),
}

/// The decision of a transaction, based on its reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Outcome of the transaction.
    pub outcome: Outcome,
    /// Writes of the transaction; empty unless it is committed.
    pub writes: SmallVec<[Write; 3]>,
    /// Change of the sum of all money, in cents. Always 0 in TATP.
    pub delta_cents: i64,
}

impl Decision {
    /// Creates a decision without writes.
    pub(crate) fn none(outcome: Outcome) -> Self {
        Self {
            outcome,
            writes: SmallVec::new(),
            delta_cents: 0,
        }
    }

    /// Creates a commit with these writes.
    pub(crate) fn commit(writes: impl IntoIterator<Item = Write>) -> Self {
        Self {
            writes: writes.into_iter().collect(),
            ..Self::none(Outcome::Committed)
        }
    }
}

/// The next action of a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read these rows. Then call the function again with all rows read so far, in the order in which they were
    /// requested; absent rows are `None`.
    Read(Names),
    /// Perform the writes and commit.
    End(Decision),
}

/// An invalid option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place} = {value} is not {wanted}; {advice}")]
pub struct OptionsError {
    /// Name of the option.
    pub place: &'static str,
    /// Value of the option.
    pub value: String,
    /// Description of the valid values.
    pub wanted: String,
    /// Advice.
    pub advice: String,
}

/// Refuses the value of an option, unless the condition holds.
pub(crate) fn check_option(
    holds: bool,
    place: &'static str,
    value: impl ToString,
    wanted: &str,
    advice: &str,
) -> Result<(), OptionsError> {
    if holds {
        return Ok(());
    }
    Err(OptionsError {
        place,
        value: value.to_string(),
        wanted: wanted.to_owned(),
        advice: advice.to_owned(),
    })
}

/// Checks that the percentages of a mix add up to 100.
pub(crate) fn check_mix(place: &'static str, mix: &impl Serialize) -> Result<(), OptionsError> {
    let mix = serde_json::to_value(mix).unwrap_or_default();
    let shares = mix.as_object().into_iter().flatten();
    let shares = shares.map(|(name, share)| (name, share.as_u64().unwrap_or(0)));
    let shares: Vec<_> = shares.filter(|(_, share)| *share > 0).collect();
    let sum: u64 = shares.iter().map(|(_, share)| share).sum();
    let shares = shares.iter().map(|(name, share)| format!("{name} {share}"));
    let shares = format!("[{}]", shares.collect::<Vec<_>>().join(", "));
    let wanted = format!("100 percent in all, but {sum}");
    let advice = "change the shares until they add up to 100";
    check_option(sum == 100, place, shares, &wanted, advice)
}

/// Returns the index of the kind for a draw from `0..100`, for percentages that add up to 100.
#[inline]
pub(crate) fn choose(percents: &[u8], draw: u8) -> usize {
    let mut end = 0;
    let found = percents.iter().position(|percent| {
        end += u32::from(*percent);
        u32::from(draw) < end
    });
    found.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: Table = Table {
        id: 7,
        name: "SEVEN",
        row_bytes: 4,
    };

    #[test]
    fn row_names_convert_to_unique_table_keys() {
        let name = RowName {
            table: TABLE,
            key: 0x0102_0304_0506_0708,
        };
        let key = [7, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(name.table_key(), key);
        assert_eq!(name.to_string(), "SEVEN 0x102030405060708");
        let row = RowBytes::copied(&[1, 2, 3, 4]).unwrap();
        assert_eq!(
            (&*row, format!("{row:?}")),
            (&[1u8, 2, 3, 4][..], "[01, 02, 03, 04]".into())
        );
    }

    #[test]
    fn mixes_are_checked_and_drawn_by_their_shares() {
        let mix = |a: u8, b: u8, c: u8| serde_json::json!({"a": a, "b": b, "c": c});
        assert_eq!(check_mix("x.mix", &mix(60, 0, 40)), Ok(()));
        assert_eq!(
            check_mix("x.mix", &mix(60, 0, 30)).unwrap_err().to_string(),
            "x.mix = [a 60, c 30] is not 100 percent in all, but 90; change the shares until they add \
             up to 100"
        );
        let drawn: Vec<usize> = [0, 59, 60, 99]
            .map(|draw| choose(&[60, 0, 40], draw))
            .into();
        assert_eq!(drawn, [0, 0, 2, 2]);
    }
}
