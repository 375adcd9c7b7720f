//! The graph store on clusters of several machines.

mod alone;
mod common;
mod concurrent;
mod open;
mod ranges;
mod several;
mod transactions;
