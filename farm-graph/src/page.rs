//! Pages: sorted records in the payload of an object.
//!
//! ```text
//!  0        4            8
//!  ┌────────┬────────────┬──────────┬──────────┬─ ─
//!  │ count  │ used bytes │ record 0 │ record 1 │
//!  └────────┴────────────┴──────────┴──────────┴─ ─
//!  a record:   0               8               16       18
//!              ┌───────────────┬───────────────┬────────┬─────────── ─
//!              │ key, high     │ key, low      │ length │ body
//!              └───────────────┴───────────────┴────────┴─────────── ─
//! ```
//!
//! The highest bit of the count of a leaf shows that other leaves may follow it. If the bit is clear, no leaf does, so
//! that a client that reads only the first leaf knows whether it has read the whole list.
//!
//! All numbers are little-endian. A page may be read from the memory of another machine, so that lengths in it are
//! checked before they are used.

use std::cmp::Ordering;

use crate::GraphError;
use crate::bytes::number;

/// Key of a record: the high and the low half.
pub(crate) type Key = (u64, u64);

/// Bytes before the first record.
pub(crate) const HEADER_BYTES: usize = 8;
/// The bit of the count that shows that other leaves may follow.
const MORE: u32 = 1 << 31;
/// Bytes of a record without its body.
pub(crate) const RECORD_BYTES: usize = 18;

/// A record of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    /// Offset of the record in the payload.
    pub(crate) at: usize,
    pub(crate) key: Key,
    pub(crate) body: &'a [u8],
}

impl Record<'_> {
    /// Returns the offset after the record.
    pub(crate) fn end(&self) -> usize {
        self.at + RECORD_BYTES + self.body.len()
    }
}

/// A page, to read it.
#[derive(Clone, Copy)]
pub(crate) struct Page<'a> {
    count: usize,
    /// The payload up to the end of the last record.
    bytes: &'a [u8],
}

impl<'a> Page<'a> {
    /// A page without records.
    pub(crate) const EMPTY: Self = Self {
        count: 0,
        bytes: &[0; HEADER_BYTES],
    };

    pub(crate) fn new(payload: &'a [u8]) -> Result<Self, GraphError> {
        let header: &[u8; HEADER_BYTES] = payload.first_chunk().ok_or_else(damaged)?;
        let (count, used) = counts(header);
        let end = HEADER_BYTES + used;
        Ok(Self {
            count,
            bytes: payload.get(..end).ok_or_else(damaged)?,
        })
    }

    /// Returns the number of records.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns whether other leaves may follow.
    pub(crate) fn has_more(&self) -> bool {
        has_more(self.bytes)
    }

    /// Returns the bytes of all records.
    pub(crate) fn used(&self) -> usize {
        self.bytes.len() - HEADER_BYTES
    }

    /// Returns the record at an offset.
    #[inline]
    pub(crate) fn record(&self, at: usize) -> Result<Record<'a>, GraphError> {
        let bytes = self.bytes.get(at..).ok_or_else(damaged)?;
        let (fixed, rest) = bytes
            .split_first_chunk::<RECORD_BYTES>()
            .ok_or_else(damaged)?;
        let length = u16::from_le_bytes([fixed[16], fixed[17]]);
        Ok(Record {
            at,
            key: (word(fixed, 0), word(fixed, 8)),
            body: rest.get(..length.into()).ok_or_else(damaged)?,
        })
    }

    /// Returns the records, in the order of their keys.
    pub(crate) fn records(self) -> impl Iterator<Item = Result<Record<'a>, GraphError>> {
        let mut at = HEADER_BYTES;
        (0..self.count).map(move |_| {
            let record = self.record(at)?;
            at = record.end();
            Ok(record)
        })
    }

    /// Returns the first record whose key is not less than `key`, or the offset after the last record.
    pub(crate) fn at_or_after(&self, key: Key) -> Result<Result<Record<'a>, usize>, GraphError> {
        for record in self.records() {
            let record = record?;
            if record.key >= key {
                return Ok(Ok(record));
            }
        }
        Ok(Err(self.bytes.len()))
    }

    /// Returns the record of a key, or the offset at which it would be.
    pub(crate) fn find(&self, key: Key) -> Result<Result<Record<'a>, usize>, GraphError> {
        Ok(match self.at_or_after(key)? {
            Ok(record) if record.key == key => Ok(record),
            Ok(next) => Err(next.at),
            Err(end) => Err(end),
        })
    }

    /// Of a page whose bodies all have `body` bytes, returns the last record whose key is not greater than `key`, or
    /// the first one if all keys are greater; and its index.
    pub(crate) fn covering(
        &self,
        key: Key,
        body: usize,
    ) -> Result<(usize, Record<'a>), GraphError> {
        let stride = RECORD_BYTES + body;
        if self.used() != self.count * stride || self.count == 0 {
            return Err(damaged());
        }
        let key_of = |index: usize| {
            let at = HEADER_BYTES + index * stride;
            (word(self.bytes, at), word(self.bytes, at + 8))
        };
        let (mut low, mut high) = (0, self.count);
        while high - low > 1 {
            let middle = low.midpoint(high);
            match key_of(middle).cmp(&key) {
                Ordering::Greater => high = middle,
                Ordering::Less | Ordering::Equal => low = middle,
            }
        }
        let record = self.record(HEADER_BYTES + low * stride)?;
        Ok((low, record))
    }
}

/// Inserts a record at an offset. Returns false, and changes nothing, if the payload has no room for it.
pub(crate) fn insert(payload: &mut [u8], at: usize, key: Key, body: &[u8]) -> bool {
    let (count, used) = counts(payload);
    let (end, more) = (HEADER_BYTES + used, RECORD_BYTES + body.len());
    if end + more > payload.len() {
        return false;
    }
    payload.copy_within(at..end, at + more);
    set_key(payload, at, key);
    payload[at + 16..at + 18].copy_from_slice(&(body.len() as u16).to_le_bytes());
    payload[at + 18..at + more].copy_from_slice(body);
    set_counts(payload, count + 1, used + more);
    true
}

/// Appends a record to the page that starts at offset `start` of a vector, which grows. `encode` appends the body.
pub(crate) fn push(to: &mut Vec<u8>, start: usize, key: Key, encode: impl FnOnce(&mut Vec<u8>)) {
    let at = to.len();
    to.extend_from_slice(&key.0.to_le_bytes());
    to.extend_from_slice(&key.1.to_le_bytes());
    to.extend_from_slice(&[0; 2]);
    encode(to);
    let body = (to.len() - at - RECORD_BYTES) as u16;
    to[at + 16..at + 18].copy_from_slice(&body.to_le_bytes());
    let (count, used) = counts(&to[start..]);
    let more = to.len() - at;
    set_counts(&mut to[start..], count + 1, used + more);
}

/// Sets the key of the record at an offset.
pub(crate) fn set_key(payload: &mut [u8], at: usize, key: Key) {
    payload[at..at + 8].copy_from_slice(&key.0.to_le_bytes());
    payload[at + 8..at + 16].copy_from_slice(&key.1.to_le_bytes());
}

/// Removes the record from `at` to `end`.
pub(crate) fn remove(payload: &mut [u8], at: usize, end: usize) {
    let (count, used) = counts(payload);
    payload.copy_within(end..HEADER_BYTES + used, at);
    set_counts(payload, count - 1, used - (end - at));
}

/// Appends the records from `at` of one page to another, which must have room for them.
pub(crate) fn append(to: &mut [u8], from: &[u8], at: usize, records: usize) {
    let (count, used) = counts(to);
    let more = &from[at..HEADER_BYTES + counts(from).1];
    let end = HEADER_BYTES + used;
    to[end..end + more.len()].copy_from_slice(more);
    set_counts(to, count + records, used + more.len());
}

/// Removes the last `records` records, which begin at offset `at`.
pub(crate) fn truncate(payload: &mut [u8], at: usize, records: usize) {
    let (count, _) = counts(payload);
    set_counts(payload, count - records, at - HEADER_BYTES);
}

fn counts(payload: &[u8]) -> (usize, usize) {
    let [count, used] = [0, 4].map(|at| {
        let mut number = [0; 4];
        number.copy_from_slice(&payload[at..at + 4]);
        u32::from_le_bytes(number)
    });
    ((count & !MORE) as usize, used as usize)
}

fn has_more(payload: &[u8]) -> bool {
    payload[3] & (MORE >> 24) as u8 != 0
}

/// Sets whether other leaves may follow.
pub(crate) fn set_more(payload: &mut [u8], more: bool) {
    let bit = (MORE >> 24) as u8;
    payload[3] = payload[3] & !bit | if more { bit } else { 0 };
}

fn set_counts(payload: &mut [u8], count: usize, used: usize) {
    let more = has_more(payload);
    payload[..4].copy_from_slice(&(count as u32).to_le_bytes());
    set_more(payload, more);
    payload[4..8].copy_from_slice(&(used as u32).to_le_bytes());
}

fn word(bytes: &[u8], at: usize) -> u64 {
    number(bytes, at, 8)
}

#[cold]
fn damaged() -> GraphError {
    GraphError::Damaged("a page of an association list has invalid lengths".to_owned())
}
