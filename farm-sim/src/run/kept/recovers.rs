//! Recovers what is left of a killed cluster by the code of production, on a copy of the objects, and checks that all replicas are equal
//! afterwards.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::Ordering;

use farm_core::ids::{Address, MachineId, RegionId};
use farm_core::marks;
use farm_core::mem::{Memory, WORD_BYTES};
use farm_core::object::position;
use farm_core::region::map::Replicas;
use farm_txn::record::{Effect, FIXED_CONFIGURATION, Object, TxId};
use farm_txn::recovery::message::{Message, Step};
use farm_txn::recovery::{Body, Decision, Recovery, Roles, Unexpected};
use rand::seq::{IteratorRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::{Header, Kept, Loss};
use crate::cluster::Copies;

/// What recovery has installed in a replica.
struct Installed {
    version: u64,
    payload: Vec<u8>,
}

/// The machines that are left, while they recover.
struct Recovering<'a> {
    rng: Xoshiro256PlusPlus,
    copies: &'a [Copies],
    machines: BTreeMap<MachineId, Recovery>,
    /// Messages, with their configurations.
    flying: BTreeMap<(MachineId, MachineId), VecDeque<(u64, Message)>>,
    installed: BTreeMap<(MachineId, Address), Installed>,
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
        rng: Xoshiro256PlusPlus::seed_from_u64(kept.records),
        copies,
        machines: BTreeMap::new(),
        flying: BTreeMap::new(),
        installed: BTreeMap::new(),
        locked: BTreeSet::new(),
        decided: BTreeMap::new(),
        recovered: BTreeSet::new(),
    };
    let mut known = BTreeMap::new();
    for me in &members {
        let (undecided, ended) = kept.drained.get(me).cloned().unwrap_or_default();
        for one in ended.iter().filter(|one| one.committed) {
            for (region, body) in &one.of {
                this.apply_all(*me, body.objects_in(*region));
            }
        }
        known.insert(*me, undecided);
    }
    let roles = |me, configuration| Roles {
        configuration,
        recovered: FIXED_CONFIGURATION,
        me,
        members: members.iter().copied().collect(),
        regions: regions.clone(),
    };
    let configuration = FIXED_CONFIGURATION + 1;
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
    this.check_end(kept, &regions, committed)?;
    Ok(this.decided)
}

impl Recovering<'_> {
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
                }
                Step::Apply(region, body) => self.apply_all(me, body.objects_in(region)),
                Step::Release(address, bodies) => self.release(me, address, &bodies)?,
                Step::Activate(_) | Step::Outcome(..) => {}
                Step::Recovered => {
                    self.recovered.insert(me);
                }
            }
        }
        Ok(())
    }

    fn release(&mut self, me: MachineId, address: Address, bodies: &[Body]) -> Result<(), String> {
        if !self.locked.remove(&(me, address)) {
            return Err(format!(
                "recovery unlocks {address} on {me}, which it has not locked"
            ));
        }
        for object in bodies.iter().filter_map(|body| body.object(address)) {
            self.apply(me, &object, address);
        }
        Ok(())
    }

    fn apply_all<'o>(&mut self, me: MachineId, objects: impl Iterator<Item = Object<'o>>) {
        for object in objects {
            for address in object.addresses() {
                self.apply(me, &object, address);
            }
        }
    }

    fn apply(&mut self, me: MachineId, object: &Object<'_>, address: Address) {
        let version = object.version.next().get();
        if self.version(me, address) >= version {
            return;
        }
        let payload = match object.effect {
            Effect::Format => Vec::new(),
            _ => object.payload.to_vec(),
        };
        let new = Installed { version, payload };
        self.installed.insert((me, address), new);
    }

    fn memory(&self, me: MachineId, address: Address) -> Option<&Memory> {
        let region = self
            .copies
            .iter()
            .find(|one| one.region == address.region())?;
        let copy = region.copies.iter().find(|(machine, _)| *machine == me)?;
        Some(&copy.1)
    }

    fn version(&self, me: MachineId, address: Address) -> u64 {
        match self.installed.get(&(me, address)) {
            Some(installed) => installed.version,
            None => self.memory(me, address).map_or(0, |memory| {
                Header::of(memory, address.offset() as usize).number()
            }),
        }
    }

    /// Returns the first bytes of the object's payload, of a replica that recovery has not changed.
    fn stored(&self, me: MachineId, address: Address, bytes: usize) -> Vec<u8> {
        let Some(memory) = self.memory(me, address) else {
            return Vec::new();
        };
        let byte = |payload| {
            let at = address.offset() as usize + position(payload);
            let within = at % WORD_BYTES;
            memory.load(at - within, Ordering::Acquire).to_le_bytes()[within]
        };
        (0..bytes).map(byte).collect()
    }

    fn check_end(
        &self,
        kept: &Kept,
        regions: &BTreeMap<RegionId, Replicas>,
        committed: &BTreeSet<TxId>,
    ) -> Result<(), String> {
        let (recovered, all) = (self.recovered.len(), self.machines.len());
        if recovered != all {
            return Err(format!("{recovered} of {all} machines have recovered"));
        }
        if let Some((machine, address)) = self.locked.first() {
            return Err(format!("recovery leaves {address} locked on {machine}"));
        }
        self.check_values(kept, regions, committed)?;
        let named: BTreeSet<Address> = kept.objects.values().flatten().map(|one| one.0).collect();
        for address in named {
            let Some(replicas) = regions.get(&address.region()) else {
                continue;
            };
            let primary = replicas.primary();
            for backup in replicas.backups() {
                self.check_equal(kept, address, (primary, *backup))?;
            }
        }
        Ok(())
    }

    /// Checks that all replicas have the versions of committed transactions, and that recovery has installed no others.
    fn check_values(
        &self,
        kept: &Kept,
        regions: &BTreeMap<RegionId, Replicas>,
        committed: &BTreeSet<TxId>,
    ) -> Result<(), String> {
        let of = |id: &TxId| kept.objects.get(id).into_iter().flatten().copied();
        let written: BTreeSet<(Address, u64)> = committed.iter().flat_map(of).collect();
        for (address, version) in &written {
            let replicas = regions.get(&address.region());
            let mut machines = replicas.iter().flat_map(|one| one.all());
            let lacks = |machine: &&MachineId| self.version(**machine, *address) < *version;
            if let Some(machine) = machines.find(lacks) {
                let about = kept.about(*machine, *address, *version);
                return Err(format!(
                    "after recovery {machine} lacks version {version} of {address}, which is committed{about}"
                ));
            }
        }
        for ((machine, address), Installed { version, .. }) in &self.installed {
            if !written.contains(&(*address, *version)) {
                let about = kept.about(*machine, *address, *version);
                return Err(format!(
                    "recovery has installed version {version} of {address} on {machine}, and commits no transaction that wrote it{about}"
                ));
            }
        }
        Ok(())
    }

    fn check_equal(
        &self,
        kept: &Kept,
        address: Address,
        (one, other): (MachineId, MachineId),
    ) -> Result<(), String> {
        let versions = (self.version(one, address), self.version(other, address));
        let installed = |machine| self.installed.get(&(machine, address));
        let payload = |machine, bytes| match installed(machine) {
            Some(installed) => installed.payload.clone(),
            None => self.stored(machine, address, bytes),
        };
        let bytes = [one, other].map(|machine| installed(machine).map(|new| new.payload.len()));
        // The first header of a slot is written when it is reserved, on the primary alone.
        let is_zero = |machine| {
            let memory = self.memory(machine, address);
            memory.is_none_or(|memory| Header::of(memory, address.offset() as usize).is_zero())
        };
        if bytes == [None, None] && (is_zero(one) || is_zero(other)) {
            return Ok(());
        }
        let bytes = bytes[0].or(bytes[1]).unwrap_or(0);
        if versions.0 == versions.1 && payload(one, bytes) == payload(other, bytes) {
            return Ok(());
        }
        let about = |machine: MachineId, version: u64| {
            let how = match installed(machine) {
                Some(_) => "installed by recovery",
                None => "found",
            };
            let records = kept.about(machine, address, version);
            format!("version {version} on {machine} ({how}{records})")
        };
        Err(format!(
            "after recovery {address} has {} and {}, or other bytes",
            about(one, versions.0),
            about(other, versions.1)
        ))
    }
}
