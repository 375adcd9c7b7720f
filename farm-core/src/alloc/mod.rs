//! Memory for objects: slabs take blocks, and blocks are taken from regions (`FaRM'14 §3.3`).
//!
//! ```text
//!  worker            machine                      cluster
//!  Slab ──block──▶ BlockAllocator ──region──▶ RegionSource (choose_region_id, memory, export)
//!  objects of      runs of blocks,             2 GiB regions, placed by
//!  one size each   16-byte entry each          consistent hashing
//! ```
//!
//! Read in this order: [`SizeClass`] (the sizes of objects) → [`Geometry`], [`BlockState`] and [`BlockTable`] (the
//! table at the start of a region) → [`BlockAllocator`] → [`Slab`] → [`Adoption`] (a region whose
//! allocator was lost) → [`Slab::retire`] and [`BlockAllocator::reclaim`] (how a block is reused for another class) →
//! [`choose_region_id`].
//!
//! Invariants:
//! - A slot is reserved by at most one caller at a time. It is inside its block, at a multiple of the class's size from
//!   the block's first object.
//! - A block keeps its class until an epoch has ended on all machines since it was retired, so that a stale pointer
//!   into the block always points to a header (type stability, `FaRM'14 §3.5`). Freed slots are reused at once; the
//!   incarnation in the header reveals stale pointers. The [worker](crate::worker) determines when an epoch has ended.
//! - The allocator writes block tables and the first header of a slot. The commit of the transaction that allocates or
//!   frees an object writes the allocated bit in its header; between transactions, reserved slots and allocated bits
//!   agree ([`Slab::check`]).
//! - Versions and incarnations at an address never decrease: the base of a block is greater than every version and
//!   incarnation that its memory held before.
//! - A request that fails changes nothing.
//! - Reserving and releasing slots in blocks of the slab allocates nothing and takes no lock.
//!
//! The allocator reads no clock, starts no thread, and takes random numbers only from generators that its callers seed.
//! The models in `tests` check the invariants.
//!
//! ```
//! use farm_core::alloc::{AllocError, BlockAllocator, BlockConfig, Slab, class_for_payload};
//! use farm_core::ids::{RegionId, WorkerId};
//! use farm_core::mem::Memory;
//!
//! let config =
//!     BlockConfig { block_bytes: 4096, region_bytes: 1 << 16, per_machine_bytes: 1 << 20, seed: 7 };
//! let mut next = RegionId::new(7, 1).unwrap();
//! let mut blocks = BlockAllocator::new(config, move |_near| {
//!     next = next.successor();
//!     Ok::<_, AllocError>((next, Memory::anonymous(1 << 16)))
//! });
//! let mut slab = Slab::new(WorkerId::FIRST, blocks.changes());
//!
//! let class = class_for_payload(100)?;
//! let first = slab.reserve(class, None, &mut blocks)?;
//! let near = slab.reserve(class, Some(first.address), &mut blocks)?;
//! assert_eq!(near.address.region(), first.address.region());
//! assert_eq!(blocks.owner_of(near.address)?, WorkerId::FIRST);
//! slab.release(near.address)?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

mod adopt;
mod arrays;
mod bitmap;
mod block;
mod check;
mod class;
mod error;
mod filling;
mod fit;
mod fragmentation;
mod geometry;
mod reclassify;
mod region;
pub mod replicas;
mod run;
mod slab;
mod state;
mod table;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod usage;

pub use adopt::{AdoptedBlock, Adoption};
pub use arrays::ArrayRun;
pub use block::{BlockAllocator, BlockConfig, BlockSource, Changes, Growth, Place, RegionSource};
pub use check::Mismatch;
pub use class::{CLASSES, FINE_LINES, SizeClass, TooLarge, class_for_payload};
pub use error::{AllocError, LocateError, ReleaseError, TableError};
pub(crate) use filling::Taken;
pub use fragmentation::{ClassFragmentation, Fragmentation, fragmentation};
pub use geometry::Geometry;
pub use reclassify::Cut;
pub use region::choose_region_id;
pub(crate) use region::ring_distance;
pub use replicas::{Difference, compare_replicas};
pub use run::Block;
pub use slab::{Reserved, Slab};
pub use state::{BlockHead, BlockKind, BlockState};
pub use table::{BlockTable, class_at, table_bases};
pub use usage::{BlockUsage, ClassUsage};
