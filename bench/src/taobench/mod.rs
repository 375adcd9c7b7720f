//! TAOBench (Cheng et al., VLDB 2022): reads, writes, read transactions and write transactions on a social graph, with the
//! shares that were measured in production.
//!
//! In reading order: [`edges`] has keys, types and values; [`workload`] reads the published files; [`loaded`] has the
//! edges that are loaded;
//! [`rules`] says which edges contradict each other; [`stream`] draws requests. They depend on their arguments only.
//! [`store`] makes one operation in a transaction, [`load`] writes the graph, [`driver`] performs requests, [`audit`]
//! checks the graph after a run, and [`report`] has the results.

pub mod audit;
pub mod driver;
pub mod edges;
pub mod load;
pub mod loaded;
pub mod report;
pub mod rules;
pub mod store;
pub mod stream;
pub mod workload;
