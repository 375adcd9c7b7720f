//! Errors of operations on a table.

use std::sync::Arc;

use farm_core::ids::MachineId;
use farm_core::worker::ReadError;
use farm_txn::{Abort, TxError};

/// Why an operation on a table failed. The operation had no effect, unless a variant states otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// Too many operations are in flight on this worker: the caller must wait until some have completed.
    #[error("too many operations are in flight on this worker: retry when some have completed")]
    Busy,
    /// The key has another length than the table's keys.
    #[error("the key has {found} bytes, but the table's keys have {expected}")]
    KeyLength {
        /// Length of the table's keys.
        expected: usize,
        /// Length found.
        found: usize,
    },
    /// The value has another length than the table's values.
    #[error("the value has {found} bytes, but the table's values have {expected}")]
    ValueLength {
        /// Length of the table's values.
        expected: usize,
        /// Length found.
        found: usize,
    },
    /// The shard's machine has no memory for another overflow block. The table is unchanged.
    #[error(
        "the table is full: its shard has no slot near the key and machine {0} has no memory for an \
         overflow block; raise memory.per_machine_bytes or make the table larger"
    )]
    Full(MachineId),
    /// So many pairs share the key's bucket that one transaction cannot read its chain. The table is unchanged.
    #[error(
        "the table is far too small for its pairs: a chain on machine {0} is longer than one \
         transaction reads; make the table larger"
    )]
    Crowded(MachineId),
    /// Each try of the operation met a conflict with another transaction.
    #[error("every try of the operation conflicted with another transaction")]
    Conflict,
    /// The machine that stores the shard is lost.
    #[error("machine {0}, which stores the key's shard, is lost")]
    PeerLost(MachineId),
    /// The machine that was asked for a change is lost, and has not replied: it is unknown whether the change took effect.
    #[error(
        "machine {0}, which was asked for the change, is lost: it is unknown whether the change took effect"
    )]
    InDoubt(MachineId),
    /// The shard of the key has another owner than those that were asked. The table is unchanged.
    #[error(
        "machine {0} does not own the key's shard any more, and the new owner was not found in time: retry"
    )]
    Moved(MachineId),
    /// The parameters of the table are not valid.
    #[error("invalid table: {0}")]
    Spec(String),
    /// The table is not open on this worker, or not yet, or its opening failed.
    #[error(
        "table {0} is not open on this worker: open it on every worker that uses it (farm_kv::open, or \
         farm_kv::blocking::open), and use it when that has succeeded"
    )]
    NotOpen(u16),
    /// The table needs more memory than the configuration gives the cluster.
    #[error(
        "the table needs {needed} bytes, but all machines together have at most {most}; raise memory.per_machine_bytes, \
         or make the table smaller"
    )]
    TooLarge {
        /// Bytes of all buckets.
        needed: u64,
        /// Most bytes of all machines.
        most: u64,
    },
    /// A shard does not fit into the memory of its machine.
    #[error(
        "machine {machine} has no room for its shards: {why}; raise memory.per_machine_bytes, or make the table \
         smaller"
    )]
    Memory {
        /// Machine of the shard.
        machine: MachineId,
        /// Error of the allocator.
        why: String,
    },
    /// The catalog, in which tables are found and created, cannot be used.
    #[error("the catalog of tables cannot be used: {0}")]
    Catalog(String),
    /// The table differs from its owner's description: a bug, or overwritten memory.
    #[error("the table is damaged: {0}")]
    Damaged(String),
}

impl KvError {
    /// Returns the error of a transaction or a read of the catalog.
    pub(crate) fn of_catalog(error: TxError) -> Self {
        match error {
            TxError::Abort(Abort::Lost(machine)) | TxError::InDoubt(machine) => {
                Self::PeerLost(machine)
            }
            TxError::Layer(error) => match error.downcast_ref::<Self>() {
                Some(error) => error.clone(),
                None => Self::Catalog(error.to_string()),
            },
            error => Self::Catalog(error.to_string()),
        }
    }
}

impl From<KvError> for TxError {
    fn from(error: KvError) -> Self {
        match error {
            KvError::Busy => TxError::Busy,
            KvError::PeerLost(machine) => TxError::Abort(Abort::Lost(machine)),
            KvError::InDoubt(machine) => TxError::InDoubt(machine),
            error => TxError::Layer(Arc::new(error)),
        }
    }
}

impl From<ReadError> for KvError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Busy => KvError::Busy,
            ReadError::PeerLost(machine) => KvError::PeerLost(machine),
            ReadError::StaysLocked(_) => KvError::Conflict,
            ReadError::BadAddress(_)
            | ReadError::WrongSize { .. }
            | ReadError::Gone(_)
            | ReadError::NoRegion(_) => KvError::Damaged(error.to_string()),
        }
    }
}
