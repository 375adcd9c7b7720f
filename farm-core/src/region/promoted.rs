//! Regions whose primaries were lost, and that this machine, which had a copy of each, serves since then: how memory in them becomes
//! allocatable (`FaRM'15 §5.5`).
//!
//! Until a region is in the [block allocator](crate::alloc::BlockAllocator), nothing is reserved in it. When all machines have
//! recovered, a worker [scans](crate::alloc::Adoption) it. A slot whose object is freed meanwhile is marked here, in the call that
//! frees it. When the scan is at its end, and every worker of the machine has turned since, no worker has freed an object whose slot it
//! is still to mark: so the block allocator gets the region, and each worker takes the blocks that it owns.
//!
//! While the machines recover from another loss, the scan stands still: recovery frees objects first, and marks their slots later.

use std::collections::{BTreeMap, VecDeque};

use crate::alloc::{AdoptedBlock, Adoption, BlockTable, TableError};
use crate::ids::{Address, RegionId, WorkerId};
use crate::marks;

/// How far the scan of a region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scan {
    /// There are more slots.
    GoesOn,
    /// All slots were looked at.
    Ended,
    /// The machines recover.
    Pauses,
}

/// The regions of a machine that are not in its block allocator, and blocks of others that were not taken by their workers.
#[derive(Default)]
pub(super) struct Promoted {
    /// `None` until a worker scans the region.
    regions: BTreeMap<RegionId, Option<Scanned>>,
    waiting: VecDeque<RegionId>,
    adopted: BTreeMap<RegionId, Vec<AdoptedBlock>>,
    pauses: bool,
}

struct Scanned {
    adoption: Adoption,
    /// Number of workers that have not turned since the scan ended.
    awaited: usize,
}

impl Promoted {
    /// Adds a region that this machine serves from now on.
    pub(super) fn add(&mut self, region: RegionId) {
        self.regions.insert(region, None);
        self.waiting.push_back(region);
    }

    /// Returns whether memory in a region is not in the hands of the block allocator, or of all workers.
    pub(super) fn is_empty(&self) -> bool {
        self.regions.is_empty() && self.adopted.is_empty()
    }

    pub(super) fn pause(&mut self) {
        self.pauses = true;
    }

    pub(super) fn go_on(&mut self) {
        self.pauses = false;
    }

    /// Takes a region that is to be scanned.
    pub(super) fn take_waiting(&mut self) -> Option<RegionId> {
        match self.pauses {
            true => None,
            false => self.waiting.pop_front(),
        }
    }

    /// Begins to scan a region, on a machine with this many other workers.
    pub(super) fn begin(&mut self, table: BlockTable, others: usize) {
        let region = table.region();
        let scanned = Scanned {
            adoption: Adoption::new(table),
            awaited: others,
        };
        self.regions.insert(region, Some(scanned));
    }

    /// Scans at most this many slots of a region.
    ///
    /// # Errors
    /// [`TableError`] if its table is damaged.
    pub(super) fn scan(&mut self, region: RegionId, most: u32) -> Result<Scan, TableError> {
        let scanned = self.regions.get_mut(&region).and_then(Option::as_mut);
        match scanned.filter(|_| !self.pauses) {
            None => Ok(Scan::Pauses),
            Some(scanned) => Ok(match scanned.adoption.step(most)? {
                true => Scan::Ended,
                false => Scan::GoesOn,
            }),
        }
    }

    /// Handles that one of the other workers has turned since the scan of a region ended. Returns whether all have.
    pub(super) fn turned(&mut self, region: RegionId) -> bool {
        let scanned = self.regions.get_mut(&region).and_then(Option::as_mut);
        scanned.is_some_and(|scanned| {
            scanned.awaited = scanned.awaited.saturating_sub(1);
            scanned.awaited == 0
        })
    }

    /// Takes a scanned region out, if all workers have turned, and the machines do not recover.
    pub(super) fn take(&mut self, region: RegionId) -> Option<Adoption> {
        let scanned = self.regions.get(&region)?.as_ref()?;
        if self.pauses || scanned.awaited > 0 {
            return None;
        }
        let scanned = self.regions.remove(&region)??;
        Some(scanned.adoption)
    }

    /// Keeps blocks until their workers take them.
    pub(super) fn keep(&mut self, region: RegionId, blocks: Vec<AdoptedBlock>) {
        if !blocks.is_empty() {
            self.adopted.insert(region, blocks);
        }
    }

    /// Takes the blocks of an adopted region that a worker owns.
    pub(super) fn take_blocks(&mut self, region: RegionId, owner: WorkerId) -> Vec<AdoptedBlock> {
        let Some(blocks) = self.adopted.get_mut(&region) else {
            return Vec::new();
        };
        let own = blocks.extract_if(.., |block| block.owner() == owner);
        let own = own.collect();
        if blocks.is_empty() {
            self.adopted.remove(&region);
        }
        own
    }

    /// Marks a slot as free. Returns false if the block allocator, or the worker that owns the block, is to do it.
    pub(super) fn release(&mut self, address: Address) -> bool {
        let region = address.region();
        if let Some(scanned) = self.regions.get_mut(&region) {
            marks::mark("alloc: freed in a region of a lost machine");
            // Before the scan begins, it is the scan that finds the slot.
            if let Some(scanned) = scanned {
                scanned.adoption.release(address);
            }
            return true;
        }
        let mut blocks = self.adopted.get_mut(&region).into_iter().flatten();
        blocks.any(|block| block.release(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::testing::{set_allocated, set_freed};
    use crate::alloc::{
        AllocError, BlockAllocator, BlockConfig, BlockUsage, Slab, class_for_payload, table_bases,
    };
    use crate::mem::Memory;

    const CONFIG: BlockConfig = BlockConfig {
        block_bytes: 4096,
        region_bytes: 16 * 4096,
        per_machine_bytes: 16 * 4096,
        seed: 7,
    };

    fn region() -> RegionId {
        RegionId::new(3, 9).unwrap()
    }

    /// Returns a region with one block of single objects, two of which are allocated, and their addresses.
    fn table() -> (BlockTable, [Address; 2]) {
        let memory = Memory::anonymous(CONFIG.region_bytes);
        let bases = &mut table_bases(CONFIG.seed, region());
        BlockTable::format(memory.clone(), region(), CONFIG.block_bytes, bases).unwrap();
        let made = memory.clone();
        let mut blocks = BlockAllocator::new(CONFIG, move |_near| {
            Ok::<_, AllocError>((region(), made.clone()))
        });
        let mut slab = Slab::new(WorkerId::FIRST, blocks.changes());
        let class = class_for_payload(8).unwrap();
        let addresses = [(); 2].map(|()| {
            let reserved = slab.reserve(class, None, &mut blocks).unwrap();
            set_allocated(&slab, &reserved, true);
            reserved.address
        });
        (BlockTable::open(memory, region()).unwrap(), addresses)
    }

    #[test]
    fn a_region_is_adopted_when_all_workers_have_turned_and_all_machines_have_recovered() {
        let (table, [one, other]) = table();
        let mut promoted = Promoted::default();
        promoted.add(region());
        promoted.pause();
        assert_eq!(promoted.take_waiting(), None);
        promoted.go_on();
        assert_eq!(promoted.take_waiting(), Some(region()));
        promoted.begin(table.clone(), 2);
        assert_eq!(promoted.scan(region(), 1), Ok(Scan::GoesOn));
        promoted.pause();
        assert_eq!(promoted.scan(region(), 1), Ok(Scan::Pauses));
        promoted.go_on();
        // The scan does not see what is freed behind it: the worker that frees an object says so, even if the scan has ended.
        set_freed(table.memory(), one);
        assert!(promoted.release(one));
        assert_eq!(promoted.scan(region(), u32::MAX), Ok(Scan::Ended));
        set_freed(table.memory(), other);
        assert!(promoted.take(region()).is_none());
        assert!(!promoted.turned(region()));
        assert!(promoted.release(other));
        assert!(promoted.take(region()).is_none());
        assert!(promoted.turned(region()));
        promoted.pause();
        assert!(promoted.take(region()).is_none());
        promoted.go_on();
        let adoption = promoted.take(region()).unwrap();
        let mut blocks = BlockAllocator::new(CONFIG, |_near| Err(AllocError::NoRegion("".into())));
        assert!(blocks.adopt(adoption, 3).unwrap().is_empty());
        assert!(promoted.is_empty() && !promoted.release(one));
        let BlockUsage { vacant_bytes, .. } = blocks.usage().unwrap();
        assert!(vacant_bytes > 0);
    }

    #[test]
    fn slots_are_freed_in_blocks_that_their_workers_have_not_taken() {
        let (table, [one, other]) = table();
        let mut promoted = Promoted::default();
        promoted.add(region());
        promoted.take_waiting();
        promoted.begin(table.clone(), 0);
        assert_eq!(promoted.scan(region(), u32::MAX), Ok(Scan::Ended));
        let adoption = promoted.take(region()).unwrap();
        let mut blocks = BlockAllocator::new(CONFIG, |_near| Err(AllocError::NoRegion("".into())));
        promoted.keep(region(), blocks.adopt(adoption, 1).unwrap());
        assert!(!promoted.is_empty());
        set_freed(table.memory(), one);
        assert!(promoted.release(one));
        assert!(
            promoted
                .take_blocks(region(), WorkerId::new(1).unwrap())
                .is_empty()
        );
        let mut slab = Slab::new(WorkerId::FIRST, blocks.changes());
        for block in promoted.take_blocks(region(), WorkerId::FIRST) {
            slab.take_adopted(block);
        }
        assert!(promoted.is_empty() && !promoted.release(other));
        assert!(!slab.is_reserved(one) && slab.is_reserved(other));
        assert_eq!(slab.check(blocks.tables()), Ok(()));
    }
}
