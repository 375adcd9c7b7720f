//! The block table at the start of each region: the state of every block of the region (`FaRM'14 §3.3`).
//!
//! ```text
//! 0    magic "FaRMblk2"
//! 8    region id (32 bits) | number of blocks (32 bits)
//! 16   bytes of a block
//! 24   xxh3 of the three words above
//! 32   zero up to 64
//! 64   state of block 0, 8 bytes ([`BlockState`]); base of block 0, 8 bytes ([`Base`])
//! 80   state and base of block 1 ...
//!      ... up to whole lines; the objects of the block that contains this end start here, those of later blocks at
//!      the start of their block
//! ```
//!
//! Invariants, checked by [`BlockTable::open`]: the run of every head is inside the region, is followed by exactly its
//! further blocks, and has room for an object; blocks that the table fills are marked as such; every base is valid. The
//! base of a run is that of its head: the greatest base of its blocks when the run was created. The base of a free
//! block is greater than every version and incarnation that was in it, so that versions and incarnations never decrease
//! (`tests::reclassify`). Only the region's primary writes, and only its [`super::BlockAllocator`]; any thread may
//! read. States are single words, written so that a head is never visible without the rest of its run (a run is written
//! from its end and freed from its head). A machine that dies in between leaves further blocks without a head, which
//! [`BlockTable::open_after_crash`] clears.
//!
//! Tested by `tests::table`: any bytes are a valid table or yield an error.

use std::sync::atomic::Ordering;

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::ids::{Address, RegionId, WorkerId};
use crate::mem::{LINE_BYTES, Memory, WORD_BYTES};
use crate::object::Base;

use super::geometry::Geometry;
use super::{Block, BlockHead, BlockKind, BlockState, LocateError, SizeClass, TableError};

const MAGIC: u64 = u64::from_le_bytes(*b"FaRMblk2");
const HEADER_WORDS: usize = 4;
// The header fits into one line, after which the states begin.
const _: () = assert!(HEADER_WORDS * WORD_BYTES <= LINE_BYTES);

/// Returns the source of the bases of a new region's blocks. A primary and its backups use the same `seed`, so that their tables
/// are equal.
pub fn table_bases(seed: u64, region: RegionId) -> Xoshiro256PlusPlus {
    let seed = xxh3_64_with_seed(&region.to_bits().to_le_bytes(), seed);
    Xoshiro256PlusPlus::seed_from_u64(seed)
}

/// The block table of one region. A cheap handle: clones refer to the same table.
#[derive(Clone, Debug)]
pub struct BlockTable {
    memory: Memory,
    region: RegionId,
    geometry: Geometry,
}

impl BlockTable {
    /// Writes an empty table at the start of a region of zeroed memory, with bases drawn from `rng`.
    ///
    /// # Errors
    /// [`TableError::BadGeometry`] if the table leaves no room for a block.
    pub fn format(
        memory: Memory,
        region: RegionId,
        block_bytes: usize,
        rng: &mut impl Rng,
    ) -> Result<BlockTable, TableError> {
        let geometry = Geometry::new(block_bytes, memory.len()).ok_or(TableError::BadGeometry {
            region,
            blocks: (memory.len() / block_bytes.max(1)) as u64,
            block_bytes: block_bytes as u64,
            bytes: memory.len() as u64,
        })?;
        let table = BlockTable {
            memory,
            region,
            geometry,
        };
        table.memory.zero(0, geometry.table_bytes());
        for block in 0..geometry.first_block() {
            table.set(block, BlockState::Table);
        }
        for block in 0..geometry.blocks() {
            table.set_base(block, Base::random(rng));
        }
        let mut header = [
            MAGIC,
            u64::from(region.to_bits()) | u64::from(geometry.blocks()) << 32,
            block_bytes as u64,
            0,
        ];
        header[3] = checksum(&header);
        // The magic is written last: memory with a magic has a complete header.
        table.memory.write_words(WORD_BYTES, &header[1..]);
        table.memory.store(0, MAGIC, Ordering::Release);
        Ok(table)
    }

    /// Opens the table in this region's memory, and checks every state.
    ///
    /// # Errors
    /// [`TableError`] for anything that no allocator writes.
    pub fn open(memory: Memory, region: RegionId) -> Result<BlockTable, TableError> {
        let table = Self::open_header(memory, region)?;
        table.check()?;
        Ok(table)
    }

    /// Opens a table of this process that others may be changing. Only its header is checked: a run is not whole while its states are
    /// being written.
    ///
    /// # Errors
    /// [`TableError`] if the header is damaged.
    pub fn open_in_use(memory: Memory, region: RegionId) -> Result<BlockTable, TableError> {
        Self::open_header(memory, region)
    }

    /// Opens the table as [`open`](Self::open) does, in the memory of a machine that may have died while it allocated
    /// or freed a run. Also frees further blocks whose head is a free block.
    ///
    /// # Errors
    /// [`TableError`] for anything else that no allocator writes.
    pub fn open_after_crash(memory: Memory, region: RegionId) -> Result<BlockTable, TableError> {
        let table = Self::open_header(memory, region)?;
        for block in table.geometry.first_block()..table.geometry.blocks() {
            if let BlockState::Rest { back } = table.state(block)?
                && let Some(head) = block.checked_sub(back)
                && table.state(head)? == BlockState::Free
            {
                table.set(block, BlockState::Free);
            }
        }
        table.check()?;
        Ok(table)
    }

    fn open_header(memory: Memory, region: RegionId) -> Result<BlockTable, TableError> {
        let mut header = [0; HEADER_WORDS];
        if memory.len() >= LINE_BYTES {
            memory.read_words(0, &mut header);
        }
        if header[0] != MAGIC {
            return Err(TableError::NoTable {
                region,
                found: header[0],
            });
        }
        if header[3] != checksum(&header) {
            return Err(TableError::BadHeader { region });
        }
        let (named, blocks, block_bytes) = (header[1] as u32, header[1] >> 32, header[2]);
        if named != region.to_bits() {
            return Err(TableError::OtherRegion {
                region,
                found: named,
            });
        }
        let bytes = memory.len() as u64;
        let geometry = blocks
            .checked_mul(block_bytes)
            .filter(|used| *used <= bytes)
            .and_then(|used| Geometry::new(block_bytes as usize, used as usize))
            .ok_or(TableError::BadGeometry {
                region,
                blocks,
                block_bytes,
                bytes,
            })?;
        Ok(BlockTable {
            memory,
            region,
            geometry,
        })
    }

    /// Checks every state and base.
    ///
    /// # Errors
    /// The first damage found.
    pub fn check(&self) -> Result<(), TableError> {
        for block in 0..self.geometry.blocks() {
            self.base(block)?;
        }
        for block in 0..self.geometry.first_block() {
            let state = self.state(block)?;
            if state != BlockState::Table {
                return Err(self.bad_state(block, state.to_bits()));
            }
        }
        let mut next = self.geometry.first_block();
        while next < self.geometry.blocks() {
            next += match self.state(next)? {
                BlockState::Free => 1,
                BlockState::Head(head) => self.check_run(next, head)?,
                BlockState::Rest { .. } => return Err(self.orphan(next)),
                BlockState::Table => return Err(self.bad_state(next, BlockState::Table.to_bits())),
            };
        }
        Ok(())
    }

    /// Checks the run of `head`, and returns its number of blocks.
    pub(super) fn check_run(&self, block: u32, head: BlockHead) -> Result<u32, TableError> {
        let BlockHead { run, class, .. } = head;
        let broken = TableError::BadRun {
            region: self.region,
            block,
            run,
            class: class.get(),
        };
        if run > self.geometry.blocks() - block || self.geometry.slots(block, run, class) == 0 {
            return Err(broken);
        }
        for back in 1..run {
            if self.state(block + back)? != (BlockState::Rest { back }) {
                return Err(broken);
            }
        }
        Ok(run)
    }

    /// Returns the region.
    pub fn region(&self) -> RegionId {
        self.region
    }

    /// Returns the region's memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the sizes and positions of blocks.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Returns the state of a block.
    ///
    /// # Errors
    /// [`TableError::BadState`] if it is not valid.
    ///
    /// # Panics
    /// If the region has no such block.
    pub fn state(&self, block: u32) -> Result<BlockState, TableError> {
        assert!(
            block < self.geometry.blocks(),
            "block {block} is out of range: the region has {} blocks",
            self.geometry.blocks()
        );
        let bits = self
            .memory
            .load(Geometry::state_offset(block), Ordering::Acquire);
        BlockState::from_bits(bits).ok_or_else(|| self.bad_state(block, bits))
    }

    /// Returns the base of a block.
    ///
    /// # Errors
    /// [`TableError::BadBase`] if it is not valid.
    ///
    /// # Panics
    /// If the region has no such block.
    pub fn base(&self, block: u32) -> Result<Base, TableError> {
        let region = self.region;
        assert!(
            block < self.geometry.blocks(),
            "region {region} has no block {block}"
        );
        let bits = self
            .memory
            .load(Geometry::base_offset(block), Ordering::Acquire);
        Base::from_bits(bits).ok_or(TableError::BadBase {
            region,
            block,
            bits,
        })
    }

    /// Returns the head at `index`, or an error if there is none.
    pub(super) fn head(&self, index: u32) -> Result<BlockHead, TableError> {
        match self.state(index)? {
            BlockState::Head(head) => Ok(head),
            state => Err(self.bad_state(index, state.to_bits())),
        }
    }

    /// Returns the first block in use at `from` or after it. To visit all blocks in order, call it again with
    /// [`next_after`](Self::next_after) of the returned block.
    ///
    /// # Errors
    /// [`TableError`] if the table is damaged.
    pub fn next_block(&self, from: u32) -> Result<Option<Block>, TableError> {
        for index in from.max(self.geometry.first_block())..self.geometry.blocks() {
            match self.state(index)? {
                BlockState::Free => {}
                BlockState::Head(head) => return self.block(index, head).map(Some),
                BlockState::Rest { .. } => return Err(self.orphan(index)),
                BlockState::Table => {
                    return Err(self.bad_state(index, BlockState::Table.to_bits()));
                }
            }
        }
        Ok(None)
    }

    /// Returns the index at which the search for the block after this one starts.
    pub fn next_after(block: &Block) -> u32 {
        block.index().saturating_add(block.head().run)
    }

    /// Returns the block whose head is at `index`.
    pub(super) fn block(&self, index: u32, head: BlockHead) -> Result<Block, TableError> {
        Ok(Block::new(self.clone(), index, head, self.base(index)?))
    }

    /// Returns the block that contains this offset of the region: two loads.
    ///
    /// # Errors
    /// [`LocateError`] if no block in use contains it, or the table is damaged.
    pub fn block_at(&self, offset: u32) -> Result<(u32, BlockHead), LocateError> {
        let no_block = || LocateError::NoBlock(Address::new(self.region, offset));
        let index = self
            .geometry
            .block_of(offset as usize)
            .ok_or_else(no_block)?;
        let (at, back) = match self.state(index)? {
            BlockState::Head(head) => return Ok((index, head)),
            BlockState::Rest { back } => (index.checked_sub(back), back),
            BlockState::Free | BlockState::Table => return Err(no_block()),
        };
        match at.map(|at| self.state(at)).transpose()? {
            Some(BlockState::Head(head)) if back < head.run => Ok((index - back, head)),
            _ => Err(self.orphan(index).into()),
        }
    }

    /// Returns what backups must know of the block that contains this offset, besides the size class of its objects
    /// ([`BlockTable::adopt_block`]): `run (24) | blocks back to its head (24) | owner (8) | kind (8)`, from the lowest bit.
    ///
    /// # Errors
    /// [`LocateError`] if no block in use contains it.
    pub fn block_word(&self, offset: u32) -> Result<u64, LocateError> {
        let (index, head) = self.block_at(offset)?;
        let block = self.geometry.block_of(offset as usize).unwrap_or(index);
        let kind = match head.kind {
            BlockKind::Slab => 1,
            BlockKind::Array => 2,
            BlockKind::Vacant => 3,
        };
        let (run, back) = (u64::from(head.run), u64::from(block - index));
        Ok(run | back << 24 | u64::from(head.owner.get()) << 48 | kind << 56)
    }

    /// Returns the [word](BlockTable::block_word) of the block `later` blocks after that of `word`, in the same run.
    pub fn word_of_next(word: u64, later: u32) -> u64 {
        word + (u64::from(later) << 24)
    }

    /// Writes the head that the primary has for the block that contains this offset, given its [`BlockTable::block_word`] and the size
    /// class of its objects, in the table of a backup. Several threads may write the same head.
    ///
    /// # Errors
    /// [`TableError`] if no primary has such a block there, or the table has another one there. Nothing was written.
    pub fn adopt_block(&self, offset: u32, class: SizeClass, word: u64) -> Result<(), TableError> {
        let block = self.geometry.block_of(offset as usize).unwrap_or(0);
        let wrong = || self.bad_state(block, word);
        let (run, back) = (word as u32 & 0xff_ffff, (word >> 24) as u32 & 0xff_ffff);
        let kind = match word >> 56 {
            1 => BlockKind::Slab,
            2 => BlockKind::Array,
            _ => return Err(wrong()),
        };
        let owner = WorkerId::new((word >> 48) as u16 & 0xff).ok_or_else(wrong)?;
        let first = block.checked_sub(back).ok_or_else(wrong)?;
        let inside = back < run && first >= self.geometry.first_block();
        if !inside || run > self.geometry.blocks() - first {
            return Err(wrong());
        }
        let slot = self.geometry.slot_of(first, run, class, offset as usize);
        slot.ok_or_else(wrong)?;
        let head = BlockHead {
            kind,
            class,
            owner,
            run,
        };
        self.adopt_head(first, head).map(drop)
    }

    /// Writes the head of a run that the primary has, in the table of a backup, unless it is there. Several threads may write the same
    /// head. Returns the run.
    ///
    /// # Errors
    /// [`TableError`] if no primary has such a run there, or the table has another one there. Nothing was written.
    pub(super) fn adopt_head(&self, first: u32, head: BlockHead) -> Result<Block, TableError> {
        self.possible_run(first, head)?;
        let BlockHead { run, class, .. } = head;
        let wrong = || self.bad_state(first, BlockState::Head(head).to_bits());
        match self.state(first)? {
            // The owner and the kind change when an empty array is used again. Records arrive in any order, and what they say
            // about that does not matter for the objects.
            BlockState::Head(there) if (there.run, there.class) == (run, class) => {
                return self.block(first, there);
            }
            BlockState::Free => {}
            _ => return Err(wrong()),
        }
        for back in 1..run {
            let there = self.state(first + back)?;
            if there != (BlockState::Rest { back }) && there != BlockState::Free {
                return Err(wrong());
            }
        }
        self.write_run(first, head)
    }

    /// Returns the run that would be at `first` with this head, which is not written.
    ///
    /// # Errors
    /// [`TableError`] if no region of this geometry has such a run.
    pub(super) fn possible_run(&self, first: u32, head: BlockHead) -> Result<Block, TableError> {
        let BlockHead { run, class, .. } = head;
        let left = self.geometry.blocks().checked_sub(first);
        let is_inside =
            first >= self.geometry.first_block() && left.is_some_and(|left| run <= left);
        if !is_inside || self.geometry.slots(first, run, class) == 0 {
            return Err(self.bad_state(first, BlockState::Head(head).to_bits()));
        }
        let base = self.greatest_base(first, run)?;
        Ok(Block::new(self.clone(), first, head, base))
    }

    /// Returns the greatest base of the blocks of a run.
    fn greatest_base(&self, first: u32, run: u32) -> Result<Base, TableError> {
        let mut base = self.base(first)?;
        for further in first + 1..first + run {
            base = base.max(self.base(further)?);
        }
        Ok(base)
    }

    /// Returns the head of the block of the object that starts at this offset. A machine checks an address from another
    /// machine with it.
    ///
    /// # Errors
    /// [`LocateError`] if no object can start there.
    pub fn object_at(&self, offset: u32) -> Result<BlockHead, LocateError> {
        let (index, head) = self.block_at(offset)?;
        if head.kind == BlockKind::Vacant {
            return Err(LocateError::NoBlock(Address::new(self.region, offset)));
        }
        match self
            .geometry
            .slot_of(index, head.run, head.class, offset as usize)
        {
            Some(_) => Ok(head),
            None => Err(LocateError::NoObject {
                address: Address::new(self.region, offset),
                object_bytes: head.class.object_bytes(),
            }),
        }
    }

    /// Returns the worker whose slab allocator owns the object at this offset, and must release it when it is freed.
    ///
    /// # Errors
    /// [`LocateError`] if no object can start there.
    pub fn owner_of(&self, offset: u32) -> Result<WorkerId, LocateError> {
        self.object_at(offset).map(|head| head.owner)
    }

    /// Writes the states of a run into free blocks, from the last block to the head, which publishes the run. The head
    /// gets the greatest base of the blocks.
    pub(super) fn write_run(&self, index: u32, head: BlockHead) -> Result<Block, TableError> {
        self.set_base(index, self.greatest_base(index, head.run)?);
        for back in (1..head.run).rev() {
            self.set(index + back, BlockState::Rest { back });
        }
        self.set(index, BlockState::Head(head));
        self.publish();
        self.block(index, head)
    }

    /// Rewrites the head of a run that keeps its blocks and class.
    pub(super) fn rewrite_head(&self, index: u32, head: BlockHead) {
        self.set(index, BlockState::Head(head));
        self.publish();
    }

    /// Frees the blocks of a run, from its head.
    pub(super) fn clear_run(&self, index: u32, run: u32) {
        for block in index..index + run {
            self.set(block, BlockState::Free);
        }
        self.publish();
    }

    /// Makes a change of the table, and earlier writes to the block, visible to a thread that is notified of the change
    /// or that next takes the lock of the block allocator.
    pub(super) fn publish(&self) {
        self.memory.fence(Ordering::SeqCst);
    }

    fn set(&self, block: u32, state: BlockState) {
        self.memory.store(
            Geometry::state_offset(block),
            state.to_bits(),
            Ordering::Release,
        );
    }

    pub(super) fn set_base(&self, block: u32, base: Base) {
        self.memory.store(
            Geometry::base_offset(block),
            base.to_bits(),
            Ordering::Release,
        );
    }

    pub(super) fn bad_state(&self, block: u32, bits: u64) -> TableError {
        TableError::BadState {
            region: self.region,
            block,
            bits,
        }
    }

    pub(super) fn orphan(&self, block: u32) -> TableError {
        TableError::Orphan {
            region: self.region,
            block,
        }
    }
}

/// Returns the class of the block that contains an offset of a region, vacant blocks included, and whether one of its
/// objects starts at the offset: two loads of the region's table, without a lock. Returns `None` if there is no block,
/// or the table is damaged. The region must be formatted with this geometry.
#[inline]
pub fn class_at(memory: &Memory, geometry: Geometry, offset: usize) -> Option<(SizeClass, bool)> {
    let index = geometry.block_of(offset)?;
    let state = |block: u32| {
        let bits = memory.load(Geometry::state_offset(block), Ordering::Acquire);
        BlockState::from_bits(bits)
    };
    let (at, head) = match state(index)? {
        BlockState::Head(head) => (index, head),
        BlockState::Rest { back } => {
            let at = index.checked_sub(back)?;
            match state(at)? {
                BlockState::Head(head) => (at, head),
                _ => return None,
            }
        }
        BlockState::Free | BlockState::Table => return None,
    };
    let starts = geometry.slot_of(at, head.run, head.class, offset).is_some();
    Some((head.class, starts))
}

fn checksum(header: &[u64; HEADER_WORDS]) -> u64 {
    let mut bytes = [0; 3 * WORD_BYTES];
    for (to, word) in bytes.chunks_exact_mut(WORD_BYTES).zip(header) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    xxh3_64(&bytes)
}
