//! A worker's log in the memory of its own machine: what its commits do with objects of this machine, and with copies that this
//! machine keeps of other machines' objects (`FaRM'15 §4`).
//!
//! It has the bytes of a log that another machine writes, so that both are read in the same way after a kill
//! ([`super::KeptRecords`]). Writer and reader are the same worker: a record is there when [`OwnLog::append`] returns, and
//! no worker polls the log.

use super::layout::{self, Capacity, RecordHead};
use super::zeroing::Space;
use super::{Header, KeptRecords, KeptState, RecordIntegrity, SetupError, Words};
use crate::mem::{Memory, WORD_BYTES};
use crate::mutants;

/// Memory to which the worker writes its own log.
pub trait OwnWords: Words {
    /// Stores words in increasing address order, the last one with release.
    fn store_words(&self, offset: usize, words: &[u64]);
}

impl OwnWords for Memory {
    fn store_words(&self, offset: usize, words: &[u64]) {
        self.write_words(offset, words);
    }
}

/// A log that its own worker writes and reads.
///
/// Invariant: the bytes from `head` to `tail`, the reserved bytes and a filler, which is shorter than the largest record,
/// together fit the log.
#[derive(Debug)]
pub struct OwnLog<W = Memory> {
    buffer: W,
    capacity: Capacity,
    state: KeptState<W>,
    integrity: RecordIntegrity,
    head: u64,
    tail: u64,
    /// Number of the next record, from 1.
    sequence: u64,
    reserved_bytes: u32,
    /// The record that is being appended, as words.
    record: Vec<u64>,
}

impl<W: OwnWords> OwnLog<W> {
    /// Creates a new log, whose buffer and state are zero.
    ///
    /// # Errors
    /// [`SetupError`] if the buffer has no size of a log.
    pub fn new(
        buffer: W,
        state: KeptState<W>,
        integrity: RecordIntegrity,
    ) -> Result<Self, SetupError> {
        Ok(Self {
            capacity: Capacity::new(buffer.len_bytes() as u64)?,
            buffer,
            state,
            integrity,
            head: 0,
            tail: 0,
            sequence: 1,
            reserved_bytes: 0,
            record: Vec::new(),
        })
    }

    /// Returns the largest body of a record, in bytes.
    pub fn max_body_bytes(&self) -> u32 {
        self.capacity.max_body_bytes()
    }

    /// Returns the size in bytes of the largest reservation that eventually succeeds.
    pub fn most_reservable(&self) -> u32 {
        self.capacity.bytes() - self.capacity.max_record_bytes()
    }

    /// Returns the reserved bytes: zero when the worker is idle.
    pub fn reserved_bytes(&self) -> u32 {
        self.reserved_bytes
    }

    /// Reserves `bytes` for records, counted by [`super::log_record_bytes`]. Returns false if the log does not have this much
    /// free space now.
    pub fn try_reserve(&mut self, bytes: u32) -> bool {
        let used = (self.tail - self.head) as u32 + self.capacity.max_record_bytes();
        let room = used + self.reserved_bytes + bytes <= self.capacity.bytes();
        self.reserved_bytes += if room { bytes } else { 0 };
        room
    }

    /// Releases reserved bytes that are not needed.
    ///
    /// # Panics
    /// When `bytes` exceeds the reserved bytes.
    pub fn release(&mut self, bytes: u32) {
        let left = self.reserved_bytes.checked_sub(bytes);
        self.reserved_bytes = left.expect("only space of the own log that is reserved is released");
    }

    /// Appends a record, for which its bytes were reserved. Returns the position after it.
    ///
    /// # Panics
    /// If the body is larger than [`OwnLog::max_body_bytes`], or its bytes were not reserved.
    pub fn append(&mut self, header: Header, body: &[&[u8]]) -> u64 {
        let bytes: usize = body.iter().map(|part| part.len()).sum();
        let head = RecordHead::of(
            header.kind,
            header.to_worker,
            header.message_id,
            bytes as u32,
        );
        assert!(
            head.record_bytes <= self.capacity.max_record_bytes(),
            "a record of {bytes} bytes exceeds what fits a record of the own log"
        );
        self.release(head.record_bytes);
        self.encode(head, header.token, body);
        let place = layout::place(self.tail, head.record_bytes, self.capacity);
        if place.filler_bytes > 0 {
            let at = self.capacity.offset(self.tail) as usize;
            let filler = layout::filler_word(place.filler_bytes);
            self.buffer.store_words(at, &[filler]);
        }
        self.buffer.store_words(place.offset as usize, &self.record);
        self.tail += u64::from(place.filler_bytes) + u64::from(head.record_bytes);
        self.sequence += 1;
        self.tail
    }

    fn encode(&mut self, head: RecordHead, token: u64, body: &[&[u8]]) {
        let words = head.record_bytes as usize / WORD_BYTES;
        self.record.clear();
        self.record.resize(words, 0);
        (self.record[0], self.record[1]) = (head.encode(), token);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.record[2..words - 1]);
        let mut at = 0;
        for part in body {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        self.record[words - 1] = match self.integrity {
            RecordIntegrity::LastWord => layout::trailer_word(self.sequence),
            RecordIntegrity::Checksum => {
                layout::checksum_trailer(self.sequence, self.record[0], &self.record[1..words - 1])
            }
        };
    }

    /// Reads all records that are in the log, without changing anything.
    ///
    /// # Errors
    /// [`SetupError`]; never for a log that was created.
    pub fn records(&self) -> Result<KeptRecords<W>, SetupError>
    where
        W: Clone,
    {
        KeptRecords::from(self.buffer.clone(), self.head, self.integrity)
    }

    /// Returns the word that was stored last with the head.
    pub fn note(&self) -> u64 {
        self.state.note()
    }

    /// Copies the body of the record that ends at `end`, and that is not freed, to `out`, as whole words.
    ///
    /// # Panics
    /// When no such record with a body of `body_bytes` can end at `end`.
    pub fn read(&self, end: u64, body_bytes: usize, out: &mut Vec<u64>) {
        let kept = self.head..self.tail;
        self.space().read_body(kept, end, body_bytes, out);
    }

    /// Frees everything before the position `end`, and stores `note` beside the log.
    ///
    /// # Panics
    /// When `end` is beyond the last record.
    pub fn free(&mut self, end: u64, note: u64) {
        assert!(
            end <= self.tail,
            "position {end} to free is beyond the end of the own log, {}",
            self.tail
        );
        let late = mutants::is_on("log head stored after its space is zeroed");
        if !late {
            self.state.free(end, Some(note));
        }
        self.space().clear(self.head, end);
        if late {
            self.state.free(end, Some(note));
        }
        self.head = self.head.max(end);
    }

    fn space(&self) -> Space<'_, W> {
        Space {
            buffer: &self.buffer,
            capacity: self.capacity,
        }
    }

    /// Returns the bytes appended since the log was created, and the bytes freed, fillers included.
    pub fn carried(&self) -> (u64, u64) {
        (self.tail, self.head)
    }
}
