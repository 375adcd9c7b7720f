//! Regions: their placement on machines ([`placement`]), the memory of this machine ([`store`]), the capabilities of
//! other machines' regions (`remote`), and the regions that a worker knows ([`table`]).

pub mod placement;
pub(crate) mod remote;
pub mod store;
pub mod table;
