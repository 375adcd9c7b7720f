//! A cluster of [`Reconfiguration`]s, with the processes, connections and store that they need, and its judges.

mod joiners;
mod leases;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use rand::seq::{IndexedRandom, IteratorRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::super::{Action, Message, Probed, Reconfiguration, Stored};
use crate::fabric::{LeaseBook, LeaseMessage, Start};
use crate::ids::{MachineId, RegionId};
use crate::membership::configuration::testing::{configuration, region_of};
use crate::membership::configuration::{Configuration, Process, Replica, ReplicaState, Version};
use crate::time::Nanos;

/// What a machine has begun and has not ended.
#[derive(Clone, Debug)]
enum Begun {
    Probe(MachineId),
    Read,
    /// A configuration to be stored, and the outcome if the store has it already.
    Store(Configuration, Option<Stored>),
    Apply(u64),
    /// It has applied a configuration, and answers when the leases have ended that it has granted to others.
    Answer(u64),
}

/// What a machine notices of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Notice {
    Silent,
    Gone,
    Left,
    Expired,
    Renewed,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Killed,
    Evicted,
    Halted,
    /// It stored nothing, and had ended all that it had begun.
    Left,
    /// It does not run yet, or could not join.
    Absent,
}

struct Node {
    boot: u64,
    value: Reconfiguration,
    begun: Vec<Begun>,
    /// What this machine will notice of others.
    unnoticed: BTreeSet<(Process, Notice)>,
    end: Option<End>,
    /// Whether it was stopped, and does nothing until it goes on.
    paused: bool,
    /// Whether others have evicted it. It reports nothing from then on, and ends when it goes on.
    evicted: bool,
    /// The configuration that it has applied; it may not be in effect.
    applied: u64,
    /// Whether it is no member yet.
    joins: bool,
    leases: LeaseBook,
}

pub(super) struct Cluster {
    rng: Xoshiro256PlusPlus,
    nodes: BTreeMap<MachineId, Node>,
    /// Messages between machines, in order.
    flying: BTreeMap<(MachineId, MachineId), VecDeque<Message>>,
    /// Pairs of machines that do not reach each other, the smaller one first.
    cut: BTreeSet<(MachineId, MachineId)>,
    store: Vec<Configuration>,
    /// Machines that have all data of a region.
    full: BTreeMap<RegionId, BTreeSet<MachineId>>,
    has_cuts: bool,
    /// Whether machines can evict others, which they cannot on every fabric.
    evicts: bool,
    /// Whether leases end by time, and nothing proves the end of a process.
    by_time: bool,
    now: Nanos,
    /// Whether requests for leases are often enough, and none is lost.
    is_calm: bool,
    /// Machines that reached two others that do not reach each other, and the first of those.
    between: Option<[Vec<MachineId>; 2]>,
    /// Answers to requests for leases, with their senders and receivers.
    answers: Vec<(Start, Start, LeaseMessage)>,
}

/// Time of a lease.
const LEASE: u64 = 256;

impl Node {
    fn new(process: Process, current: Configuration) -> Self {
        Self {
            boot: process.boot,
            applied: current.version.id,
            value: Reconfiguration::new(process, current),
            begun: Vec::new(),
            unnoticed: BTreeSet::new(),
            end: None,
            paused: false,
            evicted: false,
            joins: false,
            leases: LeaseBook::new((process.machine, process.boot), Duration::from_nanos(LEASE)),
        }
    }

    /// Returns whether it may serve, as far as leases by time say.
    fn has_lease(&self, now: Nanos) -> bool {
        self.leases.end() > now
    }

    fn acts(&self) -> bool {
        self.end.is_none() && !self.paused
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let newest = self.store.last().map(|one| (one.version, one.manager));
        writeln!(f, "newest {newest:?}, cut {:?}", self.cut)?;
        for (machine, node) in &self.nodes {
            let Reconfiguration {
                current,
                next,
                suspected,
                complaints,
                gone,
                leading,
                ..
            } = &node.value;
            let leading = format!("{leading:?}");
            let leading = leading.split_whitespace().next();
            let next = next.as_ref();
            let next = next.map(|next| (next.configuration.version, next.applied));
            writeln!(
                f,
                "{machine}: {:?} in {}, next {next:?}, suspects {suspected:?} {complaints:?}, gone {gone:?}, begun {:?}, {leading:?}",
                node.end, current.version, node.begun
            )?;
        }
        Ok(())
    }
}

impl Cluster {
    pub(super) fn random(seed: u64) -> Self {
        let by_time = seed % 3 == 2;
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let count = rng.random_range(3..=7u16);
        let ids: Vec<u16> = (1..=count).collect();
        let mut first = configuration("test", &ids);
        // One may store nothing.
        let has_program = rng.random_ratio(2, 3);
        if has_program {
            let program = first.members.last_mut().unwrap();
            program.stores = false;
            if rng.random() {
                program.boot = 0;
            }
        }
        let storing = first.members.iter().filter(|member| member.stores);
        let storing: Vec<MachineId> = storing.map(|member| member.machine).collect();
        let mut full: BTreeMap<RegionId, BTreeSet<MachineId>> = BTreeMap::new();
        let replicas = rng.random_range(1..=3);
        for number in 1..=rng.random_range(1..=4) {
            let mut machines = storing.clone();
            machines.shuffle(&mut rng);
            let mut region = region_of(number);
            region.replicas.clear();
            for (at, machine) in machines.iter().take(replicas).enumerate() {
                let state = match at > 0 && rng.random_ratio(1, 4) {
                    true => ReplicaState::Filling,
                    false => ReplicaState::Full,
                };
                if state == ReplicaState::Full {
                    full.entry(region.region).or_default().insert(*machine);
                }
                region.replicas.push(Replica {
                    machine: *machine,
                    since: 1,
                    state,
                });
            }
            first.regions.push(region);
        }
        first.check().unwrap();
        let nodes = first.members.iter().map(|member| {
            let mut node = Node::new(member.process(), first.clone());
            node.value = node.value.with_leases_by_time(by_time);
            node.leases.set_terms(node.value.lease_terms());
            node.end = (!member.runs()).then_some(End::Absent);
            (member.machine, node)
        });
        Self {
            nodes: nodes.collect(),
            flying: BTreeMap::new(),
            cut: BTreeSet::new(),
            store: vec![first],
            full,
            has_cuts: rng.random_ratio(1, 3),
            evicts: rng.random_ratio(2, 3),
            by_time,
            now: Nanos(1),
            is_calm: false,
            between: None,
            answers: Vec::new(),
            rng,
        }
    }

    /// Runs random steps, with random faults among them.
    pub(super) fn run_with_faults(&mut self) {
        let mut faults = self.rng.random_range(1..=4);
        for _ in 0..self.rng.random_range(50..300) {
            let is_fault = faults > 0 && self.rng.random_ratio(1, 15);
            if is_fault {
                faults -= 1;
                self.fault();
            } else if !self.step() || self.rng.random_ratio(1, 100) {
                self.timeout();
            }
            if self.rng.random_ratio(1, 10) {
                self.program();
            }
            if self.rng.random_ratio(1, 10) {
                self.rejoin();
            }
            if self.rng.random_ratio(1, 100) {
                self.end_pauses();
            }
            self.judge_primaries();
        }
    }

    /// Runs until nothing changes any more.
    pub(super) fn run_to_rest(&mut self) {
        self.end_pauses();
        self.is_calm = true;
        let rounds = if self.by_time { 60 } else { 200 };
        for _ in 0..rounds {
            while self.step() {
                self.judge_primaries();
            }
            for _ in 0..LEASE {
                self.pass_time();
            }
            self.record_start();
            self.add();
            self.end_filling();
            let live: Vec<MachineId> = self.live().collect();
            for machine in live {
                self.act(machine, Reconfiguration::on_timeout);
            }
        }
    }

    /// Returns the last process of a machine.
    fn process(&self, machine: MachineId) -> Process {
        let boot = self.nodes[&machine].boot;
        Process { machine, boot }
    }

    /// Returns whether the process lives that is a member of this configuration.
    fn lives(&self, of: &Configuration, machine: MachineId) -> bool {
        self.nodes[&machine].end.is_none() && of.has(self.process(machine))
    }

    fn will_notice(&mut self, machine: MachineId, of: Process, notice: Notice) {
        let node = self.nodes.get_mut(&machine).unwrap();
        node.unnoticed.insert((of, notice));
    }

    fn newest(&self) -> &Configuration {
        self.store.last().unwrap()
    }

    fn live(&self) -> impl Iterator<Item = MachineId> + '_ {
        let live = self.nodes.iter().filter(|(_, node)| node.end.is_none());
        live.map(|(machine, _)| *machine)
    }

    fn fault(&mut self) {
        let mut live: Vec<MachineId> = self.live().collect();
        live.shuffle(&mut self.rng);
        match live[..] {
            _ if self.has_cuts && self.by_time && self.rng.random() => self.part(&live),
            [one, other, ..] if self.has_cuts && self.rng.random() => self.cut_off(one, other),
            [one, _, ..] if self.rng.random() => {
                self.nodes.get_mut(&one).unwrap().paused = true;
                if self.rng.random() && !self.by_time {
                    self.lease_of(one, Notice::Expired);
                }
            }
            [one, _, ..] => self.end(one, End::Killed),
            _ => {}
        }
    }

    /// Cuts the network between two machines. Both notice that their connection has ended.
    fn cut_off(&mut self, one: MachineId, other: MachineId) {
        self.cut.insert((one.min(other), one.max(other)));
        self.will_notice(one, self.process(other), Notice::Silent);
        self.will_notice(other, self.process(one), Notice::Silent);
    }

    /// Has the others notice that the lease of a machine has expired, or is renewed.
    fn lease_of(&mut self, machine: MachineId, notice: Notice) {
        let process = self.process(machine);
        let others: Vec<MachineId> = self.live().filter(|one| *one != machine).collect();
        for other in others {
            let node = self.nodes.get_mut(&other).unwrap();
            // The last one counts.
            node.unnoticed.remove(&(process, Notice::Expired));
            node.unnoticed.insert((process, notice));
        }
    }

    /// Lets stopped machines go on. Those that find that they are evicted end.
    fn end_pauses(&mut self) {
        let live: Vec<MachineId> = self.live().collect();
        for machine in live {
            let node = self.nodes.get_mut(&machine).unwrap();
            if std::mem::take(&mut node.paused) && !self.by_time {
                self.lease_of(machine, Notice::Renewed);
            }
        }
        self.end_evicted();
    }

    fn end_evicted(&mut self) {
        let is_evicted = |(_, node): &(&MachineId, &Node)| node.acts() && node.evicted;
        let evicted: Vec<MachineId> = self
            .nodes
            .iter()
            .filter(is_evicted)
            .map(|one| *one.0)
            .collect();
        for machine in evicted {
            self.end(machine, End::Evicted);
        }
    }

    /// Returns machines of which the first can evict the second.
    fn evictions(&self) -> Vec<(MachineId, MachineId)> {
        let acting = self.nodes.iter().filter(|(_, node)| node.acts());
        let all = acting.flat_map(|(me, node)| {
            let expiring = self.live().filter(move |other| {
                let process = self.process(*other);
                let is_known = node.value.evicted.contains(&process);
                node.value.has_evicted(process) && self.reaches(*me, *other) && !is_known
            });
            expiring.map(|other| (*me, other))
        });
        all.collect()
    }

    /// Has a machine evict a process, and find out that it has.
    fn evict(&mut self, (me, other): (MachineId, MachineId)) {
        let process = self.process(other);
        self.nodes.get_mut(&other).unwrap().evicted = true;
        self.act(me, |value, out| value.evicted(process, out));
        self.end_evicted();
    }

    /// Ends a process. What it has begun may be done or not; the others notice its end one by one.
    fn end(&mut self, machine: MachineId, how: End) {
        let node = self.nodes.get_mut(&machine).unwrap();
        node.end = Some(how);
        let begun = std::mem::take(&mut node.begun);
        for one in begun {
            if let Begun::Store(next, None) = one
                && self.rng.random()
            {
                self.swap(next);
            }
        }
        let process = self.process(machine);
        for (_, node) in self.nodes.iter_mut().filter(|(_, node)| node.end.is_none()) {
            if how == End::Left {
                node.unnoticed.insert((process, Notice::Left));
                continue;
            }
            if self.rng.random() {
                node.unnoticed.insert((process, Notice::Silent));
            }
            if !self.by_time {
                node.unnoticed.insert((process, Notice::Gone));
            }
        }
    }

    fn swap(&mut self, next: Configuration) -> Stored {
        let newest = self.store.last().unwrap();
        if next.change != newest.change + 1 {
            return Stored::Lost;
        }
        next.check().unwrap();
        let storing = |of: &Configuration| -> BTreeSet<MachineId> {
            let storing = of.members.iter().filter(|member| member.stores);
            storing.map(|member| member.machine).collect()
        };
        let mut live = storing(newest);
        live.retain(|machine| self.lives(newest, *machine));
        let left = storing(&next).len();
        assert!(2 * left > live.len(), "{left} of {live:?} go on");
        self.store.push(next);
        Stored::Won
    }

    fn timeout(&mut self) {
        let acting = self.nodes.iter().filter(|(_, node)| node.acts());
        let acting = acting.map(|(machine, _)| *machine);
        if let Some(machine) = acting.choose(&mut self.rng) {
            self.act(machine, Reconfiguration::on_timeout);
        }
    }

    fn reaches(&self, one: MachineId, other: MachineId) -> bool {
        !self.cut.contains(&(one.min(other), one.max(other)))
    }

    /// Makes a random step; returns false if none is possible.
    fn step(&mut self) -> bool {
        self.pass_time();
        if self.by_time && self.rng.random() && self.end_granted() {
            return true;
        }
        let is_paused = |machine: &MachineId| self.nodes[machine].paused;
        let links = self.flying.iter();
        let links = links.filter(|((_, to), queue)| !queue.is_empty() && !is_paused(to));
        let link = links.map(|(link, _)| *link).choose(&mut self.rng);
        let live = self.nodes.iter().filter(|(_, node)| node.acts());
        let busy = live.clone().filter(|(_, node)| !node.begun.is_empty());
        let busy = busy.map(|(machine, _)| *machine).choose(&mut self.rng);
        let unaware = live.filter(|(_, node)| !node.unnoticed.is_empty());
        let unaware = unaware.map(|(machine, _)| *machine).choose(&mut self.rng);
        let evictions = self.evictions();
        if let Some(eviction) = evictions
            .choose(&mut self.rng)
            .filter(|_| self.evicts && !self.by_time)
            && self.rng.random()
        {
            self.evict(*eviction);
            return true;
        }
        let first = self.rng.random_range(0..3);
        for kind in 0..3 {
            match ((first + kind) % 3, link, busy, unaware) {
                (0, Some(link), ..) => self.deliver(link),
                (1, _, Some(machine), _) => self.end_one(machine),
                (2, .., Some(machine)) => self.notice(machine),
                _ => continue,
            }
            return true;
        }
        false
    }

    fn deliver(&mut self, (from, to): (MachineId, MachineId)) {
        let queue = self.flying.get_mut(&(from, to)).unwrap();
        let message = queue.pop_front().unwrap();
        // Messages of the dead may arrive or not.
        let is_lost = self.nodes[&from].end.is_some() && self.rng.random();
        if self.nodes[&to].end.is_none() && self.reaches(from, to) && !is_lost {
            self.act(to, |value, out| value.on_message(from, message, out));
        }
    }

    fn notice(&mut self, machine: MachineId) {
        let node = self.nodes.get_mut(&machine).unwrap();
        let (other, notice) = node
            .unnoticed
            .iter()
            .copied()
            .choose(&mut self.rng)
            .unwrap();
        node.unnoticed.remove(&(other, notice));
        self.act(machine, |value, out| match notice {
            Notice::Left => value.left(other, out),
            Notice::Silent => value.suspect(other, out),
            Notice::Gone => value.gone(other, out),
            Notice::Expired => value.on_lease(other, true, out),
            Notice::Renewed => value.on_lease(other, false, out),
        });
    }

    /// Ends one of the things that a machine has begun.
    fn end_one(&mut self, me: MachineId) {
        let node = self.nodes.get_mut(&me).unwrap();
        let at = self.rng.random_range(0..node.begun.len());
        match node.begun.swap_remove(at) {
            Begun::Probe(machine) => {
                let other = &self.nodes[&machine];
                let runs = other.end.is_none() && self.reaches(me, machine);
                let probed = match runs {
                    true => Probed::Runs { boot: other.boot },
                    false => Probed::Nothing,
                };
                self.act(me, |value, out| value.on_probed(machine, probed, out));
            }
            Begun::Read => {
                let newest = self.store.last().unwrap().clone();
                let read = match self.rng.random_ratio(1, 20) {
                    true => Err("a disk error".into()),
                    false => Ok(newest),
                };
                self.act(me, |value, out| value.on_read(read, out));
            }
            Begun::Store(next, None) => {
                let stored = match self.rng.random_ratio(1, 20) {
                    true => Stored::Failed("a disk error".into()),
                    false => self.swap(next.clone()),
                };
                let node = self.nodes.get_mut(&me).unwrap();
                node.begun.push(Begun::Store(next, Some(stored)));
            }
            Begun::Store(next, Some(stored)) => {
                self.act(me, |value, out| value.on_stored(&next, stored, out));
            }
            Begun::Apply(id) => {
                self.nodes.get_mut(&me).unwrap().applied = id;
                self.end_connections(me, id);
                let node = self.nodes.get_mut(&me).unwrap();
                node.begun.push(Begun::Answer(id));
            }
            Begun::Answer(id) => {
                let node = self.nodes.get_mut(&me).unwrap();
                let may_hold =
                    |one: &Process| node.leases.may_hold((one.machine, one.boot), self.now);
                let waits = node.value.expiring().any(|one| may_hold(&one));
                if waits && !crate::mutants::is_on("evicted machine not awaited") {
                    node.begun.push(Begun::Answer(id));
                    return;
                }
                self.act(me, |value, out| value.on_applied(id, out));
            }
        }
    }

    /// Ends the connections of a machine to those that are no members of the configuration that it has applied.
    fn end_connections(&mut self, me: MachineId, id: u64) {
        let of = self.store.iter().find(|one| one.version.id == id).unwrap();
        let (of, process) = (of.clone(), self.process(me));
        let others = self.nodes.iter_mut().filter(|(_, node)| node.end.is_none());
        let is_no_member =
            |machine: MachineId, boot: u64| of.expiring.contains(&Process { machine, boot });
        for (_, other) in others.filter(|(machine, node)| is_no_member(**machine, node.boot)) {
            other.unnoticed.insert((process, Notice::Silent));
        }
    }

    fn act(&mut self, me: MachineId, act: impl FnOnce(&mut Reconfiguration, &mut Vec<Action>)) {
        let mut actions = Vec::new();
        let node = self.nodes.get_mut(&me).unwrap();
        act(&mut node.value, &mut actions);
        node.leases.set_terms(node.value.lease_terms());
        for action in actions {
            let node = self.nodes.get_mut(&me).unwrap();
            match action {
                Action::Send(to, message) => {
                    self.flying.entry((me, to)).or_default().push_back(message);
                }
                Action::Probe(machine) => node.begun.push(Begun::Probe(machine)),
                Action::Read => node.begun.push(Begun::Read),
                Action::Store(next) => node.begun.push(Begun::Store((*next).clone(), None)),
                Action::Apply(next) => {
                    node.begun
                        .retain(|one| !matches!(one, Begun::Apply(_) | Begun::Answer(_)));
                    node.begun.push(Begun::Apply(next.version.id));
                }
                Action::Commit(next) => self.judge_commit(&next),
                Action::Block(_) => {}
                Action::Halt(halted) => self.judge_halt(&halted),
                Action::Stop(version) => self.judge_eviction(me, version),
                Action::Abandoned => self.judge_abandoned(me),
            }
        }
    }

    /// A machine that stores nothing may stop if no process with memory is left of the configuration that it knows.
    fn judge_abandoned(&mut self, me: MachineId) {
        let known = self.nodes[&me].value.current().clone();
        let storing = known.members.iter().filter(|member| member.stores);
        let left: Vec<MachineId> = storing
            .map(|member| member.machine)
            .filter(|machine| self.lives(&known, *machine))
            .collect();
        assert_eq!(left, [], "{me} has stopped");
        let node = self.nodes.get_mut(&me).unwrap();
        node.end = Some(End::Evicted);
    }

    fn judge_halt(&mut self, halted: &super::super::Halted) {
        let newest = self.store.last().unwrap();
        for (id, machines) in &halted.regions {
            let full_in = |of: &Configuration| -> Option<Vec<MachineId>> {
                let full = of.region(*id)?.replicas.iter().filter(|one| one.is_full());
                Some(full.map(|one| one.machine).collect())
            };
            let full = full_in(newest).unwrap();
            // Another machine may have gone on without some of them since this one has read the configuration.
            let is_stored = self
                .store
                .iter()
                .any(|one| full_in(one).as_ref() == Some(machines));
            let named = full.iter().all(|one| machines.contains(one));
            assert!(is_stored && named, "{id}: {full:?}, not {machines:?}");
            let had_data =
                |one: &MachineId| self.full[id].contains(one) || !newest.has(self.process(*one));
            assert!(full.iter().all(had_data));
            let left = full.iter().find(|one| self.lives(newest, **one));
            assert_eq!(left, None, "{id} is left");
        }
        // The cluster stops.
        let live: Vec<MachineId> = self.live().collect();
        live.into_iter().for_each(|one| self.end(one, End::Halted));
    }

    fn judge_eviction(&mut self, me: MachineId, version: Version) {
        let of = self.store.iter().find(|one| one.version == version);
        let of = of.expect("machines are evicted by configurations that the store has");
        assert!(!of.has(self.process(me)));
        self.end(me, End::Evicted);
    }

    /// Checks a configuration that comes into effect somewhere.
    fn judge_commit(&self, next: &Configuration) {
        assert!(self.store.contains(next), "{} was not stored", next.version);
        for member in next.running() {
            let node = &self.nodes[&member.machine];
            let is_left = node.end.is_some() || node.boot != member.boot;
            assert!(
                node.applied >= next.version.id || is_left,
                "{} is in effect, and {} has not applied it",
                next.version,
                member.machine
            );
        }
        // A process that runs is a member, or was evicted, and is named as long as it may run.
        let before: Vec<&Configuration> =
            self.store.iter().take_while(|one| *one != next).collect();
        for machine in self.live() {
            let process = self.process(machine);
            if !before.iter().any(|one| one.has(process)) {
                continue;
            }
            let is_named = next.has(process) || next.expiring.contains(&process);
            let reports_nothing = self.by_time && !self.nodes[&machine].has_lease(self.now);
            assert!(
                is_named || reports_nothing,
                "{} is in effect, and does not name {machine}, which runs",
                next.version
            );
        }
        for region in &next.regions {
            let primary = region.primary();
            // Another process of the machine has other memory.
            let is_followed = !next.has(self.process(primary));
            assert!(
                self.full[&region.region].contains(&primary) || is_followed,
                "the primary of {} does not have its data",
                region.region
            );
        }
    }

    /// Checks that no region has two primaries that may serve it.
    fn judge_primaries(&self) {
        let mut primaries: BTreeMap<RegionId, MachineId> = BTreeMap::new();
        let now = self.now;
        let may_serve = |one: &MachineId| {
            let node = &self.nodes[one];
            !node.evicted && (!self.by_time || node.has_lease(now))
        };
        for machine in self.live().filter(may_serve) {
            let serves = self.nodes[&machine].value.current();
            for region in serves.regions.iter().filter(|one| one.primary() == machine) {
                if let Some(other) = primaries.insert(region.region, machine) {
                    panic!("{other} and {machine} are primaries of {}", region.region);
                }
            }
        }
    }

    /// Checks what must hold when nothing changes any more.
    pub(super) fn judge(&self) {
        let newest = self.store.last().unwrap();
        let live = self.live().filter(|machine| !self.nodes[machine].joins);
        let live: BTreeSet<MachineId> = live.collect();
        let has_left = |machine: &MachineId| {
            let node = &self.nodes[machine];
            node.end == Some(End::Left) && newest.has(self.process(*machine))
        };
        let ids = newest.running().map(|member| member.machine);
        let members: BTreeSet<MachineId> = ids.filter(|machine| !has_left(machine)).collect();
        assert!(newest.members.iter().any(|member| member.stores) || live.is_empty());
        if self.by_time && !self.can_go_on(newest) {
            return;
        }
        if self.cut.is_empty() {
            // Without cut connections all that live are members, and agree, unless none of them stores regions and knows that it is
            // a member.
            let storing = |machine: &MachineId| {
                let knows = self.nodes[machine].value.known();
                newest.stores(*machine) && knows.has(self.process(*machine))
            };
            if live.iter().any(storing) {
                assert_eq!(live, members, "at the end of {}", newest.version);
            }
        } else {
            assert!(
                live.is_subset(&members),
                "{live:?} live, {members:?} are members: {newest:?} {self:?}"
            );
        }
        // Two parts without a majority wait for each other.
        let both_live =
            |cut: &&(MachineId, MachineId)| live.contains(&cut.0) && live.contains(&cut.1);
        if live == members && !self.cut.iter().any(|cut| both_live(&cut)) {
            for machine in &live {
                let value = &self.nodes[machine].value;
                let (knows, newest) = (value.current().version, newest.version);
                assert_eq!(knows.id, newest.id, "on {machine}: {self:?}");
                assert!(
                    !value.is_changing(),
                    "{machine} still changes: {value:?}, {self:?}"
                );
            }
        }
    }
}
