//! Current usage of memory.

use super::SizeClass;

/// Usage of the blocks of a machine. Fields are in bytes unless their comments state otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct BlockUsage {
    /// Number of regions.
    pub regions: usize,
    /// Memory of all regions.
    pub region_bytes: u64,
    /// Memory of block tables.
    pub table_bytes: u64,
    /// Memory of free blocks.
    pub free_bytes: u64,
    /// Memory of slab allocators' blocks.
    pub slab_bytes: u64,
    /// Memory of arrays' blocks.
    pub array_bytes: u64,
    /// Number of objects of arrays that are not released.
    pub array_objects: u64,
    /// Memory of blocks without objects, which only their class can use.
    pub vacant_bytes: u64,
}

/// Usage of one class in a slab allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ClassUsage {
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of the regions that these blocks take.
    pub reserved_bytes: u64,
    /// Number of slots in these blocks.
    pub slots: u64,
    /// Number of reserved slots.
    pub live: u64,
}

impl ClassUsage {
    /// Returns the number of free slots, which are the fragmentation outside of objects.
    pub fn free_slots(&self) -> u64 {
        self.slots - self.live
    }

    /// Returns the share of the live objects' data bytes that is unused, if they store `payload_bytes` together. The
    /// caller passes this number, because the allocator does not know how much of an object is used.
    pub fn internal_fragmentation(&self, class: SizeClass, payload_bytes: u64) -> f64 {
        let capacity = self.live * class.payload_capacity() as u64;
        if capacity == 0 {
            0.0
        } else {
            1.0 - payload_bytes as f64 / capacity as f64
        }
    }

    /// Returns the share of the reserved bytes that is in no live object.
    pub fn external_fragmentation(&self, class: SizeClass) -> f64 {
        let live = self.live * class.object_bytes() as u64;
        if self.reserved_bytes == 0 {
            0.0
        } else {
            1.0 - live as f64 / self.reserved_bytes as f64
        }
    }
}
