//! One connection's work requests: prepared in place, posted in batches by one doorbell, and ended in the
//! order in which they were posted.
//!
//! Requests lie in a ring of entries, which are never moved: the driver is given pointers to them. Three
//! counts tell which are free, which are prepared and which the device has. A reliable connection ends
//! requests in order, so the end of one that is signalled is the end of all before it, and few need be.

use super::abi::*;
use super::checked::CheckedId;
use super::queue_pair::QueuePair;
use crate::fabric::{Slot, Token};
use crate::mem::WORD_BYTES;

/// Of requests that somebody waits for, at least one in so many is signalled, so that those early in a
/// long batch do not wait for its end.
const SIGNAL_EVERY: u32 = 8;

/// What the end of a request is the end of.
#[derive(Debug)]
pub(super) enum Purpose {
    /// Nothing that anybody waits for.
    Nothing,
    /// A read into a slot.
    Read { token: Token, slot: Slot },
    /// A write.
    Write {
        token: Option<Token>,
        slot: Option<Slot>,
    },
    /// An atomic, whose old value comes to a cell; perhaps of this machine's own memory.
    Atomic {
        token: Token,
        cell: u32,
        is_own: bool,
    },
    /// The objects of a checked read.
    Objects(CheckedId),
    /// The last of their headers.
    Headers(CheckedId),
}

impl Purpose {
    fn is_waited_for(&self) -> bool {
        !matches!(
            self,
            Purpose::Nothing
                | Purpose::Write {
                    token: None,
                    slot: None
                }
        )
    }

    /// The slot that went with it.
    pub(super) fn into_slot(self) -> Option<Slot> {
        match self {
            Purpose::Read { slot, .. } => Some(slot),
            Purpose::Write { slot, .. } => slot,
            _ => None,
        }
    }
}

/// Where a request's data is on this machine.
pub(super) enum Data<'a> {
    /// Nowhere: it carries none.
    None,
    /// Words that are copied now.
    Inline(&'a [u64]),
    /// Registered memory.
    Registered { address: u64, bytes: u32, key: u32 },
}

/// What the device is to do, and where at the other machine.
pub(super) enum Action {
    Read {
        at: u64,
        key: u32,
    },
    Write {
        at: u64,
        key: u32,
    },
    /// Wakes a worker of the other machine, once all before it has landed.
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
    /// Takes its end, if that is waited for.
    #[inline]
    fn end(&mut self) -> Option<Ended> {
        let purpose = std::mem::replace(&mut self.purpose, Purpose::Nothing);
        let member = self.member;
        purpose.is_waited_for().then_some(Ended { member, purpose })
    }
}

/// One end of a request.
pub(super) struct Ended {
    /// Whose it was, of those that share the connection.
    pub(super) member: u16,
    pub(super) purpose: Purpose,
}

/// A connected queue pair and its requests.
pub(super) struct Connection {
    pair: QueuePair,
    /// A power of two of them.
    entries: Box<[Entry]>,
    /// Words of inline writes, of each entry `inline_words`.
    inline: Box<[u64]>,
    inline_words: usize,
    /// How many have ever been ended, posted, prepared.
    ended: u64,
    posted: u64,
    prepared: u64,
    /// Posted since the last that is signalled.
    unsignalled: u32,
    /// Whether somebody waits for one of those.
    waited_for: bool,
    /// The device refused requests: what it took of the last ones is not known, so nothing more is believed
    /// to have ended well.
    dead: bool,
}

// SAFETY: the pointers among the entries are to the entries themselves, which move with nothing.
unsafe impl Send for Connection {}

impl Connection {
    /// Over a connected queue pair that was made for `depth` requests.
    pub(super) fn new(pair: QueuePair, depth: u32) -> Self {
        let inline_words = pair.inline_bytes as usize / WORD_BYTES;
        let entry = || Entry {
            request: ibv_send_wr::default(),
            memory: ibv_sge::default(),
            purpose: Purpose::Nothing,
            member: 0,
        };
        // The greatest power of two that the queue pair has room for.
        let depth = 1usize << depth.ilog2();
        Self {
            pair,
            entries: (0..depth).map(|_| entry()).collect(),
            inline: vec![0; depth * inline_words].into(),
            inline_words,
            ended: 0,
            posted: 0,
            prepared: 0,
            unsignalled: 0,
            waited_for: false,
            dead: false,
        }
    }

    #[inline]
    fn index(&self, count: u64) -> usize {
        count as usize & (self.entries.len() - 1)
    }

    /// Most requests that it has room for.
    #[inline]
    pub(super) fn depth(&self) -> usize {
        self.entries.len()
    }

    /// How many requests there is room for.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.entries.len() - (self.prepared - self.ended) as usize
    }

    /// Whether some are prepared and not posted.
    #[inline]
    pub(super) fn has_prepared(&self) -> bool {
        self.prepared > self.posted && !self.dead
    }

    /// Whether it is to be torn down, for the device refused a post.
    #[inline]
    pub(super) fn is_dead(&self) -> bool {
        self.dead
    }

    /// Prepares a request. It is posted by the next [`Connection::flush`].
    ///
    /// # Panics
    /// If there is no room, or inline words are more than the queue pair takes.
    #[inline]
    pub(super) fn prepare(
        &mut self,
        action: &Action,
        data: &Data<'_>,
        fence: bool,
        member: u16,
        purpose: Purpose,
    ) {
        assert!(self.room() > 0, "no room for a request");
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
                assert!(words.len() <= self.inline_words, "an inline write too long");
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

    /// Posts what is prepared, by one doorbell, as far as `credit` goes: each request that somebody waits
    /// for takes one. Their ends come by `tag` with their number in its lower half.
    ///
    /// # Errors
    /// The driver's code: the connection is to be broken.
    #[inline]
    pub(super) fn flush(&mut self, tag: u64, credit: &mut i64) -> Result<(), i32> {
        if self.dead {
            return Ok(());
        }
        let (mut last, mut spent) = (self.posted, 0);
        while last < self.prepared {
            let waited_for = self.entries[self.index(last)].purpose.is_waited_for();
            if waited_for && spent >= *credit {
                break;
            }
            spent += i64::from(waited_for);
            last += 1;
        }
        if last == self.posted {
            return Ok(());
        }
        *credit -= spent;
        let first = self.index(self.posted);
        let at_latest = self.entries.len() as u32 / 4;
        for count in self.posted..last {
            let index = self.index(count);
            self.unsignalled += 1;
            self.waited_for |= self.entries[index].purpose.is_waited_for();
            let is_last = count + 1 == last;
            let signal = self.unsignalled >= at_latest
                || self.waited_for && (is_last || self.unsignalled >= SIGNAL_EVERY);
            let next = match is_last {
                true => std::ptr::null_mut(),
                false => &raw mut self.entries[self.index(count + 1)].request,
            };
            let request = &mut self.entries[index].request;
            request.wr_id = tag | u64::from(count as u32);
            request.next = next;
            if signal {
                request.send_flags |= IBV_SEND_SIGNALED;
                (self.unsignalled, self.waited_for) = (0, false);
            }
        }
        self.posted = last;
        let first = &raw mut self.entries[first].request;
        // SAFETY: the list was linked above, within entries that stay where they are and are not prepared
        // anew before they have ended; inline words stay likewise; registered memory is that of slots and
        // cells, which are given back when the request has ended.
        let posted = unsafe { self.pair.post(first) };
        self.dead = posted.is_err();
        posted
    }

    /// Everything up to the request of that number has ended: the next of those ends that somebody waits
    /// for, until there is none.
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

    /// Tears the queue pair down, and gives what was prepared or posted to `end`: the device has done with
    /// all of it. Answers with how much of what it had was waited for.
    pub(super) fn tear_down(self, end: &mut impl FnMut(Ended)) -> u32 {
        let Self {
            pair,
            mut entries,
            ended,
            posted,
            prepared,
            ..
        } = self;
        // Slots and cells may be used again after this, and not before.
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
