//! What can go wrong before there is a connection.

use std::io;

use super::library::LibraryError;

/// Why a device cannot be used, or something cannot be made on it.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// There is no library.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The library found no devices.
    #[error(
        "this host has no RDMA device: `farm doctor` tells what is looked for; without one, set \
         cluster.fabric = \"shm\", or make a software device (docs/RDMA.md)"
    )]
    NoDevices,
    /// None of them is called so.
    #[error("there is no RDMA device {name:?}; this host has {there}")]
    NoSuchDevice {
        /// The name asked for.
        name: String,
        /// Those that there are.
        there: String,
    },
    /// A device that lacks what a fabric needs.
    #[error("RDMA device {device} cannot carry this fabric: {lacks}")]
    Unfit {
        /// The device.
        device: String,
        /// What it lacks, and what that means.
        lacks: String,
    },
    /// A port that is not there, or down, or whose GID is not there.
    #[error("port {port} of RDMA device {device}: {what}")]
    Port {
        /// The device.
        device: String,
        /// The port, from 1.
        port: u8,
        /// What is wrong, and what to do.
        what: String,
    },
    /// A machine-wide limit on pinned memory.
    #[error(
        "{bytes} bytes of memory cannot be registered with {device}: {source}; registered memory is \
         locked in place, so raise the limit (`ulimit -l`, LimitMEMLOCK=infinity), or lower \
         memory.per_machine_bytes"
    )]
    Memory {
        /// The device.
        device: String,
        /// Bytes that were to be registered.
        bytes: usize,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Anything else that the device or its driver refused.
    #[error("RDMA device {device} refused to {what}: {source}")]
    Refused {
        /// The device.
        device: String,
        /// What was asked of it.
        what: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}
