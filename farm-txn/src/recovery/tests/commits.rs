//! Random commits of several coordinators, which stop at a random moment: the logs, low bounds and copies of all machines.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use farm_core::alloc::SizeClass;
use farm_core::ids::{Address, MachineId, RegionId, WorkerId, WorkerRef};
use farm_core::object::{Incarnation, Version};
use farm_core::region::map::Replicas;
use rand::Rng;
use rand::seq::{IteratorRandom, SliceRandom};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{Cell, Copies, Left};
use crate::record::{self, Effect, Kind, Object, Record, TxId};
use crate::recovery::{Drain, EndedHere, Undecided};

const OBJECTS_PER_REGION: u32 = 2;

pub(super) fn class() -> SizeClass {
    SizeClass::new(0)
}

pub(super) fn incarnation() -> Incarnation {
    Incarnation::new(class(), 1)
}

/// Encodes the additions of LOCK behind an empty head.
pub(super) fn body(regions: &[RegionId], objects: &[Object<'_>]) -> Vec<u8> {
    let regions: Vec<u32> = regions.iter().map(|region| region.to_bits()).collect();
    let mut out = vec![0; record::FIXED_BYTES];
    record::encode_lock(&mut out, 0, &regions, objects.len());
    for object in objects {
        record::encode_object(&mut out, object);
    }
    out
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Committed,
    Aborted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Lock,
    Backup,
    Commit,
    Abort,
    Finished,
}

/// A transaction, as its coordinator knows it.
#[derive(Clone, Debug)]
pub(super) struct Tx {
    pub(super) id: TxId,
    /// The objects, and the versions that were read.
    pub(super) writes: Vec<(Address, u64)>,
    /// The value that it writes everywhere; no other transaction writes it.
    pub(super) value: u64,
    /// What was reported.
    pub(super) outcome: Option<Outcome>,
    step: Step,
    refused: bool,
    waiting: usize,
}

impl Tx {
    pub(super) fn is_finished(&self) -> bool {
        self.step == Step::Finished
    }
}

/// A record that has been written, and may not have landed.
#[derive(Clone, Debug)]
struct Written {
    kind: Kind,
    tx: usize,
    low: u64,
}

#[derive(Default)]
struct Machine {
    copies: Copies,
    /// The objects that a transaction has locked.
    locks: BTreeMap<Address, usize>,
    /// The records of each coordinator that are not freed.
    logs: BTreeMap<MachineId, Vec<Written>>,
    low: BTreeMap<MachineId, u64>,
}

pub(super) struct Commits {
    pub(super) regions: BTreeMap<RegionId, Replicas>,
    machines: BTreeMap<MachineId, Machine>,
    txs: Vec<Tx>,
    flying: BTreeMap<(MachineId, MachineId), VecDeque<Written>>,
}

impl Commits {
    /// Runs random steps of random commits.
    pub(super) fn random(rng: &mut Xoshiro256PlusPlus) -> Self {
        let count = rng.random_range(2..6);
        let machines: Vec<MachineId> = (1..=count).map(|id| MachineId::new(id).unwrap()).collect();
        let replicas = rng.random_range(1..=3.min(machines.len()));
        let mut this = Self {
            regions: BTreeMap::new(),
            machines: machines
                .iter()
                .map(|id| (*id, Machine::default()))
                .collect(),
            txs: Vec::new(),
            flying: BTreeMap::new(),
        };
        for position in 0..rng.random_range(1..4) {
            let region = RegionId::new(1, position).unwrap();
            let mut all = machines.clone();
            all.shuffle(rng);
            let replicas = Replicas::new(all[..replicas].iter().copied()).unwrap();
            this.regions.insert(region, replicas);
            for line in 1..=OBJECTS_PER_REGION {
                for machine in replicas.all() {
                    let copies = &mut this.machines.get_mut(machine).unwrap().copies;
                    copies.insert(Address::new(region, line * 64), Cell::default());
                }
            }
        }
        for _ in 0..rng.random_range(0..150) {
            this.random_step(rng);
        }
        this
    }

    pub(super) fn all(&self) -> &[Tx] {
        &self.txs
    }

    pub(super) fn machines(&self) -> impl Iterator<Item = MachineId> + '_ {
        self.machines.keys().copied()
    }

    fn random_step(&mut self, rng: &mut Xoshiro256PlusPlus) {
        match rng.random_range(0..10) {
            0 => self.begin(rng),
            1 => {
                let machine = self.machines().choose(rng).unwrap();
                self.truncate(machine);
            }
            _ => {
                let links = self.flying.iter().filter(|(_, queue)| !queue.is_empty());
                match links.map(|(link, _)| *link).choose(rng) {
                    Some((from, to)) => self.land(from, to),
                    None => self.begin(rng),
                }
            }
        }
    }

    fn primary(&self, address: Address) -> MachineId {
        self.regions[&address.region()].primary()
    }

    fn begin(&mut self, rng: &mut Xoshiro256PlusPlus) {
        let coordinator = self.machines().choose(rng).unwrap();
        let all = self.regions.keys().flat_map(|region| {
            (1..=OBJECTS_PER_REGION).map(|line| Address::new(*region, line * 64))
        });
        let most = rng.random_range(1..=3);
        let objects = all.choose_multiple(rng, most);
        let version = |address: &Address| self.machines[&self.primary(*address)].copies[address];
        let writes = objects.iter().map(|one| (*one, version(one).version));
        let own = self
            .txs
            .iter()
            .filter(|tx| tx.id.coordinator.machine == coordinator);
        let id = TxId {
            configuration: record::FIXED_CONFIGURATION,
            coordinator: WorkerRef::new(coordinator, WorkerId::FIRST),
            sequence: own.count() as u64 + 1,
        };
        let mut tx = Tx {
            id,
            writes: writes.collect(),
            value: self.txs.len() as u64 + 1,
            outcome: None,
            step: Step::Lock,
            refused: false,
            waiting: 0,
        };
        tx.writes.sort_unstable();
        self.txs.push(tx);
        self.write_all(self.txs.len() - 1, Kind::Lock);
    }

    /// Writes a record of this kind to all machines that get one.
    fn write_all(&mut self, tx: usize, kind: Kind) {
        let to = self.participants(tx, kind);
        self.txs[tx].waiting = to.len();
        let from = self.txs[tx].id.coordinator.machine;
        let low = self.low(from);
        for to in to {
            let queue = self.flying.entry((from, to)).or_default();
            queue.push_back(Written { kind, tx, low });
        }
    }

    fn participants(&self, tx: usize, kind: Kind) -> BTreeSet<MachineId> {
        let regions = self.txs[tx]
            .writes
            .iter()
            .map(|one| self.regions[&one.0.region()]);
        match kind {
            Kind::CommitBackup => regions.flat_map(|one| one.backups().to_vec()).collect(),
            _ => regions.map(|one| one.primary()).collect(),
        }
    }

    /// Returns the number of the coordinator's first transaction that is not finished.
    fn low(&self, coordinator: MachineId) -> u64 {
        let own = self
            .txs
            .iter()
            .filter(|tx| tx.id.coordinator.machine == coordinator);
        let finished = own.take_while(|tx| tx.step == Step::Finished);
        finished.count() as u64 + 1
    }

    fn land(&mut self, from: MachineId, to: MachineId) {
        let written = self
            .flying
            .get_mut(&(from, to))
            .unwrap()
            .pop_front()
            .unwrap();
        let (kind, at) = (written.kind, written.tx);
        let is_primary = |one: &&(Address, u64)| self.primary(one.0) == to;
        let writes: Vec<_> = self.txs[at]
            .writes
            .iter()
            .filter(is_primary)
            .copied()
            .collect();
        let value = self.txs[at].value;
        let machine = self.machines.get_mut(&to).unwrap();
        let low = machine.low.entry(from).or_default();
        *low = written.low.max(*low);
        machine.logs.entry(from).or_default().push(written);
        match kind {
            Kind::Lock => {
                let is_free = |one: &(Address, u64)| {
                    !machine.locks.contains_key(&one.0) && machine.copies[&one.0].version == one.1
                };
                match writes.iter().all(is_free) {
                    true => machine.locks.extend(writes.iter().map(|one| (one.0, at))),
                    false => self.txs[at].refused = true,
                }
            }
            Kind::CommitPrimary => {
                for (address, version) in writes {
                    assert_eq!(machine.locks.remove(&address), Some(at));
                    let cell = machine.copies.get_mut(&address).unwrap();
                    (cell.version, cell.value) = (version + 1, value);
                }
            }
            Kind::Abort => machine.locks.retain(|_, by| *by != at),
            Kind::CommitBackup | Kind::Truncate => {}
        }
        self.acknowledged(at, kind);
    }

    fn acknowledged(&mut self, at: usize, kind: Kind) {
        let tx = &mut self.txs[at];
        tx.waiting -= 1;
        if kind == Kind::CommitPrimary {
            tx.outcome = Some(Outcome::Committed);
        }
        if tx.waiting > 0 {
            return;
        }
        let next = match tx.step {
            Step::Lock if tx.refused => Step::Abort,
            Step::Lock => Step::Backup,
            Step::Backup => Step::Commit,
            Step::Commit | Step::Abort | Step::Finished => Step::Finished,
        };
        self.go_to(at, next);
    }

    fn go_to(&mut self, at: usize, step: Step) {
        self.txs[at].step = step;
        match step {
            Step::Backup if self.participants(at, Kind::CommitBackup).is_empty() => {
                self.go_to(at, Step::Commit);
            }
            Step::Backup => self.write_all(at, Kind::CommitBackup),
            Step::Commit => self.write_all(at, Kind::CommitPrimary),
            Step::Abort => {
                self.txs[at].outcome = Some(Outcome::Aborted);
                self.write_all(at, Kind::Abort);
            }
            Step::Lock | Step::Finished => {}
        }
    }

    /// Lets a machine apply and free the records below the low bounds that it knows.
    fn truncate(&mut self, machine: MachineId) {
        let this = self.machines.get_mut(&machine).unwrap();
        let low = &this.low;
        for (from, records) in &mut this.logs {
            let is_ended = |one: &Written| self.txs[one.tx].id.sequence < low[from];
            for one in records
                .iter()
                .filter(|one| is_ended(one) && one.kind == Kind::CommitBackup)
            {
                let tx = &self.txs[one.tx];
                for (address, version) in &tx.writes {
                    let is_backup = self.regions[&address.region()].backups().contains(&machine);
                    if let Some(cell) = this.copies.get_mut(address).filter(|_| is_backup)
                        && cell.version <= *version
                    {
                        (cell.version, cell.value) = (version + 1, tx.value);
                    }
                }
            }
            records.retain(|one| !is_ended(one));
        }
    }

    /// Returns what is left without some machines.
    pub(super) fn left(&self, lost: &BTreeSet<MachineId>) -> Left {
        let left = self.machines().filter(|machine| !lost.contains(machine));
        let left = left.map(|machine| {
            let (known, ended) = self.drain(machine);
            (machine, (self.copies_of(machine, &ended), known))
        });
        left.collect()
    }

    /// Returns the copies of a machine, with the values of the transactions that have ended.
    fn copies_of(&self, machine: MachineId, ended: &[EndedHere]) -> Copies {
        let mut copies = self.machines[&machine].copies.clone();
        for one in ended.iter().filter(|one| one.committed) {
            for (region, body) in &one.of {
                for object in body.objects_in(*region) {
                    copies.get_mut(&object.address).unwrap().apply(&object);
                }
            }
        }
        copies
    }

    fn drain(&self, machine: MachineId) -> (Undecided, Vec<EndedHere>) {
        let mut drain = Drain::default();
        for (from, records) in &self.machines[&machine].logs {
            for one in records {
                let tx = &self.txs[one.tx];
                let bytes = self.encode(tx, one, machine);
                let record = Record::decode_unchecked(one.kind, &bytes).unwrap();
                drain.add(tx.id, &record, &bytes).unwrap();
            }
            let low = self.machines[&machine].low[from];
            let coordinator = WorkerRef::new(*from, WorkerId::FIRST);
            drain.add_low((record::FIXED_CONFIGURATION, coordinator), low);
        }
        let (mut known, ended) = drain.finish(Undecided::default());
        let own = self
            .txs
            .iter()
            .filter(|tx| tx.id.coordinator.machine == machine);
        for tx in own.filter(|tx| tx.step != Step::Finished) {
            known.add_tx(tx.id, tx.writes.iter().map(|one| one.0.region()));
        }
        (known, ended)
    }

    fn encode(&self, tx: &Tx, written: &Written, machine: MachineId) -> Vec<u8> {
        let is_here = |address: Address| {
            let replicas = self.regions[&address.region()];
            match written.kind {
                Kind::Lock => replicas.primary() == machine,
                Kind::CommitBackup => replicas.backups().contains(&machine),
                _ => false,
            }
        };
        let payload = tx.value.to_le_bytes();
        let objects = tx.writes.iter().filter(|one| is_here(one.0));
        let objects = objects.map(|(address, version)| Object {
            address: *address,
            class: class(),
            version: Version::new(*version),
            incarnation: incarnation(),
            effect: Effect::Write,
            block: 0,
            count: 1,
            payload: &payload,
        });
        let objects: Vec<_> = objects.collect();
        let regions: BTreeSet<_> = tx.writes.iter().map(|one| one.0.region()).collect();
        let regions: Vec<_> = regions.into_iter().collect();
        let mut bytes = match written.kind {
            Kind::Lock | Kind::CommitBackup => body(&regions, &objects),
            _ => vec![0; record::FIXED_BYTES],
        };
        bytes[8..16].copy_from_slice(&record::FIXED_CONFIGURATION.to_le_bytes());
        bytes[16..24].copy_from_slice(&written.low.to_le_bytes());
        bytes
    }
}
