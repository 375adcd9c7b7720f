//! Commit: a transaction takes effect as a whole at one moment, or not at all.
//!
//! Protocol as values, without a worker:
//!
//! | file | what |
//! |---|---|
//! | `coordinator` | the coordinator of a commit: reserve, lock, validate, commit or abort (`FaRM'15 §4`) |
//! | `primary` | the participant: the machine that holds written objects |
//! | `plan` | the machines, regions and objects that a commit concerns |
//! | `validation` | the progress of step 2 |
//! | `truncations` | the transactions that primaries may truncate |
//! | `queues` | the order in which commits of a worker get room in logs |
//! | `reply` | LOCK-REPLY |
//! | `id` | identifiers of commits |
//!
//! The code that performs the actions of these values with a worker:
//!
//! | file | what |
//! |---|---|
//! | `drive` | actions of the coordinator |
//! | `serve` | actions of a participant, for each record of its logs |
//! | `own` | the coordinator's own log |
//! | `backup` | changes of copies |
//! | `reserve`, `lock`, `validate`, `install`, `abort`, `truncate` | the steps, named as in the paper |
//! | `steps`, `faults` | the steps that deliberate bugs replace, and those bugs |

mod abort;
mod backup;
pub(crate) mod coordinator;
pub(crate) mod drive;
#[cfg(feature = "mutants")]
mod faults;
pub(crate) mod id;
mod install;
mod lock;
mod own;
mod plan;
pub(crate) mod primary;
pub(crate) mod queues;
pub(crate) mod reconfigure;
mod reply;
mod reserve;
pub(crate) mod serve;
mod steps;
pub(crate) mod truncate;
pub(crate) mod truncations;
pub(crate) mod validate;
mod validation;

use farm_core::ids::Address;
use farm_core::mem::Memory;
use farm_core::mutants;
use farm_core::object::{LockMode, Version, VersionWord};
use farm_core::worker::Worker;

use crate::error::Abort;
use crate::tx::{Entry, Tx};

/// Returns whether an object with the header `now` is unchanged since it was read, and not locked in either mode: if
/// locked objects passed, two transactions that each write what the other reads would both commit.
#[inline]
fn is_unchanged(now: VersionWord, read: Version) -> bool {
    let unchanged = now == VersionWord::of(read, LockMode::Unlocked);
    let readable = now == VersionWord::of(read, LockMode::Readable);
    unchanged
        || readable && mutants::is_on("validation accepts a readable lock")
        || mutants::is_on("validation skipped")
}

/// Returns whether step 2 validates the object of an entry: it was only read, or found absent.
#[inline]
fn is_validated(entry: &Entry) -> bool {
    let skips = mutants::is_on("forgotten object not validated")
        || mutants::is_on("cached page of several reads not validated");
    let skipped = skips && entry.is_forgotten();
    !entry.is_written() && !skipped
}

/// Returns the conflict that the header `now` shows.
fn conflict(now: VersionWord, read: Version, address: Address) -> Abort {
    if now.version() == read {
        Abort::Locked(address)
    } else {
        Abort::Changed(address)
    }
}

/// Returns the memory of an object of this machine.
fn local(worker: &mut Worker, address: Address) -> (&Memory, usize) {
    worker
        .local_memory(address)
        .expect("`local` is called only for an object that is stored on this machine")
}

/// Returns the entries of the written objects of this machine.
fn written(tx: &Tx) -> impl Iterator<Item = &Entry> {
    let entries = tx.entries.iter();
    entries.filter(|entry| entry.machine.is_none() && entry.is_written())
}
