//! Random commits that are stopped at a random moment, and recovered by [`Recovery`] while more machines are lost.

mod commits;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use farm_core::ids::{Address, MachineId, RegionId};
use farm_core::object::Version;
use farm_core::region::map::Replicas;
use rand::seq::{IteratorRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::message::{Message, Step};
use super::*;
use crate::record::{Effect, Object, TxId};
use commits::{BLOCK, Commits, Outcome, Tx};

/// An object of one replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cell {
    version: u64,
    value: u64,
    /// The word of the block, if a record of the object had it.
    block: u64,
    locked: bool,
}

impl Cell {
    /// Installs the value of a transaction, if it is newer, and the word of a new block.
    fn apply(&mut self, object: &Object<'_>) {
        let version = object.version.next().get();
        if self.version < version {
            self.version = version;
            self.value = object.incarnation.count();
        }
        if object.block != 0 {
            self.block = object.block;
        }
    }
}

/// Number of runs.
const SEEDS: u64 = 8_000;

type Copies = BTreeMap<Address, Cell>;
type Regions = BTreeMap<RegionId, Replicas>;

/// Installs what a record says of adjacent objects.
fn apply(copies: &mut Copies, object: &Object<'_>) {
    for one in object.each() {
        copies.get_mut(&one.address).unwrap().apply(&one);
    }
}

/// A machine in recovery.
struct Node {
    copies: Copies,
    /// `None` until it begins recovery for the first time.
    recovery: Option<Recovery>,
    /// Whether there is a configuration that it has not begun.
    begins: bool,
    /// Commits whose records in its logs it has not drained yet.
    undrained: Option<Rc<Commits>>,
    active: BTreeSet<RegionId>,
    recovered: bool,
    outcomes: BTreeSet<TxId>,
}

impl Node {
    fn new() -> Self {
        Self {
            copies: Copies::new(),
            recovery: None,
            begins: false,
            undrained: None,
            active: BTreeSet::new(),
            recovered: false,
            outcomes: BTreeSet::new(),
        }
    }
}

/// A cluster in recovery.
struct Recovering {
    rng: Xoshiro256PlusPlus,
    configuration: u64,
    /// The newest configuration in which all machines know that all have recovered.
    forgotten: u64,
    regions: Regions,
    nodes: BTreeMap<MachineId, Node>,
    /// Messages with their configurations.
    flying: BTreeMap<(MachineId, MachineId), VecDeque<(u64, Message)>>,
    decided: BTreeMap<TxId, Decision>,
}

impl Recovering {
    fn new(rng: Xoshiro256PlusPlus, commits: &Commits) -> Self {
        let nodes = commits.machines();
        let nodes = nodes.map(|machine| (machine, Node::new()));
        Self {
            rng,
            configuration: 1,
            forgotten: 1,
            regions: commits.regions.clone(),
            nodes: nodes.collect(),
            flying: BTreeMap::new(),
            decided: BTreeMap::new(),
        }
    }

    /// Ends this configuration, in which the commits were made, if there are some. `lost` are machines whose memory is lost. A random
    /// replica of each region is its next primary. Machines begin the next configuration one by one, meanwhile messages of this one
    /// arrive.
    fn next(&mut self, lost: &BTreeSet<MachineId>, commits: Option<Rc<Commits>>) {
        self.configuration += 1;
        self.nodes.retain(|machine, _| !lost.contains(machine));
        self.flying
            .retain(|(from, to), _| !lost.contains(from) && !lost.contains(to));
        for replicas in self.regions.values_mut() {
            let all = replicas.all().iter().copied();
            let mut all: Vec<_> = all.filter(|one| !lost.contains(one)).collect();
            all.shuffle(&mut self.rng);
            *replicas = Replicas::new(all).expect("each region has a replica that is left");
        }
        for node in self.nodes.values_mut() {
            node.begins = true;
            if commits.is_some() {
                node.undrained = commits.clone();
            }
        }
    }

    /// Lets a machine begin the configuration.
    fn begin(&mut self, me: MachineId) {
        let roles = Roles {
            configuration: self.configuration,
            recovered: self.forgotten,
            me,
            members: self.nodes.keys().copied().collect(),
            regions: self.regions.clone(),
        };
        let node = self.nodes.get_mut(&me).unwrap();
        // The test moves primaries among the machines that are left: one that is a backup now keeps no lock.
        node.copies
            .values_mut()
            .for_each(|cell| cell.locked = false);
        node.active.clear();
        node.recovered = false;
        node.begins = false;
        let undrained = node.undrained.take();
        let copies = &mut node.copies;
        let gather = |earlier| {
            let Some(commits) = undrained else {
                return earlier;
            };
            let (drained, known) = commits.drain(me, earlier);
            *copies = drained;
            known
        };
        let mut steps = Vec::new();
        let recovery = match node.recovery.take() {
            None => Recovery::begin(roles, gather(Undecided::default()), &mut steps),
            Some(before) => before.next(roles, gather, &mut steps),
        };
        node.recovery = Some(recovery.unwrap());
        self.perform(me, steps);
    }

    fn perform(&mut self, me: MachineId, steps: Vec<Step>) {
        let node = self.nodes.get_mut(&me).unwrap();
        let configuration = node.recovery.as_ref().unwrap().configuration();
        for step in steps {
            match step {
                Step::Send(to, message) => {
                    if let Message::Decide(id, _, decision, _) = &message {
                        let before = self.decided.insert(*id, *decision);
                        assert!(
                            before.is_none_or(|before| before == *decision),
                            "two decisions about {id:?}"
                        );
                    }
                    let link = self.flying.entry((me, to)).or_default();
                    link.push_back((configuration, message));
                }
                Step::Lock(region, body) => {
                    assert!(!node.active.contains(&region), "locked after it was active");
                    for object in body.objects_in(region) {
                        for address in object.addresses() {
                            node.copies.get_mut(&address).unwrap().locked = true;
                        }
                    }
                }
                Step::Apply(region, body) => {
                    for object in body.objects_in(region) {
                        apply(&mut node.copies, &object);
                    }
                }
                Step::Release(address, bodies) => {
                    let cell = node.copies.get_mut(&address).unwrap();
                    assert!(cell.locked, "{address} is released and was not locked");
                    cell.locked = false;
                    let objects = bodies.iter().map(|body| body.object(address).unwrap());
                    let objects: Vec<_> = objects.collect();
                    assert!(objects.is_sorted_by_key(|object| object.version));
                    objects.iter().for_each(|object| cell.apply(object));
                }
                Step::Activate(region) => assert!(node.active.insert(region)),
                Step::Outcome(id, decision) => {
                    assert_eq!(id.coordinator.machine, me);
                    assert_eq!(self.decided.get(&id), Some(&decision));
                    assert!(!node.recovered);
                    node.outcomes.insert(id);
                }
                Step::Recovered => assert!(!std::mem::replace(&mut node.recovered, true)),
            }
        }
    }

    /// Lets a machine begin, or delivers a message to one; returns false if there is nothing to do.
    fn step(&mut self) -> bool {
        let waiting = self.nodes.iter().filter(|(_, node)| node.begins);
        let begins = waiting.map(|(machine, _)| *machine).choose(&mut self.rng);
        // A machine that has not begun may send messages to one that is lost.
        let is_waiting = |to| self.nodes.get(to).is_some_and(|one| one.recovery.is_some());
        let links = self.flying.iter();
        let links = links.filter(|((_, to), queue)| !queue.is_empty() && is_waiting(to));
        let link = links.map(|(link, _)| *link).choose(&mut self.rng);
        match (begins, link) {
            (Some(machine), None) => self.begin(machine),
            (Some(machine), Some(_)) if self.rng.random_ratio(1, 10) => self.begin(machine),
            (_, Some(link)) => self.deliver(link),
            (None, None) => return false,
        }
        true
    }

    fn deliver(&mut self, (from, to): (MachineId, MachineId)) {
        let queue = self.flying.get_mut(&(from, to)).unwrap();
        let (configuration, sent) = queue.pop_front().unwrap();
        let bytes = sent.encode(configuration);
        let (_, message) = Message::decode(&bytes).unwrap();
        assert_eq!(message, sent);
        let mut steps = Vec::new();
        let node = self.nodes.get_mut(&to).unwrap();
        let recovery = node.recovery.as_mut().unwrap();
        let told = format!("{message:?}");
        if let Err(error) = recovery.on_message(from, configuration, message, &mut steps) {
            panic!("{error}: {told}");
        }
        self.perform(to, steps);
    }

    /// Returns machines that may be lost together: each region keeps a replica.
    fn may_lose(&mut self) -> BTreeSet<MachineId> {
        may_lose(&mut self.rng, &self.regions, self.nodes.keys().copied())
    }

    /// Runs until all machines have recovered. Answers may still be under way.
    fn run_until_recovered(&mut self) {
        while !self
            .nodes
            .values()
            .all(|node| node.recovered && !node.begins)
        {
            assert!(self.step(), "a machine has not recovered");
        }
    }

    fn run_to_end(&mut self) {
        while self.step() {}
        for (machine, node) in &self.nodes {
            assert!(node.recovered, "{machine} has not recovered");
            for (region, replicas) in &self.regions {
                let is_active = node.active.contains(region);
                assert_eq!(
                    is_active,
                    replicas.primary() == *machine,
                    "{region} on {machine}"
                );
            }
        }
    }

    /// Lets all machines know that all have recovered, and forget what they knew.
    fn forget(&mut self) {
        self.forgotten = self.configuration;
        for node in self.nodes.values_mut() {
            let recovery = node.recovery.as_mut().unwrap();
            recovery.forget();
            assert_eq!(recovery.known().all().count(), 0);
            assert_eq!(recovery.known().low(), &LowBounds::default());
        }
    }

    /// Makes random commits in this configuration, when all machines have recovered.
    fn commit(&mut self) -> Commits {
        let copies = self.nodes.iter();
        let copies = copies.map(|(machine, node)| (*machine, node.copies.clone()));
        let regions = self.regions.clone();
        Commits::after(self.configuration, regions, copies.collect(), &mut self.rng)
    }

    /// Checks what must hold when all have recovered.
    fn judge(&self, txs: &[Tx]) {
        let mut cells: BTreeMap<Address, Cell> = BTreeMap::new();
        for (machine, node) in &self.nodes {
            for (address, cell) in &node.copies {
                let replicas = self.regions[&address.region()];
                if !replicas.all().contains(machine) {
                    continue;
                }
                assert!(!cell.locked, "{address} is locked on {machine}");
                let other = cells.entry(*address).or_insert(*cell);
                assert_eq!(other, cell, "{address} on {machine}");
            }
        }
        for tx in txs {
            let coordinator = self.nodes.get(&tx.id.coordinator.machine);
            let told = coordinator.is_none_or(|node| node.outcomes.contains(&tx.id));
            assert!(
                tx.is_finished() || told,
                "nobody has told the client of {tx:?}"
            );
            let decided = self.decided.get(&tx.id).copied();
            let known = match tx.outcome {
                Some(Outcome::Committed) => Some(Decision::Commit),
                Some(Outcome::Aborted) => Some(Decision::Abort),
                None => None,
            };
            if let (Some(known), Some(decided)) = (known, decided) {
                assert_eq!(known, decided, "{tx:?}");
            }
            let Some(decision) = known.or(decided) else {
                // All machines that had its records are lost, and its coordinator.
                assert!(
                    !self.nodes.contains_key(&tx.id.coordinator.machine),
                    "{tx:?}"
                );
                assert!(tx.writes().all(|one| cells[&one.0].value != tx.value));
                continue;
            };
            if decision == Decision::Commit {
                for first in tx.blocks() {
                    assert_eq!(cells[&first].block, BLOCK, "{tx:?}: no word of its block");
                }
            }
            for (address, version) in tx.writes() {
                let cell = cells[&address];
                match decision {
                    Decision::Commit => {
                        assert!(
                            cell.version > version,
                            "{tx:?} is lost in {address}: {cell:?}"
                        );
                        let is_newest = cell.version == version + 1;
                        assert!(!is_newest || cell.value == tx.value, "{tx:?}: {cell:?}");
                    }
                    Decision::Abort => assert_ne!(cell.value, tx.value, "{tx:?} in {address}"),
                }
            }
        }
    }
}

/// Returns random machines whose loss leaves each region a replica.
fn may_lose(
    rng: &mut Xoshiro256PlusPlus,
    regions: &BTreeMap<RegionId, Replicas>,
    machines: impl Iterator<Item = MachineId>,
) -> BTreeSet<MachineId> {
    let mut lost = BTreeSet::new();
    let mut machines: Vec<_> = machines.collect();
    machines.shuffle(rng);
    let most = rng.random_range(0..3);
    for machine in machines {
        lost.insert(machine);
        let mut regions = regions.values();
        if lost.len() > most || regions.any(|one| one.all().iter().all(|one| lost.contains(one))) {
            lost.remove(&machine);
        }
    }
    lost
}

/// Runs one seed: commits, a loss, and recovery in up to three configurations, with more commits in some of them.
fn run(seed: u64) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let commits = Commits::random(&mut rng);
    let mut recovering = Recovering::new(rng, &commits);
    let mut txs = commits.all().to_vec();
    let lost = recovering.may_lose();
    recovering.next(&lost, Some(Rc::new(commits)));
    for _ in 0..recovering.rng.random_range(0..3) {
        let mut commits = None;
        if recovering.rng.random() {
            recovering.run_until_recovered();
            if recovering.rng.random() {
                recovering.forget();
            }
            recovering.run_to_end();
            recovering.judge(&txs);
            let new = recovering.commit();
            txs.extend_from_slice(new.all());
            commits = Some(Rc::new(new));
        } else {
            for _ in 0..recovering.rng.random_range(0..200) {
                recovering.step();
            }
        }
        let lost = recovering.may_lose();
        recovering.next(&lost, commits);
    }
    recovering.run_to_end();
    recovering.judge(&txs);
}

#[test]
fn whatever_is_lost_and_whenever_all_machines_decide_alike_and_nothing_reported_is_lost() {
    for seed in 0..SEEDS {
        if let Err(error) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(error);
        }
    }
}

/// Bugs that only recovery can have.
#[cfg(feature = "mutants")]
#[test]
fn deliberate_bugs_are_found() {
    for bug in [
        "a primary does not keep the vote",
        "active before the locks",
        "backups' bodies not fetched",
        "commit by locks alone",
        "evidence dropped early",
        "kind 9 votes at most commit-backup",
        "kind 9 votes lock",
        "messages of other configurations count",
        "only the newest value is released",
        "truncated transaction is unknown",
        "unlock at first",
        "vote before kind 9",
    ] {
        farm_core::mutants::switch(Some(bug));
        let found = (0..SEEDS).find(|seed| std::panic::catch_unwind(|| run(*seed)).is_err());
        farm_core::mutants::switch(None);
        println!("{bug}: seed {found:?}");
        assert!(found.is_some(), "{bug}: not found");
    }
}

#[test]
fn bytes_that_are_no_message_are_refused() {
    let region = RegionId::new(1, 2).unwrap();
    let id = TxId {
        configuration: 3,
        coordinator: farm_core::ids::WorkerRef::new(
            MachineId::new(4).unwrap(),
            farm_core::ids::WorkerId::FIRST,
        ),
        sequence: 5,
    };
    let objects = [Object {
        address: Address::new(region, 64),
        class: commits::class(),
        version: Version::new(4),
        incarnation: commits::incarnation(1),
        effect: Effect::Write,
        block: 0,
        count: 1,
        payload: &[7; 8],
    }];
    let body = Body::new(&commits::body(&[region], &objects)).unwrap();
    let regions = BTreeSet::from([region]);
    for message in [
        Message::Fetched(id, region, body.clone()),
        Message::Replicate(id, region, Vote::Lock, body),
        Message::Vote(id, region, Vote::Unknown, regions.clone()),
        Message::Decide(id, message::To::Primaries, Decision::Abort, regions),
    ] {
        let mut bytes = message.encode(6);
        assert_eq!(Message::decode(&bytes), Ok((6, message)));
        for length in 0..bytes.len() {
            assert!(Message::decode(&bytes[..length]).is_err(), "{length} bytes");
        }
        bytes.push(0);
        let error = Message::decode(&bytes).unwrap_err().to_string();
        assert!(error.ends_with("1 bytes follow it"), "{error}");
    }
}

#[test]
fn values_are_found_by_region_and_address() {
    let region = |position| RegionId::new(1, position).unwrap();
    let address = |region, line: u32| Address::new(region, line * 64);
    let object = |address, effect, count| Object {
        address,
        class: commits::class(),
        version: Version::new(4),
        incarnation: commits::incarnation(1),
        effect,
        block: 0,
        count,
        payload: &[],
    };
    let objects = [
        object(address(region(1), 1), Effect::Free, 1),
        object(address(region(2), 8), Effect::Format, 3),
    ];
    let body = commits::body(&[region(1), region(2), region(3)], &objects);
    let body = Body::new(&body).unwrap();
    assert_eq!(body.regions().count(), 3);
    assert_eq!(body.objects_in(region(1)).count(), 1);
    assert_eq!(body.objects_in(region(3)).count(), 0);
    let bytes = commits::class().object_bytes() as u32;
    let third = Address::new(region(2), 8 * 64 + 2 * bytes);
    let found = body.object(third).unwrap();
    assert_eq!(
        (found.address, found.effect, found.count),
        (third, Effect::Format, 1)
    );
    assert!(body.object(address(region(2), 7)).is_none());
    assert!(Body::new(&[0; 12]).is_err());
}
