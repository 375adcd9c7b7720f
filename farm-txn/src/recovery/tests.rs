//! Random commits that are stopped at a random moment, and recovered by [`Recovery`] while more machines are lost.

mod commits;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use farm_core::ids::{Address, MachineId, RegionId};
use farm_core::object::Version;
use farm_core::region::map::Replicas;
use rand::seq::{IteratorRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::message::{Message, Step};
use super::*;
use crate::record::{Effect, Object, TxId};
use commits::{Commits, Outcome};

/// An object of one replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cell {
    version: u64,
    value: u64,
    locked: bool,
}

impl Cell {
    /// Installs the value of a transaction, if it is newer.
    fn apply(&mut self, object: &Object<'_>) {
        let version = object.version.next().get();
        if self.version < version {
            self.version = version;
            self.value = u64::from_le_bytes(object.payload.try_into().unwrap());
        }
    }
}

/// Number of runs.
const SEEDS: u64 = 20_000;

type Copies = BTreeMap<Address, Cell>;

/// A machine in recovery.
struct Node {
    copies: Copies,
    recovery: Recovery,
    active: BTreeSet<RegionId>,
    recovered: bool,
    outcomes: BTreeSet<TxId>,
}

/// A cluster in recovery.
struct Recovering {
    rng: Xoshiro256PlusPlus,
    regions: BTreeMap<RegionId, Replicas>,
    nodes: BTreeMap<MachineId, Node>,
    flying: BTreeMap<(MachineId, MachineId), VecDeque<Message>>,
    decided: BTreeMap<TxId, Decision>,
}

/// What a machine has when recovery begins.
type Left = BTreeMap<MachineId, (Copies, Undecided)>;

impl Recovering {
    /// Begins recovery on the machines that are left. A random replica of each region is its primary.
    fn begin(
        mut rng: Xoshiro256PlusPlus,
        before: &BTreeMap<RegionId, Replicas>,
        left: Left,
        decided: BTreeMap<TxId, Decision>,
    ) -> Self {
        let members: Vec<MachineId> = left.keys().copied().collect();
        let regions = before.iter().map(|(region, replicas)| {
            let all = replicas.all().iter().copied();
            let mut all: Vec<_> = all.filter(|one| members.contains(one)).collect();
            all.shuffle(&mut rng);
            let replicas = Replicas::new(all).expect("each region has a replica that is left");
            (*region, replicas)
        });
        let regions: BTreeMap<_, _> = regions.collect();
        let mut this = Self {
            rng,
            regions: regions.clone(),
            nodes: BTreeMap::new(),
            flying: BTreeMap::new(),
            decided,
        };
        for (me, (mut copies, known)) in left {
            // Recovery locks again what records name, on the primaries.
            copies.values_mut().for_each(|cell| cell.locked = false);
            let roles = Roles {
                me,
                members: members.clone(),
                regions: regions.clone(),
            };
            let mut steps = Vec::new();
            let recovery = Recovery::begin(roles, known, &mut steps);
            let node = Node {
                copies,
                recovery,
                active: BTreeSet::new(),
                recovered: false,
                outcomes: BTreeSet::new(),
            };
            this.nodes.insert(me, node);
            this.perform(me, steps);
        }
        this
    }

    fn perform(&mut self, me: MachineId, steps: Vec<Step>) {
        let node = self.nodes.get_mut(&me).unwrap();
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
                    self.flying.entry((me, to)).or_default().push_back(message);
                }
                Step::Lock(region, body) => {
                    assert!(!node.active.contains(&region), "locked after it was active");
                    for object in body.objects_in(region) {
                        node.copies.get_mut(&object.address).unwrap().locked = true;
                    }
                }
                Step::Apply(region, body) => {
                    for object in body.objects_in(region) {
                        node.copies.get_mut(&object.address).unwrap().apply(&object);
                    }
                }
                Step::Release(address, body) => {
                    let cell = node.copies.get_mut(&address).unwrap();
                    assert!(cell.locked, "{address} is released and was not locked");
                    cell.locked = false;
                    if let Some(body) = body {
                        cell.apply(&body.object(address).unwrap());
                    }
                }
                Step::Activate(region) => assert!(node.active.insert(region)),
                Step::Outcome(id, decision) => {
                    assert_eq!(id.coordinator.machine, me);
                    assert_eq!(self.decided.get(&id), Some(&decision));
                    assert!(!node.recovered && node.outcomes.insert(id));
                }
                Step::Recovered => assert!(!std::mem::replace(&mut node.recovered, true)),
            }
        }
    }

    /// Delivers a message; returns false if there is none.
    fn step(&mut self) -> bool {
        let waiting = self.flying.iter().filter(|(_, queue)| !queue.is_empty());
        let Some((from, to)) = waiting.map(|(link, _)| *link).choose(&mut self.rng) else {
            return false;
        };
        let message = self
            .flying
            .get_mut(&(from, to))
            .unwrap()
            .pop_front()
            .unwrap();
        let mut steps = Vec::new();
        let recovery = &mut self.nodes.get_mut(&to).unwrap().recovery;
        let told = format!("{message:?}");
        if let Err(error) = recovery.on_message(from, message, &mut steps) {
            panic!("{error}: {told}");
        }
        self.perform(to, steps);
        true
    }

    /// Ends this configuration. `lost` are machines whose memory is lost.
    fn next(self, lost: &BTreeSet<MachineId>) -> Self {
        let nodes = self.nodes.into_iter();
        let left = nodes.filter(|(machine, _)| !lost.contains(machine));
        let left =
            left.map(|(machine, node)| (machine, (node.copies, node.recovery.into_undecided())));
        Self::begin(self.rng, &self.regions, left.collect(), self.decided)
    }

    /// Returns machines that may be lost together: each region keeps a replica.
    fn may_lose(&mut self) -> BTreeSet<MachineId> {
        may_lose(&mut self.rng, &self.regions, self.nodes.keys().copied())
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

    /// Checks what must hold when all have recovered.
    fn judge(&self, commits: &Commits) {
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
        for tx in commits.all() {
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
                assert!(tx.writes.iter().all(|one| cells[&one.0].value != tx.value));
                continue;
            };
            for (address, version) in &tx.writes {
                let cell = cells[address];
                match decision {
                    Decision::Commit => {
                        assert!(
                            cell.version > *version,
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

/// Runs one seed: commits, a loss, and recovery in up to three configurations.
fn run(seed: u64) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let commits = Commits::random(&mut rng);
    let lost = may_lose(&mut rng, &commits.regions, commits.machines());
    let left = commits.left(&lost);
    let mut recovering = Recovering::begin(rng, &commits.regions, left, BTreeMap::new());
    for _ in 0..recovering.rng.random_range(0..3) {
        for _ in 0..recovering.rng.random_range(0..200) {
            recovering.step();
        }
        let lost = recovering.may_lose();
        recovering = recovering.next(&lost);
    }
    recovering.run_to_end();
    recovering.judge(&commits);
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
        "kind 9 votes at most commit-backup",
        "kind 9 votes lock",
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
fn values_are_found_by_region_and_address() {
    let region = |position| RegionId::new(1, position).unwrap();
    let address = |region, line: u32| Address::new(region, line * 64);
    let object = |address, effect, count| Object {
        address,
        class: commits::class(),
        version: Version::new(4),
        incarnation: commits::incarnation(),
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
