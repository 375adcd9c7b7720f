//! The block allocator: one per machine, over the regions of which the machine is the primary (`FaRM'14 §3.3`).
//!
//! Free blocks are searched first fit in the region's own table. A freed run needs no merging: adjacent free blocks are
//! one range. Slab allocators request blocks through [`BlockSource`], once per block and not once per object.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::ids::{Address, RegionId, WorkerId};
use crate::marks;
use crate::mem::Memory;

use super::fit::{Demand, Fit, RegionBlocks};
use super::region::ring_distance;
use super::table::table_bases;
use super::{
    Adoption, AllocError, Block, BlockKind, BlockTable, BlockUsage, Geometry, LocateError,
    SizeClass, TableError,
};

/// Sizes and limits of a block allocator.
#[derive(Clone, Copy, Debug)]
pub struct BlockConfig {
    /// Bytes in a block, a power of two (1 MiB in production).
    pub block_bytes: usize,
    /// Bytes in a region.
    pub region_bytes: usize,
    /// Maximum number of bytes of regions on this machine.
    pub per_machine_bytes: u64,
    /// Seed of the bases of new regions' blocks ([`Base`](crate::object::Base)). Draw a new seed at each start of a
    /// machine, so that pointers stored before a restart do not match.
    pub seed: u64,
}

/// Creates regions: picks an id ([`super::choose_region_id`]), maps and exports memory, and records the region
/// (`FaRM'14 §3.3`: the cluster-wide region allocator).
pub trait RegionSource {
    /// Creates a region with `region_bytes` of zeroed memory, on the ring of `near` and close to it if given.
    ///
    /// # Errors
    /// [`AllocError::NoRegion`] if it cannot be created.
    fn new_region(&mut self, near: Option<RegionId>) -> Result<(RegionId, Memory), AllocError>;

    /// Announces that a region will be needed soon.
    fn prepare(&mut self) {}

    /// Returns whether the next region can be created without a wait.
    fn is_ready(&self) -> bool {
        true
    }
}

impl<F> RegionSource for F
where
    F: FnMut(Option<RegionId>) -> Result<(RegionId, Memory), AllocError>,
{
    fn new_region(&mut self, near: Option<RegionId>) -> Result<(RegionId, Memory), AllocError> {
        self(near)
    }
}

/// The next region is announced when fewer blocks are free than a region has, divided by this.
const PREPARED_SHARE: u64 = 2;

/// How far the next region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// It is not needed soon.
    None,
    /// The source knows that it is.
    Announced,
    /// The same, and a request near this region got no memory on its ring.
    Near(RegionId),
    /// It could not be made ahead. It is tried again when it is needed.
    Failed,
}

/// When a request may make a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Whether it makes one to be near another region, although there may be room elsewhere.
    pub near: bool,
    /// Whether it waits until the memory of the region is made. Otherwise it fails with [`AllocError::NoRegionYet`] meanwhile.
    pub waits: bool,
}

impl Default for Growth {
    fn default() -> Self {
        Self {
            near: true,
            waits: true,
        }
    }
}

/// Where a block is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this region.
    In(RegionId),
    /// In a region on the ring of this one, the nearest first, or in a new region there.
    Near(RegionId),
    /// In any region, or in a new one.
    Anywhere,
}

/// The source of a slab allocator's blocks: the machine's [`BlockAllocator`], owned or shared.
pub trait BlockSource {
    /// Returns whether the region is stored by this machine.
    fn has_region(&self, region: RegionId) -> bool;

    /// Acquires a block for objects of `class`, owned by `owner`. Returns `None` if the place has no room, which
    /// [`Place::Anywhere`] reports as an error instead.
    ///
    /// # Errors
    /// [`AllocError`]: nothing is allocated.
    fn acquire(
        &mut self,
        class: SizeClass,
        owner: WorkerId,
        place: Place,
    ) -> Result<Option<Block>, AllocError>;

    /// Takes back a block of a slab that has no reserved slot: the block becomes vacant.
    fn give_back(&mut self, block: Block);
}

/// A counter of the events that may have made another block available. A slab allocator repeats a failed request only
/// after the count has changed.
#[derive(Clone, Debug, Default)]
pub struct Changes(Arc<AtomicU64>);

impl Changes {
    /// Returns the number of events so far.
    #[inline]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// The machine's block allocator. Workers share it as `Arc<Mutex<BlockAllocator>>`, which is also a [`BlockSource`].
pub struct BlockAllocator {
    pub(super) config: BlockConfig,
    geometry: Geometry,
    source: Box<dyn RegionSource + Send>,
    pub(super) regions: Vec<RegionBlocks>,
    pub(super) in_use: u64,
    next: Next,
    /// Whether regions are made before they are needed, as soon as their memory is there.
    ahead: bool,
    /// Number of cuts so far: see [`BlockAllocator::cut`].
    pub(super) cuts: u64,
    pub(super) changes: Changes,
}

impl BlockAllocator {
    /// Creates an allocator without regions; it requests regions from `source`.
    ///
    /// # Panics
    /// If a region of these sizes has no room for a block.
    pub fn new(config: BlockConfig, source: impl RegionSource + Send + 'static) -> Self {
        let geometry =
            Geometry::new(config.block_bytes, config.region_bytes).unwrap_or_else(|| {
                panic!("a region of these sizes has no room for a block: {config:?}")
            });
        Self {
            config,
            geometry,
            source: Box::new(source),
            regions: Vec::new(),
            in_use: 0,
            next: Next::None,
            ahead: false,
            cuts: 0,
            changes: Changes::default(),
        }
    }

    /// Returns the sizes and positions of the blocks of every region.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Returns the counter that shows slab allocators when to repeat a request.
    pub fn changes(&self) -> Changes {
        self.changes.clone()
    }

    /// Has regions made as soon as their memory is there, and not when they are needed: afterwards it takes time until they can be used.
    pub fn make_ahead(&mut self) {
        self.ahead = true;
    }

    /// Announces a region if the machine has none, and its limit on memory permits one.
    pub fn prepare_first(&mut self) {
        if self.regions.is_empty() && self.may_grow() {
            self.announce(Next::Announced);
        }
    }

    fn announce(&mut self, next: Next) {
        self.next = next;
        self.source.prepare();
    }

    /// Returns the block tables of all regions, in the order in which the regions were added.
    pub fn tables(&self) -> impl Iterator<Item = &BlockTable> {
        self.regions.iter().map(|region| &region.table)
    }

    /// Returns the worker that owns an object, which must release it when it is freed.
    ///
    /// # Errors
    /// [`LocateError`] if no object of this machine can be at the address.
    pub fn owner_of(&self, address: Address) -> Result<WorkerId, LocateError> {
        let region = self.region_of(address)?;
        self.regions[region].table.owner_of(address.offset())
    }

    /// Returns what backups must know of the block of an object: [`BlockTable::block_word`].
    ///
    /// # Errors
    /// [`LocateError`] if no object of this machine can be at the address.
    pub fn block_word(&self, address: Address) -> Result<u64, LocateError> {
        let region = self.region_of(address)?;
        self.regions[region].table.block_word(address.offset())
    }

    /// Returns how the machine's blocks are used.
    ///
    /// # Errors
    /// [`TableError`] if a table is damaged.
    pub fn usage(&self) -> Result<BlockUsage, TableError> {
        let mut usage = BlockUsage {
            regions: self.regions.len(),
            ..BlockUsage::default()
        };
        for region in &self.regions {
            let (table, arrays) = (&region.table, region.arrays.values());
            usage.array_objects += arrays.map(|held| u64::from(held.free())).sum::<u64>();
            table.check()?;
            let geometry = table.geometry();
            let mut free = geometry.object_blocks() as usize * geometry.block_bytes();
            let mut next = 0;
            while let Some(block) = table.next_block(next)? {
                free -= block.bytes();
                *match block.head().kind {
                    BlockKind::Slab => &mut usage.slab_bytes,
                    BlockKind::Array => &mut usage.array_bytes,
                    BlockKind::Vacant => &mut usage.vacant_bytes,
                } += block.bytes() as u64;
                next = BlockTable::next_after(&block);
            }
            usage.region_bytes += table.memory().len() as u64;
            usage.table_bytes += geometry.table_bytes() as u64;
            usage.free_bytes += free as u64;
        }
        Ok(usage)
    }

    pub(super) fn index_of(&self, region: RegionId) -> Option<usize> {
        self.regions
            .iter()
            .position(|known| known.table.region() == region)
    }

    pub(super) fn region_of(&self, address: Address) -> Result<usize, LocateError> {
        if address.is_null() {
            return Err(LocateError::NotLocal(address));
        }
        self.index_of(address.region())
            .ok_or(LocateError::NotLocal(address))
    }

    /// As [`BlockSource::acquire`], with other rules for new regions.
    ///
    /// # Errors
    /// As [`BlockSource::acquire`]; [`AllocError::NoRegionYet`].
    pub fn acquire_by(
        &mut self,
        class: SizeClass,
        owner: WorkerId,
        place: Place,
        growth: Growth,
    ) -> Result<Option<Block>, AllocError> {
        self.obtain(Demand::Slab(class), owner, place, growth)
    }

    pub(super) fn obtain(
        &mut self,
        demand: Demand,
        owner: WorkerId,
        place: Place,
        growth: Growth,
    ) -> Result<Option<Block>, AllocError> {
        let obtained = match place {
            Place::In(region) => match self.index_of(region) {
                Some(index) => Ok(self.regions[index].take(demand, owner)?),
                None => Ok(None),
            },
            Place::Near(region) => self.obtain_near(demand, owner, region, growth),
            Place::Anywhere => self.obtain_anywhere(demand, owner, growth).map(Some),
        };
        let last = obtained.as_ref().ok().and_then(Option::as_ref);
        let last = last.map(|block| block.table().region());
        self.prepare(last, growth);
        obtained
    }

    /// Announces the next region if few blocks are free, and the machine's limit on memory permits a region. With
    /// [`BlockAllocator::make_ahead`], makes it when its memory is there. `last` is the region of the block that was just obtained.
    fn prepare(&mut self, last: Option<RegionId>, growth: Growth) {
        if self.regions.is_empty() || !self.may_grow() {
            return;
        }
        let few = u64::from(self.geometry.object_blocks()) / PREPARED_SHARE;
        let is_low = || self.free_blocks() < few;
        let near = match self.next {
            Next::None if is_low() => return self.announce(Next::Announced),
            Next::Announced if self.ahead && is_low() => last,
            Next::Near(region) => Some(region),
            _ => None,
        };
        if near.is_some() && growth.near && self.source.is_ready() {
            marks::mark("alloc: region made ahead");
            if let Err(error) = self.make(near) {
                tracing::debug!(%error, "no region was made ahead");
                self.next = Next::Failed;
            }
        }
    }

    /// Returns whether the machine's limit on memory permits another region.
    fn may_grow(&self) -> bool {
        let next = self.in_use.saturating_add(self.config.region_bytes as u64);
        next <= self.config.per_machine_bytes
    }

    /// Returns the number of blocks in all regions that no class uses.
    pub(super) fn free_blocks(&self) -> u64 {
        let free = self.regions.iter().map(|region| u64::from(region.free));
        free.sum()
    }

    fn obtain_near(
        &mut self,
        demand: Demand,
        owner: WorkerId,
        near: RegionId,
        growth: Growth,
    ) -> Result<Option<Block>, AllocError> {
        // One that was made ahead may not have its copies yet.
        let is_ahead =
            |region: &RegionBlocks| self.ahead && region.free == self.geometry.object_blocks();
        let place = |index: usize| {
            let region = &self.regions[index];
            let distance = ring_distance(region.table.region(), near)?;
            Some((is_ahead(region), distance, index))
        };
        let mut on_ring: Vec<_> = (0..self.regions.len()).filter_map(place).collect();
        on_ring.sort_unstable();
        for (_, _, index) in on_ring {
            if let Some(block) = self.regions[index].take(demand, owner)? {
                return Ok(Some(block));
            }
        }
        if !growth.near {
            marks::mark("alloc: no region made to be near a region that waits");
            return Ok(None);
        }
        let waits = self.ahead && self.may_grow() && !self.source.is_ready();
        if waits && self.free_blocks() > 0 {
            marks::mark("alloc: no wait for memory near another region");
            self.announce(Next::Near(near));
            return Ok(None);
        }
        match self.grow(demand, Some(near), growth) {
            Ok(index) => Ok(self.regions[index].take(demand, owner)?),
            Err(AllocError::Table(damage)) => Err(damage.into()),
            // Nearness is only a preference: the caller may use memory elsewhere.
            Err(_) => Ok(None),
        }
    }

    fn obtain_anywhere(
        &mut self,
        demand: Demand,
        owner: WorkerId,
        growth: Growth,
    ) -> Result<Block, AllocError> {
        for region in &mut self.regions {
            if let Some(block) = region.take_vacant(demand, owner)? {
                return Ok(block);
            }
        }
        for region in &mut self.regions {
            if let Some(block) = region.take_free(demand, Fit::Snug, owner)? {
                return Ok(block);
            }
        }
        match self.grow(demand, None, growth) {
            Ok(index) => {
                let block = self.regions[index].take(demand, owner)?;
                Ok(block.expect("a new region has room for the request that it was created for"))
            }
            Err(no_region) => {
                for region in &mut self.regions {
                    if let Some(block) = region.take_free(demand, Fit::Tight, owner)? {
                        return Ok(block);
                    }
                }
                marks::mark("alloc: out of memory");
                Err(no_region)
            }
        }
    }

    /// Creates a region and returns its index, if the machine's limit on memory permits it and an empty region has room
    /// for the demand.
    fn grow(
        &mut self,
        demand: Demand,
        near: Option<RegionId>,
        growth: Growth,
    ) -> Result<usize, AllocError> {
        let first = self.geometry.first_block();
        let fits = [first, first + 1].into_iter().any(|block| {
            let left = self.geometry.blocks() - block;
            left > 0 && demand.run(Fit::Tight, self.geometry, block) <= left
        });
        if !fits {
            let region_bytes = self.config.region_bytes as u64;
            return Err(AllocError::LargerThanRegion {
                asked: demand.bytes(),
                region_bytes,
            });
        }
        if !self.may_grow() {
            return Err(AllocError::OutOfMemory {
                asked: demand.bytes(),
                in_use: self.in_use,
                limit: self.config.per_machine_bytes,
            });
        }
        if !growth.waits && !self.source.is_ready() {
            marks::mark("alloc: the memory of a region is being made");
            // Also if it was announced before: what was made may have become a copy.
            self.announce(Next::Announced);
            return Err(AllocError::NoRegionYet);
        }
        self.make(near)?;
        Ok(self.regions.len() - 1)
    }

    /// Creates a region, which becomes the last one.
    fn make(&mut self, near: Option<RegionId>) -> Result<(), AllocError> {
        self.next = Next::None;
        let (id, memory) = self.source.new_region(near)?;
        if self.has_region(id) {
            return Err(AllocError::RegionExists(id));
        }
        assert!(
            memory.len() >= self.config.region_bytes,
            "region {id} was created with {} bytes instead of {}",
            memory.len(),
            self.config.region_bytes
        );
        // A mapping has whole pages and may be longer than the region.
        let memory = memory.window(0, self.config.region_bytes);
        let block_bytes = self.config.block_bytes;
        let bases = &mut table_bases(self.config.seed, id);
        let table = BlockTable::format(memory, id, block_bytes, bases)?;
        self.adopt(Adoption::new(table), 1)?;
        marks::mark("alloc: region made");
        Ok(())
    }
}

impl BlockSource for BlockAllocator {
    fn has_region(&self, region: RegionId) -> bool {
        self.index_of(region).is_some()
    }

    fn acquire(
        &mut self,
        class: SizeClass,
        owner: WorkerId,
        place: Place,
    ) -> Result<Option<Block>, AllocError> {
        self.acquire_by(class, owner, place, Growth::default())
    }

    fn give_back(&mut self, block: Block) {
        self.retired(&block);
    }
}

impl BlockSource for Arc<Mutex<BlockAllocator>> {
    fn has_region(&self, region: RegionId) -> bool {
        self.lock().expect(POISONED).has_region(region)
    }

    fn acquire(
        &mut self,
        class: SizeClass,
        owner: WorkerId,
        place: Place,
    ) -> Result<Option<Block>, AllocError> {
        self.lock().expect(POISONED).acquire(class, owner, place)
    }

    fn give_back(&mut self, block: Block) {
        self.lock().expect(POISONED).give_back(block);
    }
}

const POISONED: &str = "a worker panicked while it held the lock of the block allocator";
