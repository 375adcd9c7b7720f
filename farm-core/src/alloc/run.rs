//! A block in use: the positions and headers of its objects, and its renewal before it is reused by another class.

use std::sync::atomic::Ordering;

use super::{BlockHead, BlockTable, TableError};
use crate::ids::Address;
use crate::mem::WORD_BYTES;
use crate::object::{Base, Incarnation, LockMode, VersionWord};

/// Offset in an object of the second word of its header.
const INCARNATION_OFFSET: usize = WORD_BYTES;

/// A block in use: a run of the region's blocks that holds objects of one class.
#[derive(Clone, Debug)]
pub struct Block {
    table: BlockTable,
    index: u32,
    head: BlockHead,
    base: Base,
}

impl Block {
    pub(super) fn new(table: BlockTable, index: u32, head: BlockHead, base: Base) -> Self {
        Self {
            table,
            index,
            head,
            base,
        }
    }

    /// Returns the table that contains the block.
    pub fn table(&self) -> &BlockTable {
        &self.table
    }

    /// Returns the index of its first block in the region.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns class, owner, kind and run length.
    pub fn head(&self) -> BlockHead {
        self.head
    }

    /// Returns the lower bound of the versions and incarnations of its objects.
    pub fn base(&self) -> Base {
        self.base
    }

    /// Returns the offset of its first object in the region.
    pub fn first_offset(&self) -> usize {
        self.table.geometry().start(self.index)
    }

    /// Returns the bytes of the region that the block takes.
    pub fn bytes(&self) -> usize {
        self.head.run as usize * self.table.geometry().block_bytes()
    }

    /// Returns the number of objects that fit.
    pub fn slots(&self) -> u32 {
        self.table
            .geometry()
            .slots(self.index, self.head.run, self.head.class)
    }

    /// Returns the offset of the object in this slot.
    pub(super) fn offset_of(&self, slot: u32) -> usize {
        self.first_offset() + slot as usize * self.head.class.object_bytes()
    }

    /// Returns the address of the object in this slot.
    pub(crate) fn address_of(&self, slot: u32) -> Address {
        Address::new(self.table.region(), self.offset_of(slot) as u32)
    }

    /// Returns whether the object in this slot has its allocated bit (`FaRM'14 §3.3`).
    pub(super) fn is_allocated(&self, slot: u32) -> bool {
        self.incarnation_of(slot).is_allocated()
    }

    /// Returns whether the object in this slot is allocated, or locked by a transaction that may allocate it.
    pub(super) fn is_taken(&self, slot: u32) -> bool {
        let word = self
            .table
            .memory()
            .load(self.offset_of(slot), Ordering::Acquire);
        self.is_allocated(slot) || VersionWord(word).mode() != LockMode::Unlocked
    }

    /// Returns the slot of the object that starts at this offset of the region.
    pub(super) fn slot_at(&self, offset: u32) -> Option<u32> {
        let BlockHead { run, class, .. } = self.head;
        self.table
            .geometry()
            .slot_of(self.index, run, class, offset as usize)
    }

    /// Returns the second word of the header in this slot.
    fn incarnation_of(&self, slot: u32) -> Incarnation {
        let word = self.offset_of(slot) + INCARNATION_OFFSET;
        Incarnation(self.table.memory().load(word, Ordering::Acquire))
    }

    /// Returns the version and incarnation in the header of this slot; zero if the slot was never used.
    fn numbers_of(&self, slot: u32) -> (u64, u64) {
        let version = self
            .table
            .memory()
            .load(self.offset_of(slot), Ordering::Acquire);
        let version = VersionWord(version).version().get();
        (version, self.incarnation_of(slot).count())
    }

    /// Returns whether this slot was never used, or its header has the block's class, and version and incarnation are
    /// not below the block's base. A process that began to use it may have been killed before it had written the version.
    pub(super) fn is_sound(&self, slot: u32) -> bool {
        let incarnation = self.incarnation_of(slot);
        let (class, base) = (self.head.class, self.base);
        let (version, count) = self.numbers_of(slot);
        let begun = version >= base.version().get() && count >= base.incarnation(class).count();
        let half_begun = version == 0 && incarnation == base.incarnation(class);
        incarnation.0 == 0 || half_begun || incarnation.class() == class && begun
    }

    /// Prepares the block for objects of any class. Must be called only while no slot is reserved. First moves the
    /// block's base beyond every version and incarnation in the block, then zeroes the block's memory.
    ///
    /// The base is stored first: if the machine dies in between, the block still has its class, and its headers are
    /// either zero or unchanged.
    ///
    /// # Errors
    /// [`TableError::NoBase`]: nothing was changed.
    pub fn renew(&self) -> Result<(), TableError> {
        let most = (0..self.slots()).map(|slot| self.numbers_of(slot));
        let most = most.fold((0, 0), |most, (version, count)| {
            (most.0.max(version), most.1.max(count))
        });
        let (version, incarnation) = most;
        let (table, index) = (&self.table, self.index);
        let base = self.base.beyond(version, incarnation);
        let base = base.ok_or(TableError::NoBase {
            region: table.region(),
            block: index,
            version,
            incarnation,
        })?;
        for block in index..index + self.head.run {
            table.set_base(block, base);
        }
        table.publish();
        let end = (index + self.head.run) as usize * table.geometry().block_bytes();
        let first = self.first_offset();
        table.memory().zero(first, end - first);
        Ok(())
    }
}
