//! Why transactions end without having committed.

use farm_core::alloc::{AllocError, TooLarge};
use farm_core::ids::{Address, MachineId};
use farm_core::worker::AddressError;

use crate::tx::TxLimits;

/// Why a transaction did not go on, or did not commit. Nothing of it took effect.
#[derive(Debug, thiserror::Error)]
pub enum TxError {
    /// It aborted: try again, but for [`Abort::Lost`].
    #[error(transparent)]
    Abort(#[from] Abort),
    /// Memory for a new object was not to be had.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// An address is of no use on this machine.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The object was freed, or was never there.
    #[error("there is no object at {0}: it was freed, or never allocated")]
    NotAllocated(Address),
    /// The object is not of the size that was asked for: see [`crate::api::read_class`].
    #[error("the object at {address} is for payloads of {is} bytes, not of {asked}")]
    WrongSize {
        /// The address.
        address: Address,
        /// The most payload bytes of the size class that was asked for.
        asked: usize,
        /// Those of the object's.
        is: usize,
    },
    /// A payload that no object holds.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// The transaction has grown beyond its limits.
    #[error(
        "the transaction would have {objects} objects and {bytes} bytes, beyond its limits of {} and {}: \
         raise transactions.objects or transactions.bytes, forget payloads, or split it",
        limits.objects, limits.bytes
    )]
    Limit {
        /// Its objects.
        objects: usize,
        /// Bytes of their payloads.
        bytes: usize,
        /// The most.
        limits: TxLimits,
    },
    /// An array of no objects.
    #[error("an array has at least one object")]
    EmptyArray,
    /// An array is longer than what one read brings.
    #[error(
        "an array of {bytes} bytes is more than one read brings, which is {most}; read it in parts"
    )]
    ArrayTooLong {
        /// Its bytes in memory.
        bytes: usize,
        /// The most.
        most: usize,
    },
    /// What the transaction writes on one machine is more than a record of its log there can hold.
    #[error(
        "the transaction writes {bytes} bytes on machine {machine}, beyond the {most} of one record of \
         its log; write less at one time, or raise rings.log_bytes"
    )]
    TooLargeForLog {
        /// The machine.
        machine: MachineId,
        /// Bytes that it would write there, with what the record adds.
        bytes: usize,
        /// The most.
        most: usize,
    },
    /// Memory for a new object was not to be had on another machine.
    #[error("machine {0} has no memory for the object")]
    NoMemory(MachineId),
    /// The transaction has objects of other machines: it is committed by [`crate::api::commit`].
    #[error("the transaction has objects of other machines; commit it through api::commit")]
    Distributed,
    /// Too many operations are in flight. Nothing was begun; try again when some have ended.
    #[error("too many operations in flight")]
    Busy,
    /// Machines were lost before it was known whether the transaction committed.
    #[error("it is not known whether the transaction committed: machine {0} is lost")]
    InDoubt(MachineId),
    /// The transaction itself wants no effect: what [`crate::retry::fail`] is told by a body that found
    /// out that there is nothing to do.
    #[error("the transaction was given up by what it runs")]
    GivenUp,
    /// The object is of another transaction, or of one that has ended, or was taken back with what
    /// [`Tx::all_or_nothing`](crate::Tx::all_or_nothing) tried.
    #[error("the object is not one of this transaction: it is of another, or was taken back")]
    OtherTransaction,
    /// The transaction has forgotten the payload of the object: [`Tx::forget_payload`](crate::Tx::forget_payload).
    #[error(
        "the transaction has forgotten the payload of the object at {0}; read the object again"
    )]
    Forgotten(Address),
    /// A layer above, or the body of a transaction, refuses the operation, with its reason.
    /// [`crate::retry`] and [`crate::Handle::transact`] report it only of reads that were validated.
    #[error("{0}")]
    Refused(String),
    /// The handle is of a transaction that has ended.
    #[error("the transaction has ended")]
    Ended,
}

impl TxError {
    /// Whether the error of a transaction's body may be the result of reads that are mutually inconsistent. Such
    /// an error is reported only after everything that the body read was validated; all but these are facts or
    /// conflicts.
    pub(crate) fn rests_on_reads(&self) -> bool {
        !matches!(
            self,
            TxError::Abort(_) | TxError::InDoubt(_) | TxError::Busy
        )
    }
}

/// Why a transaction aborted: nothing of it took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Abort {
    /// Another transaction holds an object.
    #[error("the object at {0} is locked by another transaction")]
    Locked(Address),
    /// An object changed after this transaction read it.
    #[error("the object at {0} was changed by another transaction")]
    Changed(Address),
    /// An object stayed locked for all tries of a read: a machine died with the lock, or no object starts at the
    /// address.
    #[error("the object at {0} stayed locked, or no object starts at that address")]
    TimedOut(Address),
    /// A machine that holds objects of the transaction was lost.
    #[error("machine {0}, which holds objects of the transaction, is lost")]
    Lost(MachineId),
}
