//! Epochs: they determine when no operation can hold an address of a freed object any more (`FaRM'14 §3.5`).
//!
//! Every operation that holds addresses runs between [`Worker::begin_operation`] and [`Worker::end_operation`]: two
//! additions to a counter of the epoch in which it began. Each lock-free read does so itself. Code that takes an
//! address out of one read and uses it for another, or keeps an address from turn to turn, must enclose all of that in
//! one operation, which begins before the first read.
//!
//! ```text
//!  first worker of a machine      its other workers       first worker of another machine    its others
//!       │ retire ─────────────────────▶│                              │                          │
//!       │◀──────────── retired ────────│                              │                          │
//!    a cut of the retired blocks       │                              │                          │
//!       │ end of epoch ───────────────▶│                              │                          │
//!       │ end of epoch ──────────────────────────────────────────────▶│ end of epoch ───────────▶│
//!       │   (a new epoch begins; operations of the old one continue)  │                          │
//!       │◀──────────── ended ──────────│                              │◀────────── ended ────────│
//!       │◀──────────────────────────────────────────────── ended ─────│                          │
//!    blocks that were retired before the cut and are still vacant are freed for any class
//! ```
//!
//! "It sends an end of epoch request to the threads on all machines (we aggregate messages to/from the
//! same machine). When a thread receives this request, it clears any cached pointers, starts a new
//! epoch, and continues processing operations in the new epoch. Once all transactions and read-only
//! operations that started in previous epochs complete, the thread sends a reply to the request."
//!
//! Why it suffices: a block is retired when its last object was freed, by a transaction that has committed. An
//! operation that begins after that finds no pointer to any of the block's objects. It finds no stored pointer, because
//! the transaction that frees an object also removes the pointers to it. It finds no cached pointer, because
//! [`Worker::on_end_of_epoch`] clears the caches. A worker begins its new epoch after the cut, and replies when every
//! operation that began before has ended.
//!
//! All messages are one-way. A call would keep the room for its reply reserved until the operations of another machine
//! have ended, and one of these may wait for that very room.
//!
//! Two counters are enough: a request that arrives while operations of the previous epoch are still open waits until
//! they have ended, and only then begins an epoch. Requests that wait share one epoch. No request is rejected and no
//! operation is delayed.
//!
//! An operation that never ends keeps freed memory, on all machines, from being used for another size class. A
//! transaction whose allocation failed must therefore end before memory can become available: abort, and retry.
//!
//! Files: this file counts operations and replies to requests; `change` sends requests and forwards them.

mod change;

pub use change::EpochCounters;
pub(super) use change::{Changes, Shortage, Source};

use change::Purpose;

use super::{Cont, Worker};
use crate::ids::WorkerRef;
use crate::messaging::MessageId;
use crate::{marks, mutants};

/// To the first worker of the machine: memory is short.
const MEMORY_IS_SHORT: MessageId = MessageId(MessageId::CORE + 20);
/// Within a machine: retire the blocks that are wholly free.
const RETIRE: MessageId = MessageId(MessageId::CORE + 21);
/// To one worker of a machine: end the epoch on all workers of the machine.
const END_EPOCHS: MessageId = MessageId(MessageId::CORE + 22);
/// Within a machine: end the epoch on this worker.
const END_EPOCH: MessageId = MessageId(MessageId::CORE + 23);
/// The reply to one of the last three, with the number of the request.
const DONE: MessageId = MessageId(MessageId::CORE + 24);

/// An operation that is under way; identifies the epoch in which it began. [`Worker::end_operation`] consumes it. It
/// cannot be copied, so that no operation ends twice, which would end another operation's epoch.
///
/// ```compile_fail,E0382
/// # fn twice(worker: &mut farm_core::worker::Worker) {
/// let operation = worker.begin_operation();
/// worker.end_operation(operation);
/// worker.end_operation(operation); // error: use of moved value
/// # }
/// ```
#[must_use = "an operation that does not end keeps freed memory from being used again"]
#[derive(Debug)]
pub struct Operation {
    /// True if the number of its epoch is odd.
    odd: bool,
}

/// A request to be answered when the operations of the previous epoch have ended.
#[derive(Clone, Copy, Debug)]
enum Requester {
    /// Request by another worker of this machine, with the number of its gathering.
    Worker(WorkerRef, u64),
    /// Gathering of this worker, by its number.
    Own(u64),
}

/// The epochs of one worker.
#[derive(Default)]
pub(super) struct Epochs {
    /// Number of the current epoch. Only it and the previous epoch can have open operations.
    number: u64,
    /// Number of open operations, by the parity of the epoch in which they began.
    open: [u64; 2],
    /// Requests to answer when the operations of the previous epoch have ended.
    draining: Vec<Requester>,
    /// Requests that arrived while `draining` was not empty: they need the end of another epoch.
    waiting: Vec<Requester>,
    hooks: Vec<fn(&mut Worker)>,
}

impl Epochs {
    #[inline]
    fn parity(&self) -> usize {
        (self.number & 1) as usize
    }

    /// Returns the number of open operations, of both epochs.
    pub(super) fn open(&self) -> u64 {
        self.open[0] + self.open[1]
    }

    /// Returns the number of requests that were not answered yet.
    pub(super) fn unanswered(&self) -> usize {
        self.draining.len() + self.waiting.len()
    }
}

impl Worker {
    /// Begins an operation that will hold addresses of objects that it has not looked up yet, in one turn or over many
    /// (`lockFreeStart` of `FaRM'14` figure 6). Allocates nothing.
    #[inline]
    pub fn begin_operation(&mut self) -> Operation {
        let parity = self.epochs.parity();
        self.epochs.open[parity] += 1;
        Operation { odd: parity == 1 }
    }

    /// Ends an operation, which holds no address any more (`lockFreeEnd`).
    ///
    /// # Panics
    /// If the operation began on another worker, and this worker has no open operation in an epoch of that parity.
    #[inline]
    pub fn end_operation(&mut self, operation: Operation) {
        let parity = usize::from(operation.odd);
        let open = &mut self.epochs.open[parity];
        *open = open
            .checked_sub(1)
            .expect("the operation began on this worker");
        if *open == 0 && parity != self.epochs.parity() {
            self.defer(Cont::new(Self::epoch_drained, 0));
        }
    }

    /// Registers `hook` to be called whenever an epoch ends, so that a layer clears the addresses of objects that it
    /// has cached and that may be freed. The hook runs from the event loop, never within a call of a layer.
    pub fn on_end_of_epoch(&mut self, hook: fn(&mut Worker)) {
        self.epochs.hooks.push(hook);
    }

    /// Returns the number of this worker's epoch, which never decreases.
    pub fn epoch(&self) -> u64 {
        self.epochs.number
    }

    pub(super) fn register_epoch_handlers(&mut self) {
        self.register(MEMORY_IS_SHORT, |worker, _, _| worker.begin_change());
        self.register(RETIRE, |worker, request, body| {
            if let Some(number) = number(body) {
                worker.retire_blocks();
                worker.send_done(request.from, number);
            }
        });
        self.register(END_EPOCHS, |worker, request, body| {
            if let Some(number) = number(body) {
                worker.end_epochs_on_machine(Purpose::PassedOn(request.from, number));
            }
        });
        self.register(END_EPOCH, |worker, request, body| {
            if let Some(number) = number(body) {
                worker.end_epoch(Requester::Worker(request.from, number));
            }
        });
        self.register(DONE, |worker, _, body| {
            if let Some(number) = number(body) {
                worker.count_reply(number);
            }
        });
    }

    /// Ends this worker's epoch, and answers the request when the operations of that epoch have ended.
    fn end_epoch(&mut self, requester: Requester) {
        if !self.epochs.draining.is_empty() {
            marks::mark("epoch: request waits for the one before");
            return self.epochs.waiting.push(requester);
        }
        self.epochs.draining.push(requester);
        self.begin_epoch();
    }

    fn begin_epoch(&mut self) {
        for hook in 0..self.epochs.hooks.len() {
            let hook = self.epochs.hooks[hook];
            hook(self);
        }
        self.epochs.number += 1;
        let before = self.epochs.parity() ^ 1;
        if self.epochs.open[before] == 0
            || mutants::is_on("epoch answered before old operations ended")
        {
            return self.answer_requesters();
        }
        marks::mark("epoch: operations of the one before are open");
    }

    /// Answers requests, if the last operation of the previous epoch has ended.
    fn epoch_drained(&mut self, _: u64, (): ()) {
        let before = self.epochs.parity() ^ 1;
        if self.epochs.open[before] == 0 && !self.epochs.draining.is_empty() {
            self.answer_requesters();
        }
    }

    fn answer_requesters(&mut self) {
        let mut requesters = std::mem::take(&mut self.epochs.draining);
        for requester in requesters.drain(..) {
            match requester {
                Requester::Worker(requester, number) => self.send_done(requester, number),
                Requester::Own(number) => self.count_reply(number),
            }
        }
        // `waiting` holds the requests that arrived while operations were open. None is added meanwhile, because
        // `draining` is empty now.
        std::mem::swap(&mut self.epochs.waiting, &mut requesters);
        if requesters.is_empty() {
            return;
        }
        self.epochs.draining.append(&mut requesters);
        self.begin_epoch();
    }
}

/// Decodes the number of a gathering from a message.
fn number(body: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(body.try_into().ok()?))
}
