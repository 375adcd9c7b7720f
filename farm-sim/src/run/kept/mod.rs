//! What must be in memory that survives processes, whenever they are killed (`FaRM'15 §4, §5.3`): everything from which recovery
//! decides.
//!
//! - Every log can be read from its head to the first record that has not landed.
//! - Every version that a replica has installed, and every version of a transaction whose COMMIT-PRIMARY has landed, is on all
//!   other replicas, too: installed, or in a record of their machine, of a transaction that recovery commits. So nothing that any machine may have reported is lost with
//!   another machine.
//! - Recovery decides each transaction as its coordinator may have reported it, also without any machines that may be lost.
//! - Replicas with the same version, unlocked, have the same bytes.
//! - Every lock is that of a record of the same machine.

mod decisions;
mod recovers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use farm_core::alloc::{Block, BlockTable};
use farm_core::ids::{Address, MachineId, RegionId};
use farm_core::marks;
use farm_core::mem::{Memory, WORD_BYTES};
use farm_core::object::{HEADER_BYTES, Incarnation, LockMode, VersionWord, write};
use farm_core::region::map::Replicas;
use farm_core::ring::{KeptLog, KeptRecords};
use farm_txn::note;
use farm_txn::record::{FIRST_CONFIGURATION, Kind, Record, RecordError, TxId};
use farm_txn::recovery::{Drain, EndedHere, Evidence, Findings, Found, Undecided};

use crate::cluster::{Cluster, Copies};

/// An object of a record: the machine that stores the record, and the object's address.
type Place = (MachineId, Address);

/// The regions that are left, and machines that are lost beside those without memory.
struct Loss<'a> {
    regions: &'a BTreeMap<RegionId, Replicas>,
    lost: Vec<MachineId>,
}

impl Loss<'_> {
    fn replicas(&self, region: RegionId) -> Replicas {
        self.regions[&region]
    }

    /// Returns whether each region has a replica that is left.
    fn leaves_all(&self) -> bool {
        let is_left = |machine: &MachineId| !self.lost.contains(machine);
        let mut regions = self.regions.values();
        regions.all(|replicas| replicas.all().iter().any(is_left))
    }
}

/// What the records of all machines say.
struct Kept {
    findings: Findings,
    /// What each machine drains from its logs.
    drained: BTreeMap<MachineId, (Undecided, Vec<EndedHere>)>,
    /// The transactions of the records of a machine that give an object a version.
    versions: BTreeMap<Place, BTreeMap<u64, Vec<TxId>>>,
    /// The objects of each transaction, with the versions that it gives them.
    objects: BTreeMap<TxId, BTreeSet<(Address, u64)>>,
    /// What recovery decides if no machine is lost.
    committed: BTreeSet<TxId>,
    records: u64,
}

impl Kept {
    fn read(cluster: &Cluster) -> Result<Self, String> {
        let mut kept = Self {
            findings: Findings::default(),
            drained: BTreeMap::new(),
            versions: BTreeMap::new(),
            objects: BTreeMap::new(),
            committed: BTreeSet::new(),
            records: 0,
        };
        let mut drains = BTreeMap::new();
        for (machine, log) in cluster.kept_logs() {
            kept.add((machine, &log), &mut drains).map_err(|why| {
                let writer = log.writer;
                format!("the log of {writer} on {machine} cannot be read after a kill: {why}")
            })?;
        }
        let drained = drains.into_iter();
        let drained = drained.map(|(machine, drain)| (machine, drain.finish(Undecided::default())));
        kept.drained = drained.collect();
        Ok(kept)
    }

    fn add(
        &mut self,
        (machine, log): (MachineId, &KeptLog),
        drains: &mut BTreeMap<MachineId, Drain>,
    ) -> Result<(), String> {
        let (configuration, low) = note::decode(log.state.note(), FIRST_CONFIGURATION);
        let coordinator = (configuration, log.writer);
        self.findings.add_low(machine, coordinator, low);
        let drain = drains.entry(machine).or_default();
        drain.add_low(coordinator, low);
        let mut records = KeptRecords::new(log.log.clone(), &log.state, log.integrity)
            .map_err(|error| error.to_string())?;
        while let Some(found) = records.next().map_err(|error| error.to_string())? {
            let id = TxId {
                configuration: FIRST_CONFIGURATION,
                coordinator: log.writer,
                sequence: found.token,
            };
            let record = Record::decode(found.message_id, id, found.body);
            let record = record.map_err(|error| error.to_string())?;
            self.records += 1;
            let added = self.findings.add(machine, id, &record);
            added.map_err(|error| error.to_string())?;
            let drained = drain.add(id, &record, found.body);
            drained.map_err(|error| error.to_string())?;
            if Evidence::of(record.kind).has_body() {
                self.add_objects(machine, id, &record)
                    .map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    fn add_objects(
        &mut self,
        machine: MachineId,
        id: TxId,
        record: &Record<'_>,
    ) -> Result<(), RecordError> {
        for object in record.lock()?.objects() {
            let object = object?;
            let version = object.version.next().get();
            for address in object.addresses() {
                let versions = self.versions.entry((machine, address)).or_default();
                versions.entry(version).or_default().push(id);
                let objects = self.objects.entry(id).or_default();
                objects.insert((address, version));
            }
        }
        Ok(())
    }

    /// Describes the transactions of records on the machine that give the object this version.
    fn about(&self, machine: MachineId, address: Address, version: u64) -> String {
        let versions = self.versions.get(&(machine, address));
        let txs = versions.and_then(|versions| versions.get(&version));
        let about = |id: &TxId| {
            let regions: Vec<_> = self
                .findings
                .found(*id)
                .into_iter()
                .flat_map(Found::regions)
                .collect();
            let evidence = self.findings.found(*id).map(Found::anywhere);
            format!(
                "; transaction {} of {}: {evidence:?} in {regions:?}",
                id.sequence, id.coordinator
            )
        };
        txs.into_iter().flatten().map(about).collect()
    }

    /// Returns whether a record on the machine gives the object this version, and recovery commits its transaction.
    fn has(&self, machine: MachineId, address: Address, version: u64) -> bool {
        let versions = self.versions.get(&(machine, address));
        let txs = versions.and_then(|versions| versions.get(&version));
        txs.is_some_and(|txs| txs.iter().any(|id| self.committed.contains(id)))
    }
}

/// The header of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    version: VersionWord,
    incarnation: Incarnation,
}

impl Header {
    fn of(memory: &Memory, at: usize) -> Self {
        Self {
            version: write::load_version(memory, at),
            incarnation: write::load_incarnation(memory, at),
        }
    }

    fn number(&self) -> u64 {
        self.version.version().get()
    }

    fn is_zero(&self) -> bool {
        (self.version.0, self.incarnation.0) == (0, 0)
    }
}

/// Checks the surviving memory of a cluster. Returns the number of records in its logs.
///
/// # Errors
/// The first violation.
pub(super) fn check(cluster: &Cluster) -> Result<u64, String> {
    let mut kept = Kept::read(cluster)?;
    let all = cluster.copies();
    kept.committed = decisions::check(&kept, &all)?;
    for copies in &all {
        check_installed(copies, &kept)?;
    }
    let has_committed = |id: &TxId| {
        let found = kept.findings.found(*id);
        found.is_some_and(|found| found.anywhere().has(Kind::CommitPrimary))
    };
    for (id, objects) in kept.objects.iter().filter(|(id, _)| has_committed(id)) {
        for (address, version) in objects {
            let copies = all.iter().find(|copies| copies.region == address.region());
            for (machine, memory) in copies.iter().flat_map(|copies| &copies.copies) {
                let there = Header::of(memory, address.offset() as usize).number();
                if there < *version && !kept.has(*machine, *address, *version) {
                    let (coordinator, sequence) = (id.coordinator, id.sequence);
                    return Err(format!(
                        "transaction {sequence} of {coordinator} has a COMMIT-PRIMARY record, and {machine} has neither version \
                         {version} of {address}, which it wrote, nor a record of it (it has version {there})"
                    ));
                }
            }
        }
    }
    if kept.records > 0 {
        marks::mark("kept: records of a killed cluster read");
    }
    Ok(kept.records)
}

/// Checks that each version that a replica has installed is on all others.
fn check_installed(copies: &Copies, kept: &Kept) -> Result<(), String> {
    for (machine, memory) in &copies.copies {
        // A block may be in the middle of a change.
        let Ok(table) = BlockTable::open_after_crash(memory.clone(), copies.region) else {
            return Err(format!(
                "the block table of {} on {machine} is damaged",
                copies.region
            ));
        };
        let mut next = 0;
        while let Some(block) = table.next_block(next).map_err(|error| error.to_string())? {
            next = BlockTable::next_after(&block);
            for slot in 0..block.slots() {
                check_slot(copies, kept, (*machine, &block, slot))?;
            }
        }
    }
    Ok(())
}

fn check_slot(
    copies: &Copies,
    kept: &Kept,
    (machine, block, slot): (MachineId, &Block, u32),
) -> Result<(), String> {
    let bytes = block.head().class.object_bytes();
    let at = block.first_offset() + slot as usize * bytes;
    let address = Address::new(copies.region, at as u32);
    let memory = block.table().memory();
    let here = Header::of(memory, at);
    let unlocked = here.version.mode() == LockMode::Unlocked;
    if !unlocked && !is_locked_by_record(copies, kept, (machine, address, here)) {
        return Err(format!(
            "{address} is locked on {machine} at version {}, and no record there names it",
            here.number()
        ));
    }
    for (other, their) in copies.copies.iter().filter(|(other, _)| *other != machine) {
        let there = Header::of(their, at);
        // The first header of a slot has the version of its block's base.
        let reserved_only = there.is_zero() && here.number() <= block.base().version().get();
        if there.number() < here.number() && !reserved_only {
            if !kept.has(*other, address, here.number()) {
                return Err(format!(
                    "{machine} has installed version {} of {address}; {other} has version {} and no record of the newer one that recovery \
                     commits{}",
                    here.number(),
                    there.number(),
                    kept.about(*other, address, here.number())
                ));
            }
            marks::mark("kept: a replica has an older version and a record");
        }
        let comparable = unlocked && here == there && here.incarnation.is_allocated();
        let mut words = (HEADER_BYTES..bytes).step_by(WORD_BYTES);
        let word = |memory: &Memory, offset| memory.load(at + offset, Ordering::Acquire);
        if comparable && words.any(|offset| word(memory, offset) != word(their, offset)) {
            return Err(format!(
                "{machine} and {other} have different bytes of version {} of {address}",
                here.number()
            ));
        }
    }
    Ok(())
}

/// Returns whether a record on the machine names a locked object: at the version at which it is locked, on the primary; with this
/// or a newer version, on a backup.
fn is_locked_by_record(
    copies: &Copies,
    kept: &Kept,
    (machine, address, header): (MachineId, Address, Header),
) -> bool {
    let Some(versions) = kept.versions.get(&(machine, address)) else {
        return false;
    };
    match machine == copies.primary {
        // A new object is locked at its new version while it is written.
        true => {
            let (now, next) = (header.number(), header.version.version().next().get());
            versions.contains_key(&next) || versions.contains_key(&now)
        }
        false => versions.range(header.number()..).next().is_some(),
    }
}
