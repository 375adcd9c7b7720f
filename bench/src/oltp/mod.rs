//! What [`tatp`](crate::tatp) and [`smallbank`](crate::smallbank) have in common: named rows, and
//! transactions as steps from what was read to what is to be written.
//!
//! A transaction knows nothing of the platform. Its driver does what [`Step`]s say:
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
//! What a driver has to see to:
//! - All reads of a transaction are of one transaction of the platform, which commits whatever the
//!   outcome: "not found" is true only if the commit finds that the row is still not there.
//!   A transaction that names one row and writes none may be a lock-free read.
//! - After a conflict it begins again with no rows.
//! - A [`StepError`] is a fault of the store or of the driver, not an outcome: the run is void. The
//!   rows of one attempt may disagree with each other, but each is whole.
//!
//! That driver is here too. In reading order:
//!
//! * [`benchmark`]: either benchmark as data, and what must hold of its rows at the end.
//! * [`load`]: its rows into tables.
//! * [`attempt`]: one attempt of a transaction, inside a transaction of the platform.
//! * [`driver`]: a closed loop of them on one worker, with retries.
//! * [`recorder`]: what became of them.
//! * [`audit`]: a look at all rows when none runs any more.
//! * [`report`]: the results.

pub mod attempt;
pub mod audit;
pub mod benchmark;
mod drawn;
pub mod driver;
pub mod load;
pub mod recorder;
pub mod report;

use std::fmt;
use std::ops::Deref;

use farm_kv::{KEY_BYTES, Key};
use serde::Serialize;
use smallvec::SmallVec;

pub use benchmark::Benchmark;
pub use drawn::{Drawn, Stream};

/// Bytes of the longest row of any table.
pub const MAX_ROW_BYTES: usize = 40;

/// A table of a benchmark.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table {
    /// Tells it from every other table of these benchmarks.
    pub id: u8,
    /// Its name in the benchmark's description.
    pub name: &'static str,
    /// Bytes of each of its rows.
    pub row_bytes: usize,
}

impl fmt::Debug for Table {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name)
    }
}

/// Names a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowName {
    /// The table it is in.
    pub table: Table,
    /// Its key there.
    pub key: u64,
}

impl RowName {
    /// The key of the row in a hashtable of the platform that may hold all tables.
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
    /// Zero beyond `len`.
    bytes: [u8; MAX_ROW_BYTES],
    len: u8,
}

impl<const N: usize> From<[u8; N]> for RowBytes {
    #[inline]
    fn from(row: [u8; N]) -> Self {
        const {
            assert!(
                N <= MAX_ROW_BYTES,
                "MAX_ROW_BYTES is that of the longest row"
            )
        };
        let mut bytes = [0; MAX_ROW_BYTES];
        bytes[..N].copy_from_slice(&row);
        Self {
            bytes,
            len: N as u8,
        }
    }
}

impl RowBytes {
    /// A copy of bytes that some table may have as a row.
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

/// What is wrong with the bytes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRow {
    /// It is too long or too short.
    #[error("it has {found} bytes, not {wanted}")]
    Size {
        /// Its bytes.
        found: usize,
        /// What they have to be.
        wanted: usize,
    },
    /// A field has a value that nothing writes.
    #[error("its {field} is not {wanted}")]
    Field {
        /// The field.
        field: &'static str,
        /// What it may be.
        wanted: &'static str,
    },
}

/// A row as its table has it.
///
/// Encodings are exact: `decode` accepts what `encode` gives and nothing else, padding included.
pub trait Row: Sized {
    /// Its table.
    const TABLE: Table;

    /// Its bytes, as many as the table says.
    fn encode(&self) -> RowBytes;

    /// The row that these bytes are.
    ///
    /// # Errors
    /// [`BadRow`] for bytes that `encode` gives for no row.
    fn decode(bytes: &[u8]) -> Result<Self, BadRow>;
}

/// Bytes of a row, if they are as many as the table says.
pub(crate) fn sized<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], BadRow> {
    bytes.try_into().map_err(|_| BadRow::Size {
        found: bytes.len(),
        wanted: N,
    })
}

/// Why a transaction cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// A row is not one that the benchmark wrote.
    #[error(
        "the row {row} is damaged: {why}; give exactly the bytes that were written, and look for a \
         lost or torn write if they are"
    )]
    Bad {
        /// The row.
        row: RowName,
        /// What is wrong with it.
        why: BadRow,
    },
    /// A row that is never removed is not there.
    #[error(
        "the row {row} is missing, though nothing removes it: load it first, or look for a lost write"
    )]
    Missing {
        /// The row.
        row: RowName,
    },
    /// A sum has no room in its row.
    #[error("the balance {row} leaves the range of 64 bits; load the bank with less money")]
    Overflow {
        /// The row.
        row: RowName,
    },
    /// The driver gave more or fewer rows than it was asked for.
    #[error(
        "{given} rows were given and {asked} asked for; give all that were read so far, in the order asked"
    )]
    Rows {
        /// Rows given.
        given: usize,
        /// Rows asked for so far.
        asked: usize,
    },
}

/// Decodes a row that was read; none if it was not there.
#[inline]
pub(crate) fn decode<R: Row>(row: RowName, bytes: Option<&[u8]>) -> Result<Option<R>, StepError> {
    let decoded = bytes.map(R::decode).transpose();
    decoded.map_err(|why| StepError::Bad { row, why })
}

/// Rows to read.
pub type Names = SmallVec<[RowName; 4]>;

/// Something to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Add a row, which was read and not there.
    Insert(RowName, RowBytes),
    /// Replace a row, which was read.
    Update(RowName, RowBytes),
    /// Remove a row, which was read.
    Remove(RowName),
}

/// How a transaction ended. All three count as executed; report them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// It did what it is there for.
    Committed,
    /// A row it needs is not there: nothing is written.
    NotFound,
    /// What it would do is not allowed (no funds, the row exists): nothing is written.
    Declined,
}

impl Outcome {
    /// All there are.
    pub const ALL: [Outcome; 3] = [Outcome::Committed, Outcome::NotFound, Outcome::Declined];
}

/// What a transaction does, given what it read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// How it ends.
    pub outcome: Outcome,
    /// What it writes: nothing unless it is committed.
    pub writes: SmallVec<[Write; 3]>,
    /// What it adds to all the money there is, in cents. Always 0 in TATP.
    pub delta_cents: i64,
}

impl Decision {
    /// An end without writes.
    pub(crate) fn none(outcome: Outcome) -> Self {
        Self {
            outcome,
            writes: SmallVec::new(),
            delta_cents: 0,
        }
    }

    /// A commit of these writes.
    pub(crate) fn commit(writes: impl IntoIterator<Item = Write>) -> Self {
        Self {
            writes: writes.into_iter().collect(),
            ..Self::none(Outcome::Committed)
        }
    }
}

/// What a driver is to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read these rows, and ask again with all rows read so far, in order, absent ones as `None`.
    Read(Names),
    /// Write and commit.
    End(Decision),
}

/// An option that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place} = {value} is not {wanted}; {advice}")]
pub struct OptionsError {
    /// Which option.
    pub place: &'static str,
    /// What it is set to.
    pub value: String,
    /// What it may be.
    pub wanted: String,
    /// What to do.
    pub advice: String,
}

/// Whether percentages of a mix add up to 100.
pub(crate) fn check_mix(place: &'static str, mix: &impl Serialize) -> Result<(), OptionsError> {
    let mix = serde_json::to_value(mix).unwrap_or_default();
    let shares = mix.as_object().into_iter().flatten();
    let shares = shares.map(|(name, share)| (name, share.as_u64().unwrap_or(0)));
    let shares: Vec<_> = shares.filter(|(_, share)| *share > 0).collect();
    let sum: u64 = shares.iter().map(|(_, share)| share).sum();
    if sum == 100 {
        return Ok(());
    }
    let shares = shares.iter().map(|(name, share)| format!("{name} {share}"));
    Err(OptionsError {
        place,
        value: format!("[{}]", shares.collect::<Vec<_>>().join(", ")),
        wanted: format!("100 percent in all, but {sum}"),
        advice: "change the shares until they add up to 100".into(),
    })
}

/// The index of a kind by a draw from `0..100`, for percentages that add up to 100.
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
    fn names_have_keys_of_their_own() {
        let name = RowName {
            table: TABLE,
            key: 0x0102_0304_0506_0708,
        };
        let key = [7, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(name.table_key(), key);
        assert_eq!(name.to_string(), "SEVEN 0x102030405060708");
        let row = RowBytes::from([1, 2, 3, 4]);
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
