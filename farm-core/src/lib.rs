//! The core of farm: one shared address space over the memory of many machines.
//!
//! Read the modules in this order, from memory up to threads: [`mem`] (shared words and the checked copy) → [`fabric`]
//! (one-sided operations) → [`ring`] and [`messaging`] (messages over one-sided writes) → [`object`] (layout and
//! versions) → [`alloc`] and [`region`] (allocation and placement of memory) → [`worker`] (the event loop) →
//! [`machine`] (the threads that run it).
//!
//! [`marks`] and [`mutants`] are for tests: counts of rare branches, and deliberate bugs.
#![deny(unsafe_code)]

pub mod alloc;
pub mod config;
pub mod control;
pub mod fabric;
mod files;
pub mod ids;
pub mod kept;
pub mod limits;
pub mod machine;
pub mod marks;
pub mod mem;
pub mod membership;
pub mod messaging;
pub mod mutants;
pub mod object;
pub mod region;
pub mod ring;
pub mod time;
pub mod worker;
