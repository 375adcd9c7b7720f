//! Tao-like graph store.
#![forbid(unsafe_code)]

mod assoc;
mod bytes;
mod drive;
mod edit;
mod error;
mod heads;
pub mod ids;
mod list;
mod make;
mod node;
mod op;
mod open;
pub mod ops;
mod owner;
mod page;
mod pending;
mod queue;
mod read;
mod schema;
mod ship;
mod solo;
mod state;
pub mod tasks;
mod tree;
pub mod tx;
mod wire;

pub use assoc::{Assoc, MAX_TIME};
pub use error::GraphError;
pub use heads::HeadCounters;
pub use list::{Put, TimeBounds};
pub use node::NodeData;
pub use op::{Assocs, Count, NewNode, Node};
pub use open::{attach, open, open_all};
pub use pending::{
    AddedCont, AssocsCont, ChangedCont, CountCont, FoundAssocs, FoundCont, FoundNode, NodeCont,
    PutCont,
};
pub use queue::OwnerCounters;
pub use schema::{AssocType, NodeType, Schema};
pub use state::{GraphSpec, ID_VALUE_BYTES, head_counters, left_over, owner_counters};

/// Maximum length of a node's data.
pub const MAX_NODE_BYTES: usize = 960 << 10;

#[cfg(test)]
mod testing;
