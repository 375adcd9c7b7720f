//! Commit: all of a transaction takes effect, at one moment, or nothing of it.
//!
//! | file | what |
//! |---|---|
//! | `here` | what both ways do with the objects of the machine that runs the transaction |
//! | `local` | all objects lie there (`FaRM'14 §3.4`) |
//! | `coordinator` | objects lie on any machines: reserve, lock, validate, commit or abort (`FaRM'15 §4`), as a value |
//! | `drive` | does by the worker what the coordinator says |
//! | `plan` | which machines, regions and objects that concerns |
//! | `reserve` | its step 0: room in logs |
//! | `queues` | who gets that room first |
//! | `validate` | its step 2 |
//! | `primary` | what the machines that hold written objects do |
//! | `truncate` | how records leave the logs again |

pub(crate) mod coordinator;
pub(crate) mod drive;
mod here;
mod local;
mod plan;
pub(crate) mod primary;
pub(crate) mod queues;
mod reserve;
pub(crate) mod truncate;
pub(crate) mod validate;

use farm_core::alloc::{ReleaseError, SizeClass};
use farm_core::ids::Address;
use farm_core::mem::Memory;
use farm_core::messaging::Request;
use farm_core::mutants;
use farm_core::object::{LockMode, Version, VersionWord};
use farm_core::worker::Worker;

use crate::arrays::Adjacent;
use crate::error::Abort;
use crate::tx::Entry;

/// Whether an object with this header is as it was read: unchanged, and locked in neither mode, else
/// two transactions that each write what the other read would both commit.
#[inline]
fn is_unchanged(now: VersionWord, read: Version) -> bool {
    let unchanged = now == VersionWord::of(read, LockMode::Unlocked);
    let readable = now == VersionWord::of(read, LockMode::Readable);
    unchanged
        || readable && mutants::is_on("validation accepts a readable lock")
        || mutants::is_on("validation skipped")
}

/// Whether the object of an entry is validated by itself: it was only read, or found absent.
#[inline]
fn is_validated(entry: &Entry) -> bool {
    let skipped = entry.is_forgotten() && mutants::is_on("forgotten object not validated");
    !entry.is_written() && !skipped
}

fn conflict(now: VersionWord, read: Version, address: Address) -> Abort {
    if now.version() == read {
        Abort::Locked(address)
    } else {
        Abort::Changed(address)
    }
}

fn local(worker: &mut Worker, address: Address) -> (&Memory, usize) {
    worker
        .local_memory(address)
        .expect("the object is of this machine")
}

/// Gives the slot of a freed object of this machine back.
pub(crate) fn release(worker: &mut Worker, address: Address, class: SizeClass) {
    if let Err(error) = give_back(worker, address, class) {
        debug_assert!(false, "the slot of a freed object: {error}");
    }
}

/// Gives a slot of this machine back: to the worker whose block it is in, or to its array.
fn give_back(worker: &mut Worker, address: Address, class: SizeClass) -> Result<(), ReleaseError> {
    if let Some(owner) = worker.release_object(address)? {
        crate::layer::send_release(worker, owner, Adjacent::one(address, class));
    }
    Ok(())
}

/// Slots of this machine come back: objects in them were freed, or never came to be.
pub(crate) fn released(worker: &mut Worker, request: Request, body: &[u8]) {
    let Some(slots) = Adjacent::decode(body) else {
        let why = "it gave back a slot of no address".into();
        return worker.distrust(request.from.machine, why);
    };
    for index in 0..slots.count {
        let given_back = match slots.address(index) {
            Some(address) => give_back(worker, address, slots.class),
            None => Err(ReleaseError::NotOurs(slots.first)),
        };
        if let Err(error) = given_back {
            let from = request.from.machine;
            debug_assert!(from != worker.me().machine, "{error}");
            if from != worker.me().machine {
                worker.distrust(from, error.to_string());
            }
            return;
        }
    }
}
