//! The slab allocator: one per worker, private, for objects of all classes (`FaRM'14 §3.3`).
//!
//! It owns whole blocks, each of one class, and a free map for each block. Reserving a slot clears a bit of a map. The
//! transaction's commit sets the object's own allocated bit; an abort only releases the slot.
//!
//! Invariants:
//! - `regions[r].slabs` stores, for each block of a region, the slab block that covers it, if this slab owns one;
//! - a block is in the list of its class and region exactly while it has a free slot, at the index that its `listed`
//!   field stores;
//! - every list has capacity for all blocks that can be in it, so that memory grows only when a block is adopted.

use crate::ids::{Address, RegionId, WorkerId};
use crate::marks;
use crate::mem::Memory;
use crate::object::Base;
use crate::object::write::{self, Room};

use super::bitmap::FreeSlots;
use super::region::ring_distance;
use super::{
    AllocError, Block, BlockSource, CLASSES, Changes, ClassUsage, Place, ReleaseError, SizeClass,
};

pub(super) const NONE: u32 = u32::MAX;

/// A reserved slot. It belongs to the caller until the object in it is committed or the slot is released.
#[must_use = "a slot that is neither committed nor released is lost until recovery"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// Address of the object.
    pub address: Address,
    /// Size class of the object.
    pub class: SizeClass,
    region: u32,
    /// Base of the block.
    base: Base,
}

/// A region in which the slab allocator has blocks, or which was the hint of a request.
pub(super) struct Region {
    id: RegionId,
    /// Memory of the region, if the slab owns a block in it.
    memory: Option<Memory>,
    block_shift: u32,
    /// For each block of the region, the index of the slab block that covers it, or [`NONE`].
    pub(super) slabs: Vec<u32>,
}

/// A block and its free slots.
pub(super) struct SlabBlock {
    pub(super) block: Block,
    pub(super) slots: FreeSlots,
    pub(super) region: u32,
    first_offset: u32,
    object_bytes: u32,
    /// Index in the `with_free` list of its class and region, or [`NONE`] while the block is full.
    pub(super) listed: u32,
}

impl SlabBlock {
    /// Returns whether no slot is reserved.
    #[inline]
    pub(super) fn is_unused(&self) -> bool {
        self.slots.free() == self.slots.slots()
    }
}

/// The blocks of one class in one region.
pub(super) struct RegionList {
    region: u32,
    /// Number of blocks of the class in the region.
    pub(super) blocks: usize,
    /// Indices of the blocks of the class in the region that have a free slot.
    pub(super) with_free: Vec<u32>,
    /// Value of [`Changes`] when the region last had no block for this class. Until that value changes, the slab
    /// allocator does not repeat the request.
    full_at: Option<u64>,
    /// Value of [`Changes`] when the other regions of the region's consistent-hashing ring last had no block for this
    /// class.
    ring_full_at: Option<u64>,
}

/// The blocks of one class.
#[derive(Default)]
pub(super) struct Class {
    /// Lists of blocks, one per region, sorted by the region's index.
    lists: Vec<RegionList>,
    /// Index of the list that served the last request.
    current: usize,
    pub(super) usage: ClassUsage,
}

impl Class {
    fn list(&self, region: u32) -> Option<usize> {
        self.lists
            .binary_search_by_key(&region, |list| list.region)
            .ok()
    }

    fn list_or_new(&mut self, region: u32) -> &mut RegionList {
        let at = self
            .lists
            .binary_search_by_key(&region, |list| list.region)
            .unwrap_or_else(|at| {
                let (full_at, ring_full_at) = (None, None);
                let list = RegionList {
                    region,
                    blocks: 0,
                    with_free: vec![],
                    full_at,
                    ring_full_at,
                };
                self.lists.insert(at, list);
                at
            });
        &mut self.lists[at]
    }
}

/// A worker's slab allocator (`FaRM'14 §3.3`).
pub struct Slab {
    owner: WorkerId,
    changes: Changes,
    pub(super) regions: Vec<Region>,
    /// Indices in `regions`, sorted by region id.
    by_id: Vec<(RegionId, u32)>,
    pub(super) blocks: Vec<SlabBlock>,
    pub(super) classes: Box<[Class]>,
    /// Number of blocks without a reserved slot.
    pub(super) unused_blocks: usize,
}

impl Slab {
    /// Creates a slab allocator without blocks. `changes` belongs to the block allocator from which it will acquire
    /// blocks.
    pub fn new(owner: WorkerId, changes: Changes) -> Self {
        let classes = (0..CLASSES).map(|_| Class::default()).collect();
        Self {
            owner,
            changes,
            regions: vec![],
            by_id: vec![],
            blocks: vec![],
            classes,
            unused_blocks: 0,
        }
    }

    /// Returns the worker that owns this slab allocator.
    pub fn owner(&self) -> WorkerId {
        self.owner
    }

    /// Reserves a slot for an object of `class`. `hint` is the address of an object on this machine: the slot is in the
    /// block of the hint, else in its region, else in a region near it on the same ring, else anywhere (`FaRM'14
    /// §3.3`). An address on another machine has no effect; send the request to that machine instead.
    ///
    /// # Errors
    /// [`AllocError`] if no slot is free and `source` has no block: nothing has changed.
    #[inline]
    pub fn reserve(
        &mut self,
        class: SizeClass,
        hint: Option<Address>,
        source: &mut dyn BlockSource,
    ) -> Result<Reserved, AllocError> {
        let reserved = match hint.filter(|hint| !hint.is_null()) {
            None => self.take_anywhere(class),
            Some(hint) => self.take_in_region_of(class, hint),
        };
        match reserved {
            Some(reserved) => Ok(reserved),
            None => self.reserve_slow(class, hint.filter(|hint| !hint.is_null()), source),
        }
    }

    /// Releases a slot, because the transaction that reserved it aborted, or because a transaction that freed the
    /// object has committed. Its class can reuse the slot at once.
    ///
    /// # Errors
    /// [`ReleaseError`] if the address is not a reserved slot of this worker.
    #[inline]
    pub fn release(&mut self, address: Address) -> Result<SizeClass, ReleaseError> {
        let (at, slot) = self.slot_of(address)?;
        let block = &mut self.blocks[at as usize];
        if !block.slots.give(slot) {
            return Err(ReleaseError::Free(address));
        }
        self.unused_blocks += usize::from(block.is_unused());
        let class = block.block.head().class;
        self.classes[class.index()].usage.live -= 1;
        if block.listed == NONE {
            self.list_block(at);
        }
        Ok(class)
    }

    /// Returns whether this is a reserved slot of this slab allocator.
    pub fn is_reserved(&self, address: Address) -> bool {
        self.slot_of(address)
            .is_ok_and(|(at, slot)| !self.blocks[at as usize].slots.is_free(slot))
    }

    /// Returns the memory of the region that contains a slot; the object starts at the address's offset.
    #[inline]
    pub fn memory(&self, reserved: &Reserved) -> &Memory {
        let memory = self.regions[reserved.region as usize].memory.as_ref();
        memory.expect(
            "a slab allocator stores the memory of every region in which it reserved a slot",
        )
    }

    /// Returns the version and incarnation from which the object in a reserved slot continues. Writes the header of a
    /// slot that was never used.
    #[inline]
    pub fn begin(&self, reserved: &Reserved) -> Room {
        let at = reserved.address.offset() as usize;
        write::begin(self.memory(reserved), at, reserved.class, reserved.base)
    }

    /// Returns the usage of one class.
    pub fn usage(&self, class: SizeClass) -> ClassUsage {
        self.classes[class.index()].usage
    }

    /// Returns the block of an address, and the slot in it that starts at the address.
    #[inline]
    fn slot_of(&self, address: Address) -> Result<(u32, u32), ReleaseError> {
        let at = self
            .block_of(address)
            .ok_or(ReleaseError::NotOurs(address))?;
        let block = &self.blocks[at as usize];
        let no_object = ReleaseError::NoObject {
            address,
            object_bytes: block.object_bytes as usize,
        };
        let into = address
            .offset()
            .checked_sub(block.first_offset)
            .ok_or(no_object)?;
        let slot = into / block.object_bytes;
        if slot * block.object_bytes != into || slot >= block.slots.slots() {
            return Err(no_object);
        }
        Ok((at, slot))
    }

    /// Returns the block of this slab allocator that covers an address.
    #[inline]
    pub(super) fn block_of(&self, address: Address) -> Option<u32> {
        if address.is_null() {
            return None;
        }
        let region = &self.regions[self.region_index(address.region())? as usize];
        let slab = region
            .slabs
            .get((address.offset() >> region.block_shift) as usize)?;
        (*slab != NONE).then_some(*slab)
    }

    #[inline]
    fn region_index(&self, id: RegionId) -> Option<u32> {
        let at = self.by_id.binary_search_by_key(&id, |known| known.0).ok()?;
        Some(self.by_id[at].1)
    }

    /// Takes a slot in the block of the hint if possible, else in its region.
    #[inline]
    fn take_in_region_of(&mut self, class: SizeClass, hint: Address) -> Option<Reserved> {
        if let Some(at) = self.block_of(hint) {
            let block = &self.blocks[at as usize];
            if block.block.head().class == class && block.listed != NONE {
                return Some(self.take_from(at));
            }
        }
        let list = self.classes[class.index()].list(self.region_index(hint.region())?)?;
        self.take_from_list(class, list)
    }

    /// Takes a slot in the region on the ring of `near` that is closest to it.
    fn take_on_ring(&mut self, class: SizeClass, near: RegionId) -> Option<Reserved> {
        let lists = self.classes[class.index()].lists.iter().enumerate();
        let nearest = lists
            .filter(|(_, list)| !list.with_free.is_empty())
            .filter_map(|(at, list)| {
                Some((
                    ring_distance(self.regions[list.region as usize].id, near)?,
                    at,
                ))
            })
            .min()?;
        self.take_from_list(class, nearest.1)
    }

    #[inline]
    fn take_anywhere(&mut self, class: SizeClass) -> Option<Reserved> {
        let lists = &self.classes[class.index()];
        let current = lists.current;
        if lists
            .lists
            .get(current)
            .is_some_and(|list| !list.with_free.is_empty())
        {
            return self.take_from_list(class, current);
        }
        let other = lists
            .lists
            .iter()
            .position(|list| !list.with_free.is_empty())?;
        self.classes[class.index()].current = other;
        self.take_from_list(class, other)
    }

    #[inline]
    fn take_from_list(&mut self, class: SizeClass, list: usize) -> Option<Reserved> {
        let at = *self.classes[class.index()].lists[list].with_free.last()?;
        Some(self.take_from(at))
    }

    /// Takes a slot from a block that has a free one.
    #[inline]
    fn take_from(&mut self, at: u32) -> Reserved {
        let block = &mut self.blocks[at as usize];
        self.unused_blocks -= usize::from(block.is_unused());
        let slot = block
            .slots
            .take_lowest()
            .expect("`take_from` is called only for a block with a free slot");
        let class = block.block.head().class;
        let offset = block.first_offset + slot * block.object_bytes;
        let address = Address::new(block.block.table().region(), offset);
        let reserved = Reserved {
            address,
            class,
            region: block.region,
            base: block.block.base(),
        };
        self.classes[class.index()].usage.live += 1;
        if block.slots.free() == 0 {
            self.unlist_block(at);
        }
        reserved
    }

    /// Completes [`reserve`](Self::reserve) if neither the hint's region nor, without a hint, any block of this slab
    /// has a free slot.
    #[cold]
    #[inline(never)]
    fn reserve_slow(
        &mut self,
        class: SizeClass,
        hint: Option<Address>,
        source: &mut dyn BlockSource,
    ) -> Result<Reserved, AllocError> {
        if let Some(near) = hint.map(Address::region)
            && (self.region_index(near).is_some() || source.has_region(near))
            && let Some(reserved) = self.reserve_near(class, near, source)?
        {
            return Ok(reserved);
        }
        if let Some(reserved) = self.take_anywhere(class) {
            return Ok(reserved);
        }
        let block = source.acquire(class, self.owner, Place::Anywhere)?;
        let at = self
            .add(block.expect("a request for a block of any region returns a block or an error"));
        Ok(self.take_from(at))
    }

    /// Reserves a slot in the region, or near it on its ring. Does not repeat a request that failed until [`Changes`]
    /// has counted another event.
    fn reserve_near(
        &mut self,
        class: SizeClass,
        near: RegionId,
        source: &mut dyn BlockSource,
    ) -> Result<Option<Reserved>, AllocError> {
        let now = self.changes.count();
        let region = self.region_or_new(near);
        if self.classes[class.index()].list_or_new(region).full_at != Some(now) {
            if let Some(block) = source.acquire(class, self.owner, Place::In(near))? {
                let at = self.add(block);
                return Ok(Some(self.take_from(at)));
            }
            self.classes[class.index()].list_or_new(region).full_at = Some(now);
        }
        if let Some(reserved) = self.take_on_ring(class, near) {
            return Ok(Some(reserved));
        }
        if self.classes[class.index()].list_or_new(region).ring_full_at != Some(now) {
            if let Some(block) = source.acquire(class, self.owner, Place::Near(near))? {
                let at = self.add(block);
                return Ok(Some(self.take_from(at)));
            }
            self.classes[class.index()].list_or_new(region).ring_full_at = Some(now);
        }
        Ok(None)
    }

    /// Adds a block without objects.
    fn add(&mut self, block: Block) -> u32 {
        let slots = FreeSlots::new(block.slots());
        self.adopt(block, slots)
    }

    /// Adds a block, and the slots of it that hold no objects. All memory that the block will ever need is allocated here.
    pub(super) fn adopt(&mut self, block: Block, slots: FreeSlots) -> u32 {
        marks::mark("alloc: new block");
        let (table, head) = (block.table().clone(), block.head());
        let region = self.region_or_new(table.region());
        let at = self.blocks.len() as u32;
        let known = &mut self.regions[region as usize];
        if known.memory.is_none() {
            known.memory = Some(table.memory().clone());
            known.block_shift = table.geometry().block_bytes().trailing_zeros();
            known.slabs = vec![NONE; table.geometry().blocks() as usize];
        }
        let covered = block.index() as usize..(block.index() + head.run) as usize;
        known.slabs[covered].fill(at);

        let class = &mut self.classes[head.class.index()];
        class.usage.blocks += 1;
        class.usage.reserved_bytes += block.bytes() as u64;
        class.usage.slots += u64::from(slots.slots());
        class.usage.live += u64::from(slots.slots() - slots.free());
        let list = class.list_or_new(region);
        list.blocks += 1;
        list.with_free.reserve(list.blocks - list.with_free.len());

        self.blocks.push(SlabBlock {
            slots,
            region,
            first_offset: block.first_offset() as u32,
            object_bytes: head.class.object_bytes() as u32,
            listed: NONE,
            block,
        });
        self.unused_blocks += usize::from(self.blocks[at as usize].is_unused());
        if self.blocks[at as usize].slots.free() > 0 {
            self.list_block(at);
        }
        at
    }

    fn region_or_new(&mut self, id: RegionId) -> u32 {
        match self.by_id.binary_search_by_key(&id, |known| known.0) {
            Ok(at) => self.by_id[at].1,
            Err(at) => {
                let index = self.regions.len() as u32;
                self.by_id.insert(at, (id, index));
                self.regions.push(Region {
                    id,
                    memory: None,
                    block_shift: 0,
                    slabs: vec![],
                });
                index
            }
        }
    }

    /// Returns the list for a block of this slab.
    pub(super) fn list_of(&mut self, at: u32) -> &mut RegionList {
        let block = &self.blocks[at as usize];
        self.classes[block.block.head().class.index()].list_or_new(block.region)
    }

    fn list_block(&mut self, at: u32) {
        let list = self.list_of(at);
        let place = list.with_free.len() as u32;
        list.with_free.push(at);
        self.blocks[at as usize].listed = place;
    }

    pub(super) fn unlist_block(&mut self, at: u32) {
        let place = std::mem::replace(&mut self.blocks[at as usize].listed, NONE);
        let list = self.list_of(at);
        list.with_free.swap_remove(place as usize);
        if let Some(moved) = list.with_free.get(place as usize).copied() {
            self.blocks[moved as usize].listed = place;
        }
    }

    /// Returns the total capacity of everything that could grow, for the test that nothing grows on the warm path.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        let lists = self.classes.iter().flat_map(|class| &class.lists);
        lists.map(|list| list.with_free.capacity()).sum::<usize>()
            + self
                .classes
                .iter()
                .map(|class| class.lists.capacity())
                .sum::<usize>()
            + self
                .regions
                .iter()
                .map(|region| region.slabs.capacity())
                .sum::<usize>()
            + self.regions.capacity()
            + self.by_id.capacity()
            + self.blocks.capacity()
    }
}
