//! The change to the next configuration when machines are lost or added (`FaRM'15 §5.2`), as a value of each machine: events go in,
//! [`Action`]s come out. It knows no worker, fabric, clock or store: the first worker of each machine runs it ([`crate::worker`]).
//!
//! 1. A machine is *suspected*, for example because its connection has ended. The manager makes the next configuration, or, if it is
//!    suspected itself, the machine that follows it. All others tell that machine what they suspect.
//! 2. It reads the newest configuration from the store, and probes all members that are not suspected. It goes on with a majority of
//!    the members that store regions and are not known to be [gone](Reconfiguration::gone); a minority waits.
//! 3. It stores the next configuration, without the suspected machines, in the place that follows the newest one. If another machine
//!    has done so before, it begins again.
//! 4. It tells all members (NEW-CONFIG). Each applies it: it stops what it does with machines that are no members, and answers.
//! 5. When all have answered, and all machines that have left are gone, or evicted, it tells all members that the configuration is in effect
//!    (NEW-CONFIG-COMMIT). Only then new primaries serve their regions, so that a region has never two.
//!
//! Where [leases end by time](crate::fabric::LeaseBook), a machine answers only when the leases that it has granted to machines that have left
//! have ended. The next configuration then needs a majority of each configuration since the last one that is known to be in effect
//! ([`Configuration::quorums`]), because a machine holds leases of majorities of all that it has applied since.
//!
//! If something more is lost meanwhile, all begins again, with the configuration that the store has by then. Which machine makes it is
//! only a matter of speed: the store decides.
//!
//! Machines and replicas are added in the same way, by the manager ([`Reconfiguration::extend`]), but not while another machine is
//! suspected.

mod encoding;
mod extension;
mod leader;
mod loss;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::configuration::{Configuration, Member, Process, Version};
use crate::fabric::LeaseTerms;
use crate::ids::MachineId;
use crate::marks;
pub use encoding::NotAMessage;
pub use extension::Extension;
use leader::Leading;
pub use loss::Halted;

/// What machines tell each other to change the configuration. Messages between two machines arrive in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// To the machine that makes the next configuration: the sender suspects this process.
    Suspect(Process),
    /// From the manager of a configuration, to its members.
    NewConfig(Arc<Configuration>),
    /// The answer: the sender has applied the configuration with this number.
    Applied(u64),
    /// From the manager: the configuration with this number is in effect.
    Commit(u64),
    /// To a process that is not a member of this configuration.
    Evicted(Process, Version),
}

/// What a machine has to do for the change of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a message; it may be to the own machine.
    Send(MachineId, Message),
    /// Find out whether the process of a member runs, and in which configuration; report it by [`Reconfiguration::on_probed`].
    Probe(MachineId),
    /// Read the newest configuration from the store, and report it by [`Reconfiguration::on_read`].
    Read,
    /// Store this configuration, and report the outcome by [`Reconfiguration::on_stored`], with the same configuration.
    Store(Arc<Configuration>),
    /// Apply the configuration on all workers, and report the end by [`Reconfiguration::on_applied`]. A configuration that
    /// was being applied is replaced.
    Apply(Arc<Configuration>),
    /// The applied configuration is in effect: serve what it says, and recover the transactions of earlier ones.
    Commit(Arc<Configuration>),
    /// Serve nothing until there is a next configuration, for this reason.
    Block(Blocked),
    /// The cluster cannot go on, and must not: data would be lost. As [`Action::Block`]; it is repeated while nothing has changed.
    Halt(Halted),
    /// Stop at once: this machine is not a member of this configuration.
    Stop(Version),
    /// Stop: all machines that store memory have ended, and this one stores none, or was joining.
    Abandoned,
}

/// Why a machine waits for the next configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Blocked {
    /// Too few members are reached.
    #[error(
        "of {of} machines that store regions and may be alive, only {reached} can be reached: another part of the cluster may go on \
         without this one"
    )]
    Minority {
        /// Members that answer, with this one.
        reached: usize,
        /// Members that are not known to be gone.
        of: usize,
    },
    /// Machines with the last complete copies of regions do not answer, and may be alive.
    #[error("waiting for machines that do not answer: {0}")]
    LastCopies(Halted),
    /// The store does not work.
    #[error("the configuration cannot be changed: {0}")]
    Store(String),
}

/// What a probe of a machine has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probed {
    /// The process with this number of its start runs.
    Runs {
        /// The number.
        boot: u64,
    },
    /// There is no answer.
    Nothing,
}

/// The outcome of [`Action::Store`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The store has the configuration.
    Won,
    /// Another change came first.
    Lost,
    /// The store does not work, for this reason. Nothing has changed.
    Failed(String),
}

/// The part of one machine in changes of the configuration.
#[derive(Clone, Debug)]
pub struct Reconfiguration {
    /// This process.
    me: Process,
    /// The newest configuration that is known here to be in effect.
    current: Arc<Configuration>,
    /// A later one that is being applied, or was.
    next: Option<Next>,
    /// Processes that this machine has found to be lost.
    suspected: BTreeSet<Process>,
    /// Processes that others suspect, each with one that does. That counts while it is a member and not gone.
    complaints: BTreeMap<Process, Process>,
    /// Machines that have not answered this one while it made the next configuration. They are suspected until another attempt begins.
    silent: BTreeSet<MachineId>,
    /// Processes whose leases have expired, as this machine finds. They are suspected until they are renewed.
    expired: BTreeSet<Process>,
    /// Processes that serve nothing, and never will: they have ended, or have left.
    gone: BTreeSet<Process>,
    /// Processes that report nothing any more, because they know or will find that the others go on without them.
    evicted: BTreeSet<Process>,
    /// What was told to whom: the machine that makes the next configuration, and the process that is suspected.
    told: BTreeSet<(MachineId, Process)>,
    /// The work of this machine, if it makes the next configuration.
    leading: Option<Leading>,
    /// What it adds in the next configuration, if no machine is suspected.
    extension: Option<Extension>,
    /// Number of machines before this one that have had their time to make the next configuration.
    passed_over: usize,
    /// Whether this machine was evicted.
    ended: bool,
    /// Whether leases end by time.
    by_time: bool,
    /// Configurations that this machine has begun to apply since the one in effect, in order.
    begun: Vec<Arc<Configuration>>,
}

/// A configuration that is not known to be in effect.
#[derive(Clone, Debug)]
struct Next {
    configuration: Arc<Configuration>,
    /// Whether all workers have applied it.
    applied: bool,
}

impl Reconfiguration {
    /// Creates the value of the process `me`. `current` is in effect; the process is a member of it, or joins.
    pub fn new(me: Process, current: Configuration) -> Self {
        Self {
            me,
            // What is in effect has awaited them.
            evicted: current.expiring.iter().copied().collect(),
            current: Arc::new(current),
            next: None,
            suspected: BTreeSet::new(),
            complaints: BTreeMap::new(),
            silent: BTreeSet::new(),
            expired: BTreeSet::new(),
            gone: BTreeSet::new(),
            told: BTreeSet::new(),
            leading: None,
            extension: None,
            passed_over: 0,
            ended: false,
            by_time: false,
            begun: Vec::new(),
        }
    }

    /// Sets that leases end by time, or not, as by default.
    #[must_use]
    pub fn with_leases_by_time(mut self, by_time: bool) -> Self {
        self.by_time = by_time;
        if by_time {
            self.gone.extend(&self.current.expiring);
        }
        self
    }

    /// Returns who takes part in leases by time.
    pub fn lease_terms(&self) -> LeaseTerms {
        let start = |process: Process| (process.machine, process.boot);
        let running = self.known().running().map(Member::process);
        // Those that have left in order ask for nothing any more.
        let running = running.filter(|one| !self.gone.contains(one));
        let since = self.begun.iter().chain([&self.current]);
        LeaseTerms {
            id: self.known().version.id,
            members: running.map(start).collect(),
            quorums: since
                .map(|one| one.storing().map(start).collect())
                .collect(),
        }
    }

    /// Returns this process.
    pub fn me(&self) -> Process {
        self.me
    }

    /// Returns the newest configuration that is known here to be in effect.
    pub fn current(&self) -> &Arc<Configuration> {
        &self.current
    }

    /// Returns the newest configuration that this machine knows, in effect or not.
    pub fn newest_known(&self) -> Version {
        self.known().version
    }

    /// Returns whether a change of the configuration is under way, as far as this machine knows. If it is, and nothing happens for
    /// a time, [`Reconfiguration::on_timeout`] is to be called.
    pub fn is_changing(&self) -> bool {
        !self.ended && (self.next.is_some() || self.leading.is_some() || self.has_suspects())
    }

    /// Handles that a process may be lost.
    pub fn suspect(&mut self, process: Process, out: &mut Vec<Action>) {
        if process.machine == self.me.machine || !self.suspected.insert(process) || self.ended {
            return;
        }
        let known = self.known();
        if !known.has(process) && !known.expiring.contains(&process) {
            marks::mark("membership: a process that is no member is lost");
            // It may have joined since.
            out.push(Action::Read);
        }
        self.go_on(out);
    }

    /// Handles that the lease of a process has expired, or was renewed after that.
    pub fn on_lease(&mut self, process: Process, has_expired: bool, out: &mut Vec<Action>) {
        if process.machine == self.me.machine || self.ended {
            return;
        }
        if !has_expired {
            if self.expired.remove(&process) {
                marks::mark("membership: a lease is renewed after it had expired");
                self.passed_over = 0;
                self.go_on(out);
            }
        } else if self.expired.insert(process) {
            marks::mark("membership: a lease expires");
            self.go_on(out);
        }
    }

    /// Returns the members whose leases have expired, as this machine finds.
    pub fn expired(&self) -> impl Iterator<Item = MachineId> {
        let expired = self.expired.iter().filter(|one| self.known().has(**one));
        expired.map(|process| process.machine)
    }

    /// Returns whether the newest configuration that this machine knows was made without this process, which had a part in an earlier one.
    pub fn has_evicted(&self, process: Process) -> bool {
        self.known().expiring.contains(&process)
    }

    /// Returns whether a process is to be evicted: it has left. Where leases end by time, so has one that is no member and is not
    /// named any more.
    pub fn is_to_be_evicted(&self, process: Process) -> bool {
        self.has_evicted(process) || self.by_time && !self.known().has(process)
    }

    /// Returns the processes without which the newest configuration that this machine knows was made.
    pub fn expiring(&self) -> impl Iterator<Item = Process> {
        self.known().expiring.iter().copied()
    }

    /// Returns the processes that were evicted and may run, as far as is known.
    pub fn evicted_that_may_run(&self) -> impl Iterator<Item = Process> {
        let expiring = self.current.expiring.iter().copied();
        expiring.filter(|one| !self.gone.contains(one))
    }

    /// Returns whether a process is evicted, so that nothing waits for it.
    pub fn is_evicted(&self, process: Process) -> bool {
        self.evicted.contains(&process)
    }

    /// Handles that an evicted process reports nothing any more: the others need not wait for its end.
    pub fn evicted(&mut self, process: Process, out: &mut Vec<Action>) {
        if self.evicted.insert(process) {
            self.go_on(out);
        }
    }

    /// Handles that a process without memory has left: it has ended all that it had begun, and needs no other configuration. It is
    /// no member of the next one.
    pub fn left(&mut self, process: Process, out: &mut Vec<Action>) {
        if process.machine != self.me.machine && self.gone.insert(process) && !self.ended {
            self.lead_on(out);
        }
    }

    /// Begins to add machines or replicas, as the manager. They are forgotten if another configuration comes first. Returns false if a
    /// change is under way.
    pub fn extend(&mut self, extension: Extension, out: &mut Vec<Action>) -> bool {
        let manages = self.current.manager == self.me.machine;
        let begins = manages && !self.ended && !self.is_changing();
        if begins {
            self.extension = Some(extension);
            self.lead(out);
        }
        begins
    }

    /// Handles that a change of the same configuration is stored, for example the start of a process without memory.
    pub fn on_minor_change(&mut self, newest: &Arc<Configuration>, out: &mut Vec<Action>) {
        self.catch_up(newest);
        self.go_on(out);
    }

    /// Takes over minor changes of the newest configuration that this machine knows.
    fn catch_up(&mut self, newest: &Arc<Configuration>) {
        let known = match &mut self.next {
            Some(next) => &mut next.configuration,
            None => &mut self.current,
        };
        let (new, old) = (newest.version, known.version);
        if new.id == old.id && new.minor > old.minor {
            *known = newest.clone();
        }
    }

    /// Handles that a process has ended, which was proved. It is suspected, too. The end of a lease is no such proof.
    pub fn gone(&mut self, process: Process, out: &mut Vec<Action>) {
        if process.machine != self.me.machine && self.gone.insert(process) {
            self.suspected.insert(process);
            self.go_on(out);
        }
    }

    /// Handles that a change has not come to its end for a time in which it should have.
    pub fn on_timeout(&mut self, out: &mut Vec<Action>) {
        if self.ended || !self.is_changing() {
            return;
        }
        if self.leading.is_some() {
            self.leader_timeout(out);
        } else {
            self.passed_over += 1;
            // The others may have evicted this machine, and the message did not arrive.
            out.push(Action::Read);
        }
        self.go_on(out);
    }

    /// Handles a message.
    pub fn on_message(&mut self, from: MachineId, message: Message, out: &mut Vec<Action>) {
        if self.ended {
            return;
        }
        match message {
            Message::Suspect(process) => self.on_complaint(from, process, out),
            Message::NewConfig(configuration) => self.on_new_config(from, configuration, out),
            Message::Applied(id) => self.on_member_applied(from, id, out),
            Message::Commit(id) => self.on_commit(from, id, out),
            Message::Evicted(process, version) => {
                if process == self.me && version.id > self.known().version.id {
                    self.stop(version, out);
                }
            }
        }
    }

    /// Handles that another machine suspects a process. If two machines suspect each other, the first complaint counts: one of them
    /// stays.
    fn on_complaint(&mut self, from: MachineId, process: Process, out: &mut Vec<Action>) {
        let known = self.known();
        let complainer = known.running_on(from).map(Member::process);
        let is_suspected = self.suspects_in(known).contains(&from);
        let Some(complainer) = complainer.filter(|_| !is_suspected) else {
            return;
        };
        if process.machine == self.me.machine {
            return;
        }
        let before = self.complaints.get(&process).copied();
        let counts = before.filter(|before| known.has(*before) && !self.gone.contains(before));
        self.complaints
            .insert(process, counts.unwrap_or(complainer));
        self.go_on(out);
    }

    /// Handles that all workers have applied the configuration with this number.
    pub fn on_applied(&mut self, id: u64, out: &mut Vec<Action>) {
        let next = self.next.as_mut();
        if let Some(next) = next.filter(|next| next.configuration.version.id == id) {
            next.applied = true;
            let manager = next.configuration.manager;
            out.push(Action::Send(manager, Message::Applied(id)));
        }
    }

    fn on_new_config(
        &mut self,
        from: MachineId,
        configuration: Arc<Configuration>,
        out: &mut Vec<Action>,
    ) {
        let known = self.known().version.id;
        if configuration.manager != from || configuration.version.id <= known {
            return;
        }
        if !configuration.has(self.me) {
            return self.stop(configuration.version, out);
        }
        if self.leading.take().is_some() {
            marks::mark("membership: a machine gives way to another manager");
        }
        self.adopt(configuration, out);
        self.go_on(out);
    }

    /// Begins to apply a configuration that is newer than all that this machine knows.
    fn adopt(&mut self, configuration: Arc<Configuration>, out: &mut Vec<Action>) {
        if self.next.is_some() {
            marks::mark("membership: a configuration is replaced before it is in effect");
        }
        self.passed_over = 0;
        self.extension = None;
        self.silent.clear();
        self.told.clear();
        self.next = Some(Next {
            configuration: configuration.clone(),
            applied: false,
        });
        self.begun.push(configuration.clone());
        out.push(Action::Apply(configuration));
    }

    fn on_commit(&mut self, from: MachineId, id: u64, out: &mut Vec<Action>) {
        let is_next = |next: &Next| {
            let of = &next.configuration;
            (of.version.id, of.manager) == (id, from) && next.applied
        };
        if let Some(next) = self.next.take_if(|next| is_next(next)) {
            self.current = next.configuration;
            self.begun.clear();
            match self.by_time {
                // They hold no lease, and get none.
                true => self.gone.extend(&self.current.expiring),
                false => self.evicted.extend(&self.current.expiring),
            }
            self.passed_over = 0;
            out.push(Action::Commit(self.current.clone()));
        }
    }

    /// Does what follows from what is suspected.
    fn go_on(&mut self, out: &mut Vec<Action>) {
        if self.ended {
            return;
        }
        if self.leading.is_some() {
            return self.lead_on(out);
        }
        if !self.has_suspects() {
            return;
        }
        match self.maker() {
            Some(machine) if machine != self.me.machine => self.tell_suspects(machine, out),
            Some(_) => self.lead(out),
            None => {
                if self.known().storing().all(|one| self.gone.contains(&one)) {
                    marks::mark("membership: all machines with memory have ended");
                    self.ended = true;
                    out.push(Action::Abandoned);
                }
            }
        }
    }

    /// Tells the machine that makes the next configuration what this one suspects.
    fn tell_suspects(&mut self, maker: MachineId, out: &mut Vec<Action>) {
        let members = self.known().running().map(Member::process);
        let suspects: Vec<Process> = members.filter(|one| self.suspected.contains(one)).collect();
        for process in suspects {
            if self.told.insert((maker, process)) {
                out.push(Action::Send(maker, Message::Suspect(process)));
            }
        }
    }

    /// Returns the machine that should make the next configuration: the manager, or the first one after it that is not suspected, and
    /// has not had its time. `None` if no machine that stores regions is left.
    fn maker(&self) -> Option<MachineId> {
        let known = self.known();
        let storing = known.members.iter().filter(|member| member.stores);
        let mut storing: Vec<MachineId> = storing.map(|member| member.machine).collect();
        let first = storing.iter().position(|one| *one == known.manager);
        storing.rotate_left(first.unwrap_or(0));
        let suspects = self.suspects_in(known);
        storing.retain(|machine| !suspects.contains(machine));
        if storing.is_empty() {
            return None;
        }
        Some(storing[self.passed_over % storing.len()])
    }

    /// Returns the newest configuration that this machine knows.
    fn known(&self) -> &Arc<Configuration> {
        let next = self.next.as_ref();
        next.map_or(&self.current, |next| &next.configuration)
    }

    fn has_suspects(&self) -> bool {
        self.has_suspects_in(self.known())
    }

    fn has_suspects_in(&self, configuration: &Configuration) -> bool {
        !self.suspects_in(configuration).is_empty()
    }

    /// Returns the members of a configuration that are suspected.
    fn suspects_in(&self, configuration: &Configuration) -> BTreeSet<MachineId> {
        let is_suspected = |member: &&Member| {
            let process = member.process();
            let complaints = self.complaints.get(&process);
            self.suspected.contains(&process)
                || self.expired.contains(&process)
                || self.silent.contains(&process.machine)
                || complaints
                    .is_some_and(|from| configuration.has(*from) && !self.gone.contains(from))
        };
        let suspects = configuration.running().filter(is_suspected);
        suspects.map(|member| member.machine).collect()
    }

    /// Returns the members of a configuration without which the next one is made: those that are suspected, and those that have left,
    /// which are no reason to make one.
    fn lost_in(&self, configuration: &Configuration) -> BTreeSet<MachineId> {
        let is_gone = |member: &&Member| self.gone.contains(&member.process());
        let gone = configuration.running().filter(is_gone);
        let mut lost = self.suspects_in(configuration);
        lost.extend(gone.map(|member| member.machine));
        lost
    }

    fn stop(&mut self, version: Version, out: &mut Vec<Action>) {
        marks::mark("membership: a machine was evicted");
        self.ended = true;
        out.push(Action::Stop(version));
    }
}
