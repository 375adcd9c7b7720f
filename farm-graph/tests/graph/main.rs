//! The graph store on clusters of several machines.

mod common;
mod transactions;
