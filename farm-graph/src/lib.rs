//! Tao-like graph store.
#![forbid(unsafe_code)]
#![allow(dead_code)]

mod assoc;
mod edit;
mod error;
mod list;
mod node;
mod op;
mod page;
mod tree;
mod wire;

pub use assoc::{Assoc, MAX_TIME};
pub use error::GraphError;
pub use list::{Put, TimeBounds};
pub use node::NodeData;
pub use op::{Assocs, Count, Node};

#[cfg(test)]
mod testing;
