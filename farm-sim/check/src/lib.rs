//! Workloads whose answers are judged, and the checkers that judge them: never a dependency of the
//! library.
//!
//! * [`workload`]: workloads that run on the workers of a cluster, simulated or real.
//! * [`history`]: the records of a run: what clients asked for, and what they were answered.
//! * [`checkers`]: whether a correct platform may show such a history.
#![forbid(unsafe_code)]

pub mod checkers;
pub mod history;
pub mod workload;
