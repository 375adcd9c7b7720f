//! Judged workloads, and the checkers that judge their histories. The library never depends on this package.
//!
//! * [`workload`]: workloads that run on the workers of a cluster, simulated or real.
//! * [`history`]: the records of a run: the operations of clients and their results.
//! * [`checkers`]: decide whether a correct platform may produce such a history.
#![forbid(unsafe_code)]

pub mod checkers;
pub mod history;
pub mod workload;
