//! The hashtable on machines of one process: under concurrency, and counted.

#![allow(clippy::disallowed_methods)] // Tests may wait, and look at the clock.

mod cluster;
mod counting;
mod fairness;
mod garbage;
mod history;
mod linearizable;
mod present;
mod specs;
