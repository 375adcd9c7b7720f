//! Workloads and reports for measuring farm.
//!
//! * [`ycsb`]: the YCSB core workloads as a library: property files, generators, keys,
//!   values that can be checked, and one stream of operations per worker.
//! * [`alloc`]: what the allocator loses and what it costs.
//! * [`report`]: results of a run, as a table and as JSON.
//!
//! * [`driver`]: keeps a workload's operations in flight on a worker.

pub mod alloc;
pub mod driver;
pub mod lookups;
pub mod micro;
pub mod report;
pub mod ycsb;
