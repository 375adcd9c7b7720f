//! The end of a commit that aborts: its locks are released, and also the slots of objects that it would have allocated.

use farm_core::worker::Worker;
use farm_core::{marks, mutants};

use super::lock::{Rejected, unlock_record};
use crate::record::{Effect, Lock};
use crate::slots;

/// Aborts the transaction of a LOCK record at a primary: releases the slots of its new objects, and its locks, if it is
/// `locked`.
///
/// # Errors
/// The record, read again, is wrong, or names an object that its transaction has not locked.
pub(super) fn abort_record(
    worker: &mut Worker,
    lock: &Lock<'_>,
    locked: bool,
) -> Result<(), Rejected> {
    marks::mark("abort: at a primary");
    if locked {
        unlock_record(worker, lock, lock.count)?;
    }
    for object in lock.objects() {
        let object = object?;
        let leaks = mutants::is_on("allocation leaked on abort");
        let frees = mutants::is_on("free takes effect on abort");
        match object.effect {
            Effect::Allocate if !leaks => slots::release(worker, object.address, object.class)?,
            Effect::Free if frees => slots::release(worker, object.address, object.class)?,
            _ => {}
        }
    }
    Ok(())
}
