//! Blocks that lose their class (`FaRM'14 §3.5`): "reusing memory for different object sizes requires
//! more work because the object header may be overwritten with arbitrary data".
//!
//! ```text
//!            Slab::retire                    reclaim: an epoch has ended since
//!  slab ─────────────────────▶ vacant ────────────────────────────────────────▶ free, zeroed,
//!   ▲                            │
//!   └──── its own class asks ────┘
//! ```
//!
//! A vacant block has headers and nothing else. Whoever still holds an address in it finds a header of
//! the class it knew, whose version and incarnation have moved on. So the block may serve its own class
//! again at any time, and any other only when nobody holds such an address: after every operation has
//! ended, on all machines, that began before the block was retired. Who asks for that
//! ([`crate::worker`]) first makes a [`Cut`], then waits, then frees what was retired before the cut and
//! is vacant still. An end of the epoch that is given up leaves nothing to be undone.
//!
//! Reclaiming zeroes the memory and moves the block's [base](crate::object::Base) beyond every version and
//! incarnation in it. The next objects start from that base, so that a fat pointer to an object that was freed
//! never names a later one (docs/decisions/0014).

use super::slab::NONE;
use super::{Block, BlockAllocator, BlockHead, BlockKind, BlockSource, Slab, TableError};
use crate::ids::WorkerId;
use crate::limits::LOW_MEMORY_SHARE;
use crate::marks;

/// A moment between retired blocks: those that were retired before it, and those after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cut(u64);

/// A vacant block, and the cuts there were when it was retired.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vacancy {
    pub(super) index: u32,
    pub(super) since: u64,
}

impl Slab {
    /// Gives up every block of which no slot is taken. Gives how many there were.
    ///
    /// Looks at all blocks if there is any such block, and at none otherwise.
    pub fn retire(&mut self, source: &mut dyn BlockSource) -> usize {
        let (mut retired, mut at) = (0, self.blocks.len());
        while self.whole > 0 && at > 0 {
            at -= 1;
            // The last block takes the place of the one that goes: it was looked at already.
            if self.blocks[at].is_whole() {
                marks::mark("alloc: block retired");
                source.give_back(self.remove(at as u32));
                retired += 1;
            }
        }
        retired
    }

    /// Forgets a block of which no slot is taken.
    fn remove(&mut self, at: u32) -> Block {
        self.unlist_block(at);
        self.list_of(at).blocks -= 1;
        let gone = self.blocks.swap_remove(at as usize);
        self.whole -= 1;
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

    /// Notes which of our blocks the blocks of a run belong to.
    fn cover(&mut self, block: &Block, region: u32, at: u32) {
        let run = block.index() as usize..(block.index() + block.head().run) as usize;
        self.regions[region as usize].slabs[run].fill(at);
    }
}

impl BlockAllocator {
    /// A block without objects becomes vacant.
    pub(super) fn vacate(&mut self, region: usize, index: u32, head: BlockHead) {
        let region = &mut self.regions[region];
        let vacant = BlockHead {
            kind: BlockKind::Vacant,
            owner: WorkerId::FIRST,
            ..head
        };
        region.table.rewrite_head(index, vacant);
        let since = self.cuts;
        let vacancies = region.vacant.entry(head.class).or_default();
        vacancies.push(Vacancy { index, since });
        self.changes.add();
    }

    /// A slab has given a block up.
    ///
    /// # Panics
    /// If it is of another machine's.
    pub(super) fn retired(&mut self, block: &Block) {
        let region = self.index_of(block.table().region());
        self.vacate(
            region.expect("a slab has blocks of its own machine"),
            block.index(),
            block.head(),
        );
    }

    /// Parts the blocks that are vacant now from those that will be. `None` if there are none.
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

    /// Takes a block that was vacant before the cut and is so still; nobody else gets it.
    /// The caller [renews](Block::renew) it, which needs no lock, and then calls [`freed`](Self::freed).
    ///
    /// Only when no operation is left in the cluster that began before the cut.
    ///
    /// # Errors
    /// [`TableError`] when a region's table is damaged.
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
                    "block {index}"
                );
                vacancies.swap_remove(at);
                return region.table.block(index, head).map(Some);
            }
        }
        Ok(None)
    }

    /// A block that was taken by [`take_vacant_before`](Self::take_vacant_before), and is renewed,
    /// serves any class from now on, alone or with its neighbours.
    ///
    /// # Panics
    /// If it is of another machine's.
    pub fn freed(&mut self, block: &Block) {
        marks::mark("alloc: block freed for any class");
        let index = self.index_of(block.table().region());
        let region = &mut self.regions[index.expect("it was taken from a region of this machine")];
        let (index, run) = (block.index(), block.head().run);
        region.table.clear_run(index, run);
        region.lowest_free = region.lowest_free.min(index);
        region.free += run;
        self.changes.add();
    }

    /// Frees all blocks that were vacant before the cut and are so still, and gives the bytes so
    /// gained. Under the same condition as [`take_vacant_before`](Self::take_vacant_before).
    ///
    /// # Errors
    /// [`TableError`] when a region's table is damaged.
    pub fn reclaim(&mut self, cut: Cut) -> Result<u64, TableError> {
        let mut gained = 0;
        while let Some(block) = self.take_vacant_before(cut)? {
            block.renew()?;
            self.freed(&block);
            gained += block.bytes() as u64;
        }
        Ok(gained)
    }

    /// Bytes that may serve any class: free blocks, and regions that the machine may still make.
    pub fn available_bytes(&self) -> u64 {
        let free: u64 = self
            .regions
            .iter()
            .map(|region| u64::from(region.free))
            .sum();
        let region_bytes = self.config.region_bytes as u64;
        let more = self.config.per_machine_bytes.saturating_sub(self.in_use) / region_bytes;
        free * self.config.block_bytes as u64 + more * region_bytes
    }

    /// Whether available memory has fallen below its threshold.
    pub fn is_low(&self) -> bool {
        self.available_bytes() < self.config.per_machine_bytes / LOW_MEMORY_SHARE
    }
}
