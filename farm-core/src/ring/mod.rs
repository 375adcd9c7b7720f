//! Rings: unidirectional channels of messages over one-sided writes (FaRM'14 §3.1).
//!
//! A ring's buffer is stored in the receiver's memory. The sender writes records at the tail; the
//! receiver polls the word at the head. Positions are bytes since the ring was created and never
//! wrap. The offset in the buffer is the position modulo the capacity, a power of two.
//! `docs/layouts.md` and `layout.rs` draw the bytes of records and fillers.
//!
//! ```text
//!   sender's machine                              receiver's machine
//!                         one-sided writes
//!   RingSender  ───────── filler, record ───────▶  buffer ◀──polls── RingReceiver
//!      tail, sequence                              0 … 0 [rec][rec][rec] 0 … 0
//!                                                        head        tail
//!   head copy   ◀──────── head, 8 bytes ─────────  after half the ring was consumed
//! ```
//!
//! Invariants, and the tests that guard them:
//! - Every word of the buffer outside unread records is zero. Therefore a nonzero word at the head
//!   belongs to a record. `tests::oracle` checks every byte after every run.
//! - A record whose trailer is present is complete, because a write lands in increasing address
//!   order. On a fabric without this order, the trailer contains a checksum of the record
//!   ([`RecordIntegrity`]). `tests::oracle` lands words one at a time; `tests::model` lets loom try every
//!   order that the memory model allows; `farm-core/tests/ring_hammer.rs` runs two processes.
//! - Records are contiguous. A record that does not fit before the end of the buffer is written at
//!   offset 0. A filler of one word, whose length is the gap, takes its place at the tail.
//! - The sender writes only below `head + capacity`, where `head` is a position that the receiver
//!   has reported as consumed.
//! - Both ends distrust data that the peer wrote: they load each head and length once, validate it,
//!   and then use it. `tests::garbage` and the fuzz target `ring` write arbitrary data.
//!
//! # Why full rings cannot deadlock
//!
//! A worker that has received a request must send the reply before the request can leave its ring.
//! Two machines whose rings are full of requests could therefore wait for each other forever. To
//! prevent this, the requester reserves space for the reply when it sends the request. Consider the
//! ring from worker *b* to machine *A*, of *C* bytes. It carries *calls*, that is *b*'s own
//! requests and one-way messages, and *b*'s replies to the *n* workers of *A*. Three rules:
//!
//! 1. A call is sent only if, by the sender's knowledge, *C*/4 stays free after the call and its
//!    filler ([`Capacity::reply_reserve_bytes`]). Replies may use all space.
//! 2. Each of the *n* workers has a share *s* of credit, and *p* more for one prompt reply, such
//!    that *n*(*s* + *p*) + max(*s*, *p*) is at most *C*/4 ([`ReplyCredits`]). A request takes
//!    credit for the record of the largest reply that it permits, and returns the credit when the
//!    reply has been consumed. A reply is *owed* from the sending of its request until the reply is
//!    consumed. The owed replies, in the ring or not yet sent, have at most *n*(*s* + *p*) bytes in
//!    total, and each of them at most max(*s*, *p*).
//! 3. The receiver reports its head as soon as *C*/2 is consumed and not reported.
//!
//! **Claim 1.** Once the writes in flight have landed and the receiver has polled, *b* can send any
//! owed reply before any further record is consumed.
//!
//! A filler ends at a multiple of *C*. Therefore less than *C* bytes of records contain at most one
//! filler, and it is shorter than the record after it. Owed replies together with such a filler
//! have less than *n*(*s* + *p*) + max(*s*, *p*) ≤ *C*/4. Let *t* be the tail after *b*'s last call
//! (or after the call's filler, if the fabric accepted the filler and rejected the call). By rule
//! 1, *t* minus the reported head was at most 3*C*/4, and the reported head only grows.
//!
//! - *No reply sent since t has been consumed.* All of these replies are owed. Together with the
//!   new reply and a filler they have less than *C*/4; with the 3*C*/4 before *t* they fit the
//!   ring.
//! - *Some reply sent since t has been consumed.* Then every call has been consumed too, because
//!   records are consumed in order. The unconsumed replies, the new reply and a filler have less
//!   than *C*/4, and the bytes consumed and not reported are less than *C*/2 by rule 3. Together
//!   they fit the ring.
//!
//! **Claim 2.** Once a ring is empty, any call can be sent: less than *C*/2 is unreported, the
//! filler and the call have at most *C*/8 each, and *C*/4 stays free.
//!
//! By claim 1, a received request can be answered and consumed. Replies and one-way messages are
//! consumed without sending anything. So every ring becomes empty, and by claim 2 the sender can
//! continue. The relations are asserted at compile time in `layout.rs` and when credits are
//! created. `tests::deadlock` checks claim 1 in every quiet state of random schedules, and checks
//! that without the rules the same schedules do deadlock.
//!
//! The layers above must keep these conditions: handlers of replies and one-way messages never wait
//! for space in a ring; a record handed to another worker is [consumed](RingReceiver::consume)
//! immediately afterwards; a reply is not longer than its request permitted; a ring that is no
//! longer polled is closed.

mod credits;
#[cfg(feature = "mutants")]
mod faults;
mod kept;
pub mod layout;
mod log;
mod own;
mod receiver;
mod sender;
mod zeroing;

// Public, because external tests include this module by its path.
#[cfg(test)]
#[allow(unreachable_pub)]
mod testing;
#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering;

pub use credits::{NoShare, ReplyCredits};
pub use kept::{KEPT_STATE_BYTES, KeptLog, KeptRecords, KeptState};
pub use layout::{Capacity, Expected, InvalidCapacity, Kind};
pub use log::{LogSender, log_record_bytes};
pub use own::{OwnLog, OwnWords};
pub use receiver::{ReceiverConfig, Record, RingError, RingReceiver};
pub use sender::{BadHead, Header, RingSender, SendError, SenderConfig};

use crate::fabric::Capabilities;
use crate::mem::{Memory, WORD_BYTES};

/// The crate path that `testing` uses. External tests include the same file, and there `api` is
/// `farm_core`.
#[cfg(test)]
use crate as api;

/// The operations that a ring needs of memory written by the peer: [`Memory`], or a model of it in
/// tests.
pub trait Words {
    /// Returns the length in bytes.
    fn len_bytes(&self) -> usize;
    /// Loads the word at `offset` with acquire: stores made before a release store of this word are
    /// visible afterwards.
    fn load_acquire(&self, offset: usize) -> u64;
    /// Copies words from `offset` into `out`, in no promised order.
    fn copy_out(&self, offset: usize, out: &mut [u64]);
    /// Zeroes `bytes` from `offset` on, in no promised order.
    fn clear(&self, offset: usize, bytes: usize);
    /// Stores the word at `offset`. Whoever sees a later store of this thread sees this one, too.
    fn store_first(&self, offset: usize, word: u64);
}

impl Words for Memory {
    fn len_bytes(&self) -> usize {
        self.len()
    }

    #[inline]
    fn load_acquire(&self, offset: usize) -> u64 {
        self.load(offset, Ordering::Acquire)
    }

    #[inline]
    fn copy_out(&self, offset: usize, out: &mut [u64]) {
        self.read_words(offset, out);
    }

    #[inline]
    fn clear(&self, offset: usize, bytes: usize) {
        self.zero(offset, bytes);
    }

    #[inline]
    fn store_first(&self, offset: usize, word: u64) {
        self.store(offset, word, Ordering::Relaxed);
        self.fence(Ordering::Release);
    }
}

/// How the receiver of a ring determines that a record is complete. Both ends must use the same
/// method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub enum RecordIntegrity {
    /// The trailer is present: the fabric's writes land in increasing address order.
    #[default]
    LastWord,
    /// The checksum in the trailer matches: words land in any order, each of them atomically. Both
    /// ends compute the checksum of every record, and the receiver also recomputes it when it polls
    /// an incomplete record.
    Checksum,
}

impl RecordIntegrity {
    /// Returns `Checksum` if `checksums`, else `LastWord`.
    pub fn by_checksum(checksums: bool) -> Self {
        match checksums {
            true => Self::Checksum,
            false => Self::LastWord,
        }
    }
}

/// Why creating an end of a ring failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// The buffer's size is invalid.
    #[error(transparent)]
    Capacity(#[from] InvalidCapacity),
    /// The fabric does not order placement, so a trailer does not prove that its record is
    /// complete.
    #[error(
        "creating a ring failed: this fabric does not promise that the bytes of a write land in increasing \
         address order, which records without checksums need; set rings.checksums = true on all machines"
    )]
    UnorderedPlacement,
    /// The fabric cannot write a word inline. Heads and fillers are inline writes of one word.
    #[error(
        "rings need inline writes of 8 bytes, but the fabric supports at most {max_inline_bytes} bytes"
    )]
    NoInlineWord {
        /// Largest inline write of the fabric, in bytes.
        max_inline_bytes: usize,
    },
    /// The reply reserve is too large: a request might never find room.
    #[error(
        "the reply reserve of a ring is {asked_bytes} bytes, but at most {most_bytes} are allowed"
    )]
    Reserve {
        /// Requested reserve in bytes.
        asked_bytes: u32,
        /// Largest permitted reserve in bytes: a quarter of the ring.
        most_bytes: u32,
    },
    /// The start position is not a multiple of a word. Records start at words.
    #[error("position {position:#x} in a ring is not a multiple of 8")]
    Position {
        /// The rejected position.
        position: u64,
    },
}

fn check_position(position: u64) -> Result<(), SetupError> {
    match position.is_multiple_of(WORD_BYTES as u64) {
        true => Ok(()),
        false => Err(SetupError::Position { position }),
    }
}

fn check_fabric(capabilities: &Capabilities, integrity: RecordIntegrity) -> Result<(), SetupError> {
    let max_inline_bytes = capabilities.max_inline_bytes;
    if !capabilities.ordered_placement && integrity == RecordIntegrity::LastWord {
        return Err(SetupError::UnorderedPlacement);
    }
    if max_inline_bytes < WORD_BYTES {
        return Err(SetupError::NoInlineWord { max_inline_bytes });
    }
    Ok(())
}
