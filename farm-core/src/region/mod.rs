//! Regions: where each belongs ([`placement`]), the memory of this machine ([`store`]), and what a
//! worker knows of all of them ([`table`]).

pub mod placement;
pub mod store;
pub mod table;
