//! What survives of a log when the processes at both of its ends are killed: the records that its receiver kept, and the
//! state that the receiver stores beside the log.
//!
//! ```text
//! state    word 0   head   position of the first record that is not freed
//!          word 1   note   word of the layer that frees the records: the low bound of their coordinator
//! ```
//!
//! Freeing stores the note, then the head, and only then zeroes the space. So at each moment all records from the head on are
//! in the log as they were sent, fillers included, up to the first record that has not landed. The number of the first record
//! is that of its trailer.

use super::layout::{self, Capacity, Head, RecordHead};
use super::{Record, RecordIntegrity, RingError, Words};
use crate::ids::WorkerRef;
use crate::mem::{Memory, WORD_BYTES};

/// Bytes of the state beside a log.
pub const KEPT_STATE_BYTES: usize = 2 * WORD_BYTES;

const HEAD: usize = 0;
const NOTE: usize = WORD_BYTES;

/// The state that the receiver of a log stores in memory that survives it.
#[derive(Clone, Debug)]
pub struct KeptState<W = Memory>(W);

impl<W: Words> KeptState<W> {
    /// Returns the state in `words`, a window of at least [`KEPT_STATE_BYTES`]. The state of a new log is zero.
    pub fn new(words: W) -> Self {
        Self(words)
    }

    /// Returns the position of the first record that is not freed.
    pub fn head(&self) -> u64 {
        self.0.load_acquire(HEAD)
    }

    /// Returns the word that was stored with the head.
    pub fn note(&self) -> u64 {
        self.0.load_acquire(NOTE)
    }

    /// Stores that everything before `head` is free. To be called before the space is zeroed.
    #[inline]
    pub(super) fn free(&self, head: u64, note: Option<u64>) {
        if let Some(note) = note {
            self.0.store_first(NOTE, note);
        }
        self.0.store_first(HEAD, head);
    }
}

/// A log in memory that is [kept](crate::kept), whose writer has ended.
#[derive(Clone, Debug)]
pub struct KeptLog {
    /// The worker that wrote it.
    pub writer: WorkerRef,
    /// Number of the start of this machine that had it.
    pub boot: u64,
    /// The log.
    pub log: Memory,
    /// What is stored beside it.
    pub state: KeptState,
    /// How a reader determines that a record is complete.
    pub integrity: RecordIntegrity,
}

/// Reads the records of a log whose writer has ended.
#[derive(Debug)]
pub struct KeptRecords<W = Memory> {
    buffer: W,
    capacity: Capacity,
    integrity: RecordIntegrity,
    /// Position of the next record, or of a filler before it.
    read: u64,
    /// End of the space that can contain records.
    limit: u64,
    /// Number of the next record; `None` before the first.
    sequence: Option<u64>,
    /// The token of the record that was returned last, then its body.
    copy: Vec<u64>,
}

impl<W: Words> KeptRecords<W> {
    /// Begins to read the log in `buffer` at the head in its state.
    ///
    /// # Errors
    /// [`super::SetupError`] if the buffer has no size of a log, or the state has no position of a record.
    pub fn new(
        buffer: W,
        state: &KeptState<W>,
        integrity: RecordIntegrity,
    ) -> Result<Self, super::SetupError> {
        Self::from(buffer, state.head(), integrity)
    }

    /// Begins to read a log at its head.
    pub(super) fn from(
        buffer: W,
        read: u64,
        integrity: RecordIntegrity,
    ) -> Result<Self, super::SetupError> {
        let capacity = Capacity::new(buffer.len_bytes() as u64)?;
        super::check_position(read)?;
        Ok(Self {
            buffer,
            capacity,
            integrity,
            read,
            limit: read.saturating_add(capacity.bytes().into()),
            sequence: None,
            copy: Vec::new(),
        })
    }

    /// Returns the position just after the record that was returned last.
    pub fn position(&self) -> u64 {
        self.read
    }

    /// Returns the next record; `None` at the first record that has not landed as a whole. (The iterator would have to copy
    /// each record.)
    ///
    /// # Errors
    /// [`RingError`] if the log contains something that neither of its ends writes.
    #[expect(
        clippy::should_implement_trait,
        reason = "the record borrows the reader"
    )]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, RingError> {
        Ok(self.next_before()?.map(|(record, _)| record))
    }

    /// Returns the next record, as [`KeptRecords::next`] does, and the position just after it.
    ///
    /// # Errors
    /// As [`KeptRecords::next`].
    pub fn next_before(&mut self) -> Result<Option<(Record<'_>, u64)>, RingError> {
        let mut filler = 0;
        let (word, head) = loop {
            let at = self.read + filler;
            let offset = self.capacity.offset(at);
            let word = match at < self.limit {
                true => self.buffer.load_acquire(offset as usize),
                false => 0,
            };
            if word == 0 {
                return Ok(None);
            }
            match layout::decode_head(word, offset, self.capacity) {
                Ok(Head::Record(head)) => break (word, head),
                Ok(Head::Filler { bytes }) => filler = u64::from(bytes),
                Err(expected) => return Err(self.error(offset, expected, word)),
            }
        };
        let at = self.read + filler;
        if !self.copy_out(at, word, head)? {
            return Ok(None);
        }
        self.read = at + u64::from(head.record_bytes);
        Ok(Some((Record::of(head, &self.copy), self.read)))
    }

    /// Copies the record at `at` out. Returns whether it has landed.
    fn copy_out(&mut self, at: u64, word: u64, head: RecordHead) -> Result<bool, RingError> {
        let offset = self.capacity.offset(at);
        let last = offset + head.record_bytes - WORD_BYTES as u32;
        let trailer = self.buffer.load_acquire(last as usize);
        if trailer == 0 || at + u64::from(head.record_bytes) > self.limit {
            return Ok(false);
        }
        let sequence = self
            .sequence
            .unwrap_or(layout::sequence_of(trailer, self.integrity));
        if !layout::is_trailer_of(trailer, sequence, self.integrity) {
            let word = layout::trailer_word(sequence);
            return Err(self.error(last, super::Expected::Trailer { word }, trailer));
        }
        self.copy.clear();
        self.copy
            .resize(head.record_bytes as usize / WORD_BYTES - 2, 0);
        self.buffer
            .copy_out(offset as usize + WORD_BYTES, &mut self.copy);
        let sum = || layout::checksum_trailer(sequence, word, &self.copy);
        if self.integrity == RecordIntegrity::Checksum && trailer != sum() {
            return Ok(false);
        }
        self.sequence = Some(sequence + 1);
        Ok(true)
    }

    fn error(&self, offset: u32, expected: super::Expected, found: u64) -> RingError {
        RingError {
            offset,
            sequence: self.sequence.unwrap_or(0),
            expected,
            found,
        }
    }
}
