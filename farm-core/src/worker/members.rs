//! The change to the next configuration, on the workers of a machine ([`Reconfiguration`] decides it). The first worker of each
//! machine talks to those of the others, to the store, and to the other workers of its machine:
//!
//! 1. A worker applies a configuration: it drops what it has of machines that are no members, the layers suspend what may concern
//!    them ([`MembershipHook::apply`]), and no record is taken from a log until the layers are ready for it
//!    ([`Worker::thaw_logs`]).
//! 2. When the configuration is in effect, the layers recover ([`MembershipHook::commit`]), and report the end
//!    ([`Worker::report_recovered`]).
//! 3. When all machines have reported it, the manager records it in the configuration, and the layers forget what they kept
//!    ([`MembershipHook::forget`]).

mod apply;
mod recovered;
mod status;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::join::CONFIGURATION_CHANGED;
use super::{Cont, Worker};
use crate::fabric::{Departure, LeaseTerms};
use crate::ids::{MachineId, WorkerRef};
use crate::membership::configuration::{Configuration, Process};
use crate::membership::reconfiguration::{Action, Message, Probed, Reconfiguration};
use crate::membership::writer::{Access, ConfigAccess};
use crate::messaging::{CallError, MessageId, ReplyCont, Request};
use crate::time::Nanos;
use crate::{marks, mutants};
pub use status::MembersStatus;

/// Long messages: a [`Message`]; then the number of a configuration: to the own workers, apply it, it is in effect; from them, it is
/// applied; to the manager, a machine has recovered; from it, all have.
const RECONFIGURATION: u16 = 1;
const APPLY: u16 = 2;
const APPLIED: u16 = 3;
const COMMIT: u16 = 4;
const RECOVERED: u16 = 5;
const ALL_RECOVERED: u16 = 6;
/// Whether a machine runs. The reply is the number of its start.
const PROBE: MessageId = MessageId(MessageId::CORE + 10);
const BOOT_BYTES: usize = 8;

/// Time between two looks at the store, and at the locks of lost processes, during a change.
const LOOK: Duration = Duration::from_micros(200);
/// Time without an event after which a machine takes the next step of a change for missing.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the first worker of a machine needs to take part in changes of the configuration.
pub struct MembersParts {
    /// The process.
    pub me: Process,
    /// The first configuration.
    pub configuration: Configuration,
    /// The store of the configuration.
    pub store: Box<dyn ConfigAccess>,
}

/// What a layer does when the configuration changes. The functions are called on each worker, but [`MembershipHook::forget`] on
/// the first one alone.
#[derive(Clone, Copy, Debug)]
pub struct MembershipHook {
    /// This worker changes to a configuration that is not in effect yet. Logs are frozen afterwards.
    pub apply: fn(&mut Worker, &Configuration),
    /// The configuration is in effect: recover.
    pub commit: fn(&mut Worker, &Configuration),
    /// All machines have recovered in the configuration with this number.
    pub forget: fn(&mut Worker, u64),
}

/// What a worker knows of changes of the configuration.
#[derive(Default)]
pub(super) struct Members {
    pub(super) driver: Option<Box<Driver>>,
    hooks: Vec<MembershipHook>,
}

/// The part of the machine in changes of the configuration, on its first worker.
pub(super) struct Driver {
    pub(super) value: Reconfiguration,
    store: Box<dyn ConfigAccess>,
    /// The configuration that is being applied, and the number of own workers that have not.
    applying: Option<(u64, usize)>,
    /// Number of requests to the store that are not answered.
    asked: usize,
    /// Processes that may run although their connections have ended.
    pub(super) may_live: BTreeSet<Process>,
    /// Whether the timer of the next look is set.
    looks: bool,
    /// Time of the last event.
    last_event: Nanos,
    /// The last configuration in which all machines have recovered.
    all_recovered: u64,
    /// As the manager: machines that have recovered in the configuration with this number.
    recovered: (u64, BTreeSet<MachineId>),
    /// Why the change that is under way waits, as it was logged last.
    said: String,
    /// Who takes part in leases by time, as the fabric was told last.
    pub(super) terms: LeaseTerms,
    /// The configuration that all own workers have applied, while leases by time last that this machine has granted to others.
    awaits_leases: Option<u64>,
}

impl Driver {
    /// Reads the newest configuration from the store.
    fn read(&mut self) {
        self.asked += 1;
        self.store.read();
    }
}

impl Members {
    pub(super) fn new(parts: Option<MembersParts>, now: Nanos, by_time: bool) -> Self {
        let driver = parts.map(|parts| {
            Box::new(Driver {
                all_recovered: parts.configuration.recovered,
                value: Reconfiguration::new(parts.me, parts.configuration)
                    .with_leases_by_time(by_time),
                store: parts.store,
                applying: None,
                asked: 0,
                may_live: BTreeSet::new(),
                looks: false,
                last_event: now,
                recovered: (0, BTreeSet::new()),
                said: String::new(),
                terms: LeaseTerms::default(),
                awaits_leases: None,
            })
        });
        Self {
            driver,
            hooks: Vec::new(),
        }
    }
}

impl Worker {
    pub(super) fn register_member_handlers(&mut self) {
        self.register(PROBE, Self::handle_probe);
        self.register_long(RECONFIGURATION, Self::handle_reconfiguration);
        self.register_own_long(APPLY, |worker, from, body| {
            worker.take_number((from, body), Self::apply_soon);
        });
        self.register_own_long(APPLIED, |worker, from, body| {
            worker.take_number((from, body), Self::on_applied_by_one);
        });
        self.register_own_long(COMMIT, |worker, from, body| {
            worker.take_number((from, body), Self::commit_soon);
        });
        self.register_long(RECOVERED, Self::handle_recovered);
        self.register_long(ALL_RECOVERED, Self::handle_all_recovered);
    }

    /// Registers what a layer does when the configuration changes.
    pub fn on_membership(&mut self, hook: MembershipHook) {
        self.members.hooks.push(hook);
    }

    /// Returns whether the machines go on in another configuration when one of them is lost.
    #[inline]
    pub fn survives(&self) -> bool {
        self.membership.survives()
    }

    /// Returns the process of a machine to which this worker is, or was last, connected.
    pub(super) fn connected_process(&self, machine: MachineId) -> Process {
        let boot = self.messaging.boot_of(machine);
        Process { machine, boot }
    }

    /// Handles the end of a connection, on a machine that survives it.
    pub(super) fn on_departed(&mut self, machine: MachineId, how: Departure) {
        let process = self.connected_process(machine);
        if how == Departure::Left {
            if self.membership.stores(machine) {
                // The cluster is being stopped.
                return;
            }
            if let Some(manager) = &mut self.recorder.manager {
                manager.on_left(process);
            }
            self.manage_soon();
            let is_first = self.members.driver.is_some();
            if let Some(kept) = self.kept.as_ref().filter(|_| is_first)
                && !mutants::is_on("logs of a process that has left are kept")
            {
                kept.left(process);
            }
            let driver = self.members.driver.as_ref();
            let recovers = driver.is_some_and(|driver| {
                let current = driver.value.current();
                let recovered = driver.all_recovered.max(current.recovered);
                current.has(process) && recovered < current.version.id
            });
            if recovers {
                marks::mark("membership: a machine without memory leaves before it has recovered");
            }
            return self.drive(|value, out| match recovers {
                // What others wait for does not come any more.
                true => value.gone(process, out),
                false => value.left(process, out),
            });
        }
        if let Some(driver) = &mut self.members.driver {
            match driver.value.current().has(process) {
                true => {
                    tracing::warn!(%machine, "a machine is lost (it failed, was killed, or its connection broke)")
                }
                false => tracing::info!(%machine, "a machine that was joining is gone"),
            }
            driver.may_live.insert(process);
            self.drive(|value, out| value.suspect(process, out));
        }
    }

    /// Handles that this machine, which stores nothing, has joined the others: the newest configuration has it.
    pub(super) fn on_joined_configuration(&mut self) {
        if let Some(driver) = &mut self.members.driver {
            driver.read();
            self.look_soon();
        }
    }

    /// Returns the number of the newest configuration that this machine knows, in effect or not.
    pub(super) fn newest_known(&self) -> u64 {
        let driver = self.members.driver.as_ref();
        driver.map_or(1, |driver| driver.value.newest_known().id)
    }

    /// Handles that the manager, on this worker, has recorded starts of processes.
    pub(super) fn on_starts_recorded(&mut self) {
        let manager = self.recorder.manager.as_ref();
        let Some(newest) = manager.map(|manager| manager.configuration().clone()) else {
            return;
        };
        let newest = Arc::new(newest);
        self.drive(|value, out| value.on_minor_change(&newest, out));
    }

    /// Handles an event of the change, and does what follows.
    pub(super) fn drive(&mut self, event: impl FnOnce(&mut Reconfiguration, &mut Vec<Action>)) {
        let now = self.now;
        let Some(driver) = &mut self.members.driver else {
            return;
        };
        driver.last_event = now;
        let mut out = Vec::new();
        event(&mut driver.value, &mut out);
        // Before a machine answers that it has applied a configuration, it grants nothing to those that have left.
        self.renew_lease_terms();
        let mut actions = VecDeque::from(out);
        while let Some(action) = actions.pop_front() {
            self.perform(action, &mut actions);
        }
        if let Some(driver) = &mut self.members.driver
            && !driver.value.is_changing()
        {
            driver.said.clear();
        }
        self.look_soon();
    }

    fn perform(&mut self, action: Action, more: &mut VecDeque<Action>) {
        let me = self.me.machine;
        let Some(driver) = &mut self.members.driver else {
            return;
        };
        match action {
            Action::Send(to, message) if to == me => {
                let mut out = Vec::new();
                driver.value.on_message(me, message, &mut out);
                more.extend(out);
            }
            Action::Send(to, message) => match message.encode() {
                Ok(bytes) => self.send_long(WorkerRef::first_of(to), RECONFIGURATION, bytes),
                Err(error) => self.control.fail(format!(
                    "a message about the next configuration cannot be encoded: {error}"
                )),
            },
            Action::Probe(machine) => self.probe(machine),
            Action::Read => driver.read(),
            Action::Store(next) => {
                driver.asked += 1;
                driver.store.store(next);
            }
            Action::Apply(configuration) => self.begin_to_apply(configuration),
            Action::Commit(configuration) => self.begin_to_serve(&configuration),
            Action::Block(why) => self.say(why.to_string()),
            Action::Halt(why) => self.control.fail(format!("the cluster stops: {why}")),
            Action::Stop(_) if !self.store.map().is_complete() => {
                self.joins_again(CONFIGURATION_CHANGED);
            }
            Action::Abandoned => {
                let why = format!(
                    "all machines with memory have ended: machine {me} can join again when they have been started"
                );
                tracing::warn!("{why}");
                self.control.fail_to_join(why);
            }
            Action::Stop(version) => self.control.end_evicted(format!(
                "the other machines went on without machine {me}, which they took for lost (configuration {version}); start it again"
            )),
        }
    }

    /// Logs why the machine waits, unless it was logged last.
    fn say(&mut self, why: String) {
        if let Some(driver) = &mut self.members.driver
            && driver.said != why
        {
            tracing::warn!("the cluster waits: {why}");
            driver.said = why;
        }
    }

    fn look_soon(&mut self) {
        let Some(driver) = &mut self.members.driver else {
            return;
        };
        let awaits =
            driver.asked > 0 || !driver.may_live.is_empty() || driver.awaits_leases.is_some();
        let is_needed = driver.value.is_changing() || awaits;
        if is_needed && !std::mem::replace(&mut driver.looks, true) {
            self.set_timer(LOOK, Cont::new(|worker, _: u64, ()| worker.look(), 0));
        }
    }

    /// Looks at what the store and the system know.
    fn look(&mut self) {
        let Some(driver) = &mut self.members.driver else {
            return;
        };
        driver.looks = false;
        let has_died = |one: &Process| self.endpoint.has_died(one.machine, one.boot);
        let died = driver.may_live.extract_if(.., |one| has_died(one));
        let mut died: Vec<Process> = died.collect();
        let evicted = driver.value.evicted_that_may_run();
        died.extend(evicted.filter(has_died));
        for process in died {
            marks::mark("membership: a lost process is proved to have ended");
            self.drive(|value, out| value.gone(process, out));
        }
        self.evict();
        self.answer_if_leases_have_ended();
        while let Some(answer) = self.next_answer() {
            match answer {
                Access::Read(read) => self.drive(|value, out| value.on_read(read, out)),
                Access::Stored(next, stored) => {
                    self.drive(|value, out| value.on_stored(&next, stored, out));
                }
                // The first configuration is stored before any region is.
                Access::Nothing if self.was_stored() => {
                    let why = "no configuration is in durability.dir any more: restore this directory, because it has the configuration of this cluster";
                    self.drive(|value, out| value.on_read(Err(why.into()), out));
                }
                Access::Nothing => {
                    let manager = self.membership.manager();
                    return self.control.fail(format!(
                        "no configuration is in durability.dir: machine {manager}, which manages it, was lost before it had stored the \
                         first one, or the directory is gone: start all machines again"
                    ));
                }
            }
        }
        let now = self.now;
        if let Some(driver) = &mut self.members.driver
            && now.since(driver.last_event) >= PATIENCE
            && driver.value.is_changing()
        {
            self.drive(Reconfiguration::on_timeout);
        }
        self.look_soon();
    }

    /// Returns whether a configuration was certainly stored.
    fn was_stored(&self) -> bool {
        let store = &self.store;
        self.is_manager() || store.applied().is_some() || !store.map().all().is_empty()
    }

    fn next_answer(&mut self) -> Option<Access> {
        let driver = self.members.driver.as_mut()?;
        let answer = driver.store.poll()?;
        driver.asked -= 1;
        Some(answer)
    }

    fn probe(&mut self, machine: MachineId) {
        let cont = ReplyCont::new(Self::on_probe_reply, u64::from(machine.get()));
        match self.call(WorkerRef::first_of(machine), PROBE, &[], BOOT_BYTES, cont) {
            Ok(()) => {}
            Err(CallError::Busy) => {
                let again = |worker: &mut Worker, machine: u64, ()| {
                    if let Some(machine) = MachineId::new(machine as u16) {
                        worker.probe(machine);
                    }
                };
                self.when_room(Cont::new(again, u64::from(machine.get())));
            }
            // The caller handles actions.
            Err(_) => self.defer(Cont::new(Self::on_no_answer, u64::from(machine.get()))),
        }
    }

    fn on_no_answer(&mut self, machine: u64, (): ()) {
        self.on_probe_reply(machine, Ok(&[]));
    }

    fn on_probe_reply(&mut self, machine: u64, reply: Result<&[u8], CallError>) {
        let boot = reply.ok().and_then(|reply| reply.try_into().ok());
        let probed = match boot.map(u64::from_le_bytes) {
            Some(boot) => Probed::Runs { boot },
            None => Probed::Nothing,
        };
        if let Some(machine) = MachineId::new(machine as u16) {
            self.drive(|value, out| value.on_probed(machine, probed, out));
        }
    }

    fn handle_probe(&mut self, request: Request, _body: &[u8]) {
        let driver = self.members.driver.as_ref();
        match driver.map(|driver| driver.value.me().boot) {
            Some(boot) => self.reply(request, &[&boot.to_le_bytes()]),
            None => self.reply(request, &[]),
        }
    }

    fn handle_reconfiguration(&mut self, from: WorkerRef, body: &[u8]) {
        match Message::decode(body) {
            Ok(message) => self.drive(|value, out| value.on_message(from.machine, message, out)),
            Err(error) => {
                let why = format!(
                    "{from} sent a message about the next configuration that is malformed: {error}"
                );
                self.distrust(from.machine, why);
            }
        }
    }

    /// Handles a message that is the number of a configuration.
    fn take_number(&mut self, (from, body): (WorkerRef, &[u8]), work: fn(&mut Self, u64)) {
        if let Some(id) = self.number(from, body) {
            work(self, id);
        }
    }

    /// Returns the number of a configuration in a message.
    fn number(&mut self, from: WorkerRef, body: &[u8]) -> Option<u64> {
        let number = body.try_into().ok().map(u64::from_le_bytes);
        if number.is_none() {
            let why = format!("{from} sent the number of a configuration that is malformed");
            self.distrust(from.machine, why);
        }
        number
    }
}
