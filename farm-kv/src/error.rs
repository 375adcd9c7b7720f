//! What can go wrong with an operation on a table.

use farm_core::ids::MachineId;
use farm_core::worker::ReadError;

/// Why an operation on a table failed. Nothing of it took effect, unless said otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// Too many operations are in flight on this worker: wait for some to complete.
    #[error("too many operations are in flight on this worker")]
    Busy,
    /// A value of another length than the table's.
    #[error("a value of {found} bytes in a table of values of {expected}")]
    ValueLength {
        /// Length of the table's values.
        expected: usize,
        /// Length found.
        found: usize,
    },
    /// The shard's machine has no memory for another overflow block. What was in the table stays.
    #[error(
        "the table is full: its shard has no slot near the key and machine {0} has no memory for an \
         overflow block; raise memory.per_machine_bytes or make the table larger"
    )]
    Full(MachineId),
    /// So many pairs share the key's bucket that one transaction cannot read its chain. What was in
    /// the table stays.
    #[error(
        "the table is far too small for its pairs: a chain on machine {0} is longer than one \
         transaction reads; make the table larger"
    )]
    Crowded(MachineId),
    /// Conflicts with other transactions did not end.
    #[error("the operation met conflicting transactions at each of its tries")]
    Conflict,
    /// The machine that holds the shard is lost. Of a change it is unknown whether it took effect.
    #[error("machine {0}, which holds the key's shard, is lost")]
    PeerLost(MachineId),
    /// A table that makes no sense.
    #[error("no such table is possible: {0}")]
    Spec(String),
    /// The table is not open on this worker, or not yet, or its opening failed.
    #[error(
        "table {0} is not open on this worker: open it on every worker of the cluster (farm_kv::open, or \
         farm_kv::blocking::open), and use it when that has succeeded"
    )]
    NotOpen(u16),
    /// A shard does not fit the memory of its machine.
    #[error(
        "machine {machine} cannot hold its shards: {why}; raise memory.per_machine_bytes, or make the table \
         smaller"
    )]
    Memory {
        /// The machine.
        machine: MachineId,
        /// The allocator's reason.
        why: String,
    },
    /// The table is not what its owner says: a bug, or memory that was overwritten.
    #[error("the table is damaged: {0}")]
    Damaged(String),
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
