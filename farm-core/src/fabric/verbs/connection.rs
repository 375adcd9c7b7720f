//! The work requests of one connection: prepared in place, posted in batches with one doorbell, and
//! ended in the order in which they were posted.
//!
//! Requests are stored in a ring of entries, which never move, because the driver gets pointers to
//! them. Three counters delimit the entries that are free, prepared, and posted to the device. A
//! reliable connection ends requests in order, so the completion of a signalled request ends all
//! requests before it, and few requests need a signal.

use super::abi::*;
use super::checked::CheckedId;
use super::queue_pair::QueuePair;
use crate::fabric::{Slot, Token};
use crate::mem::WORD_BYTES;

/// Of consecutive requests, at least one in this many is signalled if a completion is awaited, so
/// that requests early in a long batch do not wait for the end of the batch.
const SIGNAL_EVERY: u32 = 8;

/// What to complete when a request has ended.
#[derive(Debug)]
pub(super) enum Purpose {
    /// Nothing to complete.
    Nothing,
    /// A read into a slot.
    Read { token: Token, slot: Slot },
    /// A write.
    Write {
        token: Option<Token>,
        slot: Option<Slot>,
    },
    /// An atomic, whose old value is written to a cell. `is_own` if it operates on this machine's
    /// own memory.
    Atomic {
        token: Token,
        cell: u32,
        is_own: bool,
    },
    /// The objects of a checked read.
    Objects(CheckedId),
    /// The last headers of a checked read's objects.
    Headers(CheckedId),
}

impl Purpose {
    fn is_awaited(&self) -> bool {
        !matches!(
            self,
            Purpose::Nothing
                | Purpose::Write {
                    token: None,
                    slot: None
                }
        )
    }

    /// Returns the slot of the request.
    pub(super) fn into_slot(self) -> Option<Slot> {
        match self {
            Purpose::Read { slot, .. } => Some(slot),
            Purpose::Write { slot, .. } => slot,
            _ => None,
        }
    }
}

/// The location of a request's data on this machine.
pub(super) enum Data<'a> {
    /// The request has no data.
    None,
    /// Words that are copied when the request is prepared.
    Inline(&'a [u64]),
    /// Registered memory.
    Registered { address: u64, bytes: u32, key: u32 },
}

/// The operation of a request, and its address on the other machine.
pub(super) enum Action {
    Read {
        at: u64,
        key: u32,
    },
    Write {
        at: u64,
        key: u32,
    },
    /// Wakes a worker of the other machine after all earlier requests have landed.
    Notify {
        worker: u16,
    },
    CompareSwap {
        at: u64,
        key: u32,
        expected: u64,
        new: u64,
    },
    FetchAdd {
        at: u64,
        key: u32,
        delta: u64,
    },
}

struct Entry {
    request: ibv_send_wr,
    memory: ibv_sge,
    purpose: Purpose,
    member: u16,
}

impl Entry {
    /// Returns the end of the request, if it has a completion that is awaited.
    #[inline]
    fn end(&mut self) -> Option<Ended> {
        let purpose = std::mem::replace(&mut self.purpose, Purpose::Nothing);
        let member = self.member;
        purpose.is_awaited().then_some(Ended { member, purpose })
    }
}

/// The end of one request.
pub(super) struct Ended {
    /// Index of the worker that posted the request, among the workers that share the connection.
    pub(super) member: u16,
    pub(super) purpose: Purpose,
}

/// A connected queue pair and its requests.
pub(super) struct Connection {
    pair: QueuePair,
    /// Ring of entries; its length is a power of two.
    entries: Box<[Entry]>,
    /// Words of inline writes, `inline_words` per entry.
    inline: Box<[u64]>,
    inline_words: usize,
    /// Numbers of requests ended, posted and prepared so far.
    ended: u64,
    posted: u64,
    prepared: u64,
    /// Number of requests posted up to the last signalled one.
    signalled: u64,
    /// Number of requests posted since the last signalled one.
    unsignalled: u32,
    /// Whether one of the requests since the last signalled one has an awaited completion.
    awaited: bool,
    /// Whether the device rejected a post. It is unknown which of its requests were accepted, so no
    /// later completion is treated as successful.
    dead: bool,
}

// SAFETY: the pointers in the entries point to the entries themselves, which do not move with this
// value.
unsafe impl Send for Connection {}

impl Connection {
    /// Creates a connection over a connected queue pair that was created for `depth` requests.
    pub(super) fn new(pair: QueuePair, depth: u32) -> Self {
        let inline_words = pair.inline_bytes as usize / WORD_BYTES;
        let entry = || Entry {
            request: ibv_send_wr::default(),
            memory: ibv_sge::default(),
            purpose: Purpose::Nothing,
            member: 0,
        };
        // The largest power of two that is at most the queue pair's number of requests.
        let depth = 1usize << depth.ilog2();
        Self {
            pair,
            entries: (0..depth).map(|_| entry()).collect(),
            inline: vec![0; depth * inline_words].into(),
            inline_words,
            ended: 0,
            posted: 0,
            prepared: 0,
            signalled: 0,
            unsignalled: 0,
            awaited: false,
            dead: false,
        }
    }

    #[inline]
    fn index(&self, count: u64) -> usize {
        count as usize & (self.entries.len() - 1)
    }

    /// Returns the number of requests for which the empty connection has room.
    #[inline]
    pub(super) fn depth(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of requests for which there is room now.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.entries.len() - (self.prepared - self.ended) as usize
    }

    /// Returns whether requests are prepared and not posted.
    #[inline]
    pub(super) fn has_prepared(&self) -> bool {
        self.prepared > self.posted && !self.dead
    }

    /// Returns whether the device rejected a post, so that the connection must be torn down.
    #[inline]
    pub(super) fn is_dead(&self) -> bool {
        self.dead
    }

    /// Returns the number of requests that have ended, if the completion of a later one is outstanding.
    pub(super) fn ended_before_outstanding(&self) -> Option<u64> {
        (self.signalled > self.ended && !self.dead).then_some(self.ended)
    }

    /// Prepares a request. The next [`Connection::flush`] posts it.
    ///
    /// # Panics
    /// If there is no room, or there are more inline words than the queue pair supports.
    #[inline]
    pub(super) fn prepare(
        &mut self,
        action: &Action,
        data: &Data<'_>,
        fence: bool,
        member: u16,
        purpose: Purpose,
    ) {
        assert!(
            self.room() > 0,
            "the send queue has no room for another work request"
        );
        let index = self.index(self.prepared);
        self.prepared += 1;
        let entry = &mut self.entries[index];
        let request = &mut entry.request;
        request.send_flags = if fence { IBV_SEND_FENCE } else { 0 };
        request.num_sge = 1;
        match *data {
            Data::None => request.num_sge = 0,
            Data::Inline(words) => {
                let first = index * self.inline_words;
                assert!(
                    words.len() <= self.inline_words,
                    "an inline write is longer than the queue pair supports"
                );
                let copy = &mut self.inline[first..][..words.len()];
                copy.copy_from_slice(words);
                entry.memory = ibv_sge {
                    addr: copy.as_ptr() as u64,
                    length: (words.len() * WORD_BYTES) as u32,
                    lkey: 0,
                };
                request.send_flags |= IBV_SEND_INLINE;
            }
            Data::Registered {
                address,
                bytes,
                key,
            } => {
                entry.memory = ibv_sge {
                    addr: address,
                    length: bytes,
                    lkey: key,
                };
            }
        }
        set_action(request, action);
        request.sg_list = &raw mut entry.memory;
        entry.purpose = purpose;
        entry.member = member;
    }

    /// Posts prepared requests with one doorbell, limited by `credit`: each request with an awaited
    /// completion takes one credit. Completions have `tag` in the upper half of `wr_id` and the
    /// request's number in the lower half.
    ///
    /// # Errors
    /// The driver's error code: the caller must break the connection.
    #[inline]
    pub(super) fn flush(&mut self, tag: u64, credit: &mut i64) -> Result<(), i32> {
        if self.dead {
            return Ok(());
        }
        let (mut last, mut spent) = (self.posted, 0);
        while last < self.prepared {
            let awaited = self.entries[self.index(last)].purpose.is_awaited();
            if awaited && spent >= *credit {
                break;
            }
            spent += i64::from(awaited);
            last += 1;
        }
        if last == self.posted {
            return Ok(());
        }
        *credit -= spent;
        let first = self.index(self.posted);
        let signal_limit = self.entries.len() as u32 / 4;
        for count in self.posted..last {
            let index = self.index(count);
            self.unsignalled += 1;
            self.awaited |= self.entries[index].purpose.is_awaited();
            let is_last = count + 1 == last;
            let signal = self.unsignalled >= signal_limit
                || self.awaited && (is_last || self.unsignalled >= SIGNAL_EVERY);
            let next = match is_last {
                true => std::ptr::null_mut(),
                false => &raw mut self.entries[self.index(count + 1)].request,
            };
            let request = &mut self.entries[index].request;
            request.wr_id = tag | u64::from(count as u32);
            request.next = next;
            if signal {
                request.send_flags |= IBV_SEND_SIGNALED;
                (self.unsignalled, self.awaited) = (0, false);
                self.signalled = count + 1;
            }
        }
        self.posted = last;
        let first = &raw mut self.entries[first].request;
        // SAFETY: the list was linked above. Its entries stay in place and are not prepared again
        // before they have ended. The same holds for inline words. Registered memory belongs to
        // slots and cells, which are released when the request has ended.
        let posted = unsafe { self.pair.post(first) };
        self.dead = posted.is_err();
        posted
    }

    /// Returns the next awaited end among the requests up to `number`, all of which have ended.
    /// `None` if there is no further one.
    #[inline]
    pub(super) fn next_end(&mut self, number: u32) -> Option<Ended> {
        while !self.dead
            && self.ended < self.posted
            && number.wrapping_sub(self.ended as u32) as i32 >= 0
        {
            let index = self.index(self.ended);
            self.ended += 1;
            let ended = self.entries[index].end();
            if ended.is_some() {
                return ended;
            }
        }
        None
    }

    /// Destroys the queue pair, so that the device no longer accesses the memory of requests. Then
    /// passes every prepared or posted request whose completion is awaited to `end`. Returns the
    /// number of passed requests that had been posted.
    pub(super) fn tear_down(self, end: &mut impl FnMut(Ended)) -> u32 {
        let Self {
            pair,
            mut entries,
            ended,
            posted,
            prepared,
            ..
        } = self;
        // Slots and cells may be reused only after this.
        drop(pair);
        let mask = entries.len() as u64 - 1;
        let mut returned = 0;
        for count in ended..prepared {
            if let Some(ended) = entries[(count & mask) as usize].end() {
                returned += u32::from(count < posted);
                end(ended);
            }
        }
        returned
    }
}

fn set_action(request: &mut ibv_send_wr, action: &Action) {
    let (opcode, place) = match *action {
        Action::Read { at, key } => (IBV_WR_RDMA_READ, (at, key)),
        Action::Write { at, key } => (IBV_WR_RDMA_WRITE, (at, key)),
        Action::Notify { worker } => {
            request.imm_data = u32::from(worker).to_be();
            (IBV_WR_RDMA_WRITE_WITH_IMM, (0, 0))
        }
        Action::CompareSwap {
            expected,
            new,
            at,
            key,
        } => {
            request.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
            request.wr.atomic = atomic {
                remote_addr: at,
                compare_add: expected,
                swap: new,
                rkey: key,
            };
            return;
        }
        Action::FetchAdd { at, key, delta } => {
            request.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
            request.wr.atomic = atomic {
                remote_addr: at,
                compare_add: delta,
                swap: 0,
                rkey: key,
            };
            return;
        }
    };
    request.opcode = opcode;
    let (remote_addr, rkey) = place;
    request.wr.rdma = rdma { remote_addr, rkey };
}
