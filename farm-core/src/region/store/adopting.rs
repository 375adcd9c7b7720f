//! Regions that were another machine's: this machine serves them at once, and allocates in them when their slots have been scanned.

use std::sync::atomic::Ordering;

use super::{Store, lock};
use crate::alloc::{AdoptedBlock, AllocError, BlockTable, TableError};
use crate::ids::{Address, RegionId, WorkerId};
use crate::region::promoted::{Promoted, Scan};

impl Store {
    /// Makes this machine's copy of a region the region itself. Returns whether the machine has the region now.
    pub(crate) fn promote(&self, id: RegionId) -> bool {
        if self.region(id).is_some() {
            return true;
        }
        let copy = self.backups.as_ref().and_then(|copies| copies.take(id));
        if let Some(copy) = copy {
            // Workers that find the region must find locked what recovery has locked. The mutexes order that, but simulated memory knows only
            // fences.
            copy.0.fence(Ordering::SeqCst);
            let mut promoted = lock(&self.promoted);
            promoted.add(id);
            self.note_adopting(&promoted);
            lock(&self.regions).insert(id, copy);
        }
        self.region(id).is_some()
    }

    /// Returns whether a region that was another machine's is not yet in the hands of the allocators.
    pub fn is_adopting(&self) -> bool {
        self.adopting.load(Ordering::Acquire)
    }

    /// Goes on with scans: all machines have recovered.
    pub(crate) fn go_on_adopting(&self) {
        lock(&self.promoted).go_on();
    }

    /// Begins to scan a region that was another machine's, and that no worker scans, on a machine with this many other workers.
    ///
    /// # Errors
    /// [`TableError`] if its table is damaged.
    pub(crate) fn begin_to_adopt(&self, others: usize) -> Result<Option<RegionId>, TableError> {
        let mut promoted = lock(&self.promoted);
        let Some(region) = promoted.take_waiting() else {
            return Ok(None);
        };
        let memory = self.replica(region);
        let memory = memory.expect("a region that was promoted has memory");
        promoted.begin(BlockTable::open_in_use(memory, region)?, others);
        Ok(Some(region))
    }

    /// Scans at most this many slots of such a region.
    ///
    /// # Errors
    /// [`TableError`] if its table is damaged.
    pub(crate) fn scan(&self, region: RegionId, most: u32) -> Result<Scan, TableError> {
        lock(&self.promoted).scan(region, most)
    }

    /// Handles that another worker has turned since the scan of a region ended. Returns whether all have.
    pub(crate) fn turned(&self, region: RegionId) -> bool {
        lock(&self.promoted).turned(region)
    }

    /// Gives a scanned region to the block allocator. Each worker takes its blocks afterwards. Returns false if a worker has not turned
    /// since the scan ended, or the machines recover.
    ///
    /// # Errors
    /// [`AllocError::RegionExists`]: the block allocator has the region.
    pub(crate) fn adopt(&self, region: RegionId, workers: usize) -> Result<bool, AllocError> {
        let mut promoted = lock(&self.promoted);
        let Some(scanned) = promoted.take(region) else {
            return Ok(false);
        };
        let blocks = lock(&self.blocks).adopt(scanned, workers)?;
        promoted.keep(region, blocks);
        self.note_adopting(&promoted);
        Ok(true)
    }

    /// Takes the blocks of an adopted region that a worker owns.
    pub(crate) fn take_adopted(&self, region: RegionId, owner: WorkerId) -> Vec<AdoptedBlock> {
        let mut promoted = lock(&self.promoted);
        let blocks = promoted.take_blocks(region, owner);
        self.note_adopting(&promoted);
        blocks
    }

    fn note_adopting(&self, promoted: &Promoted) {
        self.adopting.store(!promoted.is_empty(), Ordering::Release);
    }

    /// As [`Promoted::release`].
    pub(super) fn release_adopting(&self, address: Address) -> bool {
        if self.is_adopting()
            && let Some((memory, _)) = self.region(address.region())
        {
            // A scan that begins after this call must find that the object is freed. The mutex orders that, but simulated memory knows
            // only fences.
            memory.fence(Ordering::SeqCst);
        }
        lock(&self.promoted).release(address)
    }
}
