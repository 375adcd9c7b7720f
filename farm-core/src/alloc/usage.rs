//! What memory is used for at present.

use super::SizeClass;

/// What the blocks of a machine are used for. Bytes, unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct BlockUsage {
    /// Number of regions.
    pub regions: usize,
    /// All of their memory.
    pub region_bytes: u64,
    /// Block tables.
    pub table_bytes: u64,
    /// Free blocks.
    pub free_bytes: u64,
    /// Blocks of slab allocators.
    pub slab_bytes: u64,
    /// Blocks of arrays.
    pub array_bytes: u64,
    /// Objects of arrays that have not been given back.
    pub array_objects: u64,
    /// Blocks without objects that serve their class only.
    pub vacant_bytes: u64,
}

/// What a slab allocator has of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ClassUsage {
    /// Blocks.
    pub blocks: u64,
    /// Bytes of regions that they take.
    pub reserved_bytes: u64,
    /// Slots in them.
    pub slots: u64,
    /// Slots that are reserved.
    pub live: u64,
}

impl ClassUsage {
    /// Slots that are free: what fragmentation outside of objects consists of.
    pub fn free_slots(&self) -> u64 {
        self.slots - self.live
    }

    /// Share of the live objects' data bytes that holds nothing, when they hold `payload_bytes`
    /// together. The allocator does not know how much of an object is used; its user does.
    pub fn internal_fragmentation(&self, class: SizeClass, payload_bytes: u64) -> f64 {
        let capacity = self.live * class.payload_capacity() as u64;
        if capacity == 0 {
            0.0
        } else {
            1.0 - payload_bytes as f64 / capacity as f64
        }
    }

    /// Share of the reserved bytes that is in no live object.
    pub fn external_fragmentation(&self, class: SizeClass) -> f64 {
        let live = self.live * class.object_bytes() as u64;
        if self.reserved_bytes == 0 {
            0.0
        } else {
            1.0 - live as f64 / self.reserved_bytes as f64
        }
    }
}
