//! The steps of a commit that deliberate bugs replace.

use farm_core::mem::Memory;
use farm_core::object::{LockMode, VersionWord, write};
use farm_core::worker::{LogRecord, Worker};

use super::coordinator::Coordinator;
use super::lock::{Rejected, held_version, lock_record};
use super::reply::Verdict;
use crate::record::{Lock, Object};
use crate::tx::Tx;

/// Steps of a commit. The implementation of production is [`Correct`].
pub(super) trait CommitSteps {
    /// Runs before the coordinator's first step in a commit without messages.
    #[inline]
    fn before_local_commit(_worker: &mut Worker, _tx: &mut Tx) {}

    /// Runs before the locks of the coordinator's machine become exclusive.
    #[inline]
    fn before_exclusive(_worker: &mut Worker, _tx: &Tx) {}

    /// Runs when a primary has acknowledged COMMIT-PRIMARY or ABORT, or is lost. `is_first` is
    /// whether this is the first acknowledgement.
    #[inline]
    fn acknowledged(_worker: &mut Worker, _commit: &mut Coordinator, _is_first: bool) {}

    /// Locks the objects of a LOCK record.
    ///
    /// # Errors
    /// The record is wrong; nothing is locked.
    #[inline]
    fn lock(worker: &mut Worker, _at: LogRecord, lock: &Lock<'_>) -> Result<Verdict, Rejected> {
        lock_record(worker, lock)
    }

    /// Returns the header of an object that is about to be installed, and makes its lock exclusive.
    ///
    /// # Errors
    /// The transaction of the record has not locked the object.
    #[inline]
    fn held_exclusively(
        memory: &Memory,
        at: usize,
        object: &Object<'_>,
    ) -> Result<VersionWord, Rejected> {
        let held = held_version(memory, at, object)?;
        if held.mode() != LockMode::Exclusive {
            write::make_exclusive(memory, at, held.version());
        }
        Ok(held)
    }
}

/// The steps without deliberate bugs.
pub(super) enum Correct {}

impl CommitSteps for Correct {}

#[cfg(not(feature = "mutants"))]
pub(super) type Steps = Correct;
#[cfg(feature = "mutants")]
pub(super) type Steps = super::faults::Faulty;
