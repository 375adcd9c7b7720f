//! The actions of a commit, and their results.

use std::ops::Range;

use farm_core::ids::MachineId;
use farm_core::object::LockMode;

#[cfg(doc)]
use super::Coordinator;
use crate::record::Kind;

/// The next action of a commit. If an action names a method, the caller passes the action's result to that method
/// before it requests the next action.
///
/// An action fits into two registers. If it were returned in memory, it would be read right after it was written, with
/// accesses of other sizes, which stalls the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::commit) enum Action {
    /// Reserve room in the logs of all participants, or in none: [`Coordinator::on_reserved`], or
    /// [`Coordinator::on_refused`].
    Reserve,
    /// Append a record of this kind to the own log: [`Coordinator::on_own_logged`].
    LogOwn(u32, Kind),
    /// Lock the written objects of this machine: [`Coordinator::on_locked_local`].
    LockLocal(LockMode),
    /// Make the locks of this machine's objects exclusive.
    MakeExclusive,
    /// Send LOCK to a participant: [`Coordinator::on_lock_sent`].
    SendLock(u32),
    /// Validate the objects of this machine among these entries: [`Coordinator::on_validated_local`].
    ValidateLocal(EntryRange),
    /// Send VALIDATE for this range of the grouped entries to a machine: [`Coordinator::on_validate_sent`].
    SendValidate(MachineId, EntryRange),
    /// Read the header of an entry's object: [`Coordinator::on_header_posted`].
    ReadHeader(u32),
    /// Send COMMIT-BACKUP to a participant: [`Coordinator::on_backup_sent`].
    SendBackup(u32),
    /// Install the written objects of this machine.
    InstallLocal,
    /// Unlock the written objects of this machine.
    UnlockLocal,
    /// Release the slots of new objects.
    ReleaseNew,
    /// Release the room that was reserved in the log of a participant to which no LOCK was sent.
    ReleaseReserved(u32),
    /// Send COMMIT-PRIMARY or ABORT to a participant: [`Coordinator::on_end_sent`].
    SendEnd(u32, Kind),
}

const _: () = assert!(size_of::<Option<Action>>() <= 16);

/// A range of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::commit) struct EntryRange {
    pub(in crate::commit) start: u32,
    pub(in crate::commit) end: u32,
}

impl EntryRange {
    pub(in crate::commit) fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

impl From<Range<usize>> for EntryRange {
    fn from(range: Range<usize>) -> Self {
        Self {
            start: range.start as u32,
            end: range.end as u32,
        }
    }
}

/// The reason why an action is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::commit) enum Blocked {
    /// A log has no room.
    Room,
    /// The endpoint has no room for a record.
    Write,
    /// No slot is free for the header.
    HeaderSlot,
    /// This turn has done enough.
    Turn,
    /// Other commits that wait for room in a log come before this commit in a queue. This commit is resumed when it is
    /// the first in all of its queues.
    Queue,
}

/// The result of sending a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::commit) enum Sent {
    /// The record is posted.
    Yes,
    /// There was no room for the record.
    Full,
    /// The machine is lost.
    Lost,
}
