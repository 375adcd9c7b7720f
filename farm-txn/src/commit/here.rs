//! The objects of a transaction that lie on the machine that runs it.

use std::ops::Range;
use std::sync::atomic::Ordering;

use farm_core::object::{LockMode, write};
use farm_core::worker::Worker;
use farm_core::{marks, mutants};

use super::{conflict, is_unchanged, is_validated, local, release};
use crate::error::Abort;
use crate::tx::{Entry, Intent, Tx};

fn written(tx: &Tx) -> impl Iterator<Item = &Entry> {
    let entries = tx.entries.iter();
    entries.filter(|entry| entry.machine.is_none() && entry.is_written())
}

/// Locks every written object at the version that was read, or none.
pub(super) fn lock(worker: &mut Worker, tx: &Tx, mode: LockMode) -> Result<(), Abort> {
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

/// Takes all locks, which are held in the readable mode, exclusively.
pub(super) fn make_exclusive(worker: &mut Worker, tx: &Tx) {
    for entry in written(tx) {
        let (memory, at) = local(worker, entry.address);
        write::make_exclusive(memory, at, entry.version);
    }
}

/// Gives all locks back.
pub(super) fn unlock(worker: &mut Worker, tx: &Tx) {
    unlock_first(worker, tx, usize::MAX);
}

fn unlock_first(worker: &mut Worker, tx: &Tx, count: usize) {
    let kept = usize::from(mutants::is_on("abort keeps the lock"));
    for entry in written(tx).take(count).skip(kept) {
        let (memory, at) = local(worker, entry.address);
        write::unlock(memory, at, entry.version);
    }
}

/// A sequentially consistent fence between the locks of this machine's objects and the look at what was only read,
/// here or elsewhere: of two transactions that each write what the other reads at least one sees the other's lock.
pub(super) fn fence(worker: &mut Worker, tx: &Tx) {
    let (mut reads, mut here) = (false, None);
    for entry in tx.entries.iter() {
        reads |= !entry.is_written();
        if entry.machine.is_none() {
            here = here.or(Some(entry.address));
        }
        if let (true, Some(address)) = (reads, here) {
            return local(worker, address).0.fence(Ordering::SeqCst);
        }
    }
}

/// Whether what was read here and not written is as it was read, of a range of entries. [`fence`] came before.
pub(super) fn validate(worker: &mut Worker, tx: &Tx, range: Range<usize>) -> Result<(), Abort> {
    let here = |entry: &&Entry| entry.machine.is_none() && is_validated(entry);
    for entry in tx.entries.range(range).filter(here) {
        let (memory, at) = local(worker, entry.address);
        let now = write::load_version(memory, at);
        if !is_unchanged(now, entry.version) {
            marks::mark("tx: validation failed");
            return Err(conflict(now, entry.version, entry.address));
        }
    }
    Ok(())
}

/// Installs what is written and locked exclusively, so that everybody sees it: what this processor still
/// buffers nobody else sees, and who hears of the commit may tell others by ways that are no message
/// (docs/decisions/0008). Only then slots of freed objects serve again.
pub(super) fn install(worker: &mut Worker, tx: &Tx) {
    for entry in written(tx) {
        let (memory, at) = local(worker, entry.address);
        if mutants::is_on("install before all are exclusive") {
            write::make_exclusive(memory, at, entry.version);
        }
        let (bytes, next) = (entry.class.object_bytes(), entry.version.next());
        let (incarnation, payload) = (entry.installed_incarnation(), tx.payload_of(entry));
        write::install(memory, at, bytes, next, incarnation, payload);
    }
    let fenced = !mutants::is_on("fence missing after the commit");
    if let Some(entry) = written(tx).next().filter(|_| fenced) {
        local(worker, entry.address).0.fence(Ordering::SeqCst);
    }
    for entry in written(tx).filter(|entry| entry.intent == Intent::Free) {
        release(worker, entry.address, entry.class);
    }
}
