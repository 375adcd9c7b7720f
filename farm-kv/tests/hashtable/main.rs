//! The hashtable on machines of one process: concurrent operations, and their costs.

#![allow(clippy::disallowed_methods)] // Tests may wait, and read the clock.

mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod counting;
mod fairness;
mod garbage;
mod linearizable;
mod present;
mod specs;
