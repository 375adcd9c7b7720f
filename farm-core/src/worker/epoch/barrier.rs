//! The epochs of one worker, as a value: events in (`on_…`), actions out ([`EpochBarrier::next_action`]).
//!
//! ```text
//!  event                     state                                       actions
//!  on_shortage               idle, the pause has passed        Send RETIRE to the machine's workers, Retire
//!  all of them are DONE      retiring                          Cut
//!  on_cut(none)              retiring                          -          (idle; the next change after a pause)
//!  on_cut(cut)               retiring                          Send END_EPOCH to the machine's workers,
//!                                                              Send END_EPOCHS to the other machines, ClearCaches
//!  all of them are DONE      ending the epoch                  Free(cut)
//!  on_all_freed              freeing                           -          (idle)
//!  on_lost                   ending the epoch                  -          (idle: the change is abandoned)
//!
//!  on_retire                 any                               Retire, Send DONE
//!  on_end_epochs             any                               Send END_EPOCH to the machine's workers, ClearCaches
//!  all of them are DONE      any                               Send DONE
//!  on_end_epoch              no operation of the old epoch     ClearCaches, Send DONE
//!  on_end_epoch              operations of the old epoch       ClearCaches
//!  on_drained                requests are unanswered           Send DONE
//! ```
//!
//! A worker's own part counts as one of the replies that it waits for.

use std::collections::VecDeque;
use std::time::Duration;

use super::{EpochCounters, EpochGuard, Shortage};
use crate::alloc::Cut;
use crate::ids::{MachineId, WorkerId, WorkerRef};
use crate::time::Nanos;
use crate::{marks, mutants};

/// Shortest time between a change that freed nothing and the next change. It bounds the rate of changes, because
/// nothing bounds the rate at which workers retry failed allocations.
const FRUITLESS_PAUSE: Duration = Duration::from_micros(100);
/// Shortest time between two reports by one worker that an allocation failed.
const REFUSED_REPORT_INTERVAL: Duration = Duration::from_micros(20);
/// Shortest time between two reports by one worker that memory is low: a size class that repeatedly gives up its last
/// block and takes another one must not keep all machines busy.
const LOW_REPORT_INTERVAL: Duration = Duration::from_millis(1);

/// A request to another worker, or the reply to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Within a machine: retire the blocks that are wholly free.
    Retire,
    /// To one worker of another machine: end the epoch on all workers of that machine.
    EndEpochs,
    /// Within a machine: end the epoch on one worker.
    EndEpoch,
    /// The reply to a request of another kind.
    Done,
}

/// A message of the barrier. A request and its reply have the same `number`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) to: WorkerRef,
    pub(super) kind: Kind,
    pub(super) number: u64,
}

/// An action that the worker must perform. Actions are performed in the order in which they were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Send the message; if there is no room for it, call [`EpochBarrier::on_blocked`].
    Send(Message),
    /// Report to the first worker of the machine that memory is short. The report may be lost.
    ReportShortage(WorkerRef),
    /// Retire this worker's wholly free blocks.
    Retire,
    /// Divide the blocks that are vacant now from those that become vacant later, and call [`EpochBarrier::on_cut`].
    Cut,
    /// Clear the addresses that layers have cached. The new epoch has begun.
    ClearCaches,
    /// Free the blocks that were vacant before the cut and still are; call [`EpochBarrier::on_freed`] and, at the end,
    /// [`EpochBarrier::on_all_freed`].
    Free(Cut),
}

/// The purpose for which a worker waits for the replies of several workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// The workers of this machine retire their wholly free blocks.
    Retire,
    /// The end of an epoch that this worker requested, and the cut before it.
    Change(Cut),
    /// The end of an epoch that a worker of another machine requested, with the number of its request.
    PassedOn(WorkerRef, u64),
}

/// Replies that a worker waits for.
#[derive(Debug)]
struct PendingReplies {
    number: u64,
    purpose: Purpose,
    /// Replies that have not arrived.
    left: usize,
}

/// A request to be answered when the operations of the previous epoch have ended.
#[derive(Clone, Copy, Debug)]
enum Requester {
    /// Another worker of this machine, with the number of its request.
    Worker(WorkerRef, u64),
    /// This worker, with the number of its request.
    Own(u64),
}

/// The epochs of one worker; see the [module](self).
#[derive(Debug)]
pub(in crate::worker) struct EpochBarrier {
    me: WorkerRef,
    /// The machines of the cluster, each with its number of workers.
    machines: Vec<(MachineId, usize)>,
    /// Number of the current epoch. Only it and the previous epoch can have open operations.
    epoch: u64,
    /// Number of open operations, by the parity of the epoch in which they began.
    open: [u64; 2],
    /// Requests to answer when the operations of the previous epoch have ended.
    draining: Vec<Requester>,
    /// Requests that arrived while `draining` was not empty: they need the end of another epoch.
    waiting: Vec<Requester>,
    /// Replies that this worker waits for: at most one group for this machine's own change, and one for each change of
    /// another machine.
    pending: Vec<PendingReplies>,
    last_number: u64,
    actions: VecDeque<Action>,
    /// Messages for which there was no room.
    blocked: VecDeque<Message>,
    /// Whether this machine's own change runs, which lasts from the first request until the last block is freed.
    changing: bool,
    /// Bytes that this machine's own change has freed.
    freed_bytes: u64,
    /// Earliest time of the next change.
    not_before: Nanos,
    /// Earliest time of this worker's next report that an allocation failed.
    next_refused_report: Nanos,
    /// Earliest time of this worker's next report that memory is low.
    next_low_report: Nanos,
    counters: EpochCounters,
}

impl EpochBarrier {
    /// Creates the epochs of a worker in a cluster of these machines, each with its number of workers.
    pub(in crate::worker) fn new(me: WorkerRef, machines: &[(MachineId, usize)]) -> Self {
        Self {
            me,
            machines: machines.to_vec(),
            epoch: 0,
            open: [0; 2],
            draining: Vec::new(),
            waiting: Vec::new(),
            pending: Vec::new(),
            last_number: 0,
            actions: VecDeque::new(),
            blocked: VecDeque::new(),
            changing: false,
            freed_bytes: 0,
            not_before: Nanos::default(),
            next_refused_report: Nanos::default(),
            next_low_report: Nanos::default(),
            counters: EpochCounters::default(),
        }
    }

    /// Begins an operation.
    #[inline]
    pub(super) fn pin(&mut self) -> EpochGuard {
        let parity = self.parity();
        self.open[parity] += 1;
        EpochGuard { odd: parity == 1 }
    }

    /// Ends an operation. Returns whether it was the last one of the previous epoch; then [`EpochBarrier::on_drained`]
    /// must follow.
    #[inline]
    pub(super) fn unpin(&mut self, guard: EpochGuard) -> bool {
        let parity = usize::from(guard.odd);
        let open = &mut self.open[parity];
        *open = open
            .checked_sub(1)
            .expect("every operation that ends on a worker has begun on that worker");
        *open == 0 && parity != self.parity()
    }

    #[inline]
    fn parity(&self) -> usize {
        (self.epoch & 1) as usize
    }

    /// Returns the number of the current epoch.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the number of open operations, of both epochs.
    pub(in crate::worker) fn open(&self) -> u64 {
        self.open[0] + self.open[1]
    }

    /// Returns the number of requests that were not answered yet, own ones included.
    pub(in crate::worker) fn unanswered(&self) -> usize {
        self.draining.len() + self.waiting.len() + self.pending.len() + usize::from(self.changing)
    }

    pub(super) fn counters(&self) -> EpochCounters {
        self.counters
    }

    /// Returns whether there is an action.
    pub(super) fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// Removes the next action.
    pub(super) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Handles a shortage of memory on this machine. The first worker begins a change, unless one runs; any other
    /// worker reports the shortage to the first worker.
    pub(super) fn on_shortage(&mut self, now: Nanos, shortage: Shortage) {
        let (next, pause) = match shortage {
            Shortage::Low => (&mut self.next_low_report, LOW_REPORT_INTERVAL),
            Shortage::Refused => (&mut self.next_refused_report, REFUSED_REPORT_INTERVAL),
        };
        if now < *next {
            return;
        }
        *next = now.after(pause);
        if self.me.worker == WorkerId::FIRST {
            return self.on_shortage_report(now);
        }
        let first = WorkerRef::first_of(self.me.machine);
        self.actions.push_back(Action::ReportShortage(first));
    }

    /// Handles a report by a worker of this machine that memory is short. Begins a change, unless one runs.
    pub(super) fn on_shortage_report(&mut self, now: Nanos) {
        if self.changing || now < self.not_before {
            return;
        }
        self.changing = true;
        self.freed_bytes = 0;
        let number = self.gather(Purpose::Retire, Kind::Retire);
        self.actions.push_back(Action::Retire);
        self.on_done(number);
    }

    /// Handles the request of another worker of this machine to retire this worker's blocks.
    pub(super) fn on_retire(&mut self, from: WorkerRef, number: u64) {
        self.actions.push_back(Action::Retire);
        self.send(from, Kind::Done, number);
    }

    /// Handles the request of a worker of another machine to end the epoch on all workers of this machine.
    pub(super) fn on_end_epochs(&mut self, from: WorkerRef, number: u64) {
        self.end_epochs(Purpose::PassedOn(from, number));
    }

    /// Handles the request of another worker of this machine to end this worker's epoch.
    pub(super) fn on_end_epoch(&mut self, from: WorkerRef, number: u64) {
        self.end_epoch(Requester::Worker(from, number));
    }

    /// Handles a reply to a request of this worker.
    pub(super) fn on_done(&mut self, number: u64) {
        let mut pending = self.pending.iter();
        // The request is missing if its change was abandoned meanwhile.
        let Some(found) = pending.position(|pending| pending.number == number) else {
            return;
        };
        self.pending[found].left -= 1;
        if self.pending[found].left > 0 {
            return;
        }
        match self.pending.swap_remove(found).purpose {
            Purpose::PassedOn(requester, number) => self.send(requester, Kind::Done, number),
            Purpose::Change(cut) => self.actions.push_back(Action::Free(cut)),
            Purpose::Retire => self.actions.push_back(Action::Cut),
        }
    }

    /// Handles the result of [`Action::Cut`]. `cut` is `None` if no block is vacant.
    pub(super) fn on_cut(&mut self, now: Nanos, cut: Option<Cut>) {
        let Some(cut) = cut else {
            self.counters.fruitless += 1;
            return self.end_change(now);
        };
        self.counters.begun += 1;
        if mutants::is_on("block reused before the epoch ended") {
            return self.actions.push_back(Action::Free(cut));
        }
        self.end_epochs(Purpose::Change(cut));
    }

    /// Counts bytes of vacant blocks that were freed.
    pub(super) fn on_freed(&mut self, bytes: u64) {
        self.freed_bytes += bytes;
        self.counters.bytes += bytes;
    }

    /// Ends the change, because all blocks that can be freed are freed.
    pub(super) fn on_all_freed(&mut self, now: Nanos) {
        self.counters.ended += 1;
        self.end_change(now);
    }

    /// Handles the end of the last operation of the previous epoch.
    pub(super) fn on_drained(&mut self) {
        let before = self.parity() ^ 1;
        if self.open[before] == 0 && !self.draining.is_empty() {
            self.answer_requesters();
        }
    }

    /// Counts a message that was sent.
    pub(super) fn on_sent(&mut self, message: Message) {
        match message.kind {
            Kind::Done => {}
            _ if message.to.machine == self.me.machine => self.counters.requests_within += 1,
            _ => self.counters.requests += 1,
        }
    }

    /// Queues a message for which there is no room. Returns whether it is the first message that waits for room. If so,
    /// the caller must call [`EpochBarrier::on_room`] when there may be room.
    pub(super) fn on_blocked(&mut self, message: Message) -> bool {
        marks::mark("epoch: message waits for room");
        self.blocked.push_back(message);
        self.blocked.len() == 1
    }

    /// Sends the queued messages again, because there may be room for them.
    pub(super) fn on_room(&mut self) {
        let blocked = self.blocked.drain(..).map(Action::Send);
        self.actions.extend(blocked);
    }

    /// Handles a message whose receiver is lost.
    pub(super) fn on_unsendable(&mut self, now: Nanos, message: Message) {
        if message.kind != Kind::Done {
            self.on_lost(now);
        }
    }

    /// Handles the loss of a machine, which may not have replied: the operations that it had in flight are unknown.
    /// Abandons this machine's change. The memory that was to be freed stays in its class until another change.
    pub(super) fn on_lost(&mut self, now: Nanos) {
        let own = |pending: &PendingReplies| matches!(pending.purpose, Purpose::Change(_));
        let Some(found) = self.pending.iter().position(own) else {
            return;
        };
        let number = self.pending.swap_remove(found).number;
        let abandoned = |message: &Message| message.kind != Kind::Done && message.number == number;
        self.blocked.retain(|message| !abandoned(message));
        self.actions
            .retain(|action| !matches!(action, Action::Send(message) if abandoned(message)));
        marks::mark("epoch: change abandoned");
        self.counters.abandoned += 1;
        self.end_change(now);
    }

    /// Handles that a machine left the cluster in order: no later change waits for it. A change that runs is abandoned.
    pub(super) fn on_left(&mut self, now: Nanos, machine: MachineId) {
        self.machines.retain(|other| other.0 != machine);
        self.on_lost(now);
    }

    /// Handles that a machine has connected: later changes wait for it. It has no operations from before.
    pub(in crate::worker) fn on_joined(&mut self, machine: MachineId, workers: usize) {
        if !self.machines.iter().any(|known| known.0 == machine) {
            self.machines.push((machine, workers));
            self.machines.sort_unstable();
        }
    }

    /// Ends the epoch on all workers of this machine and, if this is a change of this machine, on all workers of the
    /// other machines.
    fn end_epochs(&mut self, purpose: Purpose) {
        let number = self.gather(purpose, Kind::EndEpoch);
        self.end_epoch(Requester::Own(number));
    }

    /// Sends requests to all other workers of this machine, and to the other machines if this is a change. Returns the
    /// number of the requests. This worker's own part counts as one more reply to wait for.
    fn gather(&mut self, purpose: Purpose, within: Kind) -> u64 {
        self.last_number += 1;
        let number = self.last_number;
        let before = self.actions.len();
        for &(machine, workers) in &self.machines {
            if machine == self.me.machine {
                let others = (0..workers as u16).filter_map(WorkerId::new);
                let others = others.filter(|other| *other != self.me.worker);
                self.actions.extend(others.map(|other| {
                    let to = WorkerRef::new(machine, other);
                    let kind = within;
                    Action::Send(Message { to, kind, number })
                }));
            } else if matches!(purpose, Purpose::Change(_)) {
                self.actions.push_back(Action::Send(Message {
                    to: WorkerRef::first_of(machine),
                    kind: Kind::EndEpochs,
                    number,
                }));
            }
        }
        self.pending.push(PendingReplies {
            number,
            purpose,
            left: 1 + self.actions.len() - before,
        });
        number
    }

    fn send(&mut self, to: WorkerRef, kind: Kind, number: u64) {
        self.actions
            .push_back(Action::Send(Message { to, kind, number }));
    }

    /// Ends this worker's epoch, and answers the request when the operations of that epoch have ended.
    fn end_epoch(&mut self, requester: Requester) {
        if !self.draining.is_empty() {
            marks::mark("epoch: request waits for the one before");
            return self.waiting.push(requester);
        }
        self.draining.push(requester);
        self.begin_epoch();
    }

    fn begin_epoch(&mut self) {
        self.actions.push_back(Action::ClearCaches);
        self.epoch += 1;
        let before = self.parity() ^ 1;
        if self.open[before] == 0 || mutants::is_on("epoch answered before old operations ended") {
            return self.answer_requesters();
        }
        marks::mark("epoch: operations of the one before are open");
    }

    fn answer_requesters(&mut self) {
        let mut requesters = std::mem::take(&mut self.draining);
        for requester in requesters.drain(..) {
            match requester {
                Requester::Worker(requester, number) => self.send(requester, Kind::Done, number),
                Requester::Own(number) => self.on_done(number),
            }
        }
        // `waiting` holds the requests that arrived while operations were open. None is added meanwhile, because
        // `draining` is empty now.
        std::mem::swap(&mut self.waiting, &mut requesters);
        if requesters.is_empty() {
            return;
        }
        self.draining.append(&mut requesters);
        self.begin_epoch();
    }

    fn end_change(&mut self, now: Nanos) {
        self.changing = false;
        if self.freed_bytes == 0 {
            self.not_before = now.after(FRUITLESS_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests;
