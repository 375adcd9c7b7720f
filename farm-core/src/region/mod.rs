//! Regions: where they are ([`map`]), the machines that are proposed for new ones ([`placement`]), the memory of this machine ([`store`]) and its copies of others' ([`backups`]), the capabilities of
//! other machines' regions (`remote`), and the regions that a worker knows ([`table`]).

pub mod backups;
pub mod map;
pub mod placement;
mod promoted;
pub(crate) mod remote;
pub mod store;
pub mod table;
