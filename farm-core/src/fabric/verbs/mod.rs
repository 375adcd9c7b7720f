//! The verbs fabric: RDMA devices, used through libibverbs, which is loaded at first use.
//!
//! Every machine opens one device and one protection domain, and registers each memory once. Each
//! worker, or each group of workers that share queues, has one completion queue and one reliable
//! connection per other machine (`FaRM'14 §3.1`). A connection joins a worker of this machine with a
//! worker of the peer, and both send through it. Posts prepare work requests. The flush passes the
//! requests to the device, with one doorbell per connection. Few requests are signalled, because one
//! completion ends all requests before it.
//!
//! A worker accesses its own machine's memory with loads and stores. Only its atomics use the device
//! for this memory too, because the device's and the processor's atomics are not atomic with each
//! other.
//!
//! | file | what |
//! |---|---|
//! | `abi`, `library` | the used part of libibverbs' interface, and loading it |
//! | `device` | the available devices, the chosen port and address |
//! | `doorbells` | whether workers share doorbells of mlx5 devices and delay each other |
//! | `registration`, `completions`, `queue_pair` | the objects created on a device |
//! | `connection` | one connection's work requests: prepared, posted, ended |
//! | `queues` | the connections of a worker, or of the workers that share them |
//! | `checked` | reads of objects from devices that do not return consistent lines |
//! | `throttle` | the limit of requests in flight (SMART §4.2) |
//! | `silence` | connections whose device ends no more requests |
//! | `endpoint`, `parking` | a worker's posts and polls, and its sleep |
//! | `shared` | the state that the workers of one machine share: device, exports, peers |
//! | `machine` | the start and the end of a machine, and the memory that it exports |
//! | `control`, `meet`, `address` | the handshake |
//! | `lease` | leases by time |
#![allow(unsafe_code)]

#[allow(non_camel_case_types)]
mod abi;
mod address;
mod checked;
mod completions;
mod connection;
mod control;
mod device;
mod door;
mod doorbells;
mod endpoint;
mod error;
mod lease;
mod library;
mod machine;
mod meet;
mod parking;
mod queue_pair;
mod queues;
mod registration;
mod shared;
mod silence;
mod throttle;

pub use checked::ObjectReads;
#[doc(hidden)]
pub use control::read_untrusted;
pub use control::{Secret, SecretError};
pub use device::{
    DeviceChoice, DevicePlace, DeviceReport, GidReport, LinkLayer, PortReport, devices,
    is_packet_size,
};
pub use endpoint::VerbsEndpoint;
pub use error::VerbsError;
pub use library::LibraryError;
pub use machine::{VerbsExporter, VerbsMachine, VerbsStartError};
pub use meet::is_running;
pub use queue_pair::ConnectionConfig;
pub use shared::VerbsConfig;
