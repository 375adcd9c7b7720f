//! The receiving end of a ring: polls the word at the head, hands out records, gives space back.

use super::layout::{self, Capacity, Expected, Head, Kind, RecordHead};
use super::{SetupError, Wholeness, Words};
use crate::fabric::{Endpoint, Rejected, Remote, Source, Write};
use crate::ids::WorkerId;
use crate::mem::{Memory, WORD_BYTES};
use crate::time::Nanos;
use crate::{marks, mutants};

/// Nanoseconds of polling a record that is half there, after which its words are compared with those of the last
/// comparison. A reliable connection breaks in less time than this if a packet does not arrive: if no word of the record
/// landed meanwhile, none is on its way, and the record is damaged.
const HALF_THERE_PATIENCE: u64 = 5_000_000_000;
/// Most nanoseconds between two polls that count. After a pause of the whole host the receiver may run before the
/// device does.
const MOST_BETWEEN_POLLS: u64 = 100_000_000;

/// A record with missing words.
#[derive(Clone, Copy, Debug)]
struct HalfThere {
    /// The last poll.
    polled: Nanos,
    /// Nanoseconds of polling since the last comparison.
    waited: u64,
    /// Digest of the words at the last comparison; 0 before the first.
    digest: u64,
}

/// What the two sides agreed on when they connected, as the receiver sees it.
#[derive(Clone, Debug)]
pub struct ReceiverConfig<W = Memory> {
    /// The ring's buffer: a zeroed window of exactly the ring's capacity, which the sender writes.
    pub buffer: W,
    /// The sender's copy of the head, in its memory.
    pub head_copy: Remote,
    /// How it is known that a record is whole: as the sender makes it.
    pub wholeness: Wholeness,
    /// The worker of the sending machine to be woken when space comes back: the ring's sender.
    pub notify: Option<WorkerId>,
}

/// A record, as copied out of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Kind of the record.
    pub kind: Kind,
    /// The worker that it is for, not necessarily the one that polls.
    pub to_worker: WorkerId,
    /// The handler that it is for.
    pub message_id: u16,
    /// Matches replies with requests; its meaning belongs to the messaging layer.
    pub token: u64,
    /// The message.
    pub body: &'a [u8],
}

/// A ring holds what no correct sender writes. The receiver gives no more records; close the
/// connection and report this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ring offset {offset:#x}, record {sequence}: found {found:#018x}, expected {expected}")]
pub struct RingError {
    /// Offset in the buffer of the word in question.
    pub offset: u32,
    /// Number of the record that was expected, from 1.
    pub sequence: u64,
    /// What the word should have been.
    pub expected: Expected,
    /// The word.
    pub found: u64,
}

/// The receiving end of a ring (FaRM'14 §3.1). Belongs to the worker that polls it.
///
/// Keeps: everything from the head up to what the sender has written is unread, everything else in
/// the buffer is zero; a record is handed out only when it is whole; it stays in the ring until it
/// is [consumed](RingReceiver::consume).
#[derive(Debug)]
pub struct RingReceiver<W = Memory> {
    buffer: W,
    capacity: Capacity,
    /// Bytes given back since the ring was made, fillers included.
    head: u64,
    /// Bytes read: from the head to here lie records that were [kept](RingReceiver::keep).
    read: u64,
    /// Where the record that was read last ends; what lies between here and `read` is a filler.
    last_end: u64,
    /// The head as last reported to the sender.
    reported: u64,
    /// Number of the next record, from 1.
    sequence: u64,
    /// The next record, if it has been copied out and not been consumed.
    staged: Option<RecordHead>,
    /// Its token, then its body. As long as the greatest record; untouched pages cost nothing.
    copy: Box<[u64]>,
    head_copy: Remote,
    wholeness: Wholeness,
    /// Whether all words of a record are there once its trailer is.
    lands_in_order: bool,
    half_there: Option<HalfThere>,
    notify: Option<WorkerId>,
    /// The connection is closed: what is in the ring can be read, but nobody waits for space.
    closed: bool,
    failed: Option<RingError>,
    /// Up to where consumed space is zero, with the bug that zeroes it late.
    #[cfg(feature = "mutants")]
    zeroed: u64,
    /// Peeks that found nothing since there was a record, with that bug.
    #[cfg(feature = "mutants")]
    empty_peeks: u32,
}

impl<W: Words> RingReceiver<W> {
    /// The receiving end of a new ring, whose buffer is zero.
    ///
    /// # Errors
    /// [`SetupError`] when the fabric or the buffer's size would break the ring's promises.
    pub fn new(config: ReceiverConfig<W>, endpoint: &Endpoint) -> Result<Self, SetupError> {
        Self::resume(config, endpoint, 0, 1)
    }

    /// The receiving end of a ring that has carried records before: its head is at `position` and
    /// the next record has number `sequence`. Its buffer may hold records from there on.
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
        super::check_fabric(endpoint.capabilities(), config.wholeness)?;
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
            wholeness: config.wholeness,
            lands_in_order: endpoint.capabilities().ordered_placement,
            half_there: None,
            notify: config.notify,
            closed: false,
            failed: None,
            #[cfg(feature = "mutants")]
            zeroed: position,
            #[cfg(feature = "mutants")]
            empty_peeks: 0,
        })
    }

    /// Bytes given back since the ring was made, fillers included.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Position of the next record, or of a filler before it.
    pub fn position(&self) -> u64 {
        self.read
    }

    /// The next record of the ring, if a whole one is there at the moment `now`. It is given again, without a
    /// second copy, until [`RingReceiver::consume`] or [`RingReceiver::keep`].
    ///
    /// # Errors
    /// [`RingError`] when the ring holds garbage, at this and at every later call. If words land in any order,
    /// garbage with a word of zero looks like a record that is half there: it is an error after 5 to 10 seconds of
    /// polling in which no word of it lands.
    #[inline]
    pub fn peek(
        &mut self,
        endpoint: &mut Endpoint,
        now: Nanos,
    ) -> Result<Option<Record<'_>>, RingError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        #[cfg(feature = "mutants")]
        self.zero_late();
        // An empty ring, the commonest case, is left with one look and no result that is moved about.
        if self.staged.is_none() && self.head_word() != 0 {
            self.staged = self.stage(now)?;
        }
        if self.report_is_due() {
            self.report(endpoint);
        }
        Ok(self.staged.map(|head| self.record(head)))
    }

    /// Gives the space of the peeked record back: zeroes it and moves the head on. To be called
    /// when the record has been handled or handed over, and without waiting for anything. What was
    /// kept before it goes with it.
    ///
    /// # Panics
    /// When [`RingReceiver::peek`] has not given a record since the last call.
    #[inline]
    pub fn consume(&mut self, endpoint: &mut Endpoint) {
        let end = self.keep();
        self.free(end, endpoint);
    }

    /// Goes on to the next record and leaves the peeked one where it is, as a log does. The position
    /// after it is what [`RingReceiver::free`] takes, once the record is not needed any more.
    ///
    /// # Panics
    /// When [`RingReceiver::peek`] has not given a record since the last call.
    #[inline]
    pub fn keep(&mut self) -> u64 {
        let head = self
            .staged
            .take()
            .expect("consume or keep without a record from peek");
        self.read += u64::from(head.record_bytes);
        self.sequence += 1;
        self.last_end = self.read;
        self.read
    }

    /// Copies the body of a kept record, which ends at `end`, out once more. The ring is the sender's
    /// to write: what is found there is to be checked as it was the first time.
    ///
    /// # Panics
    /// When no kept record of so many bytes of body can end there.
    pub fn read_again(&self, end: u64, body_bytes: usize, out: &mut Vec<u64>) {
        let bytes = layout::record_bytes(body_bytes).expect("a record that was kept");
        let start = end - u64::from(bytes);
        assert!(
            self.head <= start && end <= self.read,
            "a record from {start} to {end}, and {} to {} are kept",
            self.head,
            self.read
        );
        let body = self.capacity.offset(start) as usize + 2 * WORD_BYTES;
        out.clear();
        out.resize(body_bytes.div_ceil(WORD_BYTES), 0);
        self.buffer.copy_out(body, out);
    }

    /// Gives everything before a position back: zeroes it and moves the head on.
    ///
    /// # Panics
    /// When the position is beyond what was read.
    #[inline]
    pub fn free(&mut self, end: u64, endpoint: &mut Endpoint) {
        assert!(end <= self.read, "{end} is beyond {}", self.read);
        // With the last record goes the filler after it.
        let end = if end == self.last_end { self.read } else { end };
        if !mutants::is_on("head advanced before zeroing") {
            self.clear_up_to(end);
        }
        self.head = self.head.max(end);
        if self.report_is_due() {
            self.report(endpoint);
        }
    }

    #[inline]
    fn clear_up_to(&self, end: u64) {
        let mut at = self.head;
        while at < end {
            let offset = self.capacity.offset(at);
            let bytes = u64::from(self.capacity.bytes() - offset).min(end - at);
            self.buffer.clear(offset as usize, bytes as usize);
            at += bytes;
        }
    }

    /// Zeroes what was consumed, but for the last five eighths of the ring while it is in use: long
    /// after the head was reported.
    #[cfg(feature = "mutants")]
    fn zero_late(&mut self) {
        if !mutants::is_on("head advanced before zeroing") {
            return;
        }
        let empty = self.head_word() == 0;
        self.empty_peeks = if empty { self.empty_peeks + 1 } else { 0 };
        let kept = if self.empty_peeks < 2 {
            u64::from(self.capacity.bytes() / 8 * 5)
        } else {
            0
        };
        while self.zeroed + kept < self.head {
            let offset = self.capacity.offset(self.zeroed);
            let to_end = u64::from(self.capacity.bytes() - offset);
            let bytes = to_end.min(self.head - kept - self.zeroed);
            self.buffer.clear(offset as usize, bytes as usize);
            self.zeroed += bytes;
        }
    }

    #[inline]
    fn offset(&self) -> u32 {
        self.capacity.offset(self.read)
    }

    fn record(&self, head: RecordHead) -> Record<'_> {
        let bytes: &[u8] = bytemuck::cast_slice(&self.copy[1..]);
        Record {
            kind: head.kind,
            to_worker: head.to_worker,
            message_id: head.message_id,
            token: self.copy[0],
            body: &bytes[..head.body_bytes() as usize],
        }
    }

    /// Copies the record at the head out if it is whole. Steps over one filler; a second one in
    /// succession is not valid, so this is bounded.
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
            // Not at offset 0: decoding a filler there fails, as it would be the whole buffer.
            Head::Filler { .. } => unreachable!("a filler at offset 0 was accepted"),
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

    /// The trailer of a record whose head, `head_word`, has been validated, then its contents. The acquire
    /// of the trailer pairs with the release by which a write stores its last word.
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
                false => self.look_again(head, trailer, now),
            };
        }
        if !layout::is_trailer_of(trailer, self.sequence, self.wholeness) {
            let word = layout::trailer_word(self.sequence);
            return Err(self.fail(trailer_offset, Expected::Trailer { word }, trailer));
        }
        let words = head.record_bytes as usize / WORD_BYTES - 2;
        self.buffer
            .copy_out(offset as usize + WORD_BYTES, &mut self.copy[..words]);
        if self.wholeness == Wholeness::Checksum {
            let word = layout::checksum_trailer(self.sequence, head_word, &self.copy[..words]);
            if trailer != word && !mutants::is_on("record checksum not looked at") {
                return self.does_not_sum_up(head, trailer, word, now);
            }
            self.half_there = None;
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

    /// Handles a record whose trailer is not `word`, the one for the words that were copied out. Words that have not
    /// landed are zero; if none can be missing, the record is damaged.
    #[cold]
    fn does_not_sum_up(
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
        self.look_again(head, trailer, now)
    }

    /// Waits for the missing words of a record, which may be damaged instead.
    #[cold]
    fn look_again(
        &mut self,
        head: RecordHead,
        trailer: u64,
        now: Nanos,
    ) -> Result<Option<RecordHead>, RingError> {
        let first = HalfThere {
            polled: now,
            waited: 0,
            digest: 0,
        };
        let mut half = self.half_there.unwrap_or(first);
        half.waited += (now - half.polled).min(MOST_BETWEEN_POLLS);
        half.polled = now;
        if half.waited >= HALF_THERE_PATIENCE {
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
        self.half_there = Some(half);
        Ok(None)
    }

    #[inline]
    fn trailer_offset(&self, head: RecordHead) -> u32 {
        self.offset() + head.record_bytes - WORD_BYTES as u32
    }

    #[cold]
    fn step_over(&mut self, filler_bytes: u32) {
        self.buffer.clear(self.offset() as usize, WORD_BYTES);
        self.read += u64::from(filler_bytes);
        // It goes with what was kept before it, if anything was.
        if self.head + u64::from(filler_bytes) == self.read {
            self.head = self.read;
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

    /// Whether a report of the head is due that the endpoint had no room for: whoever waits for the
    /// space hears of it only when this ring is polled again.
    pub fn owes_report(&self) -> bool {
        self.report_is_due() && !self.closed
    }

    /// Whether half of the ring has been consumed since the last report (FaRM'14 §3.1).
    #[inline]
    fn report_is_due(&self) -> bool {
        self.head - self.reported >= u64::from(self.capacity.report_bytes())
    }

    /// Writes the head to the sender's copy. If the endpoint has no room the report stays due, and
    /// every later call tries again.
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
