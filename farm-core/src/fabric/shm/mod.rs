//! The shared-memory fabric: machines are processes on one host, or several machines in one process
//! through the same code.
//!
//! Every machine exports its memory as files (mode 0600, unguessable names) in a directory named by
//! the configuration. Peers map regions read-only and rings writable. A read is a prefetch when it
//! is posted and a checked copy when it is polled, so that many reads overlap in the memory system
//! as they would in a NIC. Every pair of machines is connected by a Unix socket. The end of file of
//! this socket means that the connection is broken, so a killed peer is detected at once.
//!
//! | file | what |
//! |---|---|
//! | `files`, `memory_name` | file names, and the lock that a running machine holds |
//! | `kept` | files that outlive the process that made them |
//! | `stale_files` | files left behind by machines of any cluster: found, counted and removed |
//! | `shared` | the state that the workers of one machine share: peers and their memory, doorbells |
//! | `machine` | the start and the end of a machine, and the memory that it exports |
//! | `connect` | the handshake |
//! | `door` | refuses machines that call after the cluster is connected |
//! | `endpoint` | a worker's posts and polls |
//! | `park` | sleeping and waking through a shared futex |
#![allow(unsafe_code)]

mod connect;
mod door;
mod endpoint;
mod files;
pub(crate) mod kept;
mod lease;
mod machine;
mod memory_name;
mod park;
mod pending;
mod shared;
mod signs;
mod stale_files;

pub use endpoint::ShmEndpoint;
pub use files::StartError;
pub use kept::{KeptMemory, find_kept_memory};
pub(in crate::fabric) use lease::go_first;
pub use lease::{Lateness, measure_lateness};
pub(crate) use machine::is_alive;
pub use machine::{Exporter, ShmMachine};
pub use shared::ShmConfig;
pub use stale_files::{StaleFiles, StaleKind, find_stale_files, remove_stale_files};
