//! Continuations that wait for room: in rings and logs, where peers make room, and in the endpoint and its arena, where this
//! worker's own completions make room.
//!
//! Invariant: while a continuation waits for a slot of the arena, no operation that began later takes a slot that the
//! continuation could use. Without this rule, reads that start new reads from their completions would take every slot
//! before the waiting continuations are resumed (`farm-sim/tests/fairness.rs`).
//!
//! Records that are handed over to another worker of the machine compete with this worker's own messages to that worker. When they
//! have filled its ring, the waiting continuations are resumed before the next records are handed over, until they have sent as many
//! messages.

use std::collections::VecDeque;

use super::{Cont, Worker};
use crate::marks;
use crate::time::Nanos;

/// Longest time between two attempts of continuations that wait for room in rings, in nanoseconds: a peer may report
/// the head of a ring without a message.
const RETRY_NANOS: u64 = 20_000;

/// Most messages that continuations may send before records are handed over: they may not be able to send any.
const MOST_OWED: u64 = 64;

/// If at least this many reads wait for room of the endpoint, no other read may start: more of them would only make
/// later reads wait longer.
const MOST_UNPOSTED: usize = 8;

/// Continuations that wait for room on one worker.
pub(super) struct Room {
    /// Continuations that wait for room in rings, logs and reply reservations, oldest first.
    rings: VecDeque<Cont<()>>,
    /// Latest time at which the continuations in `rings` are resumed.
    retry: Nanos,
    /// The number of messages that they may send before more records are handed over to other workers of the machine.
    owed: u64,
    /// Continuations that wait for slots of the arena.
    slots: SlotWaiters,
    /// Continuations that wait for room of the endpoint for a log record, oldest first.
    writers: VecDeque<Cont<()>>,
    /// While `writers` are being resumed, those for which there was still no room.
    refused: Vec<Cont<()>>,
    /// Whether `writers` are being resumed.
    serving_writers: bool,
}

/// Continuations that wait for slots of the arena.
struct SlotWaiters {
    /// Header reads of commits that hold locks. They are resumed first, and may use the slots kept for sending. In each
    /// turn one read of each class is resumed before them, so that header reads do not block other reads for ever.
    headers: VecDeque<Cont<()>>,
    /// Reads by the class of their slot, oldest first in each class.
    by_class: Vec<VecDeque<Cont<()>>>,
    /// Number of continuations in `headers` and `by_class`.
    count: usize,
    /// Whether continuations are being resumed. These may take any slot.
    serving: bool,
}

impl SlotWaiters {
    /// Returns the smallest class that waiting continuations can use.
    fn first_class(&self) -> Option<usize> {
        match self.headers.is_empty() {
            true => self.by_class.iter().position(|queue| !queue.is_empty()),
            false => Some(0),
        }
    }
}

impl Room {
    pub(super) fn new(classes: usize, operations: usize) -> Self {
        Self {
            rings: VecDeque::with_capacity(operations),
            retry: Nanos::default(),
            owed: 0,
            slots: SlotWaiters {
                headers: VecDeque::with_capacity(operations),
                by_class: vec![VecDeque::new(); classes],
                count: 0,
                serving: false,
            },
            writers: VecDeque::with_capacity(operations),
            refused: Vec::new(),
            serving_writers: false,
        }
    }

    /// Returns whether header reads wait. If so, later header reads must wait after them.
    #[inline]
    pub(super) fn headers_go_first(&self) -> bool {
        !self.slots.headers.is_empty() && !self.slots.serving
    }

    /// Returns the number of continuations that wait.
    pub(super) fn waiting(&self) -> usize {
        self.rings.len() + self.slots.count + self.writers.len()
    }
}

impl Worker {
    /// Calls the continuation when there may be room in rings, logs or reply reservations again, after a send or a call
    /// that returned [`CallError::Busy`](crate::messaging::CallError::Busy). To wait for slots of the arena, use
    /// [`Worker::when_slot`].
    pub fn when_room(&mut self, cont: Cont<()>) {
        marks::mark("message: room waited for");
        self.room.rings.push_back(cont);
    }

    /// Calls the continuation when the endpoint may have room for a log record again, after [`Worker::append_log`] returned
    /// [`CallError::Busy`](crate::messaging::CallError::Busy).
    pub fn when_write_room(&mut self, cont: Cont<()>) {
        marks::mark("log: room of the endpoint waited for");
        match self.room.serving_writers {
            true => self.room.refused.push(cont),
            false => self.room.writers.push_back(cont),
        }
    }

    /// Returns whether a new log record must wait with [`Worker::when_write_room`], because others wait that hold locks.
    pub fn writers_wait(&self) -> bool {
        !self.room.writers.is_empty() && !self.room.serving_writers
    }

    /// Resumes continuations that wait for room of the endpoint, until it has refused as many as there are machines: on some
    /// fabrics each machine has room of its own. So the cost does not grow with the number that waits.
    pub(super) fn serve_writers(&mut self) -> bool {
        if self.room.writers.is_empty() {
            return false;
        }
        let (before, most) = (self.room.writers.len(), self.machines().len());
        self.room.serving_writers = true;
        while self.room.refused.len() < most
            && let Some(next) = self.room.writers.pop_front()
        {
            next.resume(self, ());
        }
        self.room.serving_writers = false;
        while let Some(refused) = self.room.refused.pop() {
            self.room.writers.push_front(refused);
        }
        self.room.writers.len() < before
    }

    /// Calls the continuation when the arena has a slot of at least `bytes` for it, after a read that returned
    /// [`ReadError::Busy`](super::ReadError::Busy). Continuations of one class get slots in the order in which they
    /// began to wait, and before any operation that did not wait.
    pub fn when_slot(&mut self, bytes: usize, cont: Cont<()>) {
        marks::mark("read: slot waited for");
        let class = self.arena().class_of(bytes);
        self.room.slots.by_class[class].push_back(cont);
        self.room.slots.count += 1;
        self.close_slots();
    }

    /// As [`Worker::when_slot`], for [`Worker::read_header`]. A commit that validates holds locks, so its header reads
    /// are resumed before other reads, except one of each class per turn.
    pub fn when_header_slot(&mut self, cont: Cont<()>) {
        marks::mark("read: header slot waited for");
        self.room.slots.headers.push_back(cont);
        self.room.slots.count += 1;
        self.close_slots();
    }

    /// Reserves the slots that waiting continuations can use: operations that did not wait cannot take them. While
    /// [`MOST_UNPOSTED`] reads wait for room of the endpoint, reserves all slots.
    pub(super) fn close_slots(&mut self) {
        if self.room.slots.serving {
            return;
        }
        let first = match self.unposted.len() >= MOST_UNPOSTED {
            true => Some(0),
            false => self.room.slots.first_class(),
        };
        self.arena().close_from(first);
    }

    /// Resumes continuations that wait for slots, while there are slots for them. Returns whether fewer continuations
    /// wait now than before.
    pub(super) fn serve_slot_waiters(&mut self) -> bool {
        if self.room.slots.count == 0 {
            return false;
        }
        let before = self.room.slots.count;
        self.room.slots.serving = true;
        self.arena().close_from(None);
        if !self.room.slots.headers.is_empty() {
            self.serve_reads(1);
        }
        for _ in 0..self.room.slots.headers.len() {
            if !self.arena().has_free_to_send() {
                break;
            }
            let next = self.room.slots.headers.pop_front();
            self.resume_slot_waiter(next);
        }
        self.serve_reads(usize::MAX);
        self.room.slots.serving = false;
        self.close_slots();
        self.room.slots.count < before
    }

    /// Resumes continuations that wait for slots to read into, at most `most` of each class. Large slots also serve
    /// small reads, so continuations that need large slots are resumed first.
    fn serve_reads(&mut self, most: usize) {
        for class in (0..self.room.slots.by_class.len()).rev() {
            for _ in 0..most.min(self.room.slots.by_class[class].len()) {
                if !self.arena().has_free(class) || self.unposted.len() >= MOST_UNPOSTED {
                    break;
                }
                let next = self.room.slots.by_class[class].pop_front();
                self.resume_slot_waiter(next);
            }
        }
    }

    fn resume_slot_waiter(&mut self, waiter: Option<Cont<()>>) {
        if let Some(cont) = waiter {
            self.room.slots.count -= 1;
            cont.resume(self, ());
        }
    }

    /// Resumes continuations that wait for room in rings. Room is made by messages, which `moved` indicates, or by a
    /// report of a ring's head, which nothing indicates. Therefore the continuations are also resumed every
    /// [`RETRY_NANOS`].
    pub(super) fn retry_for_room(&mut self, moved: bool) {
        if self.room.rings.is_empty() || !moved && self.now < self.room.retry {
            return;
        }
        self.room.retry = self.now + RETRY_NANOS;
        let sent = self.messaging.sent();
        for _ in 0..self.room.rings.len() {
            let Some(cont) = self.room.rings.pop_front() else {
                break;
            };
            cont.resume(self, ());
        }
        let sent = self.messaging.sent() - sent;
        self.room.owed = self.room.owed.saturating_sub(sent);
    }

    /// Returns whether continuations that wait for room in rings are to be resumed before records are handed over.
    pub(super) fn waiters_go_first(&self) -> bool {
        self.room.owed > 0 && !self.room.rings.is_empty()
    }

    /// Notes the records that a poll has handed over, if they have filled the ring of another worker.
    pub(super) fn owe_waiters(&mut self) {
        if let Some(records) = self.messaging.handed_over_until_full() {
            self.room.owed = (self.room.owed + records).min(MOST_OWED);
        }
    }
}
