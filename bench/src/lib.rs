//! Workloads and reports for measuring farm.
//!
//! * [`ycsb`]: the YCSB core workloads as a library: property files, generators, keys,
//!   values that can be checked, and one stream of operations per worker.
//! * [`tatp`], [`smallbank`]: two benchmarks of transactions as models: rows, population, and what each transaction
//!   reads, decides and writes. [`oltp`] contains their common part, and runs them on the platform.
//! * [`linkbench`], [`taobench`]: two benchmarks of graph stores. [`graph`] contains their common part.
//! * [`engines`]: the same requests on other engines, for comparison.
//! * [`edges`]: graphs from edge lists, with breadth-first search and two-hop queries.
//! * [`commits`]: commits of transactions, without and with conflicts.
//! * [`lookups`]: lookups of keys of other machines, compared with raw reads of the same memory.
//! * [`losses`]: how long the others give no service when machines are killed.
//! * [`alloc`]: the memory that the allocator wastes and the time that it takes.
//! * [`micro`]: micro-benchmarks of memory, rings and fabrics.
//! * [`closed_loop`]: keeps the operations of clients in flight on a worker, and [`recorder`] counts and times them.
//!   [`load`]: such a loop that inserts pairs.
//!   [`audit`]: such a loop that checks items after a run.
//! * [`report`]: results of a run, as a table and as JSON. [`slices`]: its throughput over time.

pub mod alloc;
pub mod audit;
pub mod closed_loop;
pub mod commits;
pub mod counters;
pub mod data;
pub mod edges;
pub mod engines;
pub mod graph;
pub mod linkbench;
pub mod load;
pub mod lookups;
pub mod losses;
pub mod micro;
pub mod oltp;
pub mod properties;
pub mod recorder;
pub mod report;
pub mod slices;
pub mod smallbank;
pub mod taobench;
pub mod tatp;
pub mod text;
pub mod ycsb;
