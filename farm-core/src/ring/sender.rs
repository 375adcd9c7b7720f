//! The sending end of a ring: owns the tail, stores a copy of the head, and writes records with
//! one-sided writes.

use super::layout::{self, Capacity, Kind, RecordHead};
use super::{RecordIntegrity, SetupError, Words};
use crate::fabric::{Endpoint, Rejected, Remote, Slot, Source, Token, Write};
use crate::ids::WorkerId;
use crate::mem::{Memory, WORD_BYTES};
use crate::{marks, mutants};

/// The parameters agreed at connection setup, for the sender.
#[derive(Clone, Debug)]
pub struct SenderConfig<W = Memory> {
    /// Start of the ring's buffer in the receiver's memory.
    pub buffer: Remote,
    /// Size of the buffer.
    pub capacity: Capacity,
    /// The sender's own memory to which the receiver writes its head. The word at
    /// `head_copy_offset` holds the position at which the ring starts, 0 for a new ring.
    pub head_copy: W,
    /// Offset in `head_copy`, in bytes.
    pub head_copy_offset: usize,
    /// Bytes that requests and one-way messages leave free for replies:
    /// [`Capacity::reply_reserve_bytes`], or 0 in a ring that never carries a reply.
    pub reply_reserve_bytes: u32,
    /// How the receiver determines that a record is complete.
    pub integrity: RecordIntegrity,
    /// The worker of the receiving machine that polls the ring. A write wakes it if it sleeps.
    pub notify: Option<WorkerId>,
}

/// The header fields of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind of the record.
    pub kind: Kind,
    /// Destination worker on the receiving machine.
    pub to_worker: WorkerId,
    /// Id of the handler.
    pub message_id: u16,
    /// Matches replies with requests; its meaning belongs to the messaging layer.
    pub token: u64,
}

/// Why a record was not sent. No part of it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The ring, the endpoint's queue or the endpoint's arena has no room now: poll, then retry.
    #[error("the ring, the endpoint's queue or its arena is full now; poll and retry")]
    Full,
    /// The body is larger than the largest record that this end can send.
    #[error(
        "a body of {body_bytes} bytes is larger than the ring's maximum of {max_body_bytes} bytes"
    )]
    TooLarge {
        /// Bytes of the rejected body.
        body_bytes: usize,
        /// Bytes of the largest body.
        max_body_bytes: u32,
    },
    /// The connection is broken.
    #[error("the ring's connection is closed")]
    Closed,
    /// The receiver's buffer is not at the address that its machine announced: close the
    /// connection.
    #[error(
        "the fabric rejected a write of {bytes} bytes at offset {offset:#x} of the peer's memory"
    )]
    Refused {
        /// Offset in the peer's memory.
        offset: u64,
        /// Bytes of the write.
        bytes: u32,
    },
    /// The receiver wrote an invalid head: close the connection.
    #[error(transparent)]
    BadHead(#[from] BadHead),
}

/// A head copy that no correct receiver writes: heads only grow, by whole words, at most to the
/// tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "head copy {found:#x} is not a multiple of 8 between the last head {last:#x} and tail {tail:#x}"
)]
pub struct BadHead {
    /// The last valid head.
    pub last: u64,
    /// The sender's tail.
    pub tail: u64,
    /// The invalid value of the head copy.
    pub found: u64,
}

/// The sending end of a ring (FaRM'14 §3.1). Belongs to one worker.
///
/// Invariants: `head ≤ tail ≤ head + capacity`. Nothing is written beyond `head + capacity`. After
/// an error that requires closing the connection, every later call returns the same error.
#[derive(Debug)]
pub struct RingSender<W = Memory> {
    buffer: Remote,
    capacity: Capacity,
    /// Bytes written since the ring was created, fillers included.
    tail: u64,
    /// Bytes that the receiver has reported as consumed.
    head: u64,
    /// Number of the next record, from 1.
    sequence: u64,
    head_copy: W,
    head_copy_offset: usize,
    reply_reserve_bytes: u32,
    max_record_bytes: u32,
    integrity: RecordIntegrity,
    notify: Option<WorkerId>,
    /// Buffer in which records that are posted inline are assembled.
    inline: Box<[u64]>,
    failed: Option<SendError>,
}

impl<W: Words> RingSender<W> {
    /// Creates the sending end of a new ring, whose buffer and head copy are zero.
    ///
    /// Records have at most an eighth of the ring, or less if the arena of `endpoint` has no slot
    /// of that size: see [`RingSender::max_body_bytes`].
    ///
    /// # Errors
    /// [`SetupError`] when the fabric or the reserve would break the ring's guarantees.
    pub fn new(config: SenderConfig<W>, endpoint: &mut Endpoint) -> Result<Self, SetupError> {
        Self::resume(config, endpoint, 0, 1)
    }

    /// Creates the sending end of an empty ring that has carried records before: head and tail are
    /// at `position` and the next record has number `sequence`, equal to the receiver's.
    ///
    /// # Errors
    /// As [`RingSender::new`].
    pub fn resume(
        config: SenderConfig<W>,
        endpoint: &mut Endpoint,
        position: u64,
        sequence: u64,
    ) -> Result<Self, SetupError> {
        let capacity = config.capacity;
        super::check_position(position)?;
        super::check_fabric(endpoint.capabilities(), config.integrity)?;
        if config.reply_reserve_bytes > capacity.reply_reserve_bytes() {
            return Err(SetupError::Reserve {
                asked_bytes: config.reply_reserve_bytes,
                most_bytes: capacity.reply_reserve_bytes(),
            });
        }
        let most = capacity.max_record_bytes() as usize;
        let inline_bytes = endpoint.capabilities().max_inline_bytes.min(most);
        let inline = vec![0; inline_bytes / WORD_BYTES].into_boxed_slice();
        let max_record_bytes = endpoint.arena().largest().max(inline_bytes).min(most);
        Ok(Self {
            buffer: config.buffer,
            capacity,
            tail: position,
            head: position,
            sequence,
            head_copy: config.head_copy,
            head_copy_offset: config.head_copy_offset,
            reply_reserve_bytes: config.reply_reserve_bytes,
            max_record_bytes: max_record_bytes as u32,
            integrity: config.integrity,
            notify: config.notify,
            inline,
            failed: None,
        })
    }

    /// Returns the bytes of the largest body that can be sent.
    pub fn max_body_bytes(&self) -> u32 {
        self.max_record_bytes.saturating_sub(layout::OVERHEAD_BYTES)
    }

    /// Returns the bytes written since the ring was created, fillers included.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Returns the size of the ring in bytes.
    pub fn capacity_bytes(&self) -> u32 {
        self.capacity.bytes()
    }

    /// Returns the free bytes of the ring by the last head that was read, without reading the head
    /// copy.
    #[inline]
    pub fn free_bytes_known(&self) -> u32 {
        self.capacity.bytes() - self.used_bytes()
    }

    /// Reads the head copy and returns the free bytes of the ring.
    ///
    /// # Errors
    /// [`SendError::BadHead`], or the earlier permanent error of this sender.
    pub fn free_bytes(&mut self) -> Result<u32, SendError> {
        self.refresh_head()?;
        Ok(self.capacity.bytes() - self.used_bytes())
    }

    /// Returns whether a record of this kind and size has room in the ring. The endpoint's queue
    /// may still reject it.
    ///
    /// # Errors
    /// As [`RingSender::try_send`], except [`SendError::Full`].
    #[inline]
    pub fn has_room(&mut self, kind: Kind, body_bytes: usize) -> Result<bool, SendError> {
        let record_bytes = self.checked_record_bytes(body_bytes)?;
        Ok(self.find_room(kind, record_bytes)?.is_some())
    }

    /// Sends a record whose body is the concatenation of the parts `body`. Sends either the whole
    /// record or nothing.
    ///
    /// The write is unsignalled. It is posted at the latest with the next [`Endpoint::flush`].
    ///
    /// # Errors
    /// [`SendError::Full`] is transient: retry. All other errors except `TooLarge` are permanent.
    #[inline]
    pub fn try_send(
        &mut self,
        endpoint: &mut Endpoint,
        header: Header,
        body: &[&[u8]],
    ) -> Result<(), SendError> {
        self.try_append(endpoint, header, body, None)
    }

    /// As [`RingSender::try_send`]. If `signal` is given, the endpoint reports a completion once
    /// the record is in the receiver's memory.
    ///
    /// # Errors
    /// As [`RingSender::try_send`].
    #[inline]
    pub fn try_append(
        &mut self,
        endpoint: &mut Endpoint,
        header: Header,
        body: &[&[u8]],
        signal: Option<Token>,
    ) -> Result<(), SendError> {
        let body_bytes = body
            .iter()
            .fold(0usize, |sum, part| sum.saturating_add(part.len()));
        let record_bytes = self.checked_record_bytes(body_bytes)?;
        let place = self
            .find_room(header.kind, record_bytes)?
            .ok_or(SendError::Full)?;
        let Header {
            kind,
            to_worker,
            message_id,
            token,
        } = header;
        let head = RecordHead::of(kind, to_worker, message_id, body_bytes as u32);

        let words = record_bytes as usize / WORD_BYTES;
        let slot = if words <= self.inline.len() {
            let target = &mut self.inline[..words];
            assemble(target, head, token, body);
            seal(target, self.integrity, self.sequence);
            None
        } else {
            let arena = endpoint.arena();
            let mut slot = arena
                .take_to_send(record_bytes as usize)
                .ok_or(SendError::Full)?;
            let target = &mut arena.words_mut(&mut slot)[..words];
            assemble(target, head, token, body);
            seal(target, self.integrity, self.sequence);
            Some(slot)
        };
        // From here on the fabric owns the slot, or the slot returns to the arena.
        if place.filler_bytes > 0
            && let Err(error) = self.post_filler(endpoint, place.filler_bytes)
        {
            return_slot(endpoint, slot);
            return Err(error);
        }
        self.post_record(endpoint, place.offset, record_bytes, slot, signal)
    }

    #[inline]
    fn checked_record_bytes(&self, body_bytes: usize) -> Result<u32, SendError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        match layout::record_bytes(body_bytes) {
            Some(bytes) if bytes <= self.max_record_bytes => Ok(bytes),
            _ => Err(SendError::TooLarge {
                body_bytes,
                max_body_bytes: self.max_body_bytes(),
            }),
        }
    }

    /// Finds room by the known head. If that is not sufficient, reads the head copy.
    #[inline]
    fn find_room(
        &mut self,
        kind: Kind,
        record_bytes: u32,
    ) -> Result<Option<layout::Placement>, SendError> {
        let place = layout::place(self.tail, record_bytes, self.capacity);
        let kept = if kind == Kind::Reply {
            0
        } else {
            self.reply_reserve_bytes
        };
        // At most an eighth, an eighth and a quarter of 2^30: no overflow.
        let needed = place.filler_bytes + record_bytes + kept;
        if needed <= self.capacity.bytes() - self.used_bytes() {
            return Ok(Some(place));
        }
        self.refresh_head()?;
        if needed > self.capacity.bytes() - self.used_bytes() {
            marks::mark("ring: full");
            return Ok(None);
        }
        Ok(Some(place))
    }

    #[inline]
    fn used_bytes(&self) -> u32 {
        (self.tail - self.head) as u32
    }

    /// Adopts the head that the receiver reported. The acquire pairs with the release of the
    /// receiver's write. So the receiver's zeroing of the space happens before this sender's writes
    /// to the space.
    #[cold]
    fn refresh_head(&mut self) -> Result<(), SendError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        let found = self.head_copy.load_acquire(self.head_copy_offset);
        if found < self.head || found > self.tail || !found.is_multiple_of(WORD_BYTES as u64) {
            let bad = BadHead {
                last: self.head,
                tail: self.tail,
                found,
            };
            return Err(self.fail(SendError::BadHead(bad)));
        }
        self.head = found;
        Ok(())
    }

    /// Posts a filler. A posted filler counts as sent even if its record is rejected: the next
    /// record then starts at offset 0. The space check counted the filler together with its record.
    #[cold]
    fn post_filler(&mut self, endpoint: &mut Endpoint, bytes: u32) -> Result<(), SendError> {
        let to = self.at(self.capacity.offset(self.tail));
        let write = Write {
            to,
            fence: false,
            notify: None,
            signal: None,
        };
        let word = layout::filler_word(bytes);
        match endpoint.post_write(write, Source::Inline(&[word])) {
            Ok(()) => {
                marks::mark("ring: wrapped");
                self.tail += u64::from(bytes);
                Ok(())
            }
            Err(rejected) => Err(self.rejected(endpoint, rejected, to, WORD_BYTES as u32)),
        }
    }

    #[inline]
    fn post_record(
        &mut self,
        endpoint: &mut Endpoint,
        offset: u32,
        bytes: u32,
        slot: Option<Slot>,
        signal: Option<Token>,
    ) -> Result<(), SendError> {
        let to = self.at(offset);
        let wakes = self.sequence % 8 != 3 || !mutants::is_on("wake not sent");
        let write = Write {
            to,
            fence: false,
            notify: self.notify.filter(|_| wakes),
            signal,
        };
        let source = match slot {
            Some(slot) => Source::Slot { slot, bytes },
            None => Source::Inline(&self.inline[..bytes as usize / WORD_BYTES]),
        };
        match endpoint.post_write(write, source) {
            Ok(()) => {
                self.tail += u64::from(bytes);
                self.sequence += 1;
                Ok(())
            }
            Err(rejected) => Err(self.rejected(endpoint, rejected, to, bytes)),
        }
    }

    #[inline]
    fn at(&self, offset: u32) -> Remote {
        Remote {
            memory: self.buffer.memory,
            offset: self.buffer.offset + u64::from(offset),
        }
    }

    #[cold]
    fn rejected(
        &mut self,
        endpoint: &mut Endpoint,
        rejected: Rejected,
        to: Remote,
        bytes: u32,
    ) -> SendError {
        match rejected {
            Rejected::Full(slot) => {
                return_slot(endpoint, slot);
                SendError::Full
            }
            Rejected::Closed(slot) => {
                return_slot(endpoint, slot);
                self.fail(SendError::Closed)
            }
            Rejected::BadAccess(slot) => {
                return_slot(endpoint, slot);
                self.fail(SendError::Refused {
                    offset: to.offset,
                    bytes,
                })
            }
        }
    }

    fn fail(&mut self, error: SendError) -> SendError {
        self.failed = Some(error);
        error
    }
}

#[cold]
fn return_slot(endpoint: &mut Endpoint, slot: Option<Slot>) {
    if let Some(slot) = slot {
        endpoint.arena().give(slot);
    }
}

/// Writes the record into `words`, which has the record's length. Leaves the trailer unset.
#[inline]
fn assemble(words: &mut [u64], head: RecordHead, token: u64, body: &[&[u8]]) {
    let last = words.len() - 1;
    words[0] = head.encode();
    words[1] = token;
    // The padding after the body is zero.
    if head.pad_bytes > 0 {
        words[last - 1] = 0;
    }
    let mut rest: &mut [u8] = bytemuck::cast_slice_mut(&mut words[2..last]);
    for part in body {
        let (here, after) = rest.split_at_mut(part.len());
        here.copy_from_slice(part);
        rest = after;
    }
}

/// Writes the trailer of an assembled record.
#[inline]
fn seal(words: &mut [u64], integrity: RecordIntegrity, sequence: u64) {
    if let [head, rest @ .., trailer] = words {
        *trailer = match integrity {
            RecordIntegrity::LastWord => layout::trailer_word(sequence),
            RecordIntegrity::Checksum => layout::checksum_trailer(sequence, *head, rest),
        };
    }
}
