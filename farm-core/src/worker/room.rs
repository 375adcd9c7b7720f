//! Continuations that wait for room: in rings and logs, which peers make, and in the arena, which this
//! worker's own completions make.
//!
//! Invariant: while a continuation waits for a slot of the arena, no operation that came later takes a slot
//! that the continuation could use. Without it, reads that renew themselves from their own completions
//! would take every slot again before the turn comes to those that wait
//! (`farm-sim/tests/fairness.rs`).

use std::collections::VecDeque;

use super::{Cont, Worker};
use crate::marks;
use crate::time::Nanos;

/// Longest time between two attempts of continuations that wait for room in rings, in nanoseconds: a peer
/// may report the head of a ring without a message.
const RETRY_NANOS: u64 = 20_000;

/// Reads that wait for room of the endpoint until no others may begin: more would only make later ones wait longer.
const MOST_UNPOSTED: usize = 8;

/// What waits for room on one worker.
pub(super) struct Room {
    /// Waits for room in rings, logs and reply reservations, oldest first.
    rings: VecDeque<Cont<()>>,
    /// When those are resumed at the latest.
    retry: Nanos,
    /// Waits for slots of the arena, oldest first.
    slots: SlotWaiters,
}

/// Continuations that wait for slots of the arena.
struct SlotWaiters {
    /// Reads of headers by commits that hold locks: they go first, and may use the slots kept to send. One read of
    /// each class goes before them in a turn, so that they do not hold up reads for ever.
    headers: VecDeque<Cont<()>>,
    /// By the class of the slot, each oldest first.
    by_class: Vec<VecDeque<Cont<()>>>,
    /// All of them.
    count: usize,
    /// One of them is being resumed, and may take any slot.
    serving: bool,
}

impl SlotWaiters {
    /// The smallest class that waiting continuations can use.
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
            slots: SlotWaiters {
                headers: VecDeque::with_capacity(operations),
                by_class: vec![VecDeque::new(); classes],
                count: 0,
                serving: false,
            },
        }
    }

    /// Whether headers wait: others wait behind them.
    #[inline]
    pub(super) fn headers_go_first(&self) -> bool {
        !self.slots.headers.is_empty() && !self.slots.serving
    }

    /// Continuations that wait.
    pub(super) fn waiting(&self) -> usize {
        self.rings.len() + self.slots.count
    }
}

impl Worker {
    /// Calls the continuation when there may be room in rings, logs or reply reservations again, after a send
    /// or a call that returned [`CallError::Busy`](crate::messaging::CallError::Busy). For slots of the arena
    /// there is [`Worker::when_slot`].
    pub fn when_room(&mut self, cont: Cont<()>) {
        marks::mark("message: room waited for");
        self.room.rings.push_back(cont);
    }

    /// Calls the continuation when the arena has a slot of at least `bytes` for it, after a read that returned
    /// [`ReadError::Busy`](super::ReadError::Busy). Continuations get slots in the order in which they began to
    /// wait, and before any operation that did not wait.
    pub fn when_slot(&mut self, bytes: usize, cont: Cont<()>) {
        marks::mark("read: slot waited for");
        let class = self.arena().class_of(bytes);
        self.room.slots.by_class[class].push_back(cont);
        self.room.slots.count += 1;
        self.close_slots();
    }

    /// As [`Worker::when_slot`], for [`Worker::read_header`]. A commit that validates holds locks, so it goes
    /// before reads, but for one of each class a turn.
    pub fn when_header_slot(&mut self, cont: Cont<()>) {
        marks::mark("read: header slot waited for");
        self.room.slots.headers.push_back(cont);
        self.room.slots.count += 1;
        self.close_slots();
    }

    /// Promises free slots to the continuations that wait, and all of them while reads wait for room of the
    /// endpoint.
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

    /// Resumes continuations that wait for slots while there are slots for them.
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

    /// Resumes continuations that wait for slots to read into, at most so many of each class. Large slots serve small
    /// reads too, so those that need large ones go first.
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

    /// Resumes continuations that wait for room in rings. Room comes with messages, `moved`, or silently by a
    /// report of a ring's head, hence the retry by time.
    pub(super) fn retry_for_room(&mut self, moved: bool) {
        if self.room.rings.is_empty() || !moved && self.now < self.room.retry {
            return;
        }
        self.room.retry = self.now + RETRY_NANOS;
        for _ in 0..self.room.rings.len() {
            let Some(cont) = self.room.rings.pop_front() else {
                break;
            };
            cont.resume(self, ());
        }
    }
}
