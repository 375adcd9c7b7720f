//! The positions of a region's blocks and the number of objects that fit into them: arithmetic only.

use crate::limits::{MAX_REGION_BYTES, TINY_BLOCK_BYTES};
use crate::mem::{LINE_BYTES, WORD_BYTES};

use super::SizeClass;

/// Bytes of a block's entry in the table: state and base.
const ENTRY_BYTES: usize = 2 * WORD_BYTES;
// No entry crosses a line boundary.
const _: () = assert!(LINE_BYTES.is_multiple_of(ENTRY_BYTES));

/// The target for waste: at most 1/`MOST_TAIL_SHARE` of a run is unused after its last object.
const MOST_TAIL_SHARE: usize = 32;
/// A run is at most this many times as long as one object needs.
const MOST_RUN_FACTOR: u32 = 16;
/// A run has at most 1/`LEAST_RUNS_PER_REGION` of a region's blocks, unless one object needs more.
const LEAST_RUNS_PER_REGION: u32 = 8;

/// Sizes of a region's blocks and table (`FaRM'14 §3.3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    block_shift: u32,
    blocks: u32,
}

impl Geometry {
    /// Creates the geometry of a region of `region_bytes`, with blocks of `block_bytes`, a power of two of at least 4
    /// KiB. Returns `None` if the sizes are not allowed, or if the table leaves no room for a block.
    pub fn new(block_bytes: usize, region_bytes: usize) -> Option<Geometry> {
        let possible = block_bytes.is_power_of_two()
            && block_bytes as u64 >= TINY_BLOCK_BYTES
            && region_bytes as u64 <= MAX_REGION_BYTES;
        if !possible {
            return None;
        }
        let blocks = (region_bytes / block_bytes) as u32;
        let geometry = Geometry {
            block_shift: block_bytes.trailing_zeros(),
            blocks,
        };
        (geometry.first_block() < blocks).then_some(geometry)
    }

    /// Returns the bytes in a block.
    pub fn block_bytes(self) -> usize {
        1 << self.block_shift
    }

    /// Returns the number of blocks in the region, including those that the table fills.
    pub fn blocks(self) -> u32 {
        self.blocks
    }

    /// Returns the number of blocks in which objects can be: all but those that the table fills.
    pub fn object_blocks(self) -> u32 {
        self.blocks - self.first_block()
    }

    /// Returns the bytes of the table, header included; whole lines.
    pub fn table_bytes(self) -> usize {
        LINE_BYTES + (self.blocks as usize * ENTRY_BYTES).next_multiple_of(LINE_BYTES)
    }

    /// Returns the first block in which the table leaves room.
    pub fn first_block(self) -> u32 {
        (self.table_bytes() >> self.block_shift) as u32
    }

    /// Returns the offset of a block's state.
    pub(super) fn state_offset(block: u32) -> usize {
        LINE_BYTES + block as usize * ENTRY_BYTES
    }

    /// Returns the offset of a block's base.
    pub(super) fn base_offset(block: u32) -> usize {
        Self::state_offset(block) + WORD_BYTES
    }

    /// Returns the offset of a block's first object.
    pub fn start(self, block: u32) -> usize {
        ((block as usize) << self.block_shift).max(self.table_bytes())
    }

    /// Returns the offset of the end of a run.
    fn end(self, block: u32, run: u32) -> usize {
        (block as usize + run as usize) << self.block_shift
    }

    /// Returns the number of objects of `class` that fit into a run.
    pub fn slots(self, block: u32, run: u32, class: SizeClass) -> u32 {
        ((self.end(block, run) - self.start(block)) / class.object_bytes()) as u32
    }

    /// Returns the block that contains an offset, or `None` if the offset is past the last block.
    #[inline]
    pub fn block_of(self, offset: usize) -> Option<u32> {
        let block = offset >> self.block_shift;
        (block < self.blocks as usize).then_some(block as u32)
    }

    /// Returns the slot of the run whose object starts at `offset`, if there is one.
    pub fn slot_of(self, block: u32, run: u32, class: SizeClass, offset: usize) -> Option<u32> {
        let into = offset.checked_sub(self.start(block))?;
        let slot = into / class.object_bytes();
        (into % class.object_bytes() == 0 && slot < self.slots(block, run, class) as usize)
            .then_some(slot as u32)
    }

    /// Returns the number of blocks that `count` adjacent objects need when they start in `block`. If they never fit,
    /// that is more than the region has.
    pub fn run_for(self, block: u32, class: SizeClass, count: u32) -> u32 {
        let end = self.start(block) as u64 + u64::from(count) * class.object_bytes() as u64;
        let run = end.div_ceil(self.block_bytes() as u64) - u64::from(block);
        run.min(u64::from(u32::MAX)) as u32
    }

    /// Returns the length, in blocks, of a run for a slab of this class that starts in `block`: the shortest run with
    /// at most 1/32 unused after the last object. An upper bound on the length keeps large objects from taking a region
    /// each. If no run within that bound meets the target, returns the run that wastes least.
    pub fn snug_run(self, block: u32, class: SizeClass) -> u32 {
        let least = self.run_for(block, class, 1);
        let most = (least * MOST_RUN_FACTOR)
            .min(self.blocks / LEAST_RUNS_PER_REGION)
            .max(least);
        let (mut best, mut best_lost, mut best_bytes) = (least, 1, 1);
        for run in least..=most {
            let bytes = self.end(block, run) - self.start(block);
            let lost = bytes % class.object_bytes();
            if lost * MOST_TAIL_SHARE <= bytes {
                return run;
            }
            // lost / bytes < best_lost / best_bytes
            if lost * best_bytes < best_lost * bytes {
                (best, best_lost, best_bytes) = (run, lost, bytes);
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn a_region_of_2_gib_has_a_table_of_32_kib_and_a_line() {
        let geometry = Geometry::new(MIB, 2048 * MIB).unwrap();
        assert_eq!((geometry.blocks(), geometry.first_block()), (2048, 0));
        assert_eq!((geometry.table_bytes(), geometry.start(0)), (32832, 32832));
        assert_eq!(geometry.start(1), MIB);
        assert_eq!(geometry.slots(1, 1, SizeClass::SMALLEST), 16384);
        assert_eq!(geometry.slots(0, 1, SizeClass::SMALLEST), 16384 - 513);
    }

    #[test]
    fn a_table_may_fill_whole_blocks() {
        let geometry = Geometry::new(4096, 8 * MIB).unwrap();
        assert_eq!(geometry.table_bytes(), 32768 + 64);
        assert_eq!((geometry.first_block(), geometry.start(8)), (8, 32832));
        assert!(Geometry::new(4096, 4096 * 8).is_some());
        for (block, region) in [
            (4096, 4095),
            (2048, MIB),
            (6144, MIB),
            (MIB, (1 << 32) + MIB),
        ] {
            assert_eq!(Geometry::new(block, region), None, "{region} by {block}");
        }
    }

    #[test]
    fn runs_of_every_class_waste_at_most_1_32() {
        for region in [256 * MIB, 2048 * MIB] {
            let geometry = Geometry::new(MIB, region).unwrap();
            for class in SizeClass::all() {
                let run = geometry.snug_run(1, class);
                let bytes = run as usize * MIB;
                let lost = bytes - geometry.slots(1, run, class) as usize * class.object_bytes();
                assert!(lost * 32 <= bytes, "{class:?}: {lost} of {bytes} lost");
                assert!(run <= 16, "{class:?}: run of {run}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_run_for_some_objects_is_the_shortest_that_holds_them(
            shift in 12u32..21,
            blocks in 2usize..3000,
            block in 0u32..3000,
            class: u8,
            count in 1u32..100_000,
        ) {
            let Some(geometry) = Geometry::new(1 << shift, blocks << shift) else { return Ok(()) };
            let block = geometry.first_block() + block % geometry.object_blocks();
            let class = SizeClass::new(class);
            let run = geometry.run_for(block, class, count);
            prop_assert!(run >= 1 && geometry.slots(block, run, class) >= count);
            prop_assert!(run == 1 || geometry.slots(block, run - 1, class) < count);
            let snug = geometry.snug_run(block, class);
            prop_assert!(geometry.slots(block, snug, class) >= 1);
            for slot in [0, geometry.slots(block, snug, class) - 1] {
                let offset = geometry.start(block) + slot as usize * class.object_bytes();
                prop_assert_eq!(geometry.slot_of(block, snug, class, offset), Some(slot));
                prop_assert_eq!(geometry.slot_of(block, snug, class, offset + 8), None);
            }
        }
    }
}
