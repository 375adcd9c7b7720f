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

use super::connectivity::Connected;
use super::regions::{
    ASK_AGAIN, CHANGES, CHANGES_HEAD_BYTES, DONE, NOT_YET, REFUSED, REGION_BYTES, REPLY_BYTES,
    encode_changes,
};
use super::{Cont, Worker};
use crate::ids::{MachineId, RegionId, WorkerId, WorkerRef};
use crate::mem::Context;
use crate::membership::configuration::Process;
use crate::membership::manager::{Changes, Recorded};
use crate::messaging::{CallError, MessageId, ReplyCont, Request};
use crate::region::map::Replicas;
use crate::{marks, mutants};

/// To the manager: the machine joins, with the number of its start, of the configuration that it knows, and of the list of its connections.
/// The reply is a code.
const JOIN: MessageId = MessageId(MessageId::CORE + 6);

/// From each other machine: all of its workers are connected to the machine that joins. One-way.
const LINKED: MessageId = MessageId(MessageId::CORE + 7);

/// To the other workers of a machine that has joined: what programs ask for waits no longer. One-way.
const JOINED: MessageId = MessageId(MessageId::CORE + 8);

/// The configuration has changed since the machine has connected.
const CHANGED: u8 = 3;
/// The machine is not connected to another one that runs.
const UNLINKED: u8 = 4;

/// The most refusals after which a machine asks again.
const MOST_REFUSALS: u32 = 20;
/// Why most starts begin again that have not joined.
pub(super) const CONFIGURATION_CHANGED: &str = "the configuration has changed meanwhile";
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
    /// The configuration of its regions. If another one follows, it applies that, and asks again.
    configuration: u64,
    /// Regions that it does not know yet.
    untold: VecDeque<(RegionId, Replicas)>,
    /// Number of regions in the message that it has not answered.
    under_way: usize,
}

/// A machine that joins, and the configuration whose regions are sent to it.
#[derive(Clone, Copy)]
struct To {
    machine: MachineId,
    configuration: u64,
}

impl Context for To {
    fn to_word(self) -> u64 {
        u64::from(self.machine.get()) | self.configuration << 16
    }

    fn from_word(word: u64) -> Self {
        let machine = MachineId::new(word as u16);
        Self {
            machine: machine.expect("the context of this continuation has the id of a machine"),
            configuration: word >> 16,
        }
    }
}

/// Returns the three words of a JOIN.
fn three_words(body: &[u8]) -> Option<[u64; 3]> {
    let words: &[u8; 24] = body.try_into().ok()?;
    let (words, _) = words.as_chunks();
    Some([words[0], words[1], words[2]].map(u64::from_le_bytes))
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
        let words = [boot, self.newest_known(), self.tell_links()];
        let [boot_bytes, knows, links] = words.map(u64::to_le_bytes);
        match self.call(
            WorkerRef::first_of(manager),
            JOIN,
            &[&boot_bytes, &knows, &links],
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
            CallError::PeerLost(_) if self.survives() => self.joins_again(CONFIGURATION_CHANGED),
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
            Ok([CHANGED]) => self.joins_again(CONFIGURATION_CHANGED),
            Ok([UNLINKED]) => self
                .joins_again("it is not connected to another machine, which has joined meanwhile"),
            Ok(_) if self.newcomers.refusals < MOST_REFUSALS => {
                self.newcomers.refusals += 1;
                self.set_timer(REFUSED_WAIT, Cont::new(Self::ask_to_join, boot));
            }
            Ok(_) => self.cannot_join("the manager refused it; see its log for the reason"),
            Err(error) => self.on_join_failed(&error),
        }
    }

    /// Stops this start of the machine, which is no member.
    pub(super) fn joins_again(&mut self, why: &str) {
        let (me, manager) = (self.me.machine, self.membership.manager());
        self.control.fail_to_join(format!(
            "machine {me} cannot join the cluster of manager {manager}: {why}; start the machine again"
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
        let Some([boot, knows, links]) = three_words(body) else {
            let why = format!("{} sent a JOIN that is malformed", request.from);
            return self.distrust(from, why);
        };
        let process = Process {
            machine: from,
            boot,
        };
        let code = match self.refuses_to_join(process, (knows, links)) {
            Some(code) => code,
            None if self.store.placement().contains(from) => {
                let manager = self.recorder.manager.as_ref();
                if !manager.is_some_and(|manager| manager.configuration().has(process)) {
                    self.add_to_configuration(process);
                }
                // It becomes a member in a later configuration, which is sent to all members.
                NOT_YET
            }
            None => self.record_start(process),
        };
        self.reply(request, &[&[code]]);
        self.manage();
    }

    /// Returns why a process cannot become a member now that knows this configuration, and whose list of connections has this number.
    fn refuses_to_join(&self, process: Process, (knows, links): (u64, u64)) -> Option<u8> {
        let Some(manager) = &self.recorder.manager else {
            return Some(match self.membership.survives() {
                false => REFUSED,
                // Another machine manages a later configuration, or this one will.
                true if knows < self.newest_known() => CHANGED,
                true => NOT_YET,
            });
        };
        let known = manager.configuration();
        if known.has(process) {
            return None;
        }
        if knows < known.version.id {
            // It is not told of this one, because it is no member.
            return Some(CHANGED);
        }
        if !self.survives() {
            return None;
        }
        match self.connected(process, links) {
            Connected::ToAll => None,
            Connected::NotKnown => Some(NOT_YET),
            Connected::NotTo(other) => {
                marks::mark("worker: a machine that joins is not connected to another");
                let (machine, other) = (process.machine, other.machine);
                tracing::info!(%machine, %other, "a machine that joins is not connected to another one");
                Some(UNLINKED)
            }
        }
    }

    /// Has the start of a process without memory recorded, and sends it all regions. Returns the code of the answer.
    fn record_start(&mut self, process: Process) -> u8 {
        let Some(manager) = &mut self.recorder.manager else {
            return NOT_YET;
        };
        let Process { machine, boot } = process;
        match manager.record_start(process) {
            Recorded::Yes => {
                let of = (boot, manager.configuration().version.id);
                let newcomer = self.newcomers.joining.get(&machine);
                match newcomer.filter(|newcomer| (newcomer.boot, newcomer.configuration) == of) {
                    Some(newcomer) if newcomer.knows_all() => DONE,
                    Some(_) => NOT_YET,
                    None => {
                        self.introduce(machine, boot);
                        NOT_YET
                    }
                }
            }
            Recorded::NotYet => NOT_YET,
            Recorded::No(why) => {
                tracing::error!(%machine, why, "a machine cannot join");
                REFUSED
            }
        }
    }

    /// Begins to send all regions to a machine.
    fn introduce(&mut self, machine: MachineId, boot: u64) {
        let Some(manager) = &self.recorder.manager else {
            return;
        };
        let known = manager.configuration();
        let newcomer = Newcomer {
            boot,
            configuration: known.version.id,
            untold: known
                .regions
                .iter()
                .filter_map(Replicas::recorded)
                .collect(),
            under_way: 0,
        };
        let to = To {
            machine,
            configuration: newcomer.configuration,
        };
        self.newcomers.joining.insert(machine, newcomer);
        self.tell_newcomer(to, ());
    }

    /// Returns a machine that joins, unless another configuration than that of its regions has followed.
    fn newcomer(&mut self, to: To) -> Option<&mut Newcomer> {
        let manager = self.recorder.manager.as_ref();
        let is_newest =
            manager.is_some_and(|one| one.configuration().version.id == to.configuration);
        let newcomer = self.newcomers.joining.get_mut(&to.machine);
        newcomer.filter(|newcomer| is_newest && newcomer.configuration == to.configuration)
    }

    /// Sends the next regions to a machine that joins.
    fn tell_newcomer(&mut self, to: To, (): ()) {
        let most = (self.max_message_body() - CHANGES_HEAD_BYTES) / REGION_BYTES;
        let manager = self.recorder.manager.as_ref();
        let catalog = manager.and_then(|manager| manager.configuration().catalog);
        let Some(newcomer) = self.newcomer(to) else {
            return;
        };
        let count = newcomer.untold.len().min(most);
        if count == 0 {
            return;
        }
        let regions = newcomer.untold.range(..count).copied().collect();
        let mut body = Vec::new();
        encode_changes(&mut body, to.configuration, &Changes { regions, catalog });
        newcomer.under_way = count;
        let cont = ReplyCont::new(Self::on_newcomer_told, to);
        let first = WorkerRef::first_of(to.machine);
        match self.call(first, CHANGES, &[&body], 0, cont) {
            Ok(()) => {}
            Err(CallError::Busy) => self.when_room(Cont::new(Self::tell_newcomer, to)),
            Err(_) => _ = self.newcomers.joining.remove(&to.machine),
        }
    }

    fn on_newcomer_told(&mut self, to: To, reply: Result<&[u8], CallError>) {
        if reply.is_err() {
            self.newcomers.joining.remove(&to.machine);
            return;
        }
        if let Some(newcomer) = self.newcomer(to) {
            let told = std::mem::take(&mut newcomer.under_way);
            newcomer.untold.drain(..told.min(newcomer.untold.len()));
        }
        self.tell_newcomer(to, ());
    }
}
