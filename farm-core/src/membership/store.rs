//! Where the cluster keeps its newest configuration: a register that is read and replaced as a whole (`FaRM'15 §3`).
//!
//! The store decides between two machines that change the configuration at the same time. It does not know what a
//! configuration means, except its name and number.

use std::path::PathBuf;

use super::configuration::{Configuration, Version};
use super::encoding::{DecodeError, EncodeError};

/// Keeps the newest configuration.
///
/// Calls may block on a disk or on a service, so they are made by a thread of their own, never by a worker.
pub trait ConfigStore: Send {
    /// Returns the newest configuration; `None` if there was never one. What was returned is durable.
    ///
    /// # Errors
    /// [`StoreError`].
    fn read(&mut self) -> Result<Option<Configuration>, StoreError>;

    /// Replaces the configuration of number `next.change - 1` by `next`. If the newest configuration has another number, nothing
    /// changes.
    ///
    /// # Errors
    /// [`StoreError`]. Unless it is [`StoreError::Unknown`], nothing has changed.
    fn compare_and_swap(&mut self, next: &Configuration) -> Result<Swap, StoreError>;
}

impl ConfigStore for Box<dyn ConfigStore> {
    fn read(&mut self) -> Result<Option<Configuration>, StoreError> {
        (**self).read()
    }

    fn compare_and_swap(&mut self, next: &Configuration) -> Result<Swap, StoreError> {
        (**self).compare_and_swap(next)
    }
}

/// The outcome of [`ConfigStore::compare_and_swap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Swap {
    /// The configuration was replaced, durably.
    Won,
    /// Another change came first.
    Lost,
}

/// Why the store does not work.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// An operation on a file failed.
    #[error("cannot {what} {}: {source}{}", path.display(), advice(source))]
    Io {
        /// The operation.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The directory, or the newest configuration in it, was there before.
    #[error("{} is gone: restore it, because it has the configuration of this cluster (durability.dir)", .0.display())]
    Gone(PathBuf),
    /// The file of the newest configuration is damaged. Older ones must not be used in its place.
    #[error(
        "the newest configuration of the cluster, {}, cannot be used: {source}. Restore this file; the older ones in its \
         directory are out of date, and the cluster would lose data if it started from one of them",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: DecodeError,
    },
    /// A later version of the program wrote the newest configuration.
    #[error("{}: {source}", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// The formats.
        source: DecodeError,
    },
    /// The store belongs to another cluster.
    #[error(
        "{} has the configuration of the cluster {found:?}, and this is {expected:?}: give each cluster a directory of its \
         own (durability.dir)",
        path.display()
    )]
    OtherCluster {
        /// The file.
        path: PathBuf,
        /// The name in it.
        found: String,
        /// The name of this cluster.
        expected: String,
    },
    /// The file has the place of another change in the order of changes: it was renamed or copied.
    #[error("{} is the configuration of change {found}: it was renamed or copied. Restore its name", path.display())]
    Misplaced {
        /// The file.
        path: PathBuf,
        /// The number of the change in it.
        found: u64,
    },
    /// The configuration cannot be written.
    #[error("configuration {version} cannot be stored: {source}")]
    Encode {
        /// Which one.
        version: Version,
        /// The reason.
        source: EncodeError,
    },
    /// It is unknown whether the change took effect. Only a later read shows that.
    #[error("it is unknown whether the change of the configuration took effect: {0}")]
    Unknown(Box<StoreError>),
    /// Files are removed faster than they can be read.
    #[error("the configurations in {} change faster than one can be read", .0.display())]
    Restless(PathBuf),
}

/// Returns what to do about an error of the system, as the end of a message.
fn advice(error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "; free some space there (only a new cluster can have another durability.dir)"
        }
        ErrorKind::NotFound => "; set durability.dir to a directory that can be created",
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
            "; a file has this name: remove it, or set durability.dir to a directory"
        }
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "; let this user read and write there (only a new cluster can have another durability.dir)"
        }
        ErrorKind::WouldBlock => {
            "; another process inspects or removes it, as `farm destroy` does: try again"
        }
        _ => "",
    }
}
