//! Memory for objects: slabs out of blocks out of regions (`FaRM'14 §3.3`).
//!
//! ```text
//!  worker            machine                      cluster
//!  Slab ──block──▶ BlockAllocator ──region──▶ RegionSource (choose_region_id, memory, export)
//!  objects of      runs of blocks,             2 GiB regions, placed by
//!  one size each   8-byte state each           consistent hashing
//! ```
//!
//! Read in this order: [`SizeClass`] (which sizes there are) → [`Geometry`], [`BlockState`] and
//! [`BlockTable`] (what stands at the start of a region) → [`BlockAllocator`] → [`Slab`] →
//! [`Slab::rebuild`] (the same from memory alone) → [`choose_region_id`].
//!
//! Invariants:
//! - A slot is reserved by at most one caller at a time, lies inside its block and at a multiple of
//!   the class's size from the block's first object.
//! - A block keeps its class until [`BlockAllocator::recycle`], so that a stale pointer into it
//!   always meets a header (type stability, `FaRM'14 §3.5`). Freed slots serve again at once; the
//!   incarnation in the header tells stale pointers apart.
//! - The allocator writes block tables and nothing else. The allocated bit in an object's header is
//!   written by the commit of the transaction that allocates or frees it; between transactions,
//!   reserved slots and allocated bits agree ([`Slab::check`]).
//! - A request that fails changes nothing.
//! - Reserving and releasing in blocks that the slab has allocates nothing and takes no lock.
//!
//! No clock, no thread, no ambient randomness. Guarded by the models in `tests`.
//!
//! ```
//! use farm_core::alloc::{AllocError, BlockAllocator, BlockConfig, Slab, class_for_payload};
//! use farm_core::ids::{RegionId, WorkerId};
//! use farm_core::mem::Memory;
//!
//! let config =
//!     BlockConfig { block_bytes: 4096, region_bytes: 1 << 16, per_machine_bytes: 1 << 20 };
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

mod bitmap;
mod block;
mod class;
mod fit;
mod fragmentation;
mod geometry;
mod rebuild;
mod region;
mod slab;
mod state;
mod table;
#[cfg(test)]
mod tests;

pub use block::{
    ArrayRun, BlockAllocator, BlockConfig, BlockSource, BlockUsage, Changes, Place, RegionSource,
};
pub use class::{CLASSES, FINE_LINES, SizeClass, TooLarge, class_for_payload};
pub use fragmentation::{ClassFragmentation, Fragmentation, fragmentation};
pub use geometry::Geometry;
pub use rebuild::Mismatch;
pub use region::choose_region_id;
pub use slab::{ClassUsage, ReleaseError, Reserved, Slab};
pub use state::{BlockHead, BlockKind, BlockState};
pub use table::{Block, BlockTable, LocateError, TableError};

use crate::ids::RegionId;

/// Why memory was not to be had. Nothing was taken.
#[derive(Debug, thiserror::Error)]
pub enum AllocError {
    /// No object is so large.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// Not even an empty region has room.
    #[error("{asked} bytes of adjacent objects do not fit a region of {region_bytes} bytes")]
    LargerThanRegion {
        /// Bytes asked for.
        asked: u64,
        /// Bytes in a region.
        region_bytes: u64,
    },
    /// All regions are full and the machine may have no more.
    #[error(
        "out of memory: {asked} bytes asked for, {in_use} of {limit} bytes are in regions \
         (memory.per_machine_bytes)"
    )]
    OutOfMemory {
        /// Bytes asked for.
        asked: u64,
        /// Bytes of the regions there are.
        in_use: u64,
        /// Most bytes of regions.
        limit: u64,
    },
    /// A new region was needed and could not be made.
    #[error("cannot make a region: {0}")]
    NoRegion(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The region is there already.
    #[error("region {0} is there already")]
    RegionExists(RegionId),
    /// A block table is damaged.
    #[error(transparent)]
    Table(#[from] TableError),
}
