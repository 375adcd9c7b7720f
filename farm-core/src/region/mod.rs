//! Regions: where each belongs ([`placement`]), the memory of this machine ([`store`]), the capabilities of other
//! machines' regions (`remote`), and what a worker knows of all of them ([`table`]).

pub mod placement;
pub(crate) mod remote;
pub mod store;
pub mod table;
