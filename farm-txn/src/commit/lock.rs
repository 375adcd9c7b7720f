//! Step 1 of a commit: the locks of written objects, each taken at exactly the version that was read.
//!
//! [`lock_local`] locks the objects of the coordinator's machine, [`lock_record`] those of a LOCK record at a primary.
//! Both lock all objects or none.

use farm_core::alloc::{ReleaseError, SizeClass, class_for_payload};
use farm_core::ids::Address;
use farm_core::mem::Memory;
use farm_core::object::{LockMode, VersionWord, write};
use farm_core::worker::{AddressError, LogId, Worker};
use farm_core::{marks, mutants};

use super::primary::{RecordAt, Violation};
use super::reply::Verdict;
use super::{conflict, local, written};
use crate::error::{Abort, TxError};
use crate::layer::transactions;
use crate::record::{self, Effect, Kind, Lock, Object, Record, RecordError};
use crate::replica::ReplicaError;
use crate::tx::{Entry, Intent, Tx, is_slot};

/// Locks every written object of this machine, or none.
///
/// # Errors
/// The object that could not be locked.
pub(super) fn lock_local(worker: &mut Worker, tx: &Tx, mode: LockMode) -> Result<(), Abort> {
    for (count, entry) in written(tx).enumerate() {
        let (memory, at) = local(worker, entry.address);
        if write::try_lock(memory, at, entry.version, mode) {
            continue;
        }
        marks::mark("tx: lock conflict");
        let found = write::load_version(memory, at);
        unlock_first(worker, tx, count);
        return Err(conflict(found, entry.version, entry.address));
    }
    Ok(())
}

/// Makes the locks of this machine's objects exclusive. They are held in the readable mode.
pub(super) fn make_exclusive(worker: &mut Worker, tx: &Tx) {
    for entry in written(tx) {
        let (memory, at) = local(worker, entry.address);
        write::make_exclusive(memory, at, entry.version);
    }
}

/// Unlocks every written object of this machine.
pub(super) fn unlock_local(worker: &mut Worker, tx: &Tx) {
    unlock_first(worker, tx, usize::MAX);
}

fn unlock_first(worker: &mut Worker, tx: &Tx, count: usize) {
    let kept = usize::from(mutants::is_on("abort keeps the lock"));
    for entry in written(tx).take(count).skip(kept) {
        let (memory, at) = local(worker, entry.address);
        write::unlock(memory, at, entry.version);
    }
}

/// The reason why a primary rejects a log record and closes the connection to its coordinator.
#[derive(Debug, thiserror::Error)]
pub(super) enum Rejected {
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Protocol(#[from] Violation),
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error(transparent)]
    Release(#[from] ReleaseError),
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    /// A machine formats only its own memory.
    #[error("the objects at {0} are to be created by another machine than their primary")]
    FormatElsewhere(Address),
    /// The record, read again, names an object that the transaction has not locked.
    #[error("the transaction of the record does not hold the lock of the object at {0}")]
    NotHeld(Address),
}

/// Returns the memory that holds an object of a record.
pub(super) fn memory_of<'w>(
    worker: &'w mut Worker,
    object: &Object<'_>,
) -> Result<(&'w Memory, usize), Rejected> {
    let bytes = object.class.object_bytes();
    let (memory, at) = worker.local_memory(object.address)?;
    if at + bytes > memory.len() {
        return Err(ReplicaError::NoObject(object.address).into());
    }
    Ok((memory, at))
}

/// Returns the lock mode of a commit over several machines. It is exclusive, because no read may return the old value
/// after the first acknowledgement of COMMIT-PRIMARY.
pub(super) fn mode() -> LockMode {
    match mutants::is_on("readable LOCK in a distributed commit") {
        true => LockMode::Readable,
        false => LockMode::Exclusive,
    }
}

/// Locks every object of a LOCK record, or none.
///
/// # Errors
/// The record is wrong; nothing is locked.
pub(super) fn lock_record(worker: &mut Worker, lock: &Lock<'_>) -> Result<Verdict, Rejected> {
    let mut outcome = Ok(Verdict::Granted);
    let mut locked = 0;
    for object in lock.objects() {
        outcome = object
            .map_err(Rejected::from)
            .and_then(|object| try_lock(worker, &object));
        if !matches!(outcome, Ok(Verdict::Granted)) {
            break;
        }
        locked += 1;
    }
    if matches!(outcome, Ok(Verdict::Granted)) {
        return outcome;
    }
    let unlocked = unlock_record(worker, lock, locked);
    outcome.and_then(|verdict| unlocked.map(|()| verdict))
}

/// Locks an object at exactly the version that was read.
fn try_lock(worker: &mut Worker, object: &Object<'_>) -> Result<Verdict, Rejected> {
    let geometry = worker.store().geometry();
    let address = object.address;
    if object.effect == Effect::Format {
        return Err(Rejected::FormatElsewhere(address));
    }
    let (memory, at) = memory_of(worker, object)?;
    // If the size class differs, the coordinator has read payload as a version, or would install a part of the object.
    let slot = is_slot((memory, geometry, at), address, object.class);
    if !matches!(slot, Ok(true)) {
        return Ok(misplaced(address, slot));
    }
    let wanted = match mutants::is_on("lock at a newer version than read") {
        true => write::load_version(memory, at).version(),
        false => object.version,
    };
    if write::try_lock(memory, at, wanted, mode()) {
        return Ok(Verdict::Granted);
    }
    marks::mark("lock: refused");
    Ok(
        match write::load_version(memory, at).version() == object.version {
            true => Verdict::Locked(address),
            false => Verdict::Changed(address),
        },
    )
}

/// Returns the verdict about an address at which no object of the record's class starts.
#[cold]
fn misplaced(address: Address, slot: Result<bool, TxError>) -> Verdict {
    match slot {
        Err(TxError::WrongSize { is, .. }) => {
            let class = class_for_payload(is).map_or(0, SizeClass::get);
            Verdict::OtherClass(address, SizeClass::new(class))
        }
        _ => Verdict::NoObject(address),
    }
}

/// Unlocks the first `count` objects of a record. If one of the objects is wrong, the other objects are unlocked
/// nevertheless.
pub(super) fn unlock_record(
    worker: &mut Worker,
    lock: &Lock<'_>,
    count: usize,
) -> Result<(), Rejected> {
    let mut outcome = Ok(());
    for object in lock.objects().take(count) {
        let unlocked = object
            .map_err(Rejected::from)
            .and_then(|object| unlock(worker, &object));
        outcome = outcome.and(unlocked);
    }
    outcome
}

fn unlock(worker: &mut Worker, object: &Object<'_>) -> Result<(), Rejected> {
    let (memory, at) = memory_of(worker, object)?;
    match held_version(memory, at, object) {
        Ok(held) => write::unlock(memory, at, held.version()),
        Err(_) if mutants::is_on("answer LOCK-REPLY before locking") => {}
        Err(why) => return Err(why),
    }
    Ok(())
}

/// Returns the header of an object that the transaction of the record has locked. The coordinator can change the
/// record after it was first read, so the lock is checked.
pub(super) fn held_version(
    memory: &Memory,
    at: usize,
    object: &Object<'_>,
) -> Result<VersionWord, Rejected> {
    let now = write::load_version(memory, at);
    let held = VersionWord::of(object.version, mode());
    if now == held || mutants::is_on("lock at a newer version than read") {
        return Ok(now);
    }
    Err(Rejected::NotHeld(object.address))
}

/// Decodes a record with objects, whose checksum was checked before, from whole words.
pub(super) fn decode_objects(
    kind: Kind,
    words: &[u64],
    bytes: usize,
) -> Result<Lock<'_>, Rejected> {
    let body: &[u8] = &bytemuck::cast_slice(words)[..bytes];
    let record = Record::decode_unchecked(kind, body)?;
    Ok(record.lock()?)
}

/// Reads a record with objects, which is still in its log, again and calls `work` with it. The coordinator may have changed the
/// record in the meantime, so everything in the record is checked again.
pub(super) fn read_again<T>(
    worker: &mut Worker,
    log: LogId,
    (kind, at): (Kind, RecordAt),
    work: impl FnOnce(&mut Worker, &Lock<'_>) -> Result<T, Rejected>,
) -> Result<T, Rejected> {
    let mut words = std::mem::take(&mut transactions(worker).primary.words);
    worker.read_log(log, at.end, at.bytes, &mut words);
    let outcome = decode_objects(kind, &words, at.bytes).and_then(|objects| work(worker, &objects));
    transactions(worker).primary.words = words;
    outcome
}

/// Appends the part of a LOCK or COMMIT-BACKUP record after its head.
pub(super) fn encode_objects<'a>(
    out: &mut Vec<u8>,
    tx: &Tx,
    regions: &[u32],
    objects: impl ExactSizeIterator<Item = &'a Entry>,
    reply: u64,
) {
    record::encode_lock(out, reply, regions, objects.len());
    for entry in objects {
        let effect = match entry.intent {
            Intent::Allocate => Effect::Allocate,
            Intent::Format => Effect::Format,
            // The transaction has allocated and freed the object. An abort releases the slot, as for a new object.
            Intent::Free if !entry.incarnation.is_allocated() && !stillborn_leaks() => {
                Effect::Allocate
            }
            Intent::Free => Effect::Free,
            _ => Effect::Write,
        };
        let object = Object {
            address: entry.address,
            class: entry.class,
            version: entry.version,
            incarnation: entry.installed_incarnation(),
            effect,
            block: match effect {
                Effect::Allocate | Effect::Format => tx.blocks.find(entry.address),
                _ => 0,
            },
            count: entry.count(),
            payload: tx.payload_of(entry),
        };
        record::encode_object(out, &object);
    }
}

/// Returns whether the mutant is on that leaks the slot of an object that a transaction has allocated and freed, if the
/// transaction aborts.
fn stillborn_leaks() -> bool {
    mutants::is_on("still-born object not given back on abort")
}

#[cfg(test)]
mod tests;
