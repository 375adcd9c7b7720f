//! Random commits of several coordinators, which stop at a random moment: the logs, low bounds and copies of all machines.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use farm_core::alloc::SizeClass;
use farm_core::ids::{Address, MachineId, RegionId, WorkerId, WorkerRef};
use farm_core::object::{Incarnation, Version};
use farm_core::region::map::Replicas;
use rand::Rng;
use rand::seq::{IteratorRandom, SliceRandom};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{Cell, Copies, Regions};
use crate::record::{self, Effect, Kind, Object, Record, TxId};
use crate::recovery::{Drain, EndedHere, Undecided};

/// They are adjacent.
const OBJECTS_PER_REGION: u32 = 2;
const WORKERS_PER_MACHINE: u16 = 2;

/// The word of a new block that records of new objects have.
pub(super) const BLOCK: u64 = 77;

pub(super) fn class() -> SizeClass {
    SizeClass::new(0)
}

/// Returns the incarnation of an object that has a value.
pub(super) fn incarnation(value: u64) -> Incarnation {
    Incarnation::new(class(), value)
}

fn addresses_of(region: RegionId) -> impl Iterator<Item = Address> {
    let bytes = class().object_bytes() as u32;
    (1..=OBJECTS_PER_REGION).map(move |at| Address::new(region, at * bytes))
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

/// An object that a transaction writes, or several adjacent ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    first: Address,
    count: u32,
    /// The version that was read.
    version: u64,
    effect: Effect,
    block: u64,
}

impl Write {
    fn object(&self, value: u64) -> Object<'static> {
        Object {
            address: self.first,
            class: class(),
            version: Version::new(self.version),
            incarnation: incarnation(value),
            effect: self.effect,
            block: self.block,
            count: self.count,
            payload: &[],
        }
    }
}

/// A transaction, as its coordinator knows it.
#[derive(Clone, Debug)]
pub(super) struct Tx {
    pub(super) id: TxId,
    pub(super) objects: Vec<Write>,
    /// The value that it writes everywhere; no other transaction writes it.
    pub(super) value: u64,
    /// What was reported.
    pub(super) outcome: Option<Outcome>,
    step: Step,
    refused: bool,
    waiting: usize,
}

impl Tx {
    /// Returns the addresses that it writes, with the versions that it read.
    pub(super) fn writes(&self) -> impl Iterator<Item = (Address, u64)> + '_ {
        self.objects.iter().flat_map(|one| {
            let addresses = one.object(0).addresses();
            addresses.map(|address| (address, one.version))
        })
    }

    /// Returns the first addresses of new objects whose records have the word of their block.
    pub(super) fn blocks(&self) -> impl Iterator<Item = Address> + '_ {
        let new = self.objects.iter().filter(|one| one.block != 0);
        new.map(|one| one.first)
    }

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
    logs: BTreeMap<WorkerRef, Vec<Written>>,
    low: BTreeMap<WorkerRef, u64>,
}

/// The commits of one configuration.
pub(super) struct Commits {
    configuration: u64,
    /// Added to the number of a transaction: no two transactions of any configuration write the same value.
    first_value: u64,
    pub(super) regions: Regions,
    machines: BTreeMap<MachineId, Machine>,
    txs: Vec<Tx>,
    flying: BTreeMap<(WorkerRef, MachineId), VecDeque<Written>>,
}

impl Commits {
    /// Runs random steps of random commits of a new cluster.
    pub(super) fn random(rng: &mut Xoshiro256PlusPlus) -> Self {
        let count = rng.random_range(2..6);
        let machines: Vec<MachineId> = (1..=count).map(|id| MachineId::new(id).unwrap()).collect();
        let replicas = rng.random_range(1..=3.min(machines.len()));
        let mut copies: BTreeMap<_, _> = machines.iter().map(|id| (*id, Copies::new())).collect();
        let mut regions = BTreeMap::new();
        for position in 0..rng.random_range(1..4) {
            let region = RegionId::new(1, position).unwrap();
            let mut all = machines.clone();
            all.shuffle(rng);
            let replicas = Replicas::new(all[..replicas].iter().copied()).unwrap();
            regions.insert(region, replicas);
            for machine in replicas.all() {
                let copies = copies.get_mut(machine).unwrap();
                copies.extend(addresses_of(region).map(|one| (one, Cell::default())));
            }
        }
        Self::after(record::FIRST_CONFIGURATION, regions, copies, rng)
    }

    /// Runs random steps of random commits in a configuration that begins with these copies.
    pub(super) fn after(
        configuration: u64,
        regions: Regions,
        copies: BTreeMap<MachineId, Copies>,
        rng: &mut Xoshiro256PlusPlus,
    ) -> Self {
        let machines = copies.into_iter().map(|(machine, copies)| {
            let new = Machine {
                copies,
                ..Machine::default()
            };
            (machine, new)
        });
        let mut this = Self {
            configuration,
            first_value: configuration * 1_000 + 1,
            regions,
            machines: machines.collect(),
            txs: Vec::new(),
            flying: BTreeMap::new(),
        };
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
        let machine = self.machines().choose(rng).unwrap();
        let worker = WorkerId::new(rng.random_range(0..WORKERS_PER_MACHINE)).unwrap();
        let coordinator = WorkerRef::new(machine, worker);
        let all = self.regions.keys().flat_map(|region| addresses_of(*region));
        let most = rng.random_range(1..=3);
        let objects = all.choose_multiple(rng, most);
        let id = TxId {
            configuration: self.configuration,
            coordinator,
            sequence: self.of(coordinator).count() as u64 + 1,
        };
        let mut tx = Tx {
            id,
            objects: Vec::new(),
            value: self.first_value + self.txs.len() as u64,
            outcome: None,
            step: Step::Lock,
            refused: false,
            waiting: 0,
        };
        for address in objects {
            let new = self.random_write(address, rng);
            let mut new_ones = new.object(0).addresses();
            if new_ones.all(|new| tx.writes().all(|(old, _)| old != new)) {
                tx.objects.push(new);
            }
        }
        self.txs.push(tx);
        self.write_all(self.txs.len() - 1, Kind::Lock);
    }

    fn random_write(&self, address: Address, rng: &mut Xoshiro256PlusPlus) -> Write {
        let version =
            |address: Address| self.machines[&self.primary(address)].copies[&address].version;
        let effect = match rng.random_range(0..10) {
            0 | 1 => Effect::Allocate,
            2 => Effect::Free,
            3 => Effect::Format,
            _ => Effect::Write,
        };
        let mut run = addresses_of(address.region());
        let first = run.next().unwrap();
        let is_run = effect == Effect::Format && run.all(|one| version(one) == version(first));
        let is_new = matches!(effect, Effect::Allocate | Effect::Format);
        Write {
            first: if is_run { first } else { address },
            count: if is_run { OBJECTS_PER_REGION } else { 1 },
            version: version(address),
            effect,
            block: if is_new && rng.random() { BLOCK } else { 0 },
        }
    }

    /// Returns the transactions of a coordinator, in their order.
    fn of(&self, coordinator: WorkerRef) -> impl Iterator<Item = &Tx> {
        let all = self.txs.iter();
        all.filter(move |tx| tx.id.coordinator == coordinator)
    }

    /// Writes a record of this kind to all machines that get one.
    fn write_all(&mut self, tx: usize, kind: Kind) {
        let to = self.participants(tx, kind);
        self.txs[tx].waiting = to.len();
        let from = self.txs[tx].id.coordinator;
        let low = self.low(from);
        for to in to {
            let queue = self.flying.entry((from, to)).or_default();
            queue.push_back(Written { kind, tx, low });
        }
    }

    fn participants(&self, tx: usize, kind: Kind) -> BTreeSet<MachineId> {
        let regions = self.txs[tx]
            .writes()
            .map(|one| self.regions[&one.0.region()]);
        match kind {
            Kind::CommitBackup => regions.flat_map(|one| one.backups().to_vec()).collect(),
            _ => regions.map(|one| one.primary()).collect(),
        }
    }

    /// Returns the number of the coordinator's first transaction that is not finished.
    fn low(&self, coordinator: WorkerRef) -> u64 {
        let finished = self
            .of(coordinator)
            .take_while(|tx| tx.step == Step::Finished);
        finished.count() as u64 + 1
    }

    fn land(&mut self, from: WorkerRef, to: MachineId) {
        let written = self
            .flying
            .get_mut(&(from, to))
            .unwrap()
            .pop_front()
            .unwrap();
        let (kind, at) = (written.kind, written.tx);
        let tx = &self.txs[at];
        let is_here = |one: &&Write| self.primary(one.first) == to;
        let here = tx.objects.iter().filter(is_here);
        let objects: Vec<Object<'_>> = here.map(|one| one.object(tx.value)).collect();
        let is_primary = |one: &(Address, u64)| self.primary(one.0) == to;
        let writes: Vec<_> = tx.writes().filter(is_primary).collect();
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
                    assert_eq!(machine.copies[&address].version, version);
                }
                for object in objects {
                    super::apply(&mut machine.copies, &object);
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
                for write in &tx.objects {
                    let replicas = self.regions[&write.first.region()];
                    if replicas.backups().contains(&machine) {
                        super::apply(&mut this.copies, &write.object(tx.value));
                    }
                }
            }
            records.retain(|one| !is_ended(one));
        }
    }

    /// Returns the copies of a machine, and what it knows, when nothing lands any more. `earlier` is what it knew of the
    /// configurations before.
    pub(super) fn drain(&self, machine: MachineId, earlier: Undecided) -> (Copies, Undecided) {
        let mut drain = Drain::default();
        for (from, records) in &self.machines[&machine].logs {
            for one in records {
                let tx = &self.txs[one.tx];
                let bytes = self.encode(tx, one, machine);
                let record = Record::decode_unchecked(one.kind, &bytes).unwrap();
                drain.add(tx.id, &record, &bytes).unwrap();
            }
            let low = self.machines[&machine].low[from];
            drain.add_low((self.configuration, *from), low);
        }
        let (mut known, ended) = drain.finish(earlier);
        let is_own = |tx: &&Tx| tx.id.coordinator.machine == machine && !tx.is_finished();
        for tx in self.txs.iter().filter(is_own) {
            known.add_tx(tx.id, tx.writes().map(|one| one.0.region()));
        }
        (self.copies_of(machine, &ended), known)
    }

    /// Returns the copies of a machine, with the values of the transactions that have ended.
    fn copies_of(&self, machine: MachineId, ended: &[EndedHere]) -> Copies {
        let mut copies = self.machines[&machine].copies.clone();
        for one in ended.iter().filter(|one| one.committed) {
            for (region, body) in &one.of {
                for object in body.objects_in(*region) {
                    super::apply(&mut copies, &object);
                }
            }
        }
        copies
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
        let objects = tx.objects.iter().filter(|one| is_here(one.first));
        let objects: Vec<_> = objects.map(|one| one.object(tx.value)).collect();
        let regions: BTreeSet<_> = tx.writes().map(|one| one.0.region()).collect();
        let regions: Vec<_> = regions.into_iter().collect();
        let mut bytes = match written.kind {
            Kind::Lock | Kind::CommitBackup => body(&regions, &objects),
            _ => vec![0; record::FIXED_BYTES],
        };
        bytes[8..16].copy_from_slice(&self.configuration.to_le_bytes());
        bytes[16..24].copy_from_slice(&written.low.to_le_bytes());
        bytes
    }
}
