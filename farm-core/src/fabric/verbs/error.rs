//! Errors that occur before a connection exists.

use std::io;

use super::library::LibraryError;

/// Why a device, or an object on it, cannot be used or created.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// The library is not available.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The library found no devices.
    #[error(
        "this host has no RDMA device: `farm doctor` reports what is missing; without a device, set \
         cluster.fabric = \"shm\", or create a software device (docs/RDMA.md)"
    )]
    NoDevices,
    /// No device has the configured name.
    #[error("RDMA device {name:?} does not exist; this host has {there}")]
    NoSuchDevice {
        /// The configured name.
        name: String,
        /// The names of the existing devices.
        there: String,
    },
    /// The device lacks a feature that the fabric needs.
    #[error("RDMA device {device} cannot carry this fabric: {lacks}")]
    Unfit {
        /// Name of the device.
        device: String,
        /// The missing feature, and its consequence.
        lacks: String,
    },
    /// The port does not exist or is down, or its GID does not exist.
    #[error("port {port} of RDMA device {device}: {what}")]
    Port {
        /// Name of the device.
        device: String,
        /// Number of the port, from 1.
        port: u8,
        /// The problem, and what to do.
        what: String,
    },
    /// The device cannot register memory, usually because the limit on locked memory is too low.
    #[error(
        "{bytes} bytes of memory cannot be registered with {device}: {source}; registered memory is \
         locked in place, so raise the limit on locked memory (`ulimit -l`, LimitMEMLOCK=infinity), or lower \
         memory.per_machine_bytes"
    )]
    Memory {
        /// Name of the device.
        device: String,
        /// Number of bytes to register.
        bytes: usize,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Any other operation that the device or its driver refused.
    #[error("RDMA device {device} refused to {what}: {source}")]
    Refused {
        /// Name of the device.
        device: String,
        /// The refused operation, as a verb phrase.
        what: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}
