//! Rings: unidirectional channels of messages over one-sided writes (FaRM'14 §3.1).
//!
//! A ring's buffer lies in the receiver's memory; the sender writes records at its tail, the
//! receiver polls the word at its head. Positions are bytes since the ring was made and never wrap;
//! the offset in the buffer is the position modulo the capacity, a power of two. The bytes of records
//! and fillers are drawn in `docs/layouts.md` and in `layout.rs`.
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
//! - What is not an unread record is zero, so a word that is not zero at the head is a record's.
//!   `tests::oracle` looks at every byte after every run.
//! - A record whose trailer is there is whole, for a write lands in increasing address order; on a
//!   fabric where it does not, the trailer has a checksum of the record ([`Wholeness`]).
//!   `tests::oracle` lands words one at a time; `tests::model` has loom try every order that the
//!   memory model allows; `farm-core/tests/ring_hammer.rs` runs two processes.
//! - Records are contiguous. One that does not fit before the end of the buffer goes to offset 0,
//!   and a filler of one word, whose length is the gap, stands in its place.
//! - The sender writes only below `head + capacity`, with a head that the receiver has left behind.
//! - Nothing that the other side wrote is believed: heads and lengths are loaded once, validated and
//!   then used, on both ends. `tests::garbage` and the fuzz target `ring` write what they like.
//!
//! # Why full rings cannot deadlock
//!
//! A worker that holds a request must send a reply before the request can leave its ring, so two
//! machines whose rings are full of requests could wait for each other for ever. Space for the reply
//! is therefore set aside when the request is sent. Take the ring from worker *b* to machine *A*, of
//! *C* bytes. It carries *calls*, that is *b*'s own requests and one-way messages, and *b*'s replies
//! to the *n* workers of *A*. Three rules:
//!
//! 1. A call is sent only if *C*/4 stays free after it and its filler, as far as the sender knows
//!    ([`Capacity::reply_reserve_bytes`]). Replies may use everything.
//! 2. Each of the *n* workers has a share *s* of credit, and *p* more for one prompt reply, such that
//!    *n*(*s* + *p*) + max(*s*, *p*) is at most *C*/4 ([`ReplyCredits`]). A request takes credit for the
//!    record of the greatest reply it permits, and gives it back when the reply has been consumed. Call
//!    a reply *owed* from its request until it is consumed: owed replies, in the ring or not yet sent,
//!    have at most *n*(*s* + *p*) bytes, none more than max(*s*, *p*).
//! 3. The receiver reports its head as soon as *C*/2 is consumed and not reported.
//!
//! **Claim 1.** Once the writes under way have landed and the receiver has polled, *b* can send any
//! owed reply: nobody needs to consume anything first.
//!
//! A filler ends at a multiple of *C*, so there is at most one among less than *C* bytes of records,
//! and it is shorter than the record after it. Owed replies together with such a filler have less
//! than *n*(*s* + *p*) + max(*s*, *p*) ≤ *C*/4. Let *t* be the tail after *b*'s last call (or after the call's filler, if
//! the fabric took that and refused the call). By rule 1, *t* less the reported head was at most
//! 3*C*/4, and the reported head only grows.
//!
//! - *No reply sent since t has been consumed.* They are all owed. So those, the new reply and a
//!   filler have less than *C*/4: with the 3*C*/4 they fit the ring.
//! - *Some reply sent since t has been consumed.* Then so has every call, as records are consumed in
//!   order. What is not consumed, the new reply and a filler have less than *C*/4, and what is
//!   consumed and not reported has less than *C*/2 by rule 3: they fit the ring.
//!
//! **Claim 2.** Once a ring is empty, any call can be sent: less than *C*/2 is unreported, the filler
//! and the call have at most *C*/8 each, and *C*/4 stays free.
//!
//! By claim 1 a request that has been received can be answered and consumed, replies and one-way
//! messages are consumed without sending anything, so every ring becomes empty, and by claim 2 it
//! goes on. The relations are asserted at compile time in `layout.rs` and where credits are made;
//! `tests::deadlock` checks claim 1 in every quiet state of random schedules, and checks that without
//! the rules the same schedules do deadlock.
//!
//! What the layers above owe for this: handlers of replies and one-way messages never wait for space
//! in a ring; a record handed to another worker is [consumed](RingReceiver::consume) at once after;
//! a reply is not longer than its request permitted; a ring that nobody polls any more is closed.

mod credits;
pub mod layout;
mod log;
mod receiver;
mod sender;

// Public to the tests outside that include it by its path.
#[cfg(test)]
#[allow(unreachable_pub)]
mod testing;
#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering;

pub use credits::{NoShare, ReplyCredits};
pub use layout::{Capacity, Expected, InvalidCapacity, Kind};
pub use log::{LogSender, log_record_bytes};
pub use receiver::{ReceiverConfig, Record, RingError, RingReceiver};
pub use sender::{BadHead, Header, RingSender, SendError, SenderConfig};

use crate::fabric::Capabilities;
use crate::mem::{Memory, WORD_BYTES};

/// Where `testing` finds the crate: it also serves tests outside, where this is `farm_core`.
#[cfg(test)]
use crate as api;

/// What a ring needs of memory that the other side writes: [`Memory`], or a model of it in tests.
pub trait Words {
    /// Bytes there are.
    fn len_bytes(&self) -> usize;
    /// The word at `offset`; what was written before it with release is visible after.
    fn load_acquire(&self, offset: usize) -> u64;
    /// Copies words out, in no promised order.
    fn copy_out(&self, offset: usize, out: &mut [u64]);
    /// Zeroes `bytes` from `offset` on, in no promised order.
    fn clear(&self, offset: usize, bytes: usize);
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
}

/// How the receiver of a ring knows that all of a record is there. Both ends must have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub enum Wholeness {
    /// By its trailer: the fabric's writes land in increasing address order.
    #[default]
    LastWord,
    /// By a checksum in the trailer: words land in any order, each of them whole. Costs both ends the
    /// checksum of every record, and the receiver that of what it finds half there.
    Checksum,
}

impl Wholeness {
    /// With checksums in the records, or without.
    pub fn by_checksum(checksums: bool) -> Self {
        match checksums {
            true => Self::Checksum,
            false => Self::LastWord,
        }
    }
}

/// Why an end of a ring could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// The buffer's size.
    #[error(transparent)]
    Capacity(#[from] InvalidCapacity),
    /// A trailer would not mean that the record before it is whole.
    #[error(
        "this fabric does not promise that the bytes of a write land in increasing address order, which \
         records without checksums need: set rings.checksums = true on all machines"
    )]
    UnorderedPlacement,
    /// Heads and fillers are inline writes of a word.
    #[error("rings need inline writes of 8 bytes, the fabric offers {max_inline_bytes}")]
    NoInlineWord {
        /// Most bytes of an inline write.
        max_inline_bytes: usize,
    },
    /// With a greater reserve a request might never find room.
    #[error("a reply reserve of {asked_bytes} bytes, of at most {most_bytes}")]
    Reserve {
        /// Bytes asked for.
        asked_bytes: u32,
        /// A quarter of the ring.
        most_bytes: u32,
    },
    /// Records start at words.
    #[error("position {position:#x} in a ring is not a multiple of 8")]
    Position {
        /// The position.
        position: u64,
    },
}

fn check_position(position: u64) -> Result<(), SetupError> {
    match position.is_multiple_of(WORD_BYTES as u64) {
        true => Ok(()),
        false => Err(SetupError::Position { position }),
    }
}

fn check_fabric(capabilities: &Capabilities, wholeness: Wholeness) -> Result<(), SetupError> {
    let max_inline_bytes = capabilities.max_inline_bytes;
    if !capabilities.ordered_placement && wholeness == Wholeness::LastWord {
        return Err(SetupError::UnorderedPlacement);
    }
    if max_inline_bytes < WORD_BYTES {
        return Err(SetupError::NoInlineWord { max_inline_bytes });
    }
    Ok(())
}
