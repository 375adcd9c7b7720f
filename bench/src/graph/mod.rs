//! What the benchmarks of the graph store share: [costs](GraphCosts) of operations, the [names] of nodes, the
//! memory of the graph, and [edge lists](edge_list).

mod costs;
pub mod edge_list;
pub mod names;

pub use costs::{GraphCosts, object_bytes};
