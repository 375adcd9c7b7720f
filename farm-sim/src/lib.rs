//! The simulator of farm: never a dependency of the library.
//!
//! Read in this order: [`fabric`] is a fabric in one thread under virtual time, with every weakness
//! that the promises of [`farm_core::fabric`] permit; [`cluster`] steps workers on it; [`run`] runs the
//! judged workloads of [`farm_check`] on such a cluster. The package `farm-conformance` checks every
//! fabric, this one included, against the promises.
#![forbid(unsafe_code)]

pub mod cluster;
pub mod fabric;
pub mod run;
