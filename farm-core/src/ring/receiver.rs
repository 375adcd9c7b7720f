//! The receiving end of a ring: polls the word at the head, returns records, and releases their
//! space.

use super::kept::{KeptRecords, KeptState};
use super::layout::{self, Capacity, Expected, Head, Kind, RecordHead};
use super::zeroing::{self, Space, Zeroing};
use super::{RecordIntegrity, SetupError, Words};
use crate::fabric::{Endpoint, Rejected, Remote, Source, Write};
use crate::ids::WorkerId;
use crate::mem::{Memory, WORD_BYTES};
use crate::time::Nanos;
use crate::{marks, mutants};

/// Nanoseconds of polling an incomplete record after which its words are compared with its words at
/// the previous comparison. If a packet is lost, a reliable connection breaks in less time than this.
/// So if no word of the record landed meanwhile, no word is in flight, and the record is damaged.
const INCOMPLETE_RECORD_PATIENCE_NS: u64 = 5_000_000_000;
/// Maximum number of nanoseconds between two polls that count as polling. After a pause of the whole
/// host, the receiver may poll before the device delivers the words that are in flight.
const MAX_COUNTED_POLL_GAP_NS: u64 = 100_000_000;

/// The state of waiting for the missing words of a record.
#[derive(Clone, Copy, Debug)]
struct IncompleteRecord {
    /// Time of the last poll.
    polled: Nanos,
    /// Nanoseconds of polling since the last comparison.
    waited: u64,
    /// Digest of the words at the last comparison; 0 before the first.
    digest: u64,
}

/// The parameters agreed at connection setup, for the receiver.
#[derive(Clone, Debug)]
pub struct ReceiverConfig<W = Memory> {
    /// The ring's buffer: a zeroed window of exactly the ring's capacity, which the sender writes.
    pub buffer: W,
    /// Address of the sender's copy of the head, in the sender's memory.
    pub head_copy: Remote,
    /// How the receiver determines that a record is complete. Equal to the sender's setting.
    pub integrity: RecordIntegrity,
    /// The worker of the sending machine to be woken when space is reported free: the owner of the
    /// ring's sender.
    pub notify: Option<WorkerId>,
    /// Where the receiver of a log stores what is freed.
    pub kept: Option<KeptState<W>>,
}

/// A record, copied out of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Kind of the record.
    pub kind: Kind,
    /// Destination worker; it may differ from the worker that polls.
    pub to_worker: WorkerId,
    /// Id of the handler.
    pub message_id: u16,
    /// Matches replies with requests; its meaning belongs to the messaging layer.
    pub token: u64,
    /// The message body.
    pub body: &'a [u8],
}

impl<'a> Record<'a> {
    /// Returns the record with this head. `words` are the words between head and trailer, or more.
    #[inline]
    pub(super) fn of(head: RecordHead, words: &'a [u64]) -> Self {
        let bytes: &[u8] = bytemuck::cast_slice(&words[1..]);
        Self {
            kind: head.kind,
            to_worker: head.to_worker,
            message_id: head.message_id,
            token: words[0],
            body: &bytes[..head.body_bytes() as usize],
        }
    }
}

/// A ring contains data that no correct sender writes. The receiver returns no more records; the
/// caller must close the connection and report this error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid data at ring offset {offset:#x}, record {sequence}: found {found:#018x}, expected {expected}"
)]
pub struct RingError {
    /// Offset in the buffer of the invalid word.
    pub offset: u32,
    /// Number of the expected record, from 1.
    pub sequence: u64,
    /// Valid content of the word.
    pub expected: Expected,
    /// Content of the word.
    pub found: u64,
}

/// The receiving end of a ring (FaRM'14 §3.1). Belongs to the worker that polls it.
///
/// Invariants: The bytes from `head` up to the sender's tail contain unread or kept records and
/// fillers; all other bytes of the buffer are zero. A record is returned only when it is complete. It stays in
/// the ring until it is [consumed](RingReceiver::consume) or [freed](RingReceiver::free).
#[derive(Debug)]
pub struct RingReceiver<W = Memory> {
    buffer: W,
    capacity: Capacity,
    /// Bytes released since the ring was created, fillers included.
    head: u64,
    /// Bytes read. The records from `head` to `read` were [kept](RingReceiver::keep).
    read: u64,
    /// End of the record that was read last. The bytes from here to `read` are a filler.
    last_end: u64,
    /// The head as last reported to the sender.
    reported: u64,
    /// Number of the next record, from 1.
    sequence: u64,
    /// The head of the next record, if the record has been copied out and not consumed.
    staged: Option<RecordHead>,
    /// The staged record's token, then its body. As long as the largest record; untouched pages
    /// take no memory.
    copy: Box<[u64]>,
    head_copy: Remote,
    integrity: RecordIntegrity,
    /// Whether all words of a record are present once its trailer is.
    lands_in_order: bool,
    incomplete: Option<IncompleteRecord>,
    notify: Option<WorkerId>,
    kept: Option<KeptState<W>>,
    /// Whether the connection is closed. The ring can still be read, but the sender no longer waits
    /// for space.
    closed: bool,
    failed: Option<RingError>,
    zeroing: zeroing::Chosen,
}

impl<W: Words> RingReceiver<W> {
    /// Creates the receiving end of a new ring, whose buffer is zero.
    ///
    /// # Errors
    /// [`SetupError`] when the fabric or the buffer's size would break the ring's guarantees.
    pub fn new(config: ReceiverConfig<W>, endpoint: &Endpoint) -> Result<Self, SetupError> {
        Self::resume(config, endpoint, 0, 1)
    }

    /// Creates the receiving end of a ring that has carried records before: its head is at
    /// `position` and the next record has number `sequence`. The buffer may contain records from
    /// `position` on.
    ///
    /// # Errors
    /// As [`RingReceiver::new`].
    pub fn resume(
        config: ReceiverConfig<W>,
        endpoint: &Endpoint,
        position: u64,
        sequence: u64,
    ) -> Result<Self, SetupError> {
        super::check_position(position)?;
        super::check_fabric(endpoint.capabilities(), config.integrity)?;
        let capacity = Capacity::new(config.buffer.len_bytes() as u64)?;
        let copy = vec![0; capacity.max_record_bytes() as usize / WORD_BYTES].into_boxed_slice();
        Ok(Self {
            buffer: config.buffer,
            capacity,
            head: position,
            read: position,
            last_end: position,
            reported: position,
            sequence,
            staged: None,
            copy,
            head_copy: config.head_copy,
            integrity: config.integrity,
            lands_in_order: endpoint.capabilities().ordered_placement,
            incomplete: None,
            notify: config.notify,
            kept: config.kept,
            closed: false,
            failed: None,
            zeroing: zeroing::Chosen::new(position),
        })
    }

    /// Returns the bytes released since the ring was created, fillers included.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Returns the position of the next record, or of a filler before it.
    pub fn position(&self) -> u64 {
        self.read
    }

    /// Returns the record at the read position, if it is complete. `now` is the current time. Until
    /// [`RingReceiver::consume`] or [`RingReceiver::keep`] is called, later calls return the same
    /// record without copying it again.
    ///
    /// # Errors
    /// [`RingError`] when the ring contains invalid data, at this and at every later call. If words
    /// land in any order, invalid data with a zero word looks like an incomplete record: it becomes
    /// an error after 5 to 10 seconds of polling in which no word of it lands.
    #[inline]
    pub fn peek(
        &mut self,
        endpoint: &mut Endpoint,
        now: Nanos,
    ) -> Result<Option<Record<'_>>, RingError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        let space = Space {
            buffer: &self.buffer,
            capacity: self.capacity,
        };
        let at = self.capacity.offset(self.read) as usize;
        let is_empty = || self.buffer.load_acquire(at) == 0;
        self.zeroing.on_peek(space, self.head, is_empty);
        // Fast path: an empty ring, the most common case, needs one load and returns no record by
        // value.
        if self.staged.is_none() && self.head_word() != 0 {
            self.staged = self.stage(now)?;
        }
        if self.report_is_due() {
            self.report(endpoint);
        }
        Ok(self.staged.map(|head| Record::of(head, &self.copy)))
    }

    /// Releases the space of the peeked record: zeroes it and advances the head. Call this when the
    /// record has been handled or handed over, and without waiting for anything. Also releases
    /// records that were kept before it.
    ///
    /// # Panics
    /// When [`RingReceiver::peek`] has not returned a record since the last `consume` or `keep`.
    #[inline]
    pub fn consume(&mut self, endpoint: &mut Endpoint) {
        let end = self.keep();
        self.free(end, endpoint);
    }

    /// Moves on to the next record and leaves the peeked record in the ring, as a log does. Returns
    /// the position after the record, to be passed to [`RingReceiver::free`] when the record is not
    /// needed any more.
    ///
    /// # Panics
    /// When [`RingReceiver::peek`] has not returned a record since the last `consume` or `keep`.
    #[inline]
    pub fn keep(&mut self) -> u64 {
        let head = self
            .staged
            .take()
            .expect("a record may be consumed or kept only after `peek` has returned it");
        self.read += u64::from(head.record_bytes);
        self.sequence += 1;
        self.last_end = self.read;
        self.read
    }

    /// Reads all records that are in the ring, from the first that was kept, without changing anything.
    ///
    /// # Errors
    /// [`SetupError`]; never for a ring that was created.
    pub fn records(&self) -> Result<KeptRecords<W>, SetupError>
    where
        W: Clone,
    {
        KeptRecords::from(self.buffer.clone(), self.head, self.integrity)
    }

    /// Returns the word that was stored last with the head.
    pub fn note(&self) -> u64 {
        self.kept.as_ref().map_or(0, KeptState::note)
    }

    /// Copies the body of a kept record that ends at `end` out again. The sender can still write to
    /// the ring: the caller must validate the body again.
    ///
    /// # Panics
    /// When no kept record with a body of `body_bytes` can end at `end`.
    pub fn read_again(&self, end: u64, body_bytes: usize, out: &mut Vec<u64>) {
        let space = Space {
            buffer: &self.buffer,
            capacity: self.capacity,
        };
        space.read_body(self.head..self.read, end, body_bytes, out);
    }

    /// Releases all bytes before the position `end`: zeroes them and advances the head.
    ///
    /// # Panics
    /// When `end` is beyond the read position.
    #[inline]
    pub fn free(&mut self, end: u64, endpoint: &mut Endpoint) {
        self.free_noting(end, None, endpoint);
    }

    /// As [`RingReceiver::free`]. Stores the word `note` together with the head in the [state](ReceiverConfig::kept).
    ///
    /// # Panics
    /// As [`RingReceiver::free`].
    #[inline]
    pub fn free_noting(&mut self, end: u64, note: Option<u64>, endpoint: &mut Endpoint) {
        assert!(
            end <= self.read,
            "ring position {end} to free is beyond the read position {}",
            self.read
        );
        // The filler after the last record is released together with this record.
        let end = if end == self.last_end { self.read } else { end };
        self.release(end, note);
        if self.report_is_due() {
            self.report(endpoint);
        }
    }

    /// Zeroes everything before `end`, and advances the head.
    #[inline]
    fn release(&mut self, end: u64, note: Option<u64>) {
        let (head, end) = (self.head, self.head.max(end));
        let space = Space {
            buffer: &self.buffer,
            capacity: self.capacity,
        };
        let late = mutants::is_on("log head stored after its space is zeroed");
        if let Some(kept) = self.kept.as_ref().filter(|_| !late) {
            kept.free(end, note);
        }
        self.zeroing.on_consumed(space, head, end);
        if let Some(kept) = self.kept.as_ref().filter(|_| late) {
            kept.free(end, note);
        }
        self.head = end;
    }

    #[inline]
    fn offset(&self) -> u32 {
        self.capacity.offset(self.read)
    }

    /// Copies the record at the head out if it is complete. Steps over one filler; a second filler
    /// in succession is not valid, so the work is bounded.
    #[inline]
    fn stage(&mut self, now: Nanos) -> Result<Option<RecordHead>, RingError> {
        let mut word = self.head_word();
        if word == 0 {
            return Ok(None);
        }
        let mut head = self.decode(word)?;
        if let Head::Filler { bytes } = head {
            self.step_over(bytes);
            word = self.head_word();
            if word == 0 {
                return Ok(None);
            }
            head = self.decode(word)?;
        }
        match head {
            Head::Record(head) => self.copy_out(head, word, now),
            // Unreachable: at offset 0 the filler would be the whole buffer, and decoding rejects
            // that.
            Head::Filler { .. } => unreachable!("decoding must reject a filler at offset 0"),
        }
    }

    #[inline]
    fn head_word(&self) -> u64 {
        self.buffer.load_acquire(self.offset() as usize)
    }

    #[inline]
    fn decode(&mut self, word: u64) -> Result<Head, RingError> {
        let offset = self.offset();
        layout::decode_head(word, offset, self.capacity)
            .map_err(|expected| self.fail(offset, expected, word))
    }

    /// Loads the trailer of a record whose head, `head_word`, has been validated, then copies the
    /// contents. The acquire of the trailer pairs with the release by which a write stores its last
    /// word.
    #[inline]
    fn copy_out(
        &mut self,
        head: RecordHead,
        head_word: u64,
        now: Nanos,
    ) -> Result<Option<RecordHead>, RingError> {
        let offset = self.offset();
        let trailer_offset = self.trailer_offset(head);
        let trailer = self.buffer.load_acquire(trailer_offset as usize);
        if trailer == 0 {
            return match self.lands_in_order {
                // The sender stores the words one by one, and may be paused.
                true => Ok(None),
                false => self.wait_for_missing_words(head, trailer, now),
            };
        }
        if !layout::is_trailer_of(trailer, self.sequence, self.integrity) {
            let word = layout::trailer_word(self.sequence);
            return Err(self.fail(trailer_offset, Expected::Trailer { word }, trailer));
        }
        let words = head.record_bytes as usize / WORD_BYTES - 2;
        self.buffer
            .copy_out(offset as usize + WORD_BYTES, &mut self.copy[..words]);
        if self.integrity == RecordIntegrity::Checksum {
            let word = layout::checksum_trailer(self.sequence, head_word, &self.copy[..words]);
            if trailer != word && !mutants::is_on("record checksum not looked at") {
                return self.handle_checksum_mismatch(head, trailer, word, now);
            }
            self.incomplete = None;
        }
        if head.pad_bytes > 0 {
            let last = self.copy[words - 1];
            if last >> (64 - 8 * head.pad_bytes) != 0 {
                let last_offset = trailer_offset - WORD_BYTES as u32;
                return Err(self.fail(last_offset, Expected::Padding, last));
            }
        }
        Ok(Some(head))
    }

    /// Handles a record whose trailer differs from `word`, the correct trailer for the words that
    /// were copied out. Words that have not landed are zero. If no word can be missing, the record
    /// is damaged.
    #[cold]
    fn handle_checksum_mismatch(
        &mut self,
        head: RecordHead,
        trailer: u64,
        word: u64,
        now: Nanos,
    ) -> Result<Option<RecordHead>, RingError> {
        marks::mark("ring: record half there");
        let words = head.record_bytes as usize / WORD_BYTES - 2;
        if self.lands_in_order || !self.copy[..words].contains(&0) {
            let at = self.trailer_offset(head);
            return Err(self.fail(at, Expected::Checksum { word }, trailer));
        }
        self.wait_for_missing_words(head, trailer, now)
    }

    /// Waits for the missing words of a record. If none lands for long enough, the record is
    /// damaged.
    #[cold]
    fn wait_for_missing_words(
        &mut self,
        head: RecordHead,
        trailer: u64,
        now: Nanos,
    ) -> Result<Option<RecordHead>, RingError> {
        let first = IncompleteRecord {
            polled: now,
            waited: 0,
            digest: 0,
        };
        let mut half = self.incomplete.unwrap_or(first);
        half.waited += (now - half.polled).min(MAX_COUNTED_POLL_GAP_NS);
        half.polled = now;
        if half.waited >= INCOMPLETE_RECORD_PATIENCE_NS {
            let words = head.record_bytes as usize / WORD_BYTES - 2;
            let body = self.offset() as usize + WORD_BYTES;
            self.buffer.copy_out(body, &mut self.copy[..words]);
            let digest = layout::checksum_trailer(self.sequence, trailer, &self.copy[..words]);
            if digest == half.digest {
                let at = self.trailer_offset(head);
                return Err(self.fail(at, Expected::Rest, trailer));
            }
            (half.waited, half.digest) = (0, digest);
        }
        self.incomplete = Some(half);
        Ok(None)
    }

    #[inline]
    fn trailer_offset(&self, head: RecordHead) -> u32 {
        self.offset() + head.record_bytes - WORD_BYTES as u32
    }

    #[cold]
    fn step_over(&mut self, filler_bytes: u32) {
        if mutants::is_on("filler zeroed when it is read") {
            self.buffer.clear(self.offset() as usize, WORD_BYTES);
        }
        let read = self.read;
        self.read += u64::from(filler_bytes);
        // A filler after kept records is released together with the last of them.
        if self.head == read {
            self.release(self.read, None);
        }
    }

    #[cold]
    fn fail(&mut self, offset: u32, expected: Expected, found: u64) -> RingError {
        marks::mark("ring: garbage");
        let error = RingError {
            offset,
            sequence: self.sequence,
            expected,
            found,
        };
        self.failed = Some(error);
        error
    }

    /// Returns whether a report of the head is due that the endpoint had no room for. The report is
    /// posted only when this ring is polled again; until then the sender cannot use the space.
    pub fn owes_report(&self) -> bool {
        self.report_is_due() && !self.closed
    }

    /// Returns whether half of the ring has been consumed since the last report (FaRM'14 §3.1).
    #[inline]
    fn report_is_due(&self) -> bool {
        self.head - self.reported >= u64::from(self.capacity.report_bytes())
    }

    /// Writes the head to the sender's copy. If the endpoint has no room, the report stays due and
    /// every later call retries it.
    #[cold]
    fn report(&mut self, endpoint: &mut Endpoint) {
        if self.closed {
            return;
        }
        let write = Write {
            to: self.head_copy,
            fence: false,
            notify: self.notify,
            signal: None,
        };
        match endpoint.post_write(write, Source::Inline(&[self.head])) {
            Ok(()) => self.reported = self.head,
            Err(Rejected::Full(_)) => marks::mark("ring: report refused"),
            Err(Rejected::Closed(_)) => self.closed = true,
            Err(Rejected::BadAccess(_)) => {
                let place = self.head_copy.offset;
                self.fail(self.offset(), Expected::HeadCopy, place);
            }
        }
    }
}
