//! Copies of objects whose primary is another machine (`FaRM'15 §4`): they change when the transaction is truncated, and its
//! coordinator has then reported it.
//!
//! Records of different coordinators reach a backup in any order, so the newest version wins.

use farm_core::object::{LockMode, Version, VersionWord, write};
use farm_core::worker::Worker;
use farm_core::{marks, mutants};

use super::lock::Rejected;
use crate::record::{Lock, Object};
use crate::replica;

/// Applies a COMMIT-BACKUP record to the copies of this machine. Returns false if another worker changes one of the copies
/// now: the caller must try again.
///
/// # Errors
/// The record names objects that no primary can have. Objects before it may have been changed.
pub(super) fn apply_record(worker: &mut Worker, record: &Lock<'_>) -> Result<bool, Rejected> {
    for object in record.objects() {
        let object = object?;
        for one in object.each() {
            if !apply(worker, &one)? {
                marks::mark("backup: waits for another worker");
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// What a COMMIT-BACKUP record does to a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The copy gets the value of the record, and this version.
    Installs(Version),
    /// None: a newer change was applied before.
    IsOlder,
    /// Another worker changes the copy now.
    Waits,
}

/// Returns what a record of a transaction that has read the version `read` does to a copy with the header `now`.
pub(super) fn change(now: VersionWord, read: Version) -> Change {
    let next = read.next();
    if now.mode() != LockMode::Unlocked {
        return Change::Waits;
    }
    match now.version() >= next && !mutants::is_on("backup applies by arrival") {
        true => Change::IsOlder,
        false => Change::Installs(next),
    }
}

fn apply(worker: &mut Worker, object: &Object<'_>) -> Result<bool, Rejected> {
    let table = worker.backup_table(object.address.region())?;
    let (memory, at) = replica::place(table, object)?;
    let now = write::load_version(memory, at);
    match change(now, object.version) {
        Change::Waits => return Ok(false),
        Change::IsOlder => {
            marks::mark("backup: an older change arrived later");
            return Ok(true);
        }
        Change::Installs(_) => {}
    }
    if !write::try_lock(memory, at, now.version(), LockMode::Exclusive) {
        return Ok(false);
    }
    replica::install(memory, at, object);
    Ok(true)
}
