//! How a machine that stores nothing leaves the cluster, while the other machines continue.
//!
//! Such a machine has no memory that others need, but its commits hold locks on other machines. So its workers finish first:
//!
//! 1. Each worker calls the hooks of the layers, which begin no commit from now on ([`LeaveHook::begin`]).
//! 2. For a short time, it waits until no operation is under way. Then the layers give up what has no end of its own
//!    ([`LeaveHook::give_up`]), and the worker waits until nothing is left that other machines depend on
//!    ([`LeaveHook::unfinished`]). Reads need not end.
//! 3. It announces that it leaves to the worker of each other machine that polls its log. That worker first handles and
//!    frees all records of the log, handles all messages that arrived before the announcement, and then replies.
//! 4. When all workers of the machine have all replies, the machine stops.
//!
//! The other machines then handle the end of the connection as that of a machine that left in order.

use std::time::Duration;

use super::{Cont, Worker};
use crate::ids::MachineId;
use crate::marks;
use crate::messaging::{CallError, MessageId, ReplyCont, Request};
use crate::time::Nanos;

/// To the poller of a worker's log: the worker appends nothing more.
const LEAVE: MessageId = MessageId(MessageId::CORE + 2);

/// Time for operations to end before they are given up.
const REST_PATIENCE: Duration = Duration::from_secs(1);
/// Longest time for everything that other machines depend on.
const FINISH_PATIENCE: Duration = Duration::from_secs(10);

/// Time until a worker looks again whether the records of one that leaves are freed.
const LOOK_AGAIN: Duration = Duration::from_micros(10);

/// What a layer does when its machine leaves.
#[derive(Clone, Copy, Debug)]
pub struct LeaveHook {
    /// Begins to leave: from now on, nothing begins that other machines depend on.
    pub begin: fn(&mut Worker),
    /// Gives up what other machines depend on and what may not end by itself. It may be called repeatedly.
    pub give_up: fn(&mut Worker),
    /// Returns a description of what other machines still depend on; `None` if there is nothing.
    pub unfinished: fn(&mut Worker) -> Option<String>,
}

/// How far a worker has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Leaving {
    /// The worker stays.
    #[default]
    No,
    /// The worker finishes its operations, since this time.
    Finishing(Nanos),
    /// This number of machines have not replied to the announcement; the worker leaves since this time.
    Announcing(usize, Nanos),
    Left,
}

impl Worker {
    /// Registers what a layer does when the machine leaves.
    pub fn on_leave(&mut self, hook: LeaveHook) {
        self.leave_hooks.push(hook);
    }

    pub(super) fn register_leave_handlers(&mut self) {
        self.register(LEAVE, Self::handle_leave);
    }

    /// Continues to leave the cluster. The thread of the worker calls it between turns, from the time when the
    /// [control](crate::control::Control::leave) requests it. The last worker that has left stops the machine.
    pub fn leave(&mut self) {
        let now = self.clock.now();
        match self.leaving {
            Leaving::No => {
                for hook in 0..self.leave_hooks.len() {
                    (self.leave_hooks[hook].begin)(self);
                }
                self.leaving = Leaving::Finishing(now);
            }
            Leaving::Finishing(since) => self.finish_operations(since, now.since(since)),
            Leaving::Announcing(0, _) => {
                self.leaving = Leaving::Left;
                self.control.worker_left(self.own_workers().count());
            }
            Leaving::Announcing(left, since) if now.since(since) >= FINISH_PATIENCE => {
                self.fail_to_leave(&format!("{left} machine(s) have not replied"));
            }
            Leaving::Announcing(..) | Leaving::Left => {}
        }
    }

    fn finish_operations(&mut self, since: Nanos, waited: Duration) {
        let gives_up = waited >= REST_PATIENCE;
        if !gives_up && self.check_at_rest().is_err() {
            return;
        }
        let mut unfinished = None;
        for hook in 0..self.leave_hooks.len() {
            let hook = self.leave_hooks[hook];
            if gives_up {
                (hook.give_up)(self);
            }
            unfinished = unfinished.or((hook.unfinished)(self));
        }
        match unfinished {
            None => self.announce(since),
            Some(what) if waited >= FINISH_PATIENCE => self.fail_to_leave(&what),
            Some(_) => {}
        }
    }

    fn fail_to_leave(&mut self, why: &str) {
        self.control.fail(format!(
            "machine {} cannot leave the cluster in order within {} s: {why}",
            self.me.machine,
            FINISH_PATIENCE.as_secs()
        ));
    }

    fn announce(&mut self, since: Nanos) {
        let machines = self.machines().iter();
        let others = machines.map(|machine| machine.0);
        let others: Vec<MachineId> = others.filter(|other| *other != self.me.machine).collect();
        self.leaving = Leaving::Announcing(others.len(), since);
        for other in others {
            self.announce_to(other.get().into(), ());
        }
    }

    fn announce_to(&mut self, machine: u64, (): ()) {
        let id = MachineId::new(machine as u16);
        let id = id.expect("the context of this continuation is the id of a machine");
        let to = self.log_poller(id);
        let to = to.expect("the announcement goes to the machines of the cluster");
        let cont = ReplyCont::new(Self::announced, machine);
        match self.call(to, LEAVE, &[], 0, cont) {
            Ok(()) => {}
            Err(CallError::Busy) => self.when_room(Cont::new(Self::announce_to, machine)),
            Err(_) => self.announced(machine, Err(CallError::PeerLost(id))),
        }
    }

    /// Handles the reply to an announcement, or the end of the other machine.
    fn announced(&mut self, _machine: u64, _reply: Result<&[u8], CallError>) {
        if let Leaving::Announcing(left, _) = &mut self.leaving {
            *left = left.saturating_sub(1);
        }
    }

    fn handle_leave(&mut self, request: Request, _body: &[u8]) {
        let from = request.from.machine;
        if self.store.placement().contains(from) {
            let why = format!(
                "{} leaves, although its machine stores memory",
                request.from
            );
            return self.distrust(from, why);
        }
        self.leavers.push(request);
        self.reply_to_leavers();
    }

    /// Replies to the announcements of workers whose records were taken from logs and freed. The others wait, and all do while logs are
    /// frozen: this is called again when they are not.
    pub(super) fn reply_to_leavers(&mut self) {
        if self.logs_are_frozen() {
            return;
        }
        for request in std::mem::take(&mut self.leavers) {
            match self.handle_log_of(request.from) {
                true => self.reply(request, &[]),
                false => {
                    marks::mark("worker: a machine that leaves waits until its records are freed");
                    self.leavers.push(request);
                }
            }
        }
        if !self.leavers.is_empty() {
            let again = |worker: &mut Worker, _: u64, ()| worker.reply_to_leavers();
            self.set_timer(LOOK_AGAIN, Cont::new(again, 0));
        }
    }
}
