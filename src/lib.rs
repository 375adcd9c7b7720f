//! A FaRM-style platform: the memory of a cluster as one address space, read by one-sided operations,
//! with strictly serializable transactions, a hashtable that answers a lookup with about one
//! remote read, and a graph store.
//!
//! This crate is the facade. [`prelude`] contains the names that most programs use. The four crates
//! are re-exported for all other names; from the bottom: [`farm_core`] (fabric, rings, memory, workers),
//! [`farm_txn`] (transactions), [`farm_kv`] (the hashtable), [`farm_graph`] (the graph store). The `farm`
//! command is another package, `farm-command`.
//!
//! ```
#![doc = include_str!("../examples/account.rs")]
//! ```
//!
//! [`Cluster`] starts a cluster, or joins one. [`Farm`] is the access to it, from any thread and runtime; [`Table`]s and
//! [`Ptr`]s to objects are used with it alone, and inside of transactions. [`Error`] is what goes wrong.
//!
//! # Examples
//!
//! An order service on three machines.
//!
//! ```
#![doc = include_str!("../examples/order_service.rs")]
//! ```
//!
//! A tokio program.
//!
//! ```
#![doc = include_str!("../examples/tokio.rs")]
//! ```
//!
//! A program that is one machine of a cluster whose other machines run elsewhere.
//!
//! ```no_run
#![doc = include_str!("../examples/join.rs")]
//! ```
//!
//! A sorted linked list over all machines, compared with a set.
//!
//! ```
#![doc = include_str!("../examples/linked_list.rs")]
//! ```
//!
//! A table and its index, kept consistent by transactions over both.
//!
//! ```
#![doc = include_str!("../examples/secondary_index.rs")]
//! ```
//!
//! A graph from an edge list, with a breadth-first search and a two-hop query.
//!
//! ```
#![doc = include_str!("../examples/graph_search.rs")]
//! ```
//!
//! # Continuations
//!
//! The first interface of the platform is that of the paper (`FaRM'14` figure 6): functions that take a continuation, on the
//! worker that runs it. They are in [`farm_txn::api`], and the interface above is written with them. [`Farm::call`] waits for
//! the result of a chain of continuations. docs/CONTINUATIONS.md explains this example call by call:
//!
//! ```
#![doc = include_str!("../examples/continuations.rs")]
//! ```
#![forbid(unsafe_code)]

mod access;
mod catalog;
mod cluster;
mod error;
mod farm;
mod graph;
mod key;
pub mod prelude;
mod promise;
mod ptr;
mod sequence;
mod signals;
pub mod status;
mod table;
mod tx;

use std::sync::Arc;

use farm_core::machine::Attach;
use farm_core::worker::Worker;

pub use access::{Access, Alone};
pub use bytemuck;
pub use catalog::MAX_NAME_BYTES;
pub use cluster::{Cluster, Starting};
pub use error::{Error, Kind, Result};
pub use farm::{Farm, LocalFarm, spawn};
pub use farm_core::mem::Ptr;
pub use graph::Graph;
pub use key::{Key, MAX_KEY_BYTES};
pub use promise::Promise;
pub use sequence::Sequence;
pub use table::{Table, Value};
pub use tx::Tx;

pub use farm_core;
pub use farm_graph;
pub use farm_kv;
pub use farm_txn;

/// Returns the function that attaches transactions, the hashtable and the graph store to a worker. [`start_all`](farm_core::machine::start_all)
/// takes this function.
pub fn layers() -> Attach {
    Arc::new(|worker: &mut Worker| {
        farm_txn::attach(worker);
        farm_kv::attach(worker);
        farm_graph::attach(worker);
    })
}

/// The examples of the README, as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
