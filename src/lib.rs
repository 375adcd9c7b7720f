//! A FaRM-style platform: the memory of a cluster as one address space, read by one-sided operations,
//! with strictly serializable transactions, a hashtable that answers a lookup with about one
//! remote read, and a graph store.
//!
//! This crate is the facade. [`prelude`] contains the names that most programs use. The four crates
//! are re-exported for all other names; from the bottom: [`farm_core`] (fabric, rings, memory, workers),
//! [`farm_txn`] (transactions), [`farm_kv`] (the hashtable), [`farm_graph`] (the graph store). The `farm`
//! command is another package, `farm-command`.
//!
//! # Embedding a cluster
//!
//! Three machines in one process, with the same shared memory and rings as between processes: put, get, and a
//! transaction with continuations.
//!
//! ```
#![doc = include_str!("../examples/embedded.rs")]
//! ```
//!
//! # Transactions as `async` functions
//!
//! A bank: transfers between accounts on all machines, retried after conflicts.
//!
//! ```
#![doc = include_str!("../examples/bank_transfer.rs")]
//! ```
//!
//! A sorted linked list over all machines, compared with a set.
//!
//! ```
#![doc = include_str!("../examples/linked_list.rs")]
//! ```
//! A table and its index, kept consistent by transactions over both.
//!
//! ```
#![doc = include_str!("../examples/secondary_index.rs")]
//! ```
//!
//! # Graphs
//!
//! A graph from an edge list, with a breadth-first search and a two-hop query.
//!
//! ```
#![doc = include_str!("../examples/graph_search.rs")]
//! ```
#![forbid(unsafe_code)]

pub mod prelude;

pub use farm_core;
pub use farm_graph;
pub use farm_kv;
pub use farm_txn;

/// The examples of the README, as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests {
    #[test]
    fn the_readme_contains_the_embedded_example() {
        let readme = include_str!("../README.md");
        assert!(readme.contains(include_str!("../examples/embedded.rs")));
    }
}
