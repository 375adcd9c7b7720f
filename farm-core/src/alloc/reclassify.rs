//! Reuse of blocks for another class (`FaRM'14 §3.5`): "reusing memory for different object sizes requires more work
//! because the object header may be overwritten with arbitrary data".
//!
//! ```text
//!            Slab::retire                    reclaim: an epoch has ended since
//!  slab ─────────────────────▶ vacant ────────────────────────────────────────▶ free, zeroed,
//!   ▲                            │
//!   └──── reuse by its class ────┘
//! ```
//!
//! A vacant block has headers and no objects. An operation that still holds an address in it finds a header of the
//! expected class, with a later version and incarnation. The block can therefore be reused by its own class at any
//! time. Another class may use it only when no operation holds such an address: after every operation has ended, on all
//! machines, that began before the block was retired. To ensure that, [`crate::worker`] first takes a [`Cut`], then
//! waits, then frees the blocks that were retired before the cut and are still vacant. An epoch change that is
//! abandoned needs no cleanup.
//!
//! Reclaiming zeroes the memory and moves the block's [base](crate::object::Base) beyond every version and incarnation
//! in it. The next objects start from that base, so that a fat pointer to a freed object never matches a later object
//! (docs/decisions/0014).

use super::slab::NONE;
use super::{Block, BlockAllocator, BlockHead, BlockKind, BlockSource, Slab, TableError};
use crate::limits::LOW_MEMORY_SHARE;
use crate::marks;
use crate::mem::Context;

/// A moment that divides the retired blocks into blocks that were retired before the moment and blocks that were
/// retired after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cut(pub(crate) u64);

impl Context for Cut {
    fn to_word(self) -> u64 {
        self.0
    }

    fn from_word(word: u64) -> Self {
        Self(word)
    }
}

/// A vacant block, and the number of cuts when it was retired.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vacancy {
    pub(super) index: u32,
    pub(super) since: u64,
}

impl Slab {
    /// Retires every block without a reserved slot, and returns their number.
    ///
    /// Scans the blocks until no such block is left, and scans none if there is none.
    pub fn retire(&mut self, source: &mut dyn BlockSource) -> usize {
        let (mut retired, mut at) = (0, self.blocks.len());
        while self.unused_blocks > 0 && at > 0 {
            at -= 1;
            // The last block moves to the position of the removed one; it was scanned already.
            if self.blocks[at].is_unused() {
                marks::mark("alloc: block retired");
                source.give_back(self.remove(at as u32));
                retired += 1;
            }
        }
        retired
    }

    /// Removes a block without a reserved slot.
    fn remove(&mut self, at: u32) -> Block {
        self.unlist_block(at);
        self.list_of(at).blocks -= 1;
        let gone = self.blocks.swap_remove(at as usize);
        self.unused_blocks -= 1;
        self.cover(&gone.block, gone.region, NONE);
        let usage = &mut self.classes[gone.block.head().class.index()].usage;
        usage.blocks -= 1;
        usage.reserved_bytes -= gone.block.bytes() as u64;
        usage.slots -= u64::from(gone.slots.slots());
        if let Some(moved) = self.blocks.get(at as usize) {
            let (block, region, listed) = (moved.block.clone(), moved.region, moved.listed);
            self.cover(&block, region, at);
            if listed != NONE {
                self.list_of(at).with_free[listed as usize] = at;
            }
        }
        gone.block
    }

    /// Records the slab block, or [`NONE`], that covers the blocks of a run.
    fn cover(&mut self, block: &Block, region: u32, at: u32) {
        let run = block.index() as usize..(block.index() + block.head().run) as usize;
        self.regions[region as usize].slabs[run].fill(at);
    }
}

impl BlockAllocator {
    /// Makes a block without objects vacant.
    pub(super) fn vacate(&mut self, region: usize, index: u32, head: BlockHead) {
        let region = &mut self.regions[region];
        region.table.rewrite_head(index, head.vacant());
        let since = self.cuts;
        let vacancies = region.vacant.entry(head.class).or_default();
        vacancies.push(Vacancy { index, since });
        self.changes.add();
    }

    /// Takes back a block that a slab has retired.
    ///
    /// # Panics
    /// If another machine stores the block.
    pub(super) fn retired(&mut self, block: &Block) {
        let region = self.index_of(block.table().region());
        self.vacate(
            region.expect("a slab allocator only has blocks of its own machine"),
            block.index(),
            block.head(),
        );
    }

    /// Divides the blocks that are vacant now from those that become vacant later. Returns `None` if no block is
    /// vacant.
    pub fn cut(&mut self) -> Option<Cut> {
        let vacant = |vacancies: &Vec<Vacancy>| !vacancies.is_empty();
        if !self
            .regions
            .iter()
            .any(|region| region.vacant.values().any(vacant))
        {
            return None;
        }
        self.cuts += 1;
        Some(Cut(self.cuts))
    }

    /// Takes a block that was vacant before the cut and still is. From now on no slab can acquire the block. The caller
    /// [renews](Block::renew) it, which needs no lock, and then calls [`freed`](Self::freed).
    ///
    /// Must be called only when every operation in the cluster that began before the cut has ended.
    ///
    /// # Errors
    /// [`TableError`] if a region's table is damaged.
    pub fn take_vacant_before(&mut self, cut: Cut) -> Result<Option<Block>, TableError> {
        for region in &mut self.regions {
            for (class, vacancies) in &mut region.vacant {
                let old = vacancies.iter().position(|vacancy| vacancy.since < cut.0);
                let Some(at) = old else { continue };
                let index = vacancies[at].index;
                let head = region.table.head(index)?;
                assert_eq!(
                    (head.kind, head.class),
                    (BlockKind::Vacant, *class),
                    "the head of block {index} must match the list of vacant blocks that contains the block"
                );
                vacancies.swap_remove(at);
                return region.table.block(index, head).map(Some);
            }
        }
        Ok(None)
    }

    /// Frees a block that [`take_vacant_before`](Self::take_vacant_before) returned, after its headers were renewed:
    /// from now on any class can use it, alone or with its neighbours.
    ///
    /// # Panics
    /// If another machine stores the block.
    pub fn freed(&mut self, block: &Block) {
        marks::mark("alloc: block freed for any class");
        let index = self.index_of(block.table().region());
        let region =
            &mut self.regions[index.expect("the block was taken from a region of this machine")];
        let (index, run) = (block.index(), block.head().run);
        region.table.clear_run(index, run);
        region.lowest_free = region.lowest_free.min(index);
        region.free += run;
        self.changes.add();
    }

    /// Frees all blocks that were vacant before the cut and still are, and returns their bytes. The condition of
    /// [`take_vacant_before`](Self::take_vacant_before) applies.
    ///
    /// # Errors
    /// [`TableError`] if a region's table is damaged.
    pub fn reclaim(&mut self, cut: Cut) -> Result<u64, TableError> {
        let mut gained = 0;
        while let Some(block) = self.take_vacant_before(cut)? {
            block.renew()?;
            self.freed(&block);
            gained += block.bytes() as u64;
        }
        Ok(gained)
    }

    /// Returns the bytes that any class can use: free blocks, and regions that the machine may still create.
    pub fn available_bytes(&self) -> u64 {
        let region_bytes = self.config.region_bytes as u64;
        let more = self.config.per_machine_bytes.saturating_sub(self.in_use) / region_bytes;
        self.free_blocks() * self.config.block_bytes as u64 + more * region_bytes
    }

    /// Returns whether available memory is below its threshold.
    pub fn is_low(&self) -> bool {
        self.available_bytes() < self.config.per_machine_bytes / LOW_MEMORY_SHARE
    }
}
