//! Transactions on the machines of one process, and what others see of them.

#![allow(clippy::disallowed_methods)] // Tests may wait.

mod cluster;
mod conflicts;
mod counts;
mod handles;
mod invariants;
mod locks;
mod model;
mod objects;
