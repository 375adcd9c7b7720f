//! A graph store like Tao, on objects of the shared address space (`FaRM'14 §4.4`): nodes with data, and
//! associations between them, in lists by type with the newest first.
//!
//! A node is one object, and its fat pointer is its name. It contains its data, and for each type of associations their
//! number and the pointer to the first page of their list. So reading a node, or the number of its associations, is
//! one one-sided read from any machine; reading the newest associations is one, too, as long as the client knows the first
//! page. A list is a tree of pages on the machine of its node, with an index by the id of the other node once it has
//! several pages, so that operations on nodes with millions of associations stay fast.
//!
//! There are two interfaces with the same operations:
//! - the functions of [`ops`] take effect alone. Writes are sent to the worker that owns the node, where many writers of
//!   one node share transactions.
//! - the functions of [`tx`] are part of a caller's transaction; [`tasks`] are the same as `async` functions.
//!
//! Nodes have ids of 64 bits besides their names, and a table that maps ids to names ([`ids`]). The types of nodes and of
//! associations are declared in a [`Schema`]. A type of associations may have an inverse type: then the transaction that
//! writes an association also writes its inverse.
//!
//! Deleting a node deletes its data. Its associations remain, and so do associations to it, as in Tao and LinkBench. An
//! association can no longer be added to it, except of types that the schema declares as dangling, and the node can be
//! [restored](ops::obj_restore).
//!
//! Read in this order: `page` (the bytes of a page) → `tree` → `list` → `node` → `edit` and `complete` (how changes
//! become part of a transaction) → `make` (the operations) → `drive` (operations in callers' transactions) → `read` and `owner`
//! (operations alone). docs/decisions/0022 explains the layout.
//!
//! ```
//! use std::sync::Arc;
//! use farm_core::config::Config;
//! use farm_core::machine::start_all;
//! use farm_core::worker::Worker;
//! use farm_graph::ids::Place;
//! use farm_graph::tx::Range;
//! use farm_graph::{Assoc, AssocType, GraphSpec, NodeData, NodeType, Schema, open_all, tasks};
//! use farm_txn::{TxError, block_on};
//!
//! let mut config = Config::tiny_for(2, 1);
//! config.cluster.name = "doc-graph".into();
//! let attach = Arc::new(|worker: &mut Worker| {
//!     farm_txn::attach(worker);
//!     farm_kv::attach(worker);
//!     farm_graph::attach(worker);
//! });
//! let machines = start_all(&config, &(attach as _))?;
//! let person = NodeType { id: 1, name: "person".into(), lists: 2 };
//! let friend = AssocType { id: 1, name: "friend".into(), inverse: Some(1), ..AssocType::default() };
//! let spec = GraphSpec {
//!     schema: Schema::new(vec![person], vec![friend])?,
//!     ids: farm_kv::TableSpec { id: 1, neighbourhood: 4, key_bytes: 16, value_bytes: 16, shards: 2, buckets: 8 },
//!     page_bytes: 4096,
//!     cached_heads: 1024,
//! };
//! open_all(&machines, &spec)?;
//!
//! let friends = block_on(&machines[0], 0, async |farm: farm_txn::Handle| {
//!     farm.transact(async |tx| {
//!         let new = |name| NodeData { node_type: 1, version: 1, time: 0, data: name };
//!         let ann = tasks::obj_add(tx, Place::default(), new(b"Ann")).await?;
//!         let bob = tasks::obj_add(tx, Place::default(), new(b"Bob")).await?;
//!         let to_bob = Assoc {
//!             id2: bob.id,
//!             time: 7,
//!             version: 1,
//!             visible: true,
//!             target: Some(bob.node),
//!             data: b"",
//!         };
//!         tasks::assoc_add(tx, ann.node, 1, to_bob, 7).await?;
//!         // The inverse association.
//!         tasks::assoc_range(tx, bob.node, 1, Range::newest(50)).await
//!     })
//!     .await
//! })??;
//! assert_eq!(friends.len(), 1);
//! for machine in machines {
//!     machine.stop()?;
//! }
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod assoc;
mod batch;
mod bytes;
mod check;
mod complete;
pub mod config;
mod counters;
mod drive;
mod edit;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod heads;
pub mod ids;
mod list;
mod make;
mod many;
mod node;
mod op;
mod open;
pub mod ops;
mod owner;
mod page;
mod pending;
mod queue;
mod read;
mod refuse;
mod schema;
mod ship;
mod solo;
mod state;
pub mod tasks;
mod tree;
pub mod tx;
mod wire;

pub use assoc::{Assoc, MAX_TIME};
pub use batch::{Found, FoundAll, Read, Results, ResultsCont};
pub use check::{NodeFacts, check_ids, check_node};
pub use counters::{ReadCost, ReadCounters};
pub use error::GraphError;
pub use heads::HeadCounters;
pub use list::{Put, TimeBounds};
pub use node::NodeData;
pub use op::{Assocs, Count, NewNode, Node};
pub use open::{attach, open, open_all};
pub use pending::{
    AddedCont, AssocsCont, ChangedCont, CountCont, FoundAssocs, FoundCont, FoundNode, MAX_READS,
    NodeCont, PutCont,
};
pub use queue::OwnerCounters;
pub use schema::{AssocType, NodeType, Schema};
pub use state::{
    GraphSpec, ID_VALUE_BYTES, head_counters, left_over, owner_counters, read_counters,
};

/// Maximum length of a node's data.
pub const MAX_NODE_BYTES: usize = 960 << 10;

#[cfg(test)]
mod testing;
