//! Workloads and reports for measuring farm.
//!
//! * [`ycsb`]: the YCSB core workloads as a library: property files, generators, keys,
//!   values that can be checked, and one stream of operations per worker.
//! * [`report`]: results of a run, as a table and as JSON.
//!
//! Nothing here talks to a cluster or reads a clock; the driver that does is part of
//! the `farm` command line.

pub mod report;
pub mod ycsb;
