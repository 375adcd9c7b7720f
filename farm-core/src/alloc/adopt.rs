//! Takes a region into a block allocator that has not made it: the block table names the blocks, and the allocated bit in each
//! object's header shows which slots are taken (`FaRM'14 §3.3`: "scanned during recovery to reconstruct allocator data structures";
//! `FaRM'15 §5.5`).
//!
//! The scan goes on in steps, while transactions free objects of the region: a slot that is freed after it was scanned is reported by
//! [`Adoption::release`], and one that is freed before is found. Nothing may be reserved in the region before it is adopted.

use std::collections::BTreeMap;

use super::bitmap::FreeSlots;
use super::fit::RegionBlocks;
use super::reclassify::Vacancy;
use super::{
    AllocError, Block, BlockAllocator, BlockHead, BlockKind, BlockTable, Slab, TableError,
};
use crate::ids::{Address, WorkerId};
use crate::{marks, mutants};

/// A region whose free slots are being searched for.
pub struct Adoption {
    table: BlockTable,
    found: BTreeMap<u32, Found>,
    /// The block at which the search for the next run begins. The last run that was found is being scanned.
    next: u32,
}

/// A run of blocks. Slots that are not scanned yet count as free.
struct Found {
    of: AdoptedBlock,
    /// Number of slots that were scanned, from the first on.
    scanned: u32,
}

impl Found {
    /// Scans at most this many slots. Returns the number of slots that were scanned.
    fn scan(&mut self, most: u32) -> u32 {
        let AdoptedBlock { block, free } = &mut self.of;
        let begin = self.scanned;
        self.scanned = block.slots().min(begin.saturating_add(most));
        for slot in begin..self.scanned {
            if block.is_taken(slot) && !mutants::is_on("taken slot handed out") {
                free.take(slot);
            }
        }
        self.scanned - begin
    }

    fn is_scanned(&self) -> bool {
        self.scanned == self.of.block.slots()
    }
}

/// A block of an adopted region for the slab allocator of one worker, with its free slots.
pub struct AdoptedBlock {
    block: Block,
    free: FreeSlots,
}

impl AdoptedBlock {
    /// Returns the worker that is to have the block.
    pub(crate) fn owner(&self) -> WorkerId {
        self.block.head().owner
    }

    /// Releases the slot of an object of the same region, which was freed. Returns false if it is in another block.
    pub(crate) fn release(&mut self, address: Address) -> bool {
        let slot = self.block.slot_at(address.offset());
        slot.is_some_and(|slot| {
            self.free.give(slot);
            true
        })
    }

    /// Returns the objects that are allocated, for an array: those that are still to be released.
    fn allocated(&self) -> FreeSlots {
        let mut held = FreeSlots::new(self.free.slots());
        for slot in (0..held.slots()).filter(|slot| self.free.is_free(*slot)) {
            held.take(slot);
        }
        held
    }
}

impl Adoption {
    /// Begins with the table of a region.
    pub fn new(table: BlockTable) -> Self {
        Self {
            table,
            found: BTreeMap::new(),
            next: 0,
        }
    }

    /// Scans at most this many slots. Returns whether all are scanned.
    ///
    /// # Errors
    /// [`TableError`] if the table is damaged.
    pub fn step(&mut self, mut most: u32) -> Result<bool, TableError> {
        loop {
            if let Some(found) = self.found.values_mut().next_back() {
                most -= found.scan(most);
                if !found.is_scanned() {
                    return Ok(false);
                }
            }
            let Some(block) = self.table.next_block(self.next)? else {
                return Ok(true);
            };
            self.next = BlockTable::next_after(&block);
            let (index, free) = (block.index(), FreeSlots::new(block.slots()));
            let of = AdoptedBlock { block, free };
            self.found.insert(index, Found { of, scanned: 0 });
        }
    }

    /// Handles that an object of the region was freed: if its slot was scanned, it is free now. Otherwise the scan finds it.
    pub fn release(&mut self, address: Address) {
        let Ok((index, _)) = self.table.block_at(address.offset()) else {
            return;
        };
        if let Some(Found { of, scanned }) = self.found.get_mut(&index)
            && let Some(slot) = of.block.slot_at(address.offset())
            && slot < *scanned
            && of.release(address)
        {
            marks::mark("adopt: freed behind the scan");
        }
    }
}

impl BlockAllocator {
    /// Adds a region that was scanned, on a machine with this many workers: its free blocks, blocks without objects, and arrays. Returns
    /// the blocks of single objects: each is to be given to the slab allocator of its owner ([`Slab::take_adopted`]), the worker whose
    /// number is that of the owner before, modulo the number of workers.
    ///
    /// # Errors
    /// [`AllocError::RegionExists`]: nothing was added.
    ///
    /// # Panics
    /// If there are no workers.
    pub fn adopt(
        &mut self,
        scanned: Adoption,
        workers: usize,
    ) -> Result<Vec<AdoptedBlock>, AllocError> {
        let Adoption { table, found, .. } = scanned;
        if self.index_of(table.region()).is_some() {
            return Err(AllocError::RegionExists(table.region()));
        }
        let mut vacant: BTreeMap<_, Vec<Vacancy>> = BTreeMap::new();
        let mut arrays = BTreeMap::new();
        let mut blocks = Vec::new();
        let mut free = table.geometry().object_blocks();
        for (index, Found { of, .. }) in found {
            let head = of.block.head();
            free -= head.run;
            if of.free.free() == of.free.slots() {
                marks::mark("adopt: a block without objects");
                table.rewrite_head(index, head.vacant());
                let since = self.cuts;
                let vacancies = vacant.entry(head.class).or_default();
                vacancies.push(Vacancy { index, since });
            } else if head.kind == BlockKind::Array {
                arrays.insert(index, of.allocated());
            } else {
                let owner = WorkerId::new((head.owner.index() % workers) as u16);
                let head = BlockHead {
                    kind: BlockKind::Slab,
                    owner: owner.expect("a machine has no more workers than are allowed"),
                    ..head
                };
                table.rewrite_head(index, head);
                blocks.push(AdoptedBlock {
                    block: Block::new(table.clone(), index, head, of.block.base()),
                    free: of.free,
                });
            }
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
        Ok(blocks)
    }
}

impl Slab {
    /// Adds a block of an adopted region, which this slab allocator owns.
    pub fn take_adopted(&mut self, adopted: AdoptedBlock) {
        let AdoptedBlock { block, free } = adopted;
        self.adopt(block, free);
    }
}
