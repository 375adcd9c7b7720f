//! Step 3 of a commit: the new values are installed, and the locks released.

use std::sync::atomic::Ordering;

use farm_core::mutants;
use farm_core::object::write;
use farm_core::worker::Worker;

use super::lock::{Rejected, memory_of};
use super::steps::{CommitSteps, Steps};
use super::{local, written};
use crate::record::Lock;
use crate::slots;
use crate::tx::{Intent, Tx};

/// Installs the written objects of this machine, which are locked exclusively, and unlocks them.
///
/// The new values are visible to every worker on return: a fence empties the store buffer, because the commit may be
/// reported to other threads by other means than a message (docs/decisions/0008). The slots of freed objects are
/// released after that.
pub(super) fn install_local(worker: &mut Worker, tx: &Tx) {
    for entry in written(tx) {
        let (memory, at) = local(worker, entry.address);
        if mutants::is_on("install before all are exclusive") {
            write::make_exclusive(memory, at, entry.version);
        }
        let (bytes, next) = (entry.class.object_bytes(), entry.version.next());
        let (incarnation, payload) = (entry.installed_incarnation(), tx.payload_of(entry));
        if entry.intent == Intent::Format {
            write::install_zeroed(memory, at, (bytes, entry.count()), next, incarnation);
            continue;
        }
        write::install(memory, at, bytes, next, incarnation, payload);
    }
    let fenced = !mutants::is_on("fence missing after the commit");
    if let Some(entry) = written(tx).next().filter(|_| fenced) {
        local(worker, entry.address).0.fence(Ordering::SeqCst);
    }
    for entry in written(tx).filter(|entry| entry.intent == Intent::Free) {
        slots::release_local(worker, entry.address, entry.class);
    }
}

/// Installs the objects of a LOCK record, and unlocks them.
///
/// # Errors
/// The record, read again, names an object that its transaction has not locked.
pub(super) fn install_record(worker: &mut Worker, lock: &Lock<'_>) -> Result<(), Rejected> {
    for object in lock.objects() {
        let object = object?;
        let (memory, at) = memory_of(worker, &object)?;
        let held = Steps::held_exclusively(memory, at, &object)?;
        let bytes = object.class.object_bytes();
        let next = held.version().next();
        write::install(memory, at, bytes, next, object.incarnation, object.payload);
        // The object is freed, or was allocated and freed by one transaction.
        if !object.incarnation.is_allocated() {
            slots::release(worker, object.address, object.class)?;
        }
    }
    Ok(())
}
