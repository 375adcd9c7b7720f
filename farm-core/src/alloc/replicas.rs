//! Comparison of two copies of a region.
//!
//! While no commit is under way, the copies of a region have the same objects: headers, with versions and incarnations, and the
//! bytes of objects that are allocated; and the same blocks with such objects, with their bases, lengths and classes. What may
//! differ is what no commit has changed: slots that were reserved by transactions that aborted, and the bytes of freed objects. So may
//! the kind and the owner of a block, which say who allocates in it, and change when an empty array becomes a block of single objects.

use std::sync::atomic::Ordering;

use super::{Block, BlockTable, TableError};
use crate::ids::{Address, RegionId};
use crate::mem::WORD_BYTES;
use crate::object::HEADER_BYTES;

/// A difference between a primary and a backup.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// One of the tables is damaged.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A block has another base, class or length, or only one of the copies has objects there.
    #[error(
        "region {region}: block {block} is {primary} at the primary and {backup} at the backup"
    )]
    Block {
        /// The region.
        region: RegionId,
        /// The block.
        block: u32,
        /// What the primary has.
        primary: String,
        /// What the backup has.
        backup: String,
    },
    /// An object has another header.
    #[error("{address}: the header is {primary:#x?} at the primary and {backup:#x?} at the backup")]
    Header {
        /// The object.
        address: Address,
        /// Both words of the primary's header.
        primary: [u64; 2],
        /// Both words of the backup's header.
        backup: [u64; 2],
    },
    /// An object has other bytes.
    #[error("{address}: the bytes of the object differ at its byte {byte}, with the same version")]
    Bytes {
        /// The object.
        address: Address,
        /// Offset of the first word that differs.
        byte: usize,
    },
}

/// Compares the copies of a region, while nothing changes them. Returns the number of allocated objects.
///
/// # Errors
/// The first [`Difference`].
pub fn compare_replicas(primary: &BlockTable, backup: &BlockTable) -> Result<u64, Difference> {
    for block in 0..primary.geometry().blocks() {
        let bases = [primary.base(block)?, backup.base(block)?];
        if bases[0] != bases[1] {
            let text = |at: usize| format!("a block with the base {:#x}", bases[at].to_bits());
            return Err(differs(primary, block, text(0), text(1)));
        }
    }
    let (mut objects, mut next) = (0, 0);
    let mut of_backup = backup.next_block(0)?;
    while let Some(block) = primary.next_block(next)? {
        next = BlockTable::next_after(&block);
        let there = of_backup.take_if(|there| there.index() == block.index());
        match there {
            None => only_reserved(primary, &block)?,
            Some(there) => {
                let shape = |block: &Block| (block.head().run, block.head().class);
                if shape(&block) != shape(&there) {
                    let text = |block: &Block| format!("{:?}", block.head());
                    let (one, other) = (text(&block), text(&there));
                    return Err(differs(primary, block.index(), one, other));
                }
                for slot in 0..block.slots() {
                    objects += compare_slot(&block, &there, slot)?;
                }
                of_backup = backup.next_block(BlockTable::next_after(&there))?;
            }
        }
    }
    match of_backup {
        None => Ok(objects),
        Some(block) => Err(differs(
            primary,
            block.index(),
            "free".into(),
            format!("{:?}", block.head()),
        )),
    }
}

fn differs(table: &BlockTable, block: u32, primary: String, backup: String) -> Difference {
    Difference::Block {
        region: table.region(),
        block,
        primary,
        backup,
    }
}

/// Checks that no object was ever committed to a block that the backup does not have.
fn only_reserved(table: &BlockTable, block: &Block) -> Result<(), Difference> {
    let allocated = (0..block.slots()).find(|slot| block.is_allocated(*slot));
    match allocated {
        None => Ok(()),
        Some(_) => Err(differs(
            table,
            block.index(),
            "with objects".into(),
            "free".into(),
        )),
    }
}

/// Compares a slot. Returns the number of allocated objects in it.
fn compare_slot(primary: &Block, backup: &Block, slot: u32) -> Result<u64, Difference> {
    let at = primary.offset_of(slot);
    let load = |block: &Block, at| block.table().memory().load(at, Ordering::Acquire);
    let header = |block| [load(block, at), load(block, at + WORD_BYTES)];
    let (one, other) = (header(primary), header(backup));
    let address = primary.address_of(slot);
    let is_allocated = primary.is_allocated(slot);
    // No commit has changed a slot whose copy is zero.
    if one != other && (is_allocated || other != [0, 0]) {
        return Err(Difference::Header {
            address,
            primary: one,
            backup: other,
        });
    }
    let bytes = primary.head().class.object_bytes();
    let mut words = (HEADER_BYTES..bytes).step_by(WORD_BYTES);
    let byte = words.find(|byte| load(primary, at + byte) != load(backup, at + byte));
    match byte.filter(|_| is_allocated) {
        Some(byte) => Err(Difference::Bytes { address, byte }),
        None => Ok(is_allocated.into()),
    }
}
