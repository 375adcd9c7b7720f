//! The memory that one machine contributes: its regions, and the block allocator over them, shared by its workers.

mod adopting;
mod memory;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use arc_swap::ArcSwapOption;
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::backups::{Backups, Prepared};
use super::map::{RegionMap, Replicas};
use super::placement::{Placement, spread};
use super::promoted::Promoted;
pub(crate) use super::promoted::Scan;
use super::remote::RemoteRegions;
use crate::alloc::{
    AllocError, ArrayRun, Block, BlockAllocator, BlockConfig, BlockSource, BlockTable, BlockUsage,
    Changes, Cut, Geometry, Growth, LocateError, Mismatch, Place, ReleaseError, SizeClass, Slab,
    TableError,
};
use crate::fabric::Capability;
use crate::ids::{Address, MachineId, RegionId, WorkerId};
use crate::mem::Memory;
use crate::membership::configuration::{Configuration, Domain, RegionReplicas};
use memory::{NewRegions, Regions};

pub use memory::{AllocationError, RegionMemory};

/// The copies of the regions of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replication {
    /// Number of copies of every region, its primary included.
    pub replicas: usize,
    /// Whether commits write records of all that they change. Then blocks keep their classes: their heads on backups would have
    /// to change with them.
    pub logged: bool,
    /// Where machines stand. Machines that are not here stand apart from all others.
    pub domains: BTreeMap<MachineId, Domain>,
}

impl Default for Replication {
    fn default() -> Self {
        Self {
            replicas: 1,
            logged: false,
            domains: BTreeMap::new(),
        }
    }
}

/// The regions of one machine.
pub struct Store {
    local: MachineId,
    placement: Placement,
    changes: Changes,
    blocks: Mutex<BlockAllocator>,
    geometry: Geometry,
    regions: Regions,
    promoted: Mutex<Promoted>,
    /// Whether `promoted` has regions or blocks.
    adopting: AtomicBool,
    map: Arc<RegionMap>,
    remote: RemoteRegions,
    /// Whether regions are placed on this machine.
    is_used: bool,
    config: BlockConfig,
    replication: Replication,
    /// The configuration that this machine has applied last; `None` while that is the first one.
    applied: ArcSwapOption<Configuration>,
    /// Its number, 0 while that is the first one. It changes before the map does.
    newest: AtomicU64,
    backups: Option<Backups>,
    filling: Mutex<Filling>,
}

/// Replicas of this machine that are to be filled, in any order. A process fills each replica once.
#[derive(Default)]
struct Filling {
    waiting: VecDeque<RegionId>,
    known: BTreeSet<RegionId>,
}

impl Store {
    /// Creates an empty store on machine `local`; `memory` allocates regions as they are needed.
    pub fn new(
        config: BlockConfig,
        local: MachineId,
        placement: Placement,
        seed: u64,
        memory: impl RegionMemory + 'static,
    ) -> Self {
        let regions = Regions::default();
        let map = Arc::new(RegionMap::default());
        let source = NewRegions {
            local,
            placement: placement.clone(),
            map: Arc::clone(&map),
            regions: Arc::clone(&regions),
            region_bytes: config.region_bytes,
            memory,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
        };
        let blocks = BlockAllocator::new(config, source);
        let is_used = placement.contains(local);
        Self {
            local,
            is_used,
            placement,
            changes: blocks.changes(),
            geometry: blocks.geometry(),
            blocks: Mutex::new(blocks),
            regions,
            promoted: Mutex::default(),
            adopting: AtomicBool::new(false),
            map,
            remote: RemoteRegions::default(),
            config,
            replication: Replication::default(),
            applied: ArcSwapOption::empty(),
            newest: AtomicU64::new(0),
            backups: None,
            filling: Mutex::default(),
        }
    }

    /// Sets how many copies of regions there are, and how this machine makes its copies of other machines' regions.
    #[must_use]
    pub fn with_replication(mut self, replication: Replication, backups: Backups) -> Self {
        if replication.replicas > 1 {
            lock(&self.blocks).make_ahead();
        }
        (self.replication, self.backups) = (replication, Some(backups));
        self
    }

    /// Returns how many copies of regions there are.
    #[inline]
    pub fn replication(&self) -> &Replication {
        &self.replication
    }

    /// Returns this machine's copies of other machines' regions.
    pub fn backups(&self) -> Option<&Backups> {
        self.backups.as_ref()
    }

    /// Has the memory made for a copy of another machine's region.
    pub(crate) fn prepare_backup(&self, region: RegionId) -> Prepared {
        match &self.backups {
            // A request that came late, of a machine that was lost.
            _ if self.region(region).is_some() => {
                Prepared::No("this machine is its primary".into())
            }
            Some(backups) => backups.prepare(region, &self.config),
            None => Prepared::No("this machine keeps no copies".into()),
        }
    }

    /// Returns the placement of regions on machines.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Returns the regions of the cluster.
    #[inline]
    pub fn map(&self) -> &RegionMap {
        &self.map
    }

    /// Returns the machines that may store copies of a new region of this machine, those first that are to: the backups of the
    /// region's hint group, then those that hashing proposes, in different failure domains.
    ///
    /// A hint group is what one machine stores on one virtual ring: a region near another one is on the same ring. Objects that
    /// were allocated near each other then have their replicas on the same machines (`FaRM'14 §3.3`), also where a backup without
    /// memory was replaced when the group's first region was made.
    pub(crate) fn propose_backups(&self, region: RegionId) -> impl Iterator<Item = MachineId> {
        let machines = self.placement.machines();
        let ring: Vec<MachineId> = self.placement.replicas(region, machines).collect();
        let domains = &self.replication.domains;
        let hashed = spread(&ring, |id| domains.get(&id)).into_iter().skip(1);
        let mut proposed = self
            .map
            .closest_of_group(region, ring[0])
            .map_or(Vec::new(), |group| group.backups().to_vec());
        for machine in hashed {
            if !proposed.contains(&machine) {
                proposed.push(machine);
            }
        }
        proposed.into_iter()
    }

    /// Returns the machines that may store further replicas of a region, those first that are to: those that hashing proposes, in other
    /// failure domains than its replicas where possible.
    pub(crate) fn propose_replicas(&self, region: &RegionReplicas) -> Vec<MachineId> {
        let machines = self.placement.machines();
        let ring = self.placement.replicas(region.region, machines);
        let mut order: Vec<MachineId> = region.machines().collect();
        let known = order.len();
        let further: Vec<MachineId> = ring.filter(|one| !order.contains(one)).collect();
        order.extend(further);
        let domains = &self.replication.domains;
        let mut proposed = spread(&order, |id| domains.get(&id));
        proposed.retain(|machine| !order[..known].contains(machine));
        proposed
    }

    /// Adds replicas of this machine that are to be filled.
    pub(crate) fn fill_later(&self, regions: impl Iterator<Item = RegionId>) {
        let mut filling = lock(&self.filling);
        for region in regions {
            if filling.known.insert(region) {
                filling.waiting.push_back(region);
            }
        }
    }

    /// Takes a replica that is to be filled.
    pub(crate) fn take_to_fill(&self) -> Option<RegionId> {
        lock(&self.filling).waiting.pop_front()
    }

    /// Returns the configuration that this machine has applied last, or that its workers are applying; `None` while that is the first
    /// one.
    pub fn applied(&self) -> Option<Arc<Configuration>> {
        self.applied.load_full()
    }

    /// As [`Store::applied`], if it is the configuration with this number, and not a later one.
    pub fn applied_as(&self, id: u64) -> Option<Arc<Configuration>> {
        self.applied().filter(|applied| applied.version.id == id)
    }

    /// Returns whether this machine is changing to a later configuration than this one, which a worker has applied. What the
    /// [map](Store::map) has said before is of the worker's configuration if this returns false afterwards.
    #[inline]
    pub fn is_past(&self, configuration: u64) -> bool {
        self.newest.load(Ordering::Acquire) > configuration
    }

    /// Returns the configuration in which the primary of a region changed last, as far as this machine has applied configurations; 0 if
    /// none of them has the region.
    pub fn primary_since(&self, region: RegionId) -> u64 {
        let applied = self.applied();
        let replicas = applied.as_ref().and_then(|applied| applied.region(region));
        replicas.map_or(0, |replicas| replicas.last_primary_change)
    }

    /// Changes to another configuration: its regions replace those that are known.
    pub(crate) fn apply(&self, configuration: Arc<Configuration>) {
        self.newest
            .store(configuration.version.id, Ordering::Release);
        let regions = configuration.regions.iter();
        let regions = regions.filter_map(Replicas::recorded);
        self.map.replace(regions.collect());
        if let Some(catalog) = configuration.catalog {
            self.map.set_catalog(catalog);
        }
        self.remote
            .keep(|machine| configuration.member(machine).is_some());
        lock(&self.promoted).pause();
        self.applied.store(Some(configuration));
    }

    /// Begins with a configuration, and with the full replicas of this machine that its earlier processes have kept. They are served when
    /// transactions of earlier configurations are recovered. Its other replicas get new memory, and are filled again: a process that was
    /// killed while it filled them may have left objects locked without a record of the lock.
    ///
    /// # Errors
    /// [`AllocationError`]: the table of a region is damaged, or there is no memory for a replica.
    ///
    /// # Panics
    /// If the store keeps no copies.
    pub fn resume(
        &self,
        configuration: Arc<Configuration>,
        regions: impl IntoIterator<Item = (RegionId, (Memory, Capability))>,
    ) -> Result<(), AllocationError> {
        let backups = self.backups.as_ref();
        let backups = backups.expect("a machine whose regions are kept has copies");
        for (region, (memory, capability)) in regions {
            let memory = memory.window(0, self.config.region_bytes);
            BlockTable::open_after_crash(memory.clone(), region)?;
            backups.add(region, (memory, capability));
        }
        let regions = configuration.regions.iter();
        for region in regions.filter(|region| region.is_filled_by(self.local)) {
            backups.make(region.region, &self.config)?;
        }
        self.apply(configuration);
        Ok(())
    }

    /// Returns whether regions are placed on this machine. A machine without memory of its own stores nothing.
    #[inline]
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    /// Returns the sizes and positions of the blocks of every region.
    #[inline]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Returns the capabilities of other machines' regions.
    pub(crate) fn remote(&self) -> &RemoteRegions {
        &self.remote
    }

    /// Creates a slab allocator for a worker.
    pub fn slab(&self, worker: WorkerId) -> Slab {
        Slab::new(worker, self.changes.clone())
    }

    /// Compares a worker's slab allocator, and the machine's arrays, with the allocated bits in memory: see
    /// [`Slab::check`] and [`BlockAllocator::check_arrays`].
    ///
    /// # Errors
    /// The first [`Mismatch`].
    pub fn check_slab(&self, slab: &Slab) -> Result<(), Mismatch> {
        let blocks = lock(&self.blocks);
        blocks.check_arrays()?;
        slab.check(blocks.tables())
    }

    /// Returns the memory and the capability of a region of this machine.
    pub fn region(&self, id: RegionId) -> Option<(Memory, Capability)> {
        lock(&self.regions).get(&id).cloned()
    }

    /// Announces that this machine, which has no region, will soon need one.
    pub fn prepare_first_region(&self) {
        lock(&self.blocks).prepare_first();
    }

    /// As [`BlockSource::acquire`]. If `waits` is false, does not wait until the memory of a new region is made.
    ///
    /// # Errors
    /// As [`BlockSource::acquire`]; [`AllocError::NoRegionYet`].
    pub(crate) fn acquire_block(
        &self,
        class: SizeClass,
        owner: WorkerId,
        place: Place,
        waits: bool,
    ) -> Result<Option<Block>, AllocError> {
        let growth = self.growth(waits);
        lock(&self.blocks).acquire_by(class, owner, place, growth)
    }

    /// Returns when a request may make a region. While the block allocator does not have regions that were another machine's, none is made
    /// to be near one of these: the worker would stand still until it is made, in the middle of a recovery.
    fn growth(&self, waits: bool) -> Growth {
        Growth {
            near: !self.is_adopting(),
            waits,
        }
    }

    /// Returns the memory of this machine's replica of a region, as its primary or as a backup.
    pub fn replica(&self, id: RegionId) -> Option<Memory> {
        match self.region(id) {
            // A mapping has whole pages and may be longer than the region.
            Some((memory, _)) => Some(memory.window(0, self.config.region_bytes)),
            None => self.backups.as_ref()?.memory(id),
        }
    }

    /// Allocates adjacent objects; see [`BlockAllocator::allocate_array`].
    ///
    /// # Errors
    /// [`AllocError`]: nothing is allocated.
    pub fn allocate_array(
        &self,
        class: SizeClass,
        count: u32,
        owner: WorkerId,
        near: Option<RegionId>,
    ) -> Result<ArrayRun, AllocError> {
        let growth = self.growth(true);
        lock(&self.blocks).allocate_array_by(class, count, owner, near, growth)
    }

    /// Releases a slot that is in no block of the calling worker. A slot of an array is released at once
    /// ([`BlockAllocator::release_of_array`]). For a slot of a slab, returns the worker that owns its block and must
    /// release it.
    ///
    /// # Errors
    /// [`ReleaseError`] if no object of this machine can be at the address, or it was released already.
    pub fn release(&self, address: Address) -> Result<Option<WorkerId>, ReleaseError> {
        if !address.is_null() && self.release_adopting(address) {
            return Ok(None);
        }
        let mut blocks = lock(&self.blocks);
        match blocks.release_of_array(address) {
            Ok(_) => Ok(None),
            Err(not_ours @ ReleaseError::NotOurs(_)) => {
                blocks.owner_of(address).map(Some).map_err(|_| not_ours)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns whether available memory is below its threshold: see [`BlockAllocator::is_low`].
    pub fn is_low(&self) -> bool {
        lock(&self.blocks).is_low()
    }

    /// See [`BlockAllocator::cut`]. If commits are logged, there is never anything to reclaim.
    pub fn cut(&self) -> Option<Cut> {
        match self.replication.logged {
            true => None,
            false => lock(&self.blocks).cut(),
        }
    }

    /// Frees one block that was vacant before the cut, for objects of any class, and returns its bytes, or `None` if
    /// there is no such block. [`BlockAllocator::take_vacant_before`] states when this is allowed. The lock is not held
    /// while the block is renewed.
    ///
    /// # Errors
    /// [`TableError`] if a region's table is damaged.
    pub fn free_vacant_before(&self, cut: Cut) -> Result<Option<u64>, TableError> {
        let Some(block) = lock(&self.blocks).take_vacant_before(cut)? else {
            return Ok(None);
        };
        block.renew()?;
        lock(&self.blocks).freed(&block);
        Ok(Some(block.bytes() as u64))
    }

    /// Returns whether an allocation, or the scan of a region, holds a lock at this moment. For schedulers that run several workers in
    /// one thread: such a worker must not be interrupted by another worker of its machine.
    pub fn is_locked(&self) -> bool {
        self.blocks.try_lock().is_err() || self.promoted.try_lock().is_err()
    }

    /// Returns the word by which backups learn of the block of an object: [`BlockAllocator::block_word`].
    ///
    /// # Errors
    /// [`LocateError`] if no object of this machine can be at the address.
    pub fn block_word(&self, address: Address) -> Result<u64, LocateError> {
        lock(&self.blocks).block_word(address)
    }

    /// Returns how the machine's blocks are used.
    ///
    /// # Errors
    /// [`TableError`] if a region's table is damaged.
    pub fn usage(&self) -> Result<BlockUsage, TableError> {
        lock(&self.blocks).usage()
    }
}

/// The blocks of a shared store; the lock is held only while a block is acquired or given back.
impl BlockSource for &Store {
    fn has_region(&self, region: RegionId) -> bool {
        lock(&self.regions).contains_key(&region)
    }

    fn acquire(
        &mut self,
        class: SizeClass,
        owner: WorkerId,
        place: Place,
    ) -> Result<Option<Block>, AllocError> {
        self.acquire_block(class, owner, place, true)
    }

    fn give_back(&mut self, block: Block) {
        lock(&self.blocks).give_back(block);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .expect("no thread panics while it holds the lock of the region store")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::choose_region_id;

    #[test]
    fn a_region_has_the_backups_of_its_hint_group() {
        let machines: Vec<MachineId> = (1..=5).filter_map(MachineId::new).collect();
        let placement = Placement::new(&machines);
        let local = machines[0];
        let config = BlockConfig {
            block_bytes: 4096,
            region_bytes: 16 * 4096,
            per_machine_bytes: 0,
            seed: 1,
        };
        let memory = |id, _| panic!("region {id} is made");
        let store = Store::new(config, local, placement.clone(), 1, memory);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(3);
        let mut known = Vec::new();
        let mut near = |near: Option<RegionId>| {
            let made =
                choose_region_id(&placement, local, near, |id| known.contains(&id), &mut rng);
            known.extend(made);
            made.unwrap()
        };
        let first = near(None);
        let hashed: Vec<MachineId> = store.propose_backups(first).collect();
        assert_eq!(hashed.len(), 4);
        // The first backup had no memory, so the second one and the last have the copies.
        let replaced = [local, hashed[1], hashed[3]];
        store
            .map
            .record(&[(first, Replicas::new(replaced).unwrap())]);
        let next = near(Some(first));
        let expected = [hashed[1], hashed[3], hashed[0], hashed[2]];
        assert!(store.propose_backups(next).eq(expected));
        // Another ring, and another machine's regions of this ring, are other groups.
        let mut others = std::iter::repeat_with(|| near(None));
        let other = others.find(|id| id.ring() != first.ring()).unwrap();
        let of_other: Vec<MachineId> = store.propose_backups(other).collect();
        let hashed = placement.replicas(other, 5).skip(1);
        assert!(of_other.iter().copied().eq(hashed));
        let foreign = placement.segment(first.ring(), machines[1]).unwrap();
        let foreign = RegionId::new(first.ring(), foreign.position(0)).unwrap();
        let replicas = Replicas::new([machines[1], machines[4]]).unwrap();
        store.map.record(&[(foreign, replicas)]);
        assert!(store.propose_backups(next).eq(expected));
    }
}
