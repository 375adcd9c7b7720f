//! Errors of transactions.

use std::sync::Arc;
use std::time::Duration;

use farm_core::alloc::{AllocError, TooLarge};
use farm_core::ids::{Address, MachineId};
use farm_core::worker::{AddressError, Worker};

use crate::limits::TxLimits;

/// Why an operation of a transaction failed, or why it did not commit. The transaction has no effect, except that
/// [`TxError::InDoubt`] leaves the outcome open.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TxError {
    /// The transaction aborted. A retry may succeed, except after [`Abort::Lost`].
    #[error(transparent)]
    Abort(#[from] Abort),
    /// There is no memory for a new object.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The address is not usable on this machine.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The object was freed, or was never allocated.
    #[error("there is no object at {0}: it was freed, or never allocated")]
    NotAllocated(Address),
    /// The object has another size class than the requested one: see [`crate::api::read_class`].
    #[error(
        "the object at {address} has the size class for payloads of up to {is} bytes, not {asked}"
    )]
    WrongSize {
        /// Address of the object.
        address: Address,
        /// Payload capacity of the requested size class, in bytes.
        asked: usize,
        /// Payload capacity of the object's size class, in bytes.
        is: usize,
    },
    /// The payload is larger than any object's.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// The transaction would exceed its limits.
    #[error(
        "the transaction would have {objects} objects and {bytes} bytes, but its limits are {} and {}: \
         raise transactions.objects or transactions.bytes, forget payloads, or split the transaction",
        limits.objects, limits.bytes
    )]
    Limit {
        /// Number of objects with the rejected operation.
        objects: usize,
        /// Bytes of payloads with the rejected operation.
        bytes: usize,
        /// Limits of the transaction.
        limits: TxLimits,
    },
    /// An array without objects.
    #[error("an array must have at least one object")]
    EmptyArray,
    /// The array is longer than one read can fetch.
    #[error(
        "an array of {bytes} bytes is longer than one read can fetch ({most} bytes); read it in parts"
    )]
    ArrayTooLong {
        /// Bytes of the array in memory.
        bytes: usize,
        /// Maximum number of bytes of one read.
        most: usize,
    },
    /// The transaction writes more on one machine than one record of its log there can hold.
    #[error(
        "the transaction writes {bytes} bytes on machine {machine}, but one record of its log there holds at most \
         {most}; write less in one transaction, or raise rings.log_bytes"
    )]
    TooLargeForLog {
        /// The machine.
        machine: MachineId,
        /// Bytes of the record, including its overhead.
        bytes: usize,
        /// Maximum number of bytes of a record.
        most: usize,
    },
    /// Another machine has no memory for a new object.
    #[error("machine {0} has no memory for the new object")]
    NoMemory(MachineId),
    /// The transaction has objects of other machines; use [`crate::api::commit`].
    #[error("the transaction has objects of other machines; commit it through api::commit")]
    Distributed,
    /// Too many operations are in flight. Nothing was started; retry when some of them have ended.
    #[error("too many operations are in flight; retry when some of them have ended")]
    Busy,
    /// Machines were lost before the coordinator knew whether the transaction committed.
    #[error("the outcome of the transaction is unknown: machine {0} was lost during the commit")]
    InDoubt(MachineId),
    /// The body of the transaction ends it without effect, for example because there is nothing to do: the body calls
    /// [`crate::retry::fail`] with this error.
    #[error("the body of the transaction ended it without effect")]
    GivenUp,
    /// The object belongs to another transaction, or to one that has ended.
    #[error(
        "the object does not belong to this transaction: it belongs to another transaction, or to one that has ended"
    )]
    OtherTransaction,
    /// The payload of the object was forgotten: [`Tx::forget_payload`](crate::Tx::forget_payload).
    #[error(
        "the transaction has forgotten the payload of the object at {0}; read the object again"
    )]
    Forgotten(Address),
    /// A layer above, or the body of a transaction, rejects the operation with this reason. [`crate::retry`] and
    /// [`crate::Handle::transact`] report it only after the reads were validated.
    #[error("{0}")]
    Refused(String),
    /// The error of a layer above, which callers of that layer can downcast. [`crate::retry`] and
    /// [`crate::Handle::transact`] handle it as they handle [`TxError::Refused`].
    #[error("{0}")]
    Layer(Arc<dyn std::error::Error + Send + Sync>),
    /// The handle refers to a transaction that has ended.
    #[error("the transaction has ended; begin another one")]
    Ended,
    /// The transaction of a task was open for too long.
    #[error(
        "the transaction was open for longer than {} ms; do not wait for other systems within a transaction, or raise \
         transactions.open_ms", .0.as_millis()
    )]
    OpenTooLong(Duration),
    /// The worker has stopped, or its machine leaves the cluster. It is unknown whether a commit that was under way took effect.
    /// With the reason why the machine stopped, if it was not asked to.
    #[error("the worker has stopped{}", .0.as_deref().map(|why| format!(": {why}")).unwrap_or_default())]
    Stopped(Option<Arc<str>>),
}

impl TxError {
    /// Returns whether the error of a transaction's body may be the result of reads that are mutually inconsistent.
    /// Such an error is reported only after everything that the body read was validated. The excluded errors are facts
    /// or conflicts.
    pub(crate) fn rests_on_reads(&self) -> bool {
        !matches!(
            self,
            TxError::Abort(_) | TxError::InDoubt(_) | TxError::Busy
        )
    }
}

/// Returns why a transaction cannot use an address of this machine.
#[cold]
pub(crate) fn unusable_here(error: AddressError) -> TxError {
    match error {
        AddressError::NotYet(_) => Abort::Reconfigured.into(),
        error => error.into(),
    }
}

/// Returns why a transaction aborts that needs a machine which is lost.
pub(crate) fn lost(worker: &Worker, machine: MachineId) -> Abort {
    match worker.survives() {
        true => Abort::Reconfigured,
        false => Abort::Lost(machine),
    }
}

/// Why a transaction aborted. The transaction has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Abort {
    /// Another transaction holds a lock on the object.
    #[error("the object at {0} is locked by another transaction")]
    Locked(Address),
    /// The object changed after this transaction read it.
    #[error("the object at {0} was changed by another transaction")]
    Changed(Address),
    /// The object stayed locked for all tries of a read: a machine died while it held the lock, or no object starts at
    /// the address.
    #[error("the object at {0} stayed locked, or no object starts at that address")]
    TimedOut(Address),
    /// The configuration changed while the transaction ran: a machine was lost, and the others go on without it.
    #[error("the configuration of the cluster changed while the transaction ran")]
    Reconfigured,
    /// A machine that stores objects of the transaction was lost.
    #[error("machine {0}, which stores objects of the transaction, is lost")]
    Lost(MachineId),
}
