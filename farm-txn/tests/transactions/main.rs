//! Transactions on the machines of one process, and their visible effects.

#![allow(clippy::disallowed_methods)] // Tests may wait.

mod abuse;
mod arrays;
mod cluster;
mod conflicts;
mod counts;
mod handles;
mod invariants;
mod large;
mod locks;
mod misuse;
mod model;
mod objects;
mod outside;
mod pointers;
mod replicated;
mod retries;
mod reused;
mod room;
mod shipping;
mod tasks;
mod validation;
mod work;
