//! Compares slab allocators with memory: while no transaction is between reserving and committing, the slots that are reserved are
//! those whose objects have the allocated bit.

use crate::ids::{Address, RegionId, WorkerId};

use super::{Block, BlockKind, BlockTable, Slab, TableError};

/// A disagreement between a slab allocator and memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The table assigns the worker a block that the worker's slab allocator does not have, or has with another head.
    #[error(
        "region {region}: the block table and the slab allocator of the worker differ about block {block}"
    )]
    Block {
        /// The region.
        region: RegionId,
        /// The block.
        block: u32,
    },
    /// The slab allocator has another number of blocks than the tables assign to it.
    #[error("the slab allocator has {known} blocks, but the tables assign it {given}")]
    Blocks {
        /// Blocks of the slab allocator.
        known: usize,
        /// Blocks that the tables assign to it.
        given: usize,
    },
    /// A slot is reserved and its object is not allocated, or the reverse.
    #[error(
        "{address}: reserved in the slab allocator: {reserved}, allocated in memory: {allocated}"
    )]
    Object {
        /// The object.
        address: Address,
        /// Whether the slot is reserved in the slab allocator.
        reserved: bool,
        /// Whether the object's header has the allocated bit.
        allocated: bool,
    },
    /// A header has another class than its block, or its version or incarnation is below the block's base.
    #[error(
        "{address}: the header {header:#018x?} does not match its block, which has class {class} and base {base:#x}"
    )]
    Header {
        /// The object.
        address: Address,
        /// The two words of the header.
        header: [u64; 2],
        /// The block's size class.
        class: u8,
        /// The block's base.
        base: u64,
    },
    /// A table is damaged.
    #[error(transparent)]
    Table(#[from] TableError),
}

impl Slab {
    /// Compares reserved slots with the allocated bits in memory. They agree whenever no
    /// transaction is between reserving or freeing an object and its commit or abort.
    ///
    /// # Errors
    /// The first [`Mismatch`].
    pub fn check<'a>(
        &self,
        tables: impl IntoIterator<Item = &'a BlockTable>,
    ) -> Result<(), Mismatch> {
        let mut given = 0;
        for table in tables {
            for_each_block(table, self.owner(), |block| {
                given += 1;
                self.check_block(&block)
            })?;
        }
        let known = self.blocks.len();
        if known == given {
            Ok(())
        } else {
            Err(Mismatch::Blocks { known, given })
        }
    }

    fn check_block(&self, block: &Block) -> Result<(), Mismatch> {
        let known = self
            .block_of(block.address_of(0))
            .map(|at| &self.blocks[at as usize]);
        let same = |ours: &Block| (ours.index(), ours.head()) == (block.index(), block.head());
        let Some(known) = known.filter(|known| same(&known.block)) else {
            let region = block.table().region();
            return Err(Mismatch::Block {
                region,
                block: block.index(),
            });
        };
        check_headers(block)?;
        for slot in 0..block.slots() {
            let (reserved, allocated) = (!known.slots.is_free(slot), block.is_allocated(slot));
            if reserved != allocated {
                let address = block.address_of(slot);
                return Err(Mismatch::Object {
                    address,
                    reserved,
                    allocated,
                });
            }
        }
        Ok(())
    }
}

/// Checks every header of a block against the block's class and base.
pub(super) fn check_headers(block: &Block) -> Result<(), Mismatch> {
    let Some(slot) = (0..block.slots()).find(|slot| !block.is_sound(*slot)) else {
        return Ok(());
    };
    let mut header = [0; 2];
    let table = block.table();
    table
        .memory()
        .read_words(block.offset_of(slot), &mut header);
    Err(Mismatch::Header {
        address: block.address_of(slot),
        header,
        class: block.head().class.get(),
        base: block.base().to_bits(),
    })
}

/// Calls `each` with every slab block of a table that `owner` owns.
fn for_each_block<E: From<TableError>>(
    table: &BlockTable,
    owner: WorkerId,
    mut each: impl FnMut(Block) -> Result<(), E>,
) -> Result<(), E> {
    table.check()?;
    let mut next = 0;
    while let Some(block) = table.next_block(next)? {
        next = BlockTable::next_after(&block);
        if block.head().kind == BlockKind::Slab && block.head().owner == owner {
            each(block)?;
        }
    }
    Ok(())
}
