//! Errors of the allocator. Each names the region, block or address that it concerns.

use crate::ids::{Address, RegionId};

use super::TooLarge;

/// Why memory was not allocated.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AllocError {
    /// No object is that large.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// Not even an empty region has enough room.
    #[error("{asked} bytes of adjacent objects do not fit into a region of {region_bytes} bytes")]
    LargerThanRegion {
        /// Bytes requested.
        asked: u64,
        /// Bytes in a region.
        region_bytes: u64,
    },
    /// All regions are full, and the machine's limit allows no further region. On a [worker](crate::worker) this error
    /// starts an epoch change, after which blocks of freed objects can store objects of any size. Retry later, as after
    /// any shortage, and in a new transaction.
    #[error(
        "out of memory: cannot allocate {asked} bytes, because regions take {in_use} of {limit} bytes; \
         free objects and retry, or raise memory.per_machine_bytes, or memory_bytes of this [[machine]] if it has one"
    )]
    OutOfMemory {
        /// Bytes requested.
        asked: u64,
        /// Bytes of all existing regions.
        in_use: u64,
        /// Maximum number of bytes of regions.
        limit: u64,
    },
    /// A new region was needed and could not be created.
    #[error("cannot create a region: {0}")]
    NoRegion(String),
    /// A new region is needed, and its memory is being made: ask again. Only who can ask again gets this error.
    #[error("the memory of a region is being made")]
    NoRegionYet,
    /// The region exists already.
    #[error("region {0} exists already")]
    RegionExists(RegionId),
    /// A block table is damaged.
    #[error(transparent)]
    Table(#[from] TableError),
}

/// A block table that cannot have been written by an allocator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The header does not start with the magic number.
    #[error("region {region} has no block table: its first word is {found:#018x}")]
    NoTable {
        /// The region.
        region: RegionId,
        /// First word of the region.
        found: u64,
    },
    /// The header's checksum does not match.
    #[error("the header of the block table of region {region} is damaged: checksum mismatch")]
    BadHeader {
        /// The region.
        region: RegionId,
    },
    /// The table belongs to another region.
    #[error("the block table in region {region} belongs to region {found:#x}")]
    OtherRegion {
        /// Region that contains the table.
        region: RegionId,
        /// Bits of the region id in the table.
        found: u32,
    },
    /// The sizes in the header do not match the memory.
    #[error(
        "region {region}: {blocks} blocks of {block_bytes} bytes do not fit into {bytes} bytes"
    )]
    BadGeometry {
        /// The region.
        region: RegionId,
        /// Number of blocks in the header.
        blocks: u64,
        /// Bytes per block in the header.
        block_bytes: u64,
        /// Bytes of the region's memory.
        bytes: u64,
    },
    /// A state that is not valid, or not valid for that block.
    #[error("region {region}: block {block} has the invalid state {bits:#018x}")]
    BadState {
        /// The region.
        region: RegionId,
        /// The block.
        block: u32,
        /// Bits of the state.
        bits: u64,
    },
    /// A base that is not valid.
    #[error("region {region}: block {block} has the invalid base {bits:#018x}")]
    BadBase {
        /// The region.
        region: RegionId,
        /// The block.
        block: u32,
        /// Bits of the base.
        bits: u64,
    },
    /// A block that cannot be reclaimed, because its versions or incarnations are the greatest possible.
    #[error(
        "region {region}: block {block} is not reclaimed: its headers have versions up to {version:#x} and \
         incarnations up to {incarnation:#x}, and no valid base is greater; a header of the block is damaged"
    )]
    NoBase {
        /// The region.
        region: RegionId,
        /// The block.
        block: u32,
        /// Greatest version in the block.
        version: u64,
        /// Greatest incarnation in the block.
        incarnation: u64,
    },
    /// A run that exceeds the region, is too short for an object, or is not followed by its blocks.
    #[error(
        "region {region}: the run of {run} blocks of class {class} at block {block} is damaged: it exceeds the region, \
         has no room for an object, or lacks some of its blocks"
    )]
    BadRun {
        /// The region.
        region: RegionId,
        /// Block of the head.
        block: u32,
        /// Length of the run in the head, in blocks.
        run: u32,
        /// Size class in the head.
        class: u8,
    },
    /// A further block of a run whose head does not exist.
    #[error(
        "region {region}: block {block} belongs to a run of blocks whose first block does not exist"
    )]
    Orphan {
        /// The region.
        region: RegionId,
        /// The block.
        block: u32,
    },
}

/// Why no object was found at an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LocateError {
    /// This machine does not store the region.
    #[error("{0} is in a region that this machine does not store")]
    NotLocal(Address),
    /// The block of the address is not in use, or the address is outside of the region.
    #[error("no object is at {0}: its block is free, or the address is outside of its region")]
    NoBlock(Address),
    /// No object of the block starts at the address.
    #[error("{address} is not the start of an object of {object_bytes} bytes")]
    NoObject {
        /// The address.
        address: Address,
        /// Size of the block's objects.
        object_bytes: usize,
    },
    /// An array was expected, but the block holds none, or the address is not the array's first object.
    #[error("{0} is not the first object of an array")]
    NoArray(Address),
    /// The table is damaged.
    #[error(transparent)]
    Table(#[from] TableError),
}

/// Why a slot was not released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    /// The address is in no block of this slab allocator or, if an array's object was to be released, in no array of
    /// this machine.
    #[error("cannot release the slot at {0}: it is in no block of this allocator")]
    NotOurs(Address),
    /// No object starts at the address.
    #[error("{address} is not the start of an object of {object_bytes} bytes")]
    NoObject {
        /// The address.
        address: Address,
        /// Size of the block's objects.
        object_bytes: usize,
    },
    /// The slot is free already.
    #[error("{0} is free already")]
    Free(Address),
}
