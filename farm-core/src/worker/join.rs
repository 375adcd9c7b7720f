//! How a process joins a cluster that runs: that of a machine which stores nothing, or that of a machine which was lost.
//!
//! 1. The machine connects to all others, whose workers add rings and logs for it ([`Worker::link`]).
//! 2. When the last worker of each other machine has announced that it is connected, the first worker asks the manager to join, with the
//!    number of the start, until the answer is final. As a member it is one to which all others can talk.
//! 3. If the machine stores nothing, the manager records the start in the configuration, then sends all regions that exist, and the
//!    catalog. What is recorded from now on is sent to the machine like to all others.
//! 4. When the machine has answered, it has all regions, and begins to work.
//!
//! A machine with memory becomes a member in the next configuration ([`Worker::add_to_configuration`]). It begins to work when that is in
//! effect.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::regions::{
    ASK_AGAIN, CATALOG_BYTES, CHANGES, DONE, NOT_YET, REFUSED, REGION_BYTES, REPLY_BYTES,
    encode_changes,
};
use super::{Cont, Worker};
use crate::ids::{MachineId, RegionId, WorkerId, WorkerRef};
use crate::membership::configuration::Process;
use crate::membership::manager::{Changes, Recorded};
use crate::messaging::{CallError, MessageId, ReplyCont, Request};
use crate::region::map::Replicas;
use crate::{marks, mutants};

/// To the manager: the machine joins, with the number of its start, and of the configuration that it knows. The reply is a code.
const JOIN: MessageId = MessageId(MessageId::CORE + 6);

/// From each other machine: all of its workers are connected to the machine that joins. One-way.
const LINKED: MessageId = MessageId(MessageId::CORE + 7);

/// To the other workers of a machine that has joined: what programs ask for waits no longer. One-way.
const JOINED: MessageId = MessageId(MessageId::CORE + 8);

/// The configuration has changed since the machine has connected.
const CHANGED: u8 = 3;

/// The most refusals after which a machine asks again.
const MOST_REFUSALS: u32 = 20;
/// Time until then.
const REFUSED_WAIT: Duration = Duration::from_millis(50);

/// The machines that join, and how far this machine has joined.
#[derive(Default)]
pub(super) struct Newcomers {
    /// On the worker that runs the manager.
    joining: BTreeMap<MachineId, Newcomer>,
    /// Whether the manager has sent all regions to this machine.
    has_regions: bool,
    /// Number of times that the manager has refused this machine, for example because the disk of the configuration is full.
    refusals: u32,
    /// Number of this start, until it has asked to join.
    boot: Option<u64>,
    /// Machines that ran before this one.
    running: BTreeSet<MachineId>,
    /// Those of them all of whose workers are connected to this machine.
    linked: BTreeSet<MachineId>,
}

/// A machine that joins.
struct Newcomer {
    boot: u64,
    /// Regions that it does not know yet.
    untold: VecDeque<(RegionId, Replicas)>,
    /// Number of regions in the message that it has not answered.
    under_way: usize,
}

/// Returns the two words of a message.
fn two_words(body: &[u8]) -> Option<[u64; 2]> {
    let words: &[u8; 16] = body.try_into().ok()?;
    let (words, _) = words.as_chunks();
    Some([u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])])
}

impl Newcomer {
    fn knows_all(&self) -> bool {
        self.untold.is_empty() && self.under_way == 0
    }
}

impl Newcomers {
    /// Handles that the connection to a machine has ended. If another process of it connects, that one waits for this machine.
    pub(super) fn forget(&mut self, machine: MachineId) {
        self.running.remove(&machine);
    }
}

impl Worker {
    pub(super) fn register_join_handlers(&mut self) {
        self.register(JOIN, Self::handle_join);
        self.register(LINKED, Self::handle_linked);
        // It only wakes the worker, whose next turn runs the items in its inbox.
        self.register(JOINED, |_, _, _| {});
    }

    /// Announces to a machine that joins that all workers of this machine are connected to it. To be called once, on the worker that
    /// was connected last.
    pub fn announce_linked(&mut self, machine: MachineId) {
        if let Err(CallError::Busy) = self.send(WorkerRef::first_of(machine), LINKED, &[]) {
            let again = |worker: &mut Worker, machine: u64, ()| {
                if let Some(machine) = MachineId::new(machine as u16) {
                    worker.announce_linked(machine);
                }
            };
            self.when_room(Cont::new(again, u64::from(machine.get())));
        }
    }

    fn handle_linked(&mut self, request: Request, _body: &[u8]) {
        self.newcomers.linked.insert(request.from.machine);
        self.complete_if_joined();
    }

    /// Begins to work: the configuration that has this machine is in effect.
    pub(super) fn complete_join(&mut self) {
        self.newcomers.has_regions = true;
        self.complete_if_joined();
    }

    /// Begins to work, if this machine has joined.
    pub(super) fn complete_if_joined(&mut self) {
        self.ask_if_linked();
        if !self.newcomers.has_regions || self.store.map().is_complete() {
            return;
        }
        marks::mark("worker: machine joined");
        self.store.map().complete();
        if !mutants::is_on("workers not woken when their machine has joined") {
            self.wake_own_workers();
        }
    }

    /// Wakes the other workers of this machine. They may sleep although items wait in their inboxes.
    fn wake_own_workers(&mut self) {
        for worker in self.other_own_workers() {
            self.wake_own(worker.worker.index(), ());
        }
    }

    fn wake_own(&mut self, worker: usize, (): ()) {
        let id = WorkerId::new(worker as u16);
        let id = id.expect("the context of this continuation is the index of a worker");
        let to = WorkerRef::new(self.me.machine, id);
        if let Err(CallError::Busy) = self.send(to, JOINED, &[]) {
            self.when_room(Cont::new(Self::wake_own, worker));
        }
    }

    /// Begins to join the machines that ran before, with the number of this machine's start: see
    /// [the region map](crate::region::map), which is complete when the machine has joined. To be called on the first worker of a
    /// machine.
    pub fn join(&mut self, boot: u64, running: impl IntoIterator<Item = MachineId>) {
        self.newcomers.running = running.into_iter().collect();
        self.newcomers.boot = Some(boot);
        self.ask_if_linked();
    }

    /// Asks the manager to join, when the workers of all machines that run are connected to this machine: from then on it is a member,
    /// to which all others talk.
    fn ask_if_linked(&mut self) {
        let mut unlinked = self.newcomers.running.difference(&self.newcomers.linked);
        let is_linked = unlinked.all(|machine| !self.is_linked_to(*machine))
            || mutants::is_on("a machine works before all are connected to it");
        if is_linked && let Some(boot) = self.newcomers.boot.take() {
            self.ask_to_join(boot, ());
        }
    }

    /// Returns whether this machine was told of a configuration of which it is a member, so that it need not ask any more.
    fn was_told_of_its_configuration(&self) -> bool {
        let is_member = self.store.is_used() && self.membership.stores(self.me.machine);
        is_member || self.store.map().is_complete()
    }

    fn ask_to_join(&mut self, boot: u64, (): ()) {
        if self.was_told_of_its_configuration() {
            return;
        }
        let manager = self.membership.manager();
        let cont = ReplyCont::new(Self::on_join_reply, boot);
        let knows = self.newest_known();
        match self.call(
            WorkerRef::first_of(manager),
            JOIN,
            &[&boot.to_le_bytes(), &knows.to_le_bytes()],
            REPLY_BYTES,
            cont,
        ) {
            Ok(()) => {}
            Err(CallError::Busy) => self.when_room(Cont::new(Self::ask_to_join, boot)),
            Err(error) => self.on_join_failed(&error),
        }
    }

    fn on_join_failed(&mut self, error: &CallError) {
        match error {
            // Another machine manages the next configuration.
            CallError::PeerLost(_) if self.survives() => self.joins_again(),
            error => self.cannot_join(&error.to_string()),
        }
    }

    fn on_join_reply(&mut self, boot: u64, reply: Result<&[u8], CallError>) {
        if self.was_told_of_its_configuration() {
            return;
        }
        match reply {
            Ok([NOT_YET]) => {
                self.set_timer(ASK_AGAIN, Cont::new(Self::ask_to_join, boot));
            }
            Ok([DONE]) => {
                self.newcomers.has_regions = true;
                self.on_joined_configuration();
                self.complete_if_joined();
            }
            Ok([CHANGED]) => self.joins_again(),
            Ok(_) if self.newcomers.refusals < MOST_REFUSALS => {
                self.newcomers.refusals += 1;
                self.set_timer(REFUSED_WAIT, Cont::new(Self::ask_to_join, boot));
            }
            Ok(_) => self.cannot_join("the manager refused it; see its log for the reason"),
            Err(error) => self.on_join_failed(&error),
        }
    }

    /// Stops this start of the machine: the configuration has changed while it joined, and it is no member of the new one.
    pub(super) fn joins_again(&mut self) {
        let (me, manager) = (self.me.machine, self.membership.manager());
        self.control.fail_to_join(format!(
            "machine {me} cannot join the cluster of manager {manager}: the configuration has changed meanwhile; start the machine again"
        ));
    }

    fn cannot_join(&mut self, why: &str) {
        if self.control.is_stopping() {
            return;
        }
        let (me, manager) = (self.me.machine, self.membership.manager());
        self.control.fail(format!(
            "machine {me} cannot join the cluster of manager {manager}: {why}"
        ));
    }

    fn handle_join(&mut self, request: Request, body: &[u8]) {
        let from = request.from.machine;
        let Some([boot, knows]) = two_words(body) else {
            let why = format!("{} sent a JOIN that is malformed", request.from);
            return self.distrust(from, why);
        };
        let known = self.newest_known();
        let Some(manager) = &mut self.recorder.manager else {
            let code = match self.membership.survives() {
                false => REFUSED,
                // Another machine manages a later configuration, or this one will.
                true if knows < known => CHANGED,
                true => NOT_YET,
            };
            return self.reply(request, &[&[code]]);
        };
        let process = Process {
            machine: from,
            boot,
        };
        let known = manager.configuration();
        if knows < known.version.id && !known.has(process) {
            // It is not told of this one, because it is no member.
            return self.reply(request, &[&[CHANGED]]);
        }
        if self.store.placement().contains(from) {
            if !known.has(process) {
                self.add_to_configuration(process);
            }
            // It is told of the configuration of which it is a member.
            return self.reply(request, &[&[NOT_YET]]);
        }
        let code = match manager.record_start(process) {
            Recorded::Yes => {
                let known = self.newcomers.joining.get(&from);
                match known.filter(|newcomer| newcomer.boot == boot) {
                    Some(newcomer) if newcomer.knows_all() => DONE,
                    Some(_) => NOT_YET,
                    None => {
                        self.introduce(from, boot);
                        NOT_YET
                    }
                }
            }
            Recorded::NotYet => NOT_YET,
            Recorded::No(why) => {
                tracing::error!(machine = %from, why, "a machine cannot join");
                REFUSED
            }
        };
        self.reply(request, &[&[code]]);
        self.manage();
    }

    /// Begins to send all regions to a machine.
    fn introduce(&mut self, machine: MachineId, boot: u64) {
        let known = self.recorder.manager.as_ref();
        let known = known.map_or(&[][..], |manager| &manager.configuration().regions);
        let newcomer = Newcomer {
            boot,
            untold: known.iter().filter_map(Replicas::recorded).collect(),
            under_way: 0,
        };
        self.newcomers.joining.insert(machine, newcomer);
        self.tell_newcomer(machine.get().into(), ());
    }

    /// Sends the next regions to a machine that joins.
    fn tell_newcomer(&mut self, machine: u64, (): ()) {
        let id = MachineId::new(machine as u16);
        let id = id.expect("the context of this continuation is the id of a machine");
        let most = (self.max_message_body() - CATALOG_BYTES) / REGION_BYTES;
        let manager = self.recorder.manager.as_ref();
        let catalog = manager.and_then(|manager| manager.configuration().catalog);
        let Some(newcomer) = self.newcomers.joining.get_mut(&id) else {
            return;
        };
        let count = newcomer.untold.len().min(most);
        if count == 0 {
            return;
        }
        let regions = newcomer.untold.range(..count).copied().collect();
        let mut body = Vec::new();
        encode_changes(&mut body, &Changes { regions, catalog });
        newcomer.under_way = count;
        let cont = ReplyCont::new(Self::on_newcomer_told, machine);
        match self.call(WorkerRef::first_of(id), CHANGES, &[&body], 0, cont) {
            Ok(()) => {}
            Err(CallError::Busy) => self.when_room(Cont::new(Self::tell_newcomer, machine)),
            Err(_) => _ = self.newcomers.joining.remove(&id),
        }
    }

    fn on_newcomer_told(&mut self, machine: u64, reply: Result<&[u8], CallError>) {
        let Some(id) = MachineId::new(machine as u16) else {
            return;
        };
        if reply.is_err() {
            self.newcomers.joining.remove(&id);
            return;
        }
        if let Some(newcomer) = self.newcomers.joining.get_mut(&id) {
            let told = std::mem::take(&mut newcomer.under_way);
            newcomer.untold.drain(..told.min(newcomer.untold.len()));
        }
        self.tell_newcomer(machine, ());
    }
}
