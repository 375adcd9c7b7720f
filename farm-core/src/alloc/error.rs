//! What can go wrong, with the place in it.

use crate::ids::{Address, RegionId};

use super::TooLarge;

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
    /// All regions are full and the machine may have no more. On a [worker](crate::worker) this begins
    /// the end of an epoch, after which blocks of freed objects serve any size: try again later, as for
    /// any shortage, and in a new transaction.
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

/// A block table that cannot have been written by an allocator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The header does not start like one.
    #[error("region {region} has no block table: it starts with {found:#018x}")]
    NoTable {
        /// The region.
        region: RegionId,
        /// Its first word.
        found: u64,
    },
    /// The header's checksum does not match.
    #[error("the header of the block table of region {region} is damaged")]
    BadHeader {
        /// The region.
        region: RegionId,
    },
    /// It is another region's.
    #[error("the block table of region {region} says it belongs to region {found:#x}")]
    OtherRegion {
        /// The region it was found in.
        region: RegionId,
        /// Bits of the region it names.
        found: u32,
    },
    /// Blocks and memory do not go together.
    #[error("region {region}: {blocks} blocks of {block_bytes} bytes do not fit {bytes} bytes")]
    BadGeometry {
        /// The region.
        region: RegionId,
        /// Blocks announced.
        blocks: u64,
        /// Bytes in each.
        block_bytes: u64,
        /// Bytes of memory.
        bytes: u64,
    },
    /// A state that means nothing, or not there.
    #[error("region {region}: block {block} has the impossible state {bits:#018x}")]
    BadState {
        /// The region.
        region: RegionId,
        /// The block.
        block: u32,
        /// Its state.
        bits: u64,
    },
    /// A base that is not valid.
    #[error("region {region}: block {block} has the impossible base {bits:#018x}")]
    BadBase {
        /// The region.
        region: RegionId,
        /// The block.
        block: u32,
        /// Its base.
        bits: u64,
    },
    /// A block that cannot be reclaimed, because its versions or incarnations are the greatest possible.
    #[error(
        "region {region}: block {block} is not reclaimed: its headers have versions up to {version:#x} and \
         incarnations up to {incarnation:#x}, and no base is greater; a header in it is damaged"
    )]
    NoBase {
        /// The region.
        region: RegionId,
        /// The block.
        block: u32,
        /// The greatest version in it.
        version: u64,
        /// The greatest incarnation in it.
        incarnation: u64,
    },
    /// A run that leaves the region, is too short for an object, or is not followed by its blocks.
    #[error("region {region}: the run of {run} blocks of class {class} at block {block} is broken")]
    BadRun {
        /// The region.
        region: RegionId,
        /// The head.
        block: u32,
        /// Blocks it claims.
        run: u32,
        /// The class it claims.
        class: u8,
    },
    /// A further block of a run that has no head.
    #[error("region {region}: block {block} leads back to no run")]
    Orphan {
        /// The region.
        region: RegionId,
        /// The block.
        block: u32,
    },
}

/// Why an address is no object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LocateError {
    /// The region is not of this machine's.
    #[error("{0} is in a region that is not stored here")]
    NotLocal(Address),
    /// Its block is in no use, or not in the region at all.
    #[error("{0} is in no block")]
    NoBlock(Address),
    /// Its block has no object that starts there.
    #[error("{address} is not the start of an object of {object_bytes} bytes")]
    NoObject {
        /// The address.
        address: Address,
        /// Size of the block's objects.
        object_bytes: usize,
    },
    /// An array was meant and the block holds none, or the address is not the array's first object.
    #[error("{0} is not the first object of an array")]
    NoArray(Address),
    /// The table is damaged.
    #[error(transparent)]
    Table(#[from] TableError),
}

/// A slot that cannot be released; nothing was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    /// It is in no block of this slab allocator.
    #[error("{0} is in no block of this worker")]
    NotOurs(Address),
    /// No object starts there.
    #[error("{address} is not the start of an object of {object_bytes} bytes")]
    NoObject {
        /// The address.
        address: Address,
        /// Size of the block's objects.
        object_bytes: usize,
    },
    /// It is free.
    #[error("{0} is free already")]
    Free(Address),
}
