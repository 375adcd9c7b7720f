//! Recovers what is left of a killed cluster by the code of production, on copies of its memory, and checks that all replicas are equal
//! afterwards.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use farm_core::alloc::{BlockTable, Difference, compare_replicas};
use farm_core::ids::{Address, MachineId, RegionId};
use farm_core::marks;
use farm_core::mem::{Memory, WORD_BYTES};
use farm_core::object::LockMode;
use farm_core::region::map::Replicas;
use farm_txn::record::{FIRST_CONFIGURATION, TxId};
use farm_txn::recovery::message::{Message, Step};
use farm_txn::recovery::replica::{self, ReplicaError};
use farm_txn::recovery::{Decision, Recovery, Roles, Undecided, Unexpected};
use rand::seq::{IteratorRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{Header, Kept, Loss};
use crate::cluster::Copies;

/// The machines that are left, while they recover.
struct Recovering<'a> {
    kept: &'a Kept,
    /// The memory of the killed machines.
    copies: &'a [Copies],
    /// The replicas that are left.
    regions: BTreeMap<RegionId, Replicas>,
    rng: Xoshiro256PlusPlus,
    /// Copies of the replicas that are left.
    tables: BTreeMap<(MachineId, RegionId), BlockTable>,
    machines: BTreeMap<MachineId, Recovery>,
    /// Messages, with their configurations.
    flying: BTreeMap<(MachineId, MachineId), VecDeque<(u64, Message)>>,
    locked: BTreeSet<(MachineId, Address)>,
    decided: BTreeMap<TxId, Decision>,
    recovered: BTreeSet<MachineId>,
}

/// Recovers, and returns the decisions. In some runs all machines begin again in the middle, one after the other. `committed` are the
/// transactions that recovery must commit.
///
/// # Errors
/// What is wrong afterwards.
pub(super) fn check(
    kept: &Kept,
    copies: &[Copies],
    loss: &Loss<'_>,
    committed: &BTreeSet<TxId>,
) -> Result<BTreeMap<TxId, Decision>, String> {
    let regions = loss.regions.iter().map(|(region, replicas)| {
        let left = replicas.all().iter().copied();
        let left = Replicas::new(left.filter(|machine| !loss.lost.contains(machine)));
        (
            *region,
            left.expect("each region has a replica that is left"),
        )
    });
    let regions: BTreeMap<_, _> = regions.collect();
    let members: BTreeSet<_> = regions
        .values()
        .flat_map(|one| one.all().to_vec())
        .collect();
    let mut this = Recovering {
        kept,
        copies,
        regions: regions.clone(),
        rng: Xoshiro256PlusPlus::seed_from_u64(kept.records),
        tables: copy_left(copies, loss)?,
        machines: BTreeMap::new(),
        flying: BTreeMap::new(),
        locked: BTreeSet::new(),
        decided: BTreeMap::new(),
        recovered: BTreeSet::new(),
    };
    let known = this.drain(&members)?;
    let roles = |me, configuration| Roles {
        configuration,
        recovered: FIRST_CONFIGURATION,
        me,
        members: members.iter().copied().collect(),
        regions: regions.clone(),
    };
    let configuration = FIRST_CONFIGURATION + 1;
    for (me, known) in known {
        let mut steps = Vec::new();
        let begun = Recovery::begin(roles(me, configuration), known, &mut steps);
        this.begun(me, begun, steps)?;
    }
    if this.rng.random() {
        for _ in 0..this.rng.random_range(1..100) {
            this.step()?;
        }
        marks::mark("kept: recovery begins again in the middle");
        let mut machines: Vec<MachineId> = this.machines.keys().copied().collect();
        machines.shuffle(&mut this.rng);
        for me in machines {
            this.step()?;
            let before = this.machines.remove(&me).expect("the machine recovers");
            let mut steps = Vec::new();
            let begun = before.next(roles(me, configuration + 1), |known| known, &mut steps);
            this.begun(me, begun, steps)?;
        }
    }
    while this.step()? {}
    this.check_end(committed)?;
    Ok(this.decided)
}

/// Copies the memory of the replicas that are left.
fn copy_left(
    copies: &[Copies],
    loss: &Loss<'_>,
) -> Result<BTreeMap<(MachineId, RegionId), BlockTable>, String> {
    let mut tables = BTreeMap::new();
    for one in copies {
        let left = one.copies.iter();
        for (machine, memory) in left.filter(|copy| !loss.lost.contains(&copy.0)) {
            let table = BlockTable::open_after_crash(copy(memory), one.region);
            let table = table.map_err(|error| error.to_string())?;
            tables.insert((*machine, one.region), table);
        }
    }
    Ok(tables)
}

/// Copies memory. Most of it is zero in most runs.
fn copy(memory: &Memory) -> Memory {
    let copy = Memory::anonymous(memory.len());
    let mut words = [0; 512];
    for at in (0..memory.len()).step_by(size_of_val(&words)) {
        let some = words.len().min((memory.len() - at) / WORD_BYTES);
        let words = &mut words[..some];
        memory.read_words(at, words);
        if words.iter().any(|word| *word != 0) {
            copy.write_words(at, words);
        }
    }
    copy
}

impl Recovering<'_> {
    /// Does what is left of transactions that have ended, and returns what the machines know of the others.
    fn drain(
        &self,
        members: &BTreeSet<MachineId>,
    ) -> Result<BTreeMap<MachineId, Undecided>, String> {
        let mut known = BTreeMap::new();
        for me in members {
            let (undecided, ended) = self.kept.drained.get(me).cloned().unwrap_or_default();
            let locked = undecided.objects();
            let tables = self.tables.iter().filter(|(place, _)| place.0 == *me);
            for ((_, region), table) in tables {
                for one in &ended {
                    let is_primary = self.regions[region].primary() == *me;
                    let ended = replica::end(table, one, (&locked, is_primary));
                    ended.map_err(|error| format!("{region} on {me}: {error}"))?;
                }
            }
            known.insert(*me, undecided);
        }
        Ok(known)
    }

    fn begun(
        &mut self,
        me: MachineId,
        begun: Result<Recovery, Unexpected>,
        steps: Vec<Step>,
    ) -> Result<(), String> {
        let recovery = begun.map_err(|error| error.to_string())?;
        self.locked.retain(|(machine, _)| *machine != me);
        self.recovered.remove(&me);
        self.machines.insert(me, recovery);
        self.perform(me, steps)
    }

    /// Delivers a message; returns false if there is none.
    fn step(&mut self) -> Result<bool, String> {
        let waiting = self
            .flying
            .iter_mut()
            .filter(|(_, queue)| !queue.is_empty());
        let Some(((from, to), queue)) = waiting.choose(&mut self.rng) else {
            return Ok(false);
        };
        let (from, to) = (*from, *to);
        let (configuration, message) = queue.pop_front().expect("the queue is not empty");
        let mut steps = Vec::new();
        let recovery = self.machines.get_mut(&to);
        let recovery = recovery.expect("messages go to machines that are left");
        let handled = recovery.on_message(from, configuration, message, &mut steps);
        handled.map_err(|error| error.to_string())?;
        self.perform(to, steps)?;
        Ok(true)
    }

    fn perform(&mut self, me: MachineId, steps: Vec<Step>) -> Result<(), String> {
        let configuration = self.machines[&me].configuration();
        for step in steps {
            match step {
                Step::Send(to, message) => {
                    if let Message::Decide(id, _, decision, _) = &message {
                        let before = self.decided.insert(*id, *decision);
                        if before.is_some_and(|before| before != *decision) {
                            return Err(format!("recovery decides twice about {id:?}"));
                        }
                    }
                    let link = self.flying.entry((me, to)).or_default();
                    link.push_back((configuration, message));
                }
                Step::Lock(region, body) => {
                    let objects = body.objects_in(region);
                    let all = objects.flat_map(|object| object.addresses());
                    self.locked.extend(all.map(|address| (me, address)));
                    self.change(me, region, |table| replica::lock(table, &body))?;
                }
                Step::Apply(region, body) => {
                    self.change(me, region, |table| replica::apply_all(table, &body))?;
                }
                Step::Release(address, bodies) => {
                    if !self.locked.remove(&(me, address)) {
                        return Err(format!(
                            "recovery unlocks {address} on {me}, which it has not locked"
                        ));
                    }
                    let release = |table: &_| replica::release(table, address, &bodies);
                    self.change(me, address.region(), release)?;
                }
                Step::Activate(_) | Step::Outcome(..) => {}
                Step::Recovered => {
                    self.recovered.insert(me);
                }
            }
        }
        Ok(())
    }

    /// Changes objects of a replica.
    fn change(
        &self,
        me: MachineId,
        region: RegionId,
        change: impl FnOnce(&BlockTable) -> Result<(), ReplicaError>,
    ) -> Result<(), String> {
        let table = self.tables.get(&(me, region));
        let table = table.ok_or_else(|| format!("{me} has no replica of {region}"))?;
        change(table).map_err(|error| format!("{region} on {me}: {error}"))
    }

    /// Returns the header of an object in a replica that is left.
    fn header(&self, me: MachineId, address: Address) -> Option<Header> {
        let table = self.tables.get(&(me, address.region()))?;
        Some(Header::of(table.memory(), address.offset() as usize))
    }

    fn check_end(&self, committed: &BTreeSet<TxId>) -> Result<(), String> {
        let (recovered, all) = (self.recovered.len(), self.machines.len());
        if recovered != all {
            return Err(format!("{recovered} of {all} machines have recovered"));
        }
        if let Some((machine, address)) = self.locked.first() {
            return Err(format!("recovery leaves {address} locked on {machine}"));
        }
        self.check_values(committed)?;
        for (region, replicas) in &self.regions {
            let table = |machine| &self.tables[&(machine, *region)];
            let primary = replicas.primary();
            for backup in replicas.backups() {
                let compared = compare_replicas(table(primary), table(*backup));
                compared.map_err(|difference| {
                    let about = match &difference {
                        Difference::Object { address, .. } => [primary, *backup].map(|machine| {
                            let header = self.header(machine, *address);
                            let version = header.map_or(0, |header| header.number());
                            self.kept.about(machine, *address, version)
                        }),
                        _ => Default::default(),
                    };
                    format!(
                        "after recovery {primary} and {backup} differ: {difference}{}",
                        about.concat()
                    )
                })?;
            }
        }
        Ok(())
    }

    /// Checks that all replicas have the versions of committed transactions unlocked, and that recovery has installed no others.
    fn check_values(&self, committed: &BTreeSet<TxId>) -> Result<(), String> {
        let of = |id: &TxId| self.kept.objects.get(id).into_iter().flatten().copied();
        let written: BTreeSet<(Address, u64)> = committed.iter().flat_map(of).collect();
        let all = self.kept.objects.values().flatten().copied();
        for (address, version) in all {
            let Some(replicas) = self.regions.get(&address.region()) else {
                continue;
            };
            for machine in replicas.all() {
                let Some(now) = self.header(*machine, address) else {
                    return Err(format!("{machine} has no replica of {}", address.region()));
                };
                let about = || self.kept.about(*machine, address, version);
                let is_committed = written.contains(&(address, version));
                if now.version.mode() != LockMode::Unlocked {
                    return Err(format!(
                        "recovery leaves {address} locked on {machine}{}",
                        about()
                    ));
                }
                if now.number() < version && is_committed {
                    return Err(format!(
                        "after recovery {machine} lacks version {version} of {address}, which is committed{}",
                        about()
                    ));
                }
                let before = self
                    .copies
                    .iter()
                    .find(|one| one.region == address.region());
                let before = before.and_then(|one| one.copies.iter().find(|one| one.0 == *machine));
                let before = before.map(|one| Header::of(&one.1, address.offset() as usize));
                let is_new = before.is_some_and(|before| before.number() < version);
                if now.number() == version && is_new && !is_committed {
                    return Err(format!(
                        "recovery has installed version {version} of {address} on {machine}, and commits no transaction that wrote it{}",
                        about()
                    ));
                }
            }
        }
        Ok(())
    }
}
