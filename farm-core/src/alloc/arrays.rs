//! Arrays: adjacent objects of one class, in a block of their own (`FaRM'14 §3.2`).
//!
//! The objects of an array are allocated together, so that one one-sided read fetches all of them, and freed one by one
//! like any object. A single slot is not reused: the whole block is released with the last object.

use super::bitmap::FreeSlots;
use super::block::{Growth, Place};
use super::check::check_headers;
use super::fit::Demand;
use super::{AllocError, Block, BlockAllocator, Mismatch, ReleaseError, SizeClass};
use crate::ids::{Address, RegionId, WorkerId};
use crate::mem::Memory;
use crate::object::Base;
use crate::object::write::{self, Room};
use crate::{marks, mutants};

/// Adjacent objects of one class.
#[derive(Clone, Debug)]
pub struct ArrayRun {
    /// Block that holds the array.
    pub block: Block,
    /// Number of objects requested. Each object starts [`SizeClass::object_bytes`] bytes after the start of the
    /// previous object.
    pub count: u32,
}

impl ArrayRun {
    /// Returns the address of the first object.
    pub fn first(&self) -> Address {
        self.block.address_of(0)
    }

    /// Returns the address of the object at `index`, if `index` is below `count`.
    pub fn address(&self, index: u32) -> Option<Address> {
        (index < self.count).then(|| self.block.address_of(index))
    }

    /// Returns the class of the objects.
    pub fn class(&self) -> SizeClass {
        self.block.head().class
    }

    /// Returns the version and incarnation from which the object at `index` continues.
    ///
    /// # Panics
    /// If `index` is not below `count`.
    pub fn room(&self, index: u32) -> Room {
        self.slot(index, write::room)
    }

    /// Prepares the slot at `index` for its object, and returns the version and incarnation from which the object
    /// continues. Writes the header of a slot that was never used. Call it for each object before its address is
    /// published.
    ///
    /// # Panics
    /// If `index` is not below `count`.
    pub fn begin(&self, index: u32) -> Room {
        self.slot(index, write::begin)
    }

    fn slot(&self, index: u32, work: fn(&Memory, usize, SizeClass, Base) -> Room) -> Room {
        assert!(
            index < self.count,
            "object {index} is out of range: the array has {} objects",
            self.count
        );
        let (block, at) = (&self.block, self.block.offset_of(index));
        work(block.table().memory(), at, self.class(), block.base())
    }
}

impl BlockAllocator {
    /// Allocates `count` adjacent objects of one class, near the region `near` if possible: in that region, else in
    /// another region on its ring, else anywhere. The transaction that fills the objects sets their allocated bits.
    /// Their memory is zero, or holds freed objects of the class; [`ArrayRun::begin`] returns the versions from which
    /// to continue.
    ///
    /// # Errors
    /// [`AllocError`]: nothing is allocated.
    ///
    /// # Panics
    /// If `count` is zero.
    pub fn allocate_array(
        &mut self,
        class: SizeClass,
        count: u32,
        owner: WorkerId,
        near: Option<RegionId>,
    ) -> Result<ArrayRun, AllocError> {
        self.allocate_array_by(class, count, owner, near, Growth::default())
    }

    /// As [`BlockAllocator::allocate_array`], with other rules for new regions.
    ///
    /// # Errors
    /// [`AllocError`]: nothing is allocated.
    ///
    /// # Panics
    /// If `count` is zero.
    pub fn allocate_array_by(
        &mut self,
        class: SizeClass,
        count: u32,
        owner: WorkerId,
        near: Option<RegionId>,
        growth: Growth,
    ) -> Result<ArrayRun, AllocError> {
        assert!(count > 0, "an array needs at least one object");
        let block = self.obtain_array(Demand::Array(class, count), owner, near, growth)?;
        let region = self.index_of(block.table().region());
        let region = &mut self.regions
            [region.expect("the allocator obtains blocks only from regions of its own machine")];
        region.arrays.insert(block.index(), FreeSlots::new(count));
        Ok(ArrayRun { block, count })
    }

    fn obtain_array(
        &mut self,
        demand: Demand,
        owner: WorkerId,
        near: Option<RegionId>,
        growth: Growth,
    ) -> Result<Block, AllocError> {
        let hints = near.map_or([None; 2], |near| {
            [Some(Place::In(near)), Some(Place::Near(near))]
        });
        for place in hints.into_iter().flatten() {
            if let Some(block) = self.obtain(demand, owner, place, growth)? {
                return Ok(block);
            }
        }
        let block = self.obtain(demand, owner, Place::Anywhere, growth)?;
        Ok(block.expect("a request for a block of any region returns a block or an error"))
    }

    /// Releases an object of an array, because the transaction that was to fill it aborted, or because a transaction
    /// that freed it has committed. When the last object is released, the block can store objects or arrays of its
    /// class again at once.
    ///
    /// # Errors
    /// [`ReleaseError`] if the address is not an object of an array, or was released already.
    pub fn release_of_array(&mut self, address: Address) -> Result<SizeClass, ReleaseError> {
        let not_ours = ReleaseError::NotOurs(address);
        let at = self.region_of(address).map_err(|_| not_ours)?;
        let region = &mut self.regions[at];
        let block = region.table.block_at(address.offset());
        let (index, head) = block.map_err(|_| not_ours)?;
        let Some(held) = region.arrays.get_mut(&index) else {
            return Err(not_ours);
        };
        let geometry = region.table.geometry();
        let slot = geometry.slot_of(index, head.run, head.class, address.offset() as usize);
        let Some(slot) = slot.filter(|slot| *slot < held.slots()) else {
            return Err(ReleaseError::NoObject {
                address,
                object_bytes: head.class.object_bytes(),
            });
        };
        if !held.take(slot) {
            return Err(ReleaseError::Free(address));
        }
        let (left, all) = (held.free(), held.slots());
        if left == 0 {
            marks::mark("alloc: array given back");
            region.arrays.remove(&index);
        }
        let gone = match mutants::is_on("array given back with its first object") {
            true => left + 1 == all,
            false => left == 0,
        };
        if gone {
            self.vacate(at, index, head);
        }
        Ok(head.class)
    }

    /// Checks that no released object of an array is allocated in memory, and that all headers have the array's class.
    ///
    /// # Errors
    /// The first [`Mismatch`].
    pub fn check_arrays(&self) -> Result<(), Mismatch> {
        for region in &self.regions {
            for (index, held) in &region.arrays {
                let block = region.table.block(*index, region.table.head(*index)?)?;
                check_headers(&block)?;
                let mut back = (0..held.slots()).filter(|slot| !held.is_free(*slot));
                if let Some(slot) = back.find(|slot| block.is_allocated(*slot)) {
                    return Err(Mismatch::Object {
                        address: block.address_of(slot),
                        reserved: false,
                        allocated: true,
                    });
                }
            }
        }
        Ok(())
    }
}
