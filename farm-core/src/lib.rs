//! The core of farm: one shared address space made of the memory of many machines.
//!
//! Read in this order, which is the way a byte goes up:
//! [`mem`] (shared words and the checked copy) → [`fabric`] (one-sided operations) → [`ring`] and
//! [`messaging`] (messages over one-sided writes) → [`object`] (layout and versions) → [`alloc`] and
//! [`region`] (memory and where it is) → [`worker`] (the event loop) → [`machine`] (threads around
//! it).
//!
//! [`marks`] and [`mutants`] are for those who test: rare branches counted, and deliberate bugs.
#![deny(unsafe_code)]

pub mod alloc;
pub mod config;
pub mod control;
pub mod fabric;
pub mod ids;
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
