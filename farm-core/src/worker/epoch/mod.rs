//! Epochs: they determine when no operation can hold an address of a freed object any more (`FaRM'14 §3.5`).
//!
//! Every operation that holds addresses runs between [`Worker::pin`] and [`Worker::unpin`]. Each of these two calls
//! costs one addition to a counter of the epoch in which the operation began. A lock-free read makes both calls itself.
//! Code that takes an address out of one read and uses it for another read, or keeps an address from turn to turn, must
//! enclose all of these steps in one operation, which begins before the first read.
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
//! The first worker of a machine coordinates changes of that machine, one at a time. Several machines may do so at the
//! same time, independently of each other. The loss of a machine ends a change without freeing memory, because the
//! operations that the lost machine had in flight are unknown.
//!
//! Files: [`barrier`] determines the actions that follow each event, as a value; this file performs the actions and
//! delivers the messages; [`shortage`] detects that memory is short.

mod barrier;
mod shortage;

pub(super) use barrier::EpochBarrier;
pub(super) use shortage::{Shortage, Source};

use barrier::{Action, Kind, Message};

use super::{Cont, Worker};
use crate::alloc::Cut;
use crate::ids::MachineId;
use crate::marks;
use crate::membership::configuration::Configuration;
use crate::messaging::{CallError, MessageId};

/// To the first worker of the machine: memory is short.
const MEMORY_IS_SHORT: MessageId = MessageId(MessageId::CORE + 20);
/// Within a machine: retire the blocks that are wholly free.
const RETIRE: MessageId = MessageId(MessageId::CORE + 21);
/// To one worker of a machine: end the epoch on all workers of the machine.
const END_EPOCHS: MessageId = MessageId(MessageId::CORE + 22);
/// Within a machine: end the epoch on this worker.
const END_EPOCH: MessageId = MessageId(MessageId::CORE + 23);
/// The reply to [`RETIRE`], [`END_EPOCHS`] or [`END_EPOCH`], with the number of the request.
const DONE: MessageId = MessageId(MessageId::CORE + 24);

/// Number of freed bytes after which a turn frees no further block. Zeroing this many bytes takes tens of microseconds.
const BYTES_PER_TURN: u64 = 1 << 20;

/// Keeps the addresses that an operation has read valid, until [`Worker::unpin`] consumes it. It identifies the epoch
/// in which the operation began. It cannot be copied, so that no operation ends twice: the second end would count as
/// the end of another operation.
///
/// ```compile_fail,E0382
/// # fn twice(worker: &mut farm_core::worker::Worker) {
/// let guard = worker.pin();
/// worker.unpin(guard);
/// worker.unpin(guard); // error: use of moved value
/// # }
/// ```
#[must_use = "an operation that does not end keeps freed memory from being used again"]
#[derive(Debug)]
pub struct EpochGuard {
    /// Whether the number of the epoch in which the operation began is odd.
    odd: bool,
}

/// Counts of epoch changes that this worker coordinated, and of its part in the changes of others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpochCounters {
    /// Changes begun, after blocks were retired.
    pub begun: u64,
    /// Changes that ended, and freed what was vacant.
    pub ended: u64,
    /// Changes abandoned because a machine was lost.
    pub abandoned: u64,
    /// Number of times that memory was short and no block of the machine could be freed.
    pub fruitless: u64,
    /// Bytes of blocks freed for use by any class.
    pub bytes: u64,
    /// Requests sent to other machines.
    pub requests: u64,
    /// Requests sent to other workers of this machine.
    pub requests_within: u64,
}

impl Worker {
    /// Begins an operation that will hold addresses of objects that it has not looked up yet, in one turn or over many
    /// (`lockFreeStart` of `FaRM'14` figure 6). Allocates nothing.
    #[inline]
    pub fn pin(&mut self) -> EpochGuard {
        self.epochs.pin()
    }

    /// Ends an operation, which holds no address any more (`lockFreeEnd`).
    ///
    /// # Panics
    /// If the operation began on another worker, and this worker has no open operation in an epoch of that parity.
    #[inline]
    pub fn unpin(&mut self, guard: EpochGuard) {
        if self.epochs.unpin(guard) {
            self.defer(Cont::new(
                |worker: &mut Self, (), ()| worker.on_epoch_event(EpochBarrier::on_drained),
                (),
            ));
        }
    }

    /// Registers `hook` to be called whenever an epoch ends, so that a layer clears the addresses of objects that it
    /// has cached and that may be freed. The hook runs from the event loop, never within a call of a layer.
    pub fn on_end_of_epoch(&mut self, hook: fn(&mut Worker)) {
        self.end_of_epoch_hooks.push(hook);
    }

    /// Returns the number of this worker's epoch, which never decreases.
    pub fn epoch(&self) -> u64 {
        self.epochs.epoch()
    }

    /// Returns the counts of epoch changes so far.
    pub fn epoch_counters(&self) -> EpochCounters {
        self.epochs.counters()
    }

    pub(super) fn register_epoch_handlers(&mut self) {
        self.register(MEMORY_IS_SHORT, |worker, _, _| {
            let now = worker.now;
            worker.on_epoch_event(|epochs| epochs.on_shortage_report(now));
        });
        self.register(RETIRE, |worker, request, body| {
            worker.on_epoch_message(body, |epochs, number| {
                epochs.on_retire(request.from, number)
            });
        });
        self.register(END_EPOCHS, |worker, request, body| {
            worker.on_epoch_message(body, |epochs, number| {
                epochs.on_end_epochs(request.from, number)
            });
        });
        self.register(END_EPOCH, |worker, request, body| {
            worker.on_epoch_message(body, |epochs, number| {
                epochs.on_end_epoch(request.from, number)
            });
        });
        self.register(DONE, |worker, _, body| {
            worker.on_epoch_message(body, EpochBarrier::on_done);
        });
    }

    /// Handles a message with the number of a request. Ignores bodies of another length.
    fn on_epoch_message(&mut self, body: &[u8], event: impl FnOnce(&mut EpochBarrier, u64)) {
        if let Ok(number) = body.try_into() {
            self.on_epoch_event(|epochs| event(epochs, u64::from_le_bytes(number)));
        }
    }

    fn on_epoch_event(&mut self, event: impl FnOnce(&mut EpochBarrier)) {
        event(&mut self.epochs);
        self.perform_epoch_actions((), ());
    }

    /// Handles a shortage of memory: the machine reclaims what it can, unless it does so already. Layers call this
    /// within their allocations, so the first action is left to the event loop.
    #[cold]
    pub(super) fn memory_is_short(&mut self, shortage: Shortage) {
        self.epochs.on_shortage(self.now, shortage);
        // Reports are made at intervals, while every allocation may find that memory is short.
        if self.epochs.has_actions() {
            self.defer(Cont::new(Self::perform_epoch_actions, ()));
        }
    }

    /// Handles the loss of a machine.
    pub(super) fn abandon_epoch_change(&mut self) {
        self.epochs.on_lost(self.now);
    }

    /// Handles that a machine left the cluster in order.
    pub(super) fn end_epochs_without(&mut self, machine: MachineId) {
        self.epochs.on_left(self.now, machine);
    }

    /// Handles that a configuration is in effect: those that it does not have, and that are not connected, use no memory any more.
    pub(super) fn end_epochs_without_lost(&mut self, configuration: &Configuration) {
        let machines = self.machines().iter().map(|machine| machine.0);
        let is_left = |machine: &MachineId| {
            configuration.running_on(*machine).is_none() && !self.is_linked_to(*machine)
        };
        for machine in machines.filter(is_left).collect::<Vec<_>>() {
            self.end_epochs_without(machine);
        }
    }

    fn perform_epoch_actions(&mut self, (): (), (): ()) {
        while let Some(action) = self.epochs.next_action() {
            match action {
                Action::Send(message) => self.send_epoch_message(message),
                Action::ReportShortage(first) => {
                    // If the ring has no room, the next failed allocation reports again.
                    if self.send(first, MEMORY_IS_SHORT, &[]).is_err() {
                        marks::mark("epoch: no room to tell that memory is short");
                    }
                }
                Action::Retire => _ = self.slab.retire(&mut Source::of(&self.store)),
                Action::Cut => {
                    let cut = self.store.cut();
                    self.epochs.on_cut(self.now, cut);
                }
                Action::ClearCaches => {
                    for hook in 0..self.end_of_epoch_hooks.len() {
                        let hook = self.end_of_epoch_hooks[hook];
                        hook(self);
                    }
                }
                Action::Free(cut) => self.free_vacant_blocks(cut, ()),
            }
        }
    }

    fn send_epoch_message(&mut self, message: Message) {
        let id = match message.kind {
            Kind::Retire => RETIRE,
            Kind::EndEpochs => END_EPOCHS,
            Kind::EndEpoch => END_EPOCH,
            Kind::Done => DONE,
        };
        match self.send(message.to, id, &[&message.number.to_le_bytes()]) {
            Ok(()) => self.epochs.on_sent(message),
            Err(CallError::Busy) => {
                if self.epochs.on_blocked(message) {
                    self.when_room(Cont::new(
                        |worker: &mut Self, (), ()| worker.on_epoch_event(EpochBarrier::on_room),
                        (),
                    ));
                }
            }
            Err(_) => self.epochs.on_unsendable(self.now, message),
        }
    }

    /// Frees the blocks that were vacant before the cut, a bounded number of bytes per turn.
    fn free_vacant_blocks(&mut self, cut: Cut, (): ()) {
        let mut freed = 0;
        let ended = loop {
            if freed >= BYTES_PER_TURN {
                break false;
            }
            match self.store.free_vacant_before(cut) {
                Ok(Some(bytes)) => freed += bytes,
                Ok(None) => break true,
                Err(error) => {
                    tracing::error!(%error, "freeing retired blocks failed; the epoch change ends without the remaining blocks");
                    break true;
                }
            }
        };
        self.epochs.on_freed(freed);
        match ended {
            true => self.epochs.on_all_freed(self.now),
            false => self.defer(Cont::new(Self::free_vacant_blocks, cut)),
        }
    }
}
