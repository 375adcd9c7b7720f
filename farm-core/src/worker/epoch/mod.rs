//! Epochs: when nobody can hold an address any more of what was freed (`FaRM'14 §3.5`).
//!
//! Every operation that holds addresses stands between [`Worker::begin_operation`] and
//! [`Worker::end_operation`]: two additions to a counter of the epoch in which it began. Each lock-free
//! read does so by itself. Whoever takes an address out of one read and uses it for another, or keeps
//! it from turn to turn, brackets the whole, and begins before the first read.
//!
//! ```text
//!  first worker of a machine      its other workers       first worker of another machine    its others
//!       │ retire ─────────────────────▶│                              │                          │
//!       │◀──────────── retired ────────│                              │                          │
//!    a cut of the retired blocks       │                              │                          │
//!       │ end of epoch ───────────────▶│                              │                          │
//!       │ end of epoch ──────────────────────────────────────────────▶│ end of epoch ───────────▶│
//!       │   (a new epoch begins; operations of the old one go on)     │                          │
//!       │◀──────────── ended ──────────│                              │◀────────── ended ────────│
//!       │◀──────────────────────────────────────────────── ended ─────│                          │
//!    what was retired before the cut, and is vacant still, is freed for any class
//! ```
//!
//! "It sends an end of epoch request to the threads on all machines (we aggregate messages to/from the
//! same machine). When a thread receives this request, it clears any cached pointers, starts a new
//! epoch, and continues processing operations in the new epoch. Once all transactions and read-only
//! operations that started in previous epochs complete, the thread sends a reply to the request."
//!
//! Why it suffices: a block is retired when its last object was freed, by a transaction that has
//! committed. An operation that begins after that finds no pointer to any of its objects: none that is
//! stored, as the transaction that frees an object also removes the pointers to it, and none that is
//! cached, as [`Worker::on_end_of_epoch`] clears them. A worker begins its new epoch after the cut, and
//! answers when every operation has ended that began before.
//!
//! All messages are one-way. A call would keep the room of its reply reserved until the operations of
//! another machine have ended, of which one may wait for just that room.
//!
//! Two counters are enough: a request that comes while operations of the epoch before are still open
//! waits until they have ended, and only then begins an epoch. Requests that wait share one. No request
//! is refused and no operation is delayed.
//!
//! An operation that never ends keeps its machine's and everybody's freed memory in its class. So a
//! transaction that was refused memory must end before memory can come: abort, and try again.
//!
//! Files: this one counts operations and answers requests; `change` asks, and passes on.

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
/// Within a machine: give up the blocks that are wholly free.
const RETIRE: MessageId = MessageId(MessageId::CORE + 21);
/// To one worker of a machine: end the epoch on all of its workers.
const END_EPOCHS: MessageId = MessageId(MessageId::CORE + 22);
/// Within a machine: end the epoch on this worker.
const END_EPOCH: MessageId = MessageId(MessageId::CORE + 23);
/// The answer to one of the last three, by the number that it had.
const DONE: MessageId = MessageId(MessageId::CORE + 24);

/// An operation that is under way: names the epoch in which it began. It ends exactly once, by
/// [`Worker::end_operation`], which takes it: it cannot be copied, so that none can end twice and with that
/// another one's epoch.
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
    /// Whether the number of its epoch is odd.
    odd: bool,
}

/// Who is to hear that the operations of the epoch before have ended.
#[derive(Clone, Copy, Debug)]
enum Asker {
    /// Another worker of this machine, for a gathering of this number.
    Worker(WorkerRef, u64),
    /// A gathering of this worker's.
    Own(u64),
}

/// The epochs of one worker.
#[derive(Default)]
pub(super) struct Epochs {
    /// Of the epoch now; the one before is the only other of which operations may be open.
    number: u64,
    /// Open operations, by the parity of the epoch in which they began.
    open: [u64; 2],
    /// Told when the operations of the epoch before have ended; empty if nobody asked.
    draining: Vec<Asker>,
    /// Asked meanwhile: for them, the next epoch has to end.
    waiting: Vec<Asker>,
    hooks: Vec<fn(&mut Worker)>,
}

impl Epochs {
    #[inline]
    fn parity(&self) -> usize {
        (self.number & 1) as usize
    }

    /// Operations that are open, of either epoch.
    pub(super) fn open(&self) -> u64 {
        self.open[0] + self.open[1]
    }

    /// Requests that were not answered yet.
    pub(super) fn asked(&self) -> usize {
        self.draining.len() + self.waiting.len()
    }
}

impl Worker {
    /// An operation begins that will hold addresses, of objects that it has not looked up yet: in one
    /// turn or over many (`lockFreeStart` of `FaRM'14` figure 6). Allocates nothing.
    #[inline]
    pub fn begin_operation(&mut self) -> Operation {
        let parity = self.epochs.parity();
        self.epochs.open[parity] += 1;
        Operation { odd: parity == 1 }
    }

    /// The operation holds no address any more (`lockFreeEnd`).
    ///
    /// # Panics
    /// If it is another worker's, and this worker has no operation open in such an epoch.
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

    /// Calls `hook` whenever an epoch ends, to clear what a layer has cached of addresses of objects
    /// that may be freed. It runs from the event loop, in no layer's call.
    pub fn on_end_of_epoch(&mut self, hook: fn(&mut Worker)) {
        self.epochs.hooks.push(hook);
    }

    /// The number of this worker's epoch; grows.
    pub fn epoch(&self) -> u64 {
        self.epochs.number
    }

    pub(super) fn register_epoch_handlers(&mut self) {
        self.register(MEMORY_IS_SHORT, |worker, _, _| worker.win_memory());
        self.register(RETIRE, |worker, request, body| {
            if let Some(number) = number(body) {
                worker.retire_blocks();
                worker.tell_done(request.from, number);
            }
        });
        self.register(END_EPOCHS, |worker, request, body| {
            if let Some(number) = number(body) {
                worker.end_epochs_here(Purpose::PassedOn(request.from, number));
            }
        });
        self.register(END_EPOCH, |worker, request, body| {
            if let Some(number) = number(body) {
                worker.end_epoch(Asker::Worker(request.from, number));
            }
        });
        self.register(DONE, |worker, _, body| {
            if let Some(number) = number(body) {
                worker.gathered_one(number);
            }
        });
    }

    /// Ends this worker's epoch; the asker hears when the operations of it have ended.
    fn end_epoch(&mut self, asker: Asker) {
        if !self.epochs.draining.is_empty() {
            marks::mark("epoch: request waits for the one before");
            return self.epochs.waiting.push(asker);
        }
        self.epochs.draining.push(asker);
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
            return self.answer_askers();
        }
        marks::mark("epoch: operations of the one before are open");
    }

    /// The last operation of the epoch before has ended, if it was that.
    fn epoch_drained(&mut self, _: u64, (): ()) {
        let before = self.epochs.parity() ^ 1;
        if self.epochs.open[before] == 0 && !self.epochs.draining.is_empty() {
            self.answer_askers();
        }
    }

    fn answer_askers(&mut self) {
        let mut askers = std::mem::take(&mut self.epochs.draining);
        for asker in askers.drain(..) {
            match asker {
                Asker::Worker(asker, number) => self.tell_done(asker, number),
                Asker::Own(number) => self.gathered_one(number),
            }
        }
        // Those that asked while operations were open, and nobody since, as nothing was drained.
        std::mem::swap(&mut self.epochs.waiting, &mut askers);
        if askers.is_empty() {
            return;
        }
        self.epochs.draining.append(&mut askers);
        self.begin_epoch();
    }
}

/// The number of a gathering, from a message.
fn number(body: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(body.try_into().ok()?))
}
