//! The simulator of farm. The library never depends on it.
//!
//! Read in this order: [`fabric`] is a fabric in one thread under virtual time. It shows every weakness that the
//! guarantees of [`farm_core::fabric`] permit. [`cluster`] runs workers on that fabric, turn by turn. [`run`] runs the
//! judged workloads of [`farm_check`] on such a cluster. The package `farm-conformance` checks every fabric, including
//! this one, against the guarantees.
#![forbid(unsafe_code)]

pub mod cluster;
pub mod fabric;
pub mod run;
