//! Workloads and reports for measuring farm.
//!
//! * [`ycsb`]: the YCSB core workloads as a library: property files, generators, keys,
//!   values that can be checked, and one stream of operations per worker.
//! * [`tatp`], [`smallbank`]: two benchmarks of transactions as models: rows, population, and what
//!   each transaction reads, decides and writes. [`oltp`] is what they have in common, and what runs
//!   them on the platform.
//! * [`commits`]: commits of transactions, alone and where they meet.
//! * [`alloc`]: what the allocator loses and what it costs.
//! * [`report`]: results of a run, as a table and as JSON. [`slices`]: its throughput over time.
//!
//! * [`driver`]: keeps a workload's operations in flight on a worker.

pub mod alloc;
pub mod commits;
pub mod driver;
mod latency;
pub mod lookups;
pub mod micro;
pub mod oltp;
pub mod report;
pub mod slices;
pub mod smallbank;
pub mod tatp;
pub mod ycsb;
