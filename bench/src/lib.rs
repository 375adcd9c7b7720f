//! Workloads and reports for measuring farm.
//!
//! * [`ycsb`]: the YCSB core workloads as a library: property files, generators, keys,
//!   values that can be checked, and one stream of operations per worker.
//! * [`alloc`]: what the allocator loses and what it costs.
//! * [`report`]: results of a run, as a table and as JSON.
//!
//! * [`driver`]: keeps a workload's operations in flight on a worker.
//! * [`workload`]: workloads whose histories are judged, in the simulator and on real machines.

pub mod alloc;
pub mod driver;
pub mod lookups;
pub mod micro;
pub mod report;
pub mod workload;
pub mod ycsb;
