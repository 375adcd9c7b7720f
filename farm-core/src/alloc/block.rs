//! The block allocator: one per machine, over the regions whose primary the machine is
//! (`FaRM'14 §3.3`).
//!
//! Free blocks are found first fit in the region's own table; a freed run merges with its
//! neighbours by being free. Slab allocators come here once per block, not once per object, through
//! [`BlockSource`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::ids::{Address, RegionId, WorkerId};
use crate::marks;
use crate::mem::Memory;

use super::arrays::allocated;
use super::fit::{Demand, Fit, RegionBlocks};
use super::region::ring_distance;
use super::retire::Vacancy;
use super::{
    AllocError, Block, BlockKind, BlockTable, BlockUsage, Geometry, LocateError, SizeClass,
    TableError,
};

/// Sizes that the block allocator works with.
#[derive(Clone, Copy, Debug)]
pub struct BlockConfig {
    /// Bytes in a block, a power of two (1 MiB in production).
    pub block_bytes: usize,
    /// Bytes in a region.
    pub region_bytes: usize,
    /// Most bytes of regions on this machine.
    pub per_machine_bytes: u64,
    /// Seed of the bases of new regions' blocks ([`Base`](crate::object::Base)). Draw a new one at each start of a
    /// machine, so that pointers that were stored before a restart do not match.
    pub seed: u64,
}

/// Makes regions: picks an id ([`super::choose_region_id`]), maps and exports memory, records the
/// region (`FaRM'14 §3.3`: the cluster-wide region allocator).
pub trait RegionSource {
    /// A new region with `region_bytes` of zeroed memory, on the ring of `near` and close to it if
    /// given.
    ///
    /// # Errors
    /// [`AllocError::NoRegion`] when it cannot be made.
    fn new_region(&mut self, near: Option<RegionId>) -> Result<(RegionId, Memory), AllocError>;
}

impl<F> RegionSource for F
where
    F: FnMut(Option<RegionId>) -> Result<(RegionId, Memory), AllocError>,
{
    fn new_region(&mut self, near: Option<RegionId>) -> Result<(RegionId, Memory), AllocError> {
        self(near)
    }
}

/// Where a block is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this region.
    In(RegionId),
    /// In a region on the ring of this one, the nearest first; in a new one there if need be.
    Near(RegionId),
    /// Anywhere, in a new region if need be.
    Anywhere,
}

/// Whom a slab allocator asks for blocks: the machine's [`BlockAllocator`], alone or shared.
pub trait BlockSource {
    /// Whether the region is one of this machine's.
    fn has_region(&self, region: RegionId) -> bool;

    /// A block for the objects of `class`, owned by `owner`. `None` when the place has no room;
    /// never when it is [`Place::Anywhere`].
    ///
    /// # Errors
    /// [`AllocError`]; nothing was taken then.
    fn acquire(
        &mut self,
        class: SizeClass,
        owner: WorkerId,
        place: Place,
    ) -> Result<Option<Block>, AllocError>;

    /// Takes back a block of a slab, in which no slot is taken: it is vacant from now on.
    fn give_back(&mut self, block: Block);
}

/// Counts every event after which a block might be had that was not to be had before, so that a slab
/// need not ask again until then.
#[derive(Clone, Debug, Default)]
pub struct Changes(Arc<AtomicU64>);

impl Changes {
    /// Events so far.
    #[inline]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// The machine's block allocator. One owner; workers share it behind `Arc<Mutex<_>>`, which is a
/// [`BlockSource`] too.
pub struct BlockAllocator {
    pub(super) config: BlockConfig,
    geometry: Geometry,
    source: Box<dyn RegionSource + Send>,
    /// Draws the bases of new regions.
    rng: Xoshiro256PlusPlus,
    pub(super) regions: Vec<RegionBlocks>,
    pub(super) in_use: u64,
    /// Cuts so far: see [`BlockAllocator::cut`].
    pub(super) cuts: u64,
    pub(super) changes: Changes,
}

impl BlockAllocator {
    /// An allocator without regions; it asks `source` for them.
    ///
    /// # Panics
    /// If a region of these sizes has no room for a block.
    pub fn new(config: BlockConfig, source: impl RegionSource + Send + 'static) -> Self {
        let geometry = Geometry::new(config.block_bytes, config.region_bytes)
            .unwrap_or_else(|| panic!("no blocks in regions of {config:?}"));
        Self {
            config,
            geometry,
            source: Box::new(source),
            rng: Xoshiro256PlusPlus::seed_from_u64(config.seed),
            regions: Vec::new(),
            in_use: 0,
            cuts: 0,
            changes: Changes::default(),
        }
    }

    /// Sizes and places of the blocks of every region that it makes.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Tells slab allocators when to ask again.
    pub fn changes(&self) -> Changes {
        self.changes.clone()
    }

    /// Takes in a region that has a block table already: after a restart, or as its new primary.
    ///
    /// # Errors
    /// [`AllocError::Table`] or [`AllocError::RegionExists`].
    pub fn adopt_region(&mut self, table: BlockTable) -> Result<(), AllocError> {
        if self.index_of(table.region()).is_some() {
            return Err(AllocError::RegionExists(table.region()));
        }
        table.check()?;
        let mut vacant: BTreeMap<SizeClass, Vec<Vacancy>> = BTreeMap::new();
        let mut arrays = BTreeMap::new();
        let mut free = table.geometry().blocks() - table.geometry().first_block();
        let mut next = 0;
        while let Some(block) = table.next_block(next)? {
            free -= block.head().run;
            match block.head().kind {
                BlockKind::Vacant => {
                    vacant.entry(block.head().class).or_default().push(Vacancy {
                        index: block.index(),
                        since: self.cuts,
                    });
                }
                BlockKind::Array => _ = arrays.insert(block.index(), allocated(&block)),
                BlockKind::Slab => {}
            }
            next = BlockTable::next_after(&block);
        }
        self.in_use += table.memory().len() as u64;
        let lowest_free = table.geometry().first_block();
        self.regions.push(RegionBlocks {
            table,
            lowest_free,
            free,
            vacant,
            arrays,
        });
        self.changes.add();
        Ok(())
    }

    /// The block tables of all regions, in the order the regions came.
    pub fn tables(&self) -> impl Iterator<Item = &BlockTable> {
        self.regions.iter().map(|region| &region.table)
    }

    /// The worker that this object belongs to, where a free of it goes.
    ///
    /// # Errors
    /// [`LocateError`] when no object of this machine's can be there.
    pub fn owner_of(&self, address: Address) -> Result<WorkerId, LocateError> {
        let region = self.region_of(address)?;
        self.regions[region].table.owner_of(address.offset())
    }

    /// What the machine's blocks are used for.
    ///
    /// # Errors
    /// [`TableError`] when a table is damaged.
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
            let tail = geometry.blocks() - geometry.first_block();
            let mut free = tail as usize * geometry.block_bytes();
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

    pub(super) fn obtain(
        &mut self,
        demand: Demand,
        owner: WorkerId,
        place: Place,
    ) -> Result<Option<Block>, AllocError> {
        match place {
            Place::In(region) => match self.index_of(region) {
                Some(index) => Ok(self.regions[index].take(demand, owner)?),
                None => Ok(None),
            },
            Place::Near(region) => self.obtain_near(demand, owner, region),
            Place::Anywhere => self.obtain_anywhere(demand, owner).map(Some),
        }
    }

    fn obtain_near(
        &mut self,
        demand: Demand,
        owner: WorkerId,
        near: RegionId,
    ) -> Result<Option<Block>, AllocError> {
        let distance = |region: &RegionBlocks| ring_distance(region.table.region(), near);
        let mut on_ring: Vec<(u32, usize)> = (0..self.regions.len())
            .filter_map(|index| Some((distance(&self.regions[index])?, index)))
            .collect();
        on_ring.sort_unstable();
        for (_, index) in on_ring {
            if let Some(block) = self.regions[index].take(demand, owner)? {
                return Ok(Some(block));
            }
        }
        match self.grow(demand, Some(near)) {
            Ok(index) => Ok(self.regions[index].take(demand, owner)?),
            Err(AllocError::Table(damage)) => Err(damage.into()),
            // Nearness is a wish: what there is elsewhere will do.
            Err(_) => Ok(None),
        }
    }

    fn obtain_anywhere(&mut self, demand: Demand, owner: WorkerId) -> Result<Block, AllocError> {
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
        match self.grow(demand, None) {
            Ok(index) => {
                let block = self.regions[index].take(demand, owner)?;
                Ok(block.expect("an empty region has room, or it would not have been made"))
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

    /// Makes a region, if the machine may have one more and an empty one meets the demand.
    fn grow(&mut self, demand: Demand, near: Option<RegionId>) -> Result<usize, AllocError> {
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
        let (in_use, limit) = (self.in_use, self.config.per_machine_bytes);
        if in_use.saturating_add(self.config.region_bytes as u64) > limit {
            return Err(AllocError::OutOfMemory {
                asked: demand.bytes(),
                in_use,
                limit,
            });
        }
        let (id, memory) = self.source.new_region(near)?;
        if self.has_region(id) {
            return Err(AllocError::RegionExists(id));
        }
        assert!(
            memory.len() >= self.config.region_bytes,
            "region {id} was made with {} bytes instead of {}",
            memory.len(),
            self.config.region_bytes
        );
        // A mapping may be longer, by whole pages; the region is not.
        let memory = memory.window(0, self.config.region_bytes);
        let block_bytes = self.config.block_bytes;
        let table = BlockTable::format(memory, id, block_bytes, &mut self.rng)?;
        self.adopt_region(table)?;
        marks::mark("alloc: region made");
        Ok(self.regions.len() - 1)
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
        self.obtain(Demand::Slab(class), owner, place)
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

const POISONED: &str = "a worker died while it held the block allocator";
