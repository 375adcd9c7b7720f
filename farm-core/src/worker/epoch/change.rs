//! Epoch changes: the end of an epoch on all machines, by which a machine reclaims the memory of freed objects.
//!
//! The first worker of a machine coordinates, one change at a time. Several machines may do so at the same time,
//! independently of each other. The loss of a machine ends a change without freeing memory, because the operations that
//! the lost machine had in flight are unknown.

use std::collections::VecDeque;
use std::time::Duration;

use super::{DONE, END_EPOCH, END_EPOCHS, MEMORY_IS_SHORT, RETIRE, Requester};
use crate::alloc::{AllocError, Block, BlockSource, Cut, Place, SizeClass};
use crate::ids::{RegionId, WorkerId, WorkerRef};
use crate::messaging::{CallError, MessageId};
use crate::region::store::Store;
use crate::time::Nanos;
use crate::worker::{Cont, Worker};
use crate::{marks, mutants};

/// Shortest time between a change that freed nothing and the next change: workers whose allocations fail may retry as
/// often as they like.
const FRUITLESS_PAUSE: Duration = Duration::from_micros(100);
/// Shortest time between two reports by one worker to the first worker of its machine that an allocation failed.
const REFUSED_REPORT_INTERVAL: Duration = Duration::from_micros(20);
/// The same for reports that memory is low: a size class that repeatedly gives up its last block and takes another one
/// must not keep all machines busy.
const LOW_REPORT_INTERVAL: Duration = Duration::from_millis(1);
/// Bytes zeroed in one turn, which takes tens of microseconds.
const BYTES_PER_TURN: u64 = 1 << 20;

/// Counts of epoch changes that this worker coordinated, and of its part in the changes of others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpochCounters {
    /// Changes begun, after blocks were retired.
    pub begun: u64,
    /// Changes that ended, and freed what was vacant.
    pub ended: u64,
    /// Changes abandoned because a machine was lost.
    pub abandoned: u64,
    /// Times that memory was short and no block of the machine could be freed.
    pub fruitless: u64,
    /// Bytes of blocks freed for use by any class.
    pub bytes: u64,
    /// Requests sent to other machines.
    pub requests: u64,
    /// Requests sent to other workers of this machine.
    pub requests_within: u64,
}

/// Purpose for which a worker gathers the replies of several workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The workers of this machine retire their wholly free blocks.
    Retire,
    /// The end of an epoch that this worker requested.
    Change,
    /// The end of an epoch that a worker of another machine requested, with the number of its request.
    PassedOn(WorkerRef, u64),
}

struct Gathering {
    number: u64,
    purpose: Purpose,
    /// Replies that have not arrived.
    left: usize,
}

/// A message that waits for room.
#[derive(Clone, Copy)]
struct Unsent {
    to: WorkerRef,
    id: MessageId,
    number: u64,
}

/// Requests that a worker sends to others, for itself and on behalf of other machines.
#[derive(Default)]
pub(in crate::worker) struct Changes {
    /// One gathering for this machine's own change, and one for each change of another machine.
    gatherings: Vec<Gathering>,
    last_number: u64,
    unsent: VecDeque<Unsent>,
    is_waiting_for_room: bool,
    /// True while this machine's own change runs: from the first request until the last block is freed.
    under_way: bool,
    /// Cut of the change under way; `freed_bytes` is the bytes that the change has freed.
    cut: Cut,
    freed_bytes: u64,
    not_before: Nanos,
    /// Earliest time of this worker's next report that an allocation failed; `next_low_report` is the same for low
    /// memory.
    next_refused_report: Nanos,
    next_low_report: Nanos,
    counters: EpochCounters,
}

impl Changes {
    /// Returns the number of gatherings, plus one if a change is under way.
    pub(in crate::worker) fn under_way(&self) -> usize {
        self.gatherings.len() + usize::from(self.under_way)
    }
}

/// The blocks of a worker's machine; records whether memory is short.
pub(in crate::worker) struct Source<'a> {
    store: &'a Store,
    /// Shortage that an acquisition has found, if any.
    pub(in crate::worker) shortage: Option<Shortage>,
}

/// How short the memory of a machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::worker) enum Shortage {
    /// The free memory is below the threshold.
    Low,
    /// An allocation failed for lack of memory.
    Refused,
}

impl Shortage {
    /// Returns the shortage that the result of an allocation indicates.
    pub(in crate::worker) fn of<T>(store: &Store, ended: &Result<T, AllocError>) -> Option<Self> {
        match ended {
            Ok(_) => store.is_low().then_some(Shortage::Low),
            Err(AllocError::OutOfMemory { .. } | AllocError::NoRegion(_)) => {
                Some(Shortage::Refused)
            }
            Err(_) => None,
        }
    }
}

impl<'a> Source<'a> {
    pub(in crate::worker) fn of(store: &'a Store) -> Self {
        Self {
            store,
            shortage: None,
        }
    }
}

impl BlockSource for Source<'_> {
    fn has_region(&self, region: RegionId) -> bool {
        BlockSource::has_region(&self.store, region)
    }

    fn acquire(
        &mut self,
        class: SizeClass,
        owner: WorkerId,
        place: Place,
    ) -> Result<Option<Block>, AllocError> {
        let mut store = self.store;
        let acquired = store.acquire(class, owner, place);
        // A full place says nothing about the rest of the memory.
        if !matches!(acquired, Ok(None)) {
            self.shortage = self.shortage.max(Shortage::of(self.store, &acquired));
        }
        acquired
    }

    fn give_back(&mut self, block: Block) {
        let mut store = self.store;
        store.give_back(block);
    }
}

impl Worker {
    /// Returns the counts of epoch changes so far.
    pub fn epoch_counters(&self) -> EpochCounters {
        self.changes.counters
    }

    /// Handles a shortage of memory: the machine reclaims what it can, unless it does so already.
    #[cold]
    pub(in crate::worker) fn memory_is_short(&mut self, shortage: Shortage) {
        let (again, pause) = match shortage {
            Shortage::Low => (&mut self.changes.next_low_report, LOW_REPORT_INTERVAL),
            Shortage::Refused => (
                &mut self.changes.next_refused_report,
                REFUSED_REPORT_INTERVAL,
            ),
        };
        if self.now < *again {
            return;
        }
        *again = self.now.after(pause);
        if self.me.worker == WorkerId::FIRST {
            return self.begin_change();
        }
        let first = WorkerRef::new(self.me.machine, WorkerId::FIRST);
        // If the ring has no room, the next failed allocation retries.
        if self.send(first, MEMORY_IS_SHORT, &[]).is_err() {
            marks::mark("epoch: no room to tell that memory is short");
        }
    }

    /// Begins a change, unless one is under way.
    pub(super) fn begin_change(&mut self) {
        if self.changes.under_way || self.now < self.changes.not_before {
            return;
        }
        self.changes.under_way = true;
        self.changes.freed_bytes = 0;
        self.gather(Purpose::Retire, RETIRE);
    }

    /// Retires this worker's wholly free blocks.
    pub(super) fn retire_blocks(&mut self) {
        self.slab.retire(&mut Source::of(&self.store));
    }

    /// Ends the epoch on all workers of this machine.
    pub(super) fn end_epochs_on_machine(&mut self, purpose: Purpose) {
        self.gather(purpose, END_EPOCH);
    }

    /// Sends requests to all other workers of this machine, and to the other machines if this is a change, and then
    /// does this worker's own part.
    fn gather(&mut self, purpose: Purpose, within: MessageId) {
        let me = self.me;
        self.changes.last_number += 1;
        let number = self.changes.last_number;
        let unsent = &mut self.changes.unsent;
        let before = unsent.len();
        for (machine, workers) in self.messaging.machines() {
            if *machine == me.machine {
                let others = (0..*workers as u16).filter_map(WorkerId::new);
                let others = others.filter(|other| *other != me.worker);
                unsent.extend(others.map(|other| Unsent {
                    to: WorkerRef::new(me.machine, other),
                    id: within,
                    number,
                }));
            } else if purpose == Purpose::Change {
                unsent.push_back(Unsent {
                    to: WorkerRef::new(*machine, WorkerId::FIRST),
                    id: END_EPOCHS,
                    number,
                });
            }
        }
        self.changes.gatherings.push(Gathering {
            number,
            purpose,
            left: 1 + unsent.len() - before,
        });
        self.send_unsent();
        if within == RETIRE {
            self.retire_blocks();
            self.count_reply(number);
        } else {
            self.end_epoch(Requester::Own(number));
        }
    }

    /// Sends the reply to a request.
    pub(super) fn send_done(&mut self, to: WorkerRef, number: u64) {
        let id = DONE;
        self.changes.unsent.push_back(Unsent { to, id, number });
        self.send_unsent();
    }

    /// Sends as many messages as there is room for.
    fn send_unsent(&mut self) {
        for _ in 0..self.changes.unsent.len() {
            let Some(unsent) = self.changes.unsent.pop_front() else {
                break;
            };
            let Unsent { to, id, number } = unsent;
            let counters = &mut self.changes.counters;
            match self
                .messaging
                .send_one_way(&mut self.endpoint, to, id, &[&number.to_le_bytes()])
            {
                Ok(()) if id == DONE => {}
                Ok(()) if to.machine == self.me.machine => counters.requests_within += 1,
                Ok(()) => counters.requests += 1,
                Err(CallError::Busy) => {
                    marks::mark("epoch: message waits for room");
                    self.changes.unsent.push_back(unsent);
                }
                // The requester is lost, or a machine that was sent a request.
                Err(_) if id == DONE => {}
                Err(_) => self.abandon_change(),
            }
        }
        if !self.changes.unsent.is_empty() && !self.changes.is_waiting_for_room {
            self.changes.is_waiting_for_room = true;
            self.when_room(Cont::new(
                |worker, _, ()| {
                    worker.changes.is_waiting_for_room = false;
                    worker.send_unsent();
                },
                (),
            ));
        }
    }

    /// Counts one reply.
    pub(super) fn count_reply(&mut self, number: u64) {
        let gatherings = &mut self.changes.gatherings;
        let found = gatherings
            .iter()
            .position(|gathering| gathering.number == number);
        // The gathering is missing if it was abandoned meanwhile.
        let Some(found) = found else { return };
        gatherings[found].left -= 1;
        if gatherings[found].left == 0 {
            let purpose = gatherings.swap_remove(found).purpose;
            self.finish_gathering(purpose);
        }
    }

    fn finish_gathering(&mut self, purpose: Purpose) {
        match purpose {
            Purpose::PassedOn(requester, number) => self.send_done(requester, number),
            Purpose::Change => self.free_blocks(0, ()),
            Purpose::Retire => match self.store.cut() {
                None => {
                    self.changes.counters.fruitless += 1;
                    self.end_change();
                }
                Some(cut) => {
                    self.changes.counters.begun += 1;
                    self.changes.cut = cut;
                    if mutants::is_on("block reused before the epoch ended") {
                        return self.free_blocks(0, ());
                    }
                    self.gather(Purpose::Change, END_EPOCH);
                }
            },
        }
    }

    /// Abandons this machine's change after the loss of a machine, which may not have replied: the operations that it
    /// had in flight are unknown. The memory that was to be freed stays in its class until another change.
    pub(in crate::worker) fn abandon_change(&mut self) {
        let gatherings = &mut self.changes.gatherings;
        let own = |gathering: &Gathering| gathering.purpose == Purpose::Change;
        if let Some(found) = gatherings.iter().position(own) {
            let number = gatherings.swap_remove(found).number;
            self.changes
                .unsent
                .retain(|unsent| unsent.id == DONE || unsent.number != number);
            marks::mark("epoch: change abandoned");
            self.changes.counters.abandoned += 1;
            self.end_change();
        }
    }

    /// Frees the blocks that were retired before the cut, a bounded number of bytes per turn.
    fn free_blocks(&mut self, _: u64, (): ()) {
        let mut freed = 0;
        while freed < BYTES_PER_TURN {
            match self.store.free_vacant_before(self.changes.cut) {
                Ok(Some(bytes)) => freed += bytes,
                Ok(None) => return self.blocks_freed(freed),
                Err(error) => {
                    tracing::error!(%error, "freeing retired blocks failed; ending the epoch change");
                    return self.blocks_freed(freed);
                }
            }
        }
        self.changes.freed_bytes += freed;
        self.defer(Cont::new(Self::free_blocks, 0));
    }

    fn blocks_freed(&mut self, last: u64) {
        self.changes.freed_bytes += last;
        self.changes.counters.bytes += self.changes.freed_bytes;
        self.changes.counters.ended += 1;
        self.end_change();
    }

    fn end_change(&mut self) {
        self.changes.under_way = false;
        if self.changes.freed_bytes == 0 {
            self.changes.not_before = self.now.after(FRUITLESS_PAUSE);
        }
    }
}
