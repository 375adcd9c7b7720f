//! Graphs from edge lists: import, breadth-first search, and two-hop queries.
//!
//! Every node of the list is a node of the graph store, with the id that it has in the list. An edge is an association of the
//! node at its first end, with the pointer to the node at its other end, so that queries follow edges without lookups of ids.
//! If the list is undirected, the node at the other end has an association back.
//!
//! In reading order: [`vertex`] has the types of the graph and the read of an adjacency list; [`search`] and [`two_hop`]
//! are the queries ([`distinct`] removes their duplicates). [`import`] writes the graph, [`known`] and [`sample`] are what it remembers of its nodes, and
//! [`generate`] makes lists by a seed. [`report`] has the results.

pub mod distinct;
pub mod generate;
pub mod import;
pub mod known;
pub mod report;
pub mod sample;
pub mod search;
pub mod two_hop;
pub mod vertex;
