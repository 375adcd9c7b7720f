//! The record of an attempt of a transaction: its rows, its decision, and the stamps of its writes.
//!
//! For checkers, rows can contain a [`Stamp`]: it identifies the write of the row and the write before it, and counts
//! the writes of the row.

use smallvec::SmallVec;

use super::{Decision, Drawn, Names, RowBytes, RowName, Step, StepError, Write};

/// Bytes of a stamp, which is stored after the row.
pub const STAMP_BYTES: usize = 24;
/// Bits of a stamp's id that number the writes of one attempt.
const WRITE_BITS: u32 = 3;

/// Identifies the write of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the write; 0 for the row as it was loaded.
    pub id: u64,
    /// Number of the write that this write replaced; 0 if it replaced the loaded row or none.
    pub parent: u64,
    /// Number of earlier writes of the row.
    pub version: u64,
}

impl Stamp {
    pub(super) fn to_bytes(self) -> [u8; STAMP_BYTES] {
        let words = [self.id, self.parent, self.version].map(u64::to_le_bytes);
        words
            .concat()
            .try_into()
            .expect("three words of 8 bytes fill a stamp")
    }

    /// Decodes a stamp.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; STAMP_BYTES] = bytes.try_into().ok()?;
        let words = bytes.as_chunks::<8>().0;
        let [id, parent, version] = [words[0], words[1], words[2]].map(u64::from_le_bytes);
        Some(Self {
            id,
            parent,
            version,
        })
    }
}

/// A row that was read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Bytes of the row, if it exists.
    pub row: Option<RowBytes>,
    /// Stamp of the row, if rows have stamps and the row exists.
    pub stamp: Stamp,
}

/// Record of an attempt.
#[derive(Clone, Debug)]
pub struct Trail {
    /// The transaction.
    pub what: Drawn,
    /// Names of the rows that it read, in order.
    pub names: Names,
    /// Contents of these rows.
    pub seen: SmallVec<[Seen; 6]>,
    /// Decision of the transaction, if it made one.
    pub decision: Option<Decision>,
    /// Number of the attempt.
    pub number: u64,
    /// Whether it was a lock-free lookup.
    pub lock_free: bool,
}

impl Seen {
    /// Returns the row in a value of a table, which may be absent.
    ///
    /// # Errors
    /// A description of the value if it has another length.
    pub(super) fn of(name: &RowName, value: Option<&[u8]>, stamped: bool) -> Result<Self, String> {
        let Some(value) = value else {
            return Ok(Self::default());
        };
        let damaged = || {
            format!(
                "the row {name} has the wrong length of {} bytes",
                value.len()
            )
        };
        let (row, stamp) = value
            .split_at_checked(name.table.row_bytes)
            .ok_or_else(damaged)?;
        Ok(Self {
            row: Some(RowBytes::copied(row).ok_or_else(damaged)?),
            stamp: match stamped {
                true => Stamp::of(stamp).ok_or_else(damaged)?,
                false => Stamp::default(),
            },
        })
    }
}

impl Trail {
    /// Returns the next step of the transaction, given the rows that it has read.
    pub(super) fn next_step(&self) -> Result<Step, StepError> {
        let seen = self.seen.iter();
        let given: SmallVec<[Option<&[u8]>; 6]> = seen.map(|seen| seen.row.as_deref()).collect();
        self.what.step(&given)
    }

    /// Adds rows to read. Returns the index of the first. If it is the only row of a transaction that writes none, it is
    /// looked up without a lock.
    pub(super) fn begin_read(&mut self, names: &Names) -> usize {
        let first = self.names.len();
        self.names.extend_from_slice(names);
        self.seen.resize(self.names.len(), Seen::default());
        self.lock_free = first == 0 && names.len() == 1 && !self.what.writes();
        first
    }

    /// Returns the decision of the transaction.
    ///
    /// # Panics
    /// If the transaction has not decided yet.
    pub(crate) fn decision(&self) -> &Decision {
        let decision = self.decision.as_ref();
        decision.expect(
            "the writes of a transaction are requested only after its last step has chosen them",
        )
    }

    /// Returns the stamp of one of the transaction's writes, by its index in the decision.
    pub fn stamp_of(&self, write: usize) -> Stamp {
        let id = self.number << WRITE_BITS | write as u64;
        let written = self
            .decision
            .as_ref()
            .map(|all| name_of(&all.writes[write]));
        let read = self.names.iter().position(|name| Some(*name) == written);
        let before = read.map_or(Stamp::default(), |at| self.seen[at].stamp);
        Stamp {
            id,
            parent: before.id,
            version: before.version + 1,
        }
    }
}

/// Returns the row of a write.
pub fn name_of(write: &Write) -> RowName {
    match write {
        Write::Insert(name, _) | Write::Update(name, _) | Write::Remove(name) => *name,
    }
}
