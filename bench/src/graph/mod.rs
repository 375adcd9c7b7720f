//! What the benchmarks of the graph store share: [costs](GraphCosts) of operations, the [names] of nodes, and the
//! memory of the graph.

mod costs;
pub mod names;

pub use costs::{GraphCosts, object_bytes};
