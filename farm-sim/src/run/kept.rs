//! What must be in memory that survives processes, whenever they are killed (`FaRM'15 §4, §5.3`): everything from which recovery
//! decides.
//!
//! - Every log can be read from its head to the first record that has not landed.
//! - Every version that a replica has installed, and every version of a transaction whose COMMIT-PRIMARY has landed, is on all
//!   other replicas, too: installed, or in a record of their machine. So nothing that any machine may have reported is lost with
//!   another machine.
//! - Replicas with the same version, unlocked, have the same bytes.
//! - Every lock is that of a record of the same machine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use farm_core::alloc::{Block, BlockTable};
use farm_core::ids::{Address, MachineId, WorkerRef};
use farm_core::marks;
use farm_core::mem::{Memory, WORD_BYTES};
use farm_core::object::{HEADER_BYTES, Incarnation, LockMode, VersionWord, write};
use farm_core::ring::{KeptRecords, RecordIntegrity};
use farm_txn::record::{Kind, Record, TxId};

use crate::cluster::{Cluster, Copies, KeptLog};

/// An object of a record: the machine that stores the record, and the object's address.
type Place = (MachineId, Address);

/// What the records of all machines say.
#[derive(Default)]
struct Kept {
    /// The versions that the records of a machine give an object.
    versions: BTreeMap<Place, BTreeSet<u64>>,
    /// The objects of each transaction, with the versions that it gives them.
    objects: BTreeMap<(WorkerRef, u64), BTreeSet<(Address, u64)>>,
    /// Transactions with a COMMIT-PRIMARY record.
    committed: BTreeSet<(WorkerRef, u64)>,
    records: u64,
}

impl Kept {
    fn add(&mut self, log: &KeptLog, integrity: RecordIntegrity) -> Result<(), String> {
        let mut records = KeptRecords::new(log.log.clone(), &log.state, integrity)
            .map_err(|error| error.to_string())?;
        while let Some(found) = records.next().map_err(|error| error.to_string())? {
            let kind = Kind::of(found.message_id).ok_or("a record of an unknown kind")?;
            let decoded = Record::decode_unchecked(kind, found.body);
            let configuration = decoded.map_err(|error| error.to_string())?.configuration;
            let id = TxId {
                configuration,
                coordinator: log.writer,
                sequence: found.token,
            };
            let record = Record::decode(found.message_id, id, found.body);
            let record = record.map_err(|error| error.to_string())?;
            let tx = (log.writer, found.token);
            self.records += 1;
            match kind {
                Kind::CommitPrimary => _ = self.committed.insert(tx),
                Kind::Lock | Kind::CommitBackup => {
                    let lock = record.lock().map_err(|error| error.to_string())?;
                    for object in lock.objects() {
                        let object = object.map_err(|error| error.to_string())?;
                        let version = object.version.next().get();
                        for address in object.addresses() {
                            let place = (log.machine, address);
                            self.versions.entry(place).or_default().insert(version);
                            let objects = self.objects.entry(tx).or_default();
                            objects.insert((address, version));
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn has(&self, machine: MachineId, address: Address, version: u64) -> bool {
        let versions = self.versions.get(&(machine, address));
        versions.is_some_and(|versions| versions.contains(&version))
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
pub(super) fn check(cluster: &Cluster, integrity: RecordIntegrity) -> Result<u64, String> {
    let mut kept = Kept::default();
    for log in cluster.kept_logs() {
        kept.add(&log, integrity).map_err(|why| {
            let (writer, machine) = (log.writer, log.machine);
            format!("the log of {writer} on {machine} cannot be read after a kill: {why}")
        })?;
    }
    let all = cluster.copies();
    for copies in &all {
        check_installed(copies, &kept)?;
    }
    for (tx, objects) in kept
        .objects
        .iter()
        .filter(|(tx, _)| kept.committed.contains(tx))
    {
        for (address, version) in objects {
            let copies = all.iter().find(|copies| copies.region == address.region());
            for (machine, memory) in copies.iter().flat_map(|copies| &copies.copies) {
                let there = Header::of(memory, address.offset() as usize).number();
                if there < *version && !kept.has(*machine, *address, *version) {
                    let (coordinator, sequence) = tx;
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
                    "{machine} has installed version {} of {address}; {other} has version {} and no record of the newer one",
                    here.number(),
                    there.number()
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
            versions.contains(&next) || versions.contains(&now)
        }
        false => versions.iter().any(|version| *version >= header.number()),
    }
}
