//! The simulator of farm, and what judges the platform: never a runtime dependency.
//!
//! Read in this order: [`fabric`] is a fabric in one thread under virtual time, with every weakness
//! that the promises of [`farm_core::fabric`] leave room for; [`conformance`] is the suite that holds
//! every fabric, this one included, to those promises.
#![forbid(unsafe_code)]

pub mod check;
pub mod cluster;
pub mod conformance;
pub mod fabric;
pub mod run;
