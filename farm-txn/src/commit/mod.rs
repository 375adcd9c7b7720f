//! Commit: all of a transaction takes effect, at one moment, or nothing of it.
//!
//! | file | what |
//! |---|---|
//! | `here` | what both ways do with the objects of the machine that runs the transaction |
//! | `local` | all objects lie there (`FaRM'14 §3.4`) |
//! | `coordinator` | objects lie on any machines: reserve, lock, validate, commit or abort (`FaRM'15 §4`) |
//! | `validate` | the second step of it |
//! | `primary` | what the machines that hold written objects do |
//! | `truncate` | how records leave the logs again |

pub(crate) mod coordinator;
mod here;
mod local;
pub(crate) mod primary;
pub(crate) mod truncate;
pub(crate) mod validate;

use farm_core::alloc::ReleaseError;
use farm_core::ids::Address;
use farm_core::mem::Memory;
use farm_core::messaging::Request;
use farm_core::mutants;
use farm_core::object::{LockMode, Version, VersionWord};
use farm_core::worker::Worker;

use crate::error::Abort;

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

/// Gives the slot of a freed object back to the worker whose block it is in. An object of an array is
/// in no slab block: its memory goes with the array.
pub(crate) fn release(worker: &mut Worker, address: Address) {
    if worker.release_object(address).is_ok() {
        return;
    }
    match worker.slab_owner(address) {
        Some(owner) if owner != worker.me().worker => {
            crate::layer::send_release(worker, owner, address)
        }
        Some(_) => {}
        None => debug_assert!(false, "the freed object at {address} is in no block"),
    }
}

/// A slot of this machine comes back: an object in it was freed, or never came to be.
pub(crate) fn released(worker: &mut Worker, request: Request, body: &[u8]) {
    let address = body
        .try_into()
        .ok()
        .and_then(|bytes| Address::from_bits(u64::from_le_bytes(bytes)));
    let Some(address) = address else {
        let why = "it gave back a slot of no address".into();
        return worker.distrust(request.from.machine, why);
    };
    let me = worker.me();
    if let Some(owner) = worker
        .slab_owner(address)
        .filter(|owner| *owner != me.worker)
    {
        return crate::layer::send_release(worker, owner, address);
    }
    if let Err(error @ (ReleaseError::Free(_) | ReleaseError::NoObject { .. })) =
        worker.release_object(address)
    {
        debug_assert!(request.from.machine != me.machine, "{error}");
        if request.from.machine != me.machine {
            worker.distrust(request.from.machine, error.to_string());
        }
    }
}
