//! What a machine keeps beyond its process, for the next process of the same machine: the memory of its regions and logs, and a
//! journal of what recovery has found.
//!
//! A process keeps memory before anything that is in it counts. The next one takes all of that over, under its own name, before the
//! configuration names it. So what the configuration names is always whole, however often processes are killed.
//!
//! Machines use files ([`crate::machine`]); the simulator keeps everything in its own process.

mod journal;
mod segments;

use std::fmt;

use crate::fabric::Capability;
use crate::ids::{MachineId, RegionId};
use crate::membership::configuration::{Configuration, Process};
use crate::ring::KeptLog;

pub use journal::{Journal, JournalError};
pub use segments::Segments;

/// The format of everything that a machine keeps, which its [journal](Journal) names: journals and their entries, logs and what is stored beside
/// them, records, block tables and objects. It is raised when one of them changes. For each of them a test compares its bytes with those of
/// this format.
pub const FORMAT: u8 = 3;

/// Why something cannot be kept, or what was kept cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct KeptError(pub String);

/// What a user does if files that a machine has kept are damaged.
pub const GIVE_UP: &str = "if its files are damaged, move the journals of this machine (m<id>-*.journal in the directory of the cluster in cluster.run_dir) \
     away and start all machines: they go on without its memory, if the others have copies of all regions";

impl KeptError {
    /// Returns the error of an operation of the system.
    pub fn of(what: &str, at: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self(format!("cannot {what} {at}: {why}"))
    }
}

/// What one process of a machine keeps.
pub trait Kept: Send + Sync {
    /// Keeps the memory of a replica of a region.
    ///
    /// # Errors
    /// [`KeptError`]: the region must not be used.
    fn keep_region(&self, region: RegionId, memory: &Capability) -> Result<(), KeptError>;

    /// Keeps the memory with the logs that a peer, or this machine, writes.
    ///
    /// # Errors
    /// [`KeptError`]: the logs must not be used.
    fn keep_logs(&self, peer: MachineId, memory: &Capability) -> Result<(), KeptError>;

    /// Handles that a process of a peer is connected, whose workers write these logs.
    fn connected(&self, process: Process, memory: &Capability);

    /// Handles that a process that stores nothing has left in order. All of its transactions have ended everywhere, and another process
    /// of its machine may count its own from 1 again: its logs must not be read any more.
    fn left(&self, process: Process);

    /// Returns the logs of earlier processes of this machine. Their writers do not write to them any more.
    ///
    /// # Errors
    /// [`KeptError`].
    fn earlier_logs(&self) -> Result<Vec<KeptLog>, KeptError>;

    /// Forgets the logs of earlier processes: what they had is in the journal.
    fn forget_earlier_logs(&self);

    /// Adds an entry for a configuration to the journal.
    ///
    /// # Errors
    /// [`KeptError`]: nothing that follows from the entry may be done.
    fn append(&self, configuration: u64, entry: &[u8]) -> Result<(), KeptError>;

    /// Returns all entries, also those of earlier processes, oldest first.
    ///
    /// # Errors
    /// [`KeptError`].
    fn entries(&self) -> Result<Vec<Vec<u8>>, KeptError>;

    /// This machine applies a configuration, before which all machines had recovered. Empties the journal, unless it has an entry for
    /// this configuration, and forgets the logs of processes that its members have followed.
    ///
    /// # Errors
    /// [`KeptError`].
    fn clear_before(&self, configuration: &Configuration) -> Result<(), KeptError>;
}
