//! Transactions on the machines of one process, and what others see of them.

#![allow(clippy::disallowed_methods)] // Tests may wait.

mod attempts;
mod cluster;
mod conflicts;
mod handles;
mod invariants;
mod locks;
mod model;
mod objects;
