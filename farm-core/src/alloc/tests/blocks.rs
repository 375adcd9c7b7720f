//! The block allocator against a model: the set of live runs.

use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::{TINY, tiny_machine};
use crate::alloc::{
    Adoption, AllocError, ArrayRun, Block, BlockAllocator, BlockConfig, BlockKind, BlockSource,
    BlockState, BlockTable, BlockUsage, Geometry, LocateError, Place, ReleaseError, SizeClass,
};
use crate::ids::{Address, RegionId, WorkerId};
use crate::mem::Memory;

const WORKER: WorkerId = WorkerId::FIRST;

/// Returns the ranges of free blocks, from the states of the single blocks.
fn free_stretches(table: &BlockTable) -> Vec<(u32, u32)> {
    let mut stretches: Vec<(u32, u32)> = Vec::new();
    for block in table.geometry().first_block()..table.geometry().blocks() {
        if table.state(block).unwrap() == BlockState::Free {
            match stretches.last_mut() {
                Some((_, end)) if *end == block => *end += 1,
                _ => stretches.push((block, block + 1)),
            }
        }
    }
    stretches
}

/// Returns whether `count` adjacent objects fit somewhere in the free blocks or in a vacant block.
pub(super) fn fits(table: &BlockTable, class: SizeClass, count: u32) -> bool {
    let geometry: Geometry = table.geometry();
    let in_free = free_stretches(table).into_iter().any(|(start, end)| {
        (start..end).any(|block| geometry.slots(block, end - block, class) >= count)
    });
    let in_vacant = live(table).iter().any(|block| {
        let head = block.head();
        head.kind == BlockKind::Vacant && head.class == class && block.slots() >= count
    });
    in_free || in_vacant
}

fn live(table: &BlockTable) -> Vec<Block> {
    let (mut blocks, mut next) = (Vec::new(), 0);
    while let Some(block) = table.next_block(next).unwrap() {
        next = BlockTable::next_after(&block);
        blocks.push(block);
    }
    blocks
}

fn snapshot(allocator: &BlockAllocator) -> Vec<(RegionId, Vec<u64>)> {
    let words = |table: &BlockTable| {
        let mut words = vec![0; table.geometry().table_bytes() / 8];
        table.memory().read_words(0, &mut words);
        words
    };
    allocator
        .tables()
        .map(|table| (table.region(), words(table)))
        .collect()
}

/// Frees all vacant blocks, as after the end of an epoch.
fn reclaim_all(allocator: &mut BlockAllocator) -> u64 {
    let cut = allocator.cut();
    cut.map_or(0, |cut| allocator.reclaim(cut).unwrap())
}

/// Releases all objects of an array.
fn release_all(allocator: &mut BlockAllocator, array: &ArrayRun) {
    for index in 0..array.count {
        let released = allocator.release_of_array(array.address(index).unwrap());
        assert_eq!(released, Ok(array.class()));
    }
}

#[test]
fn runs_are_first_fit_and_merge_when_freed() {
    let mut allocator = tiny_machine(TINY, 1);
    let class = SizeClass::for_object_bytes(4096).unwrap();
    let array = |allocator: &mut BlockAllocator, count| {
        allocator
            .allocate_array(class, count, WORKER, None)
            .unwrap()
    };
    let (a, b, c) = (
        array(&mut allocator, 3),
        array(&mut allocator, 3),
        array(&mut allocator, 3),
    );
    assert_eq!(
        (a.block.index(), b.block.index(), c.block.index()),
        (0, 4, 7)
    );
    assert_eq!(b.address(2).unwrap().offset(), 6 * 4096);
    assert_eq!((b.address(3), b.class()), (None, class));
    for array in [&a, &b] {
        release_all(&mut allocator, array);
    }
    assert_eq!(allocator.usage().unwrap().vacant_bytes, 7 * 4096);
    let again = array(&mut allocator, 2);
    assert_eq!(
        again.first(),
        b.first(),
        "the smallest vacant block of the class is reused first"
    );
    release_all(&mut allocator, &again);
    assert_eq!(reclaim_all(&mut allocator), 7 * 4096);
    let wide = array(&mut allocator, 6);
    assert_eq!(wide.block.index(), 0, "two freed neighbours form one range");
}

#[test]
fn the_block_of_an_array_is_released_with_its_last_object() {
    let mut allocator = tiny_machine(TINY, 1);
    let class = SizeClass::SMALLEST;
    let array = allocator.allocate_array(class, 10, WORKER, None).unwrap();
    let at = |index| array.address(index).unwrap();
    for index in [3, 0, 9, 1, 2, 4, 8, 7, 6] {
        assert_eq!(allocator.release_of_array(at(index)), Ok(class));
        assert_eq!(
            allocator.release_of_array(at(index)),
            Err(ReleaseError::Free(at(index))),
            "it was released already"
        );
    }
    assert_eq!(allocator.usage().unwrap().array_bytes, 4096);
    assert_eq!(allocator.owner_of(at(5)), Ok(WORKER));
    assert_eq!(allocator.release_of_array(at(5)), Ok(class));
    assert_eq!(allocator.usage().unwrap().array_bytes, 0);
    assert_eq!(
        allocator.release_of_array(at(5)),
        Err(ReleaseError::NotOurs(at(5)))
    );
    assert_eq!(allocator.owner_of(at(5)), Err(LocateError::NoBlock(at(5))));
    let slab = allocator
        .acquire(class, WORKER, Place::Anywhere)
        .unwrap()
        .unwrap();
    assert_eq!(
        slab.index(),
        array.block.index(),
        "the vacant block is reused by its class"
    );
}

#[test]
fn releasing_an_address_that_is_not_in_an_array_fails() {
    let mut allocator = tiny_machine(TINY, 1);
    let class = SizeClass::SMALLEST;
    let array = allocator.allocate_array(class, 10, WORKER, None).unwrap();
    let slab = allocator
        .acquire(class, WORKER, Place::Anywhere)
        .unwrap()
        .unwrap();
    let region = slab.table().region();
    let behind = Address::new(region, array.first().offset() + 10 * 64);
    let between = Address::new(region, array.first().offset() + 32);
    // The table is stored in the array's first block.
    let table = Address::new(region, 0);
    for address in [behind, between, table] {
        let object_bytes = 64;
        assert_eq!(
            allocator.release_of_array(address),
            Err(ReleaseError::NoObject {
                address,
                object_bytes
            })
        );
    }
    let in_slab = Address::new(region, slab.first_offset() as u32);
    let elsewhere = Address::new(region.successor(), 4096);
    for address in [in_slab, elsewhere, Address::NULL] {
        assert_eq!(
            allocator.release_of_array(address),
            Err(ReleaseError::NotOurs(address))
        );
    }
    assert!(allocator.owner_of(Address::NULL).is_err());
    release_all(&mut allocator, &array);
}

#[test]
fn freed_blocks_are_zeroed() {
    let mut allocator = tiny_machine(TINY, 1);
    let array = allocator
        .allocate_array(SizeClass::SMALLEST, 59, WORKER, None)
        .unwrap();
    let memory = array.block.table().memory().clone();
    memory.write_words(array.first().offset() as usize, &[7; 59 * 8]);
    release_all(&mut allocator, &array);
    assert!(reclaim_all(&mut allocator) > 0);
    let mut words = vec![1; (4096 - array.first().offset() as usize) / 8];
    memory.read_words(array.first().offset() as usize, &mut words);
    assert!(words.iter().all(|word| *word == 0));
}

#[test]
fn requests_larger_than_a_region_create_no_region() {
    let mut allocator = tiny_machine(TINY, 1);
    let refused = allocator
        .acquire(SizeClass::LARGEST, WORKER, Place::Anywhere)
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "1048576 bytes of adjacent objects do not fit into a region of 65536 bytes"
    );
    let refused = allocator.allocate_array(SizeClass::SMALLEST, u32::MAX, WORKER, None);
    assert!(matches!(refused, Err(AllocError::LargerThanRegion { .. })));
    assert_eq!(allocator.tables().count(), 0);
    // Beside the table of five lines there is room for 1,019 lines.
    assert!(
        allocator
            .allocate_array(SizeClass::SMALLEST, 1020, WORKER, None)
            .is_err()
    );
    assert_eq!(
        allocator
            .allocate_array(SizeClass::SMALLEST, 1019, WORKER, None)
            .unwrap()
            .block
            .slots(),
        1019
    );
}

#[test]
fn a_failed_region_source_is_called_again() {
    let mut calls = 0;
    let mut allocator = BlockAllocator::new(TINY, move |_near| {
        calls += 1;
        if calls < 3 {
            return Err(AllocError::NoRegion("the disk is on fire".into()));
        }
        Ok((
            RegionId::new(1, 1).unwrap(),
            Memory::anonymous(TINY.region_bytes),
        ))
    });
    for _ in 0..2 {
        let failed = allocator
            .acquire(SizeClass::SMALLEST, WORKER, Place::Anywhere)
            .unwrap_err();
        assert_eq!(
            failed.to_string(),
            "cannot create a region: the disk is on fire"
        );
    }
    assert!(
        allocator
            .acquire(SizeClass::SMALLEST, WORKER, Place::Anywhere)
            .is_ok()
    );
    for _ in 0..15 {
        allocator
            .acquire(SizeClass::SMALLEST, WORKER, Place::Anywhere)
            .unwrap();
    }
    let again = allocator
        .acquire(SizeClass::SMALLEST, WORKER, Place::Anywhere)
        .unwrap_err();
    assert!(matches!(again, AllocError::RegionExists(_)), "{again}");
}

#[test]
fn an_adopted_region_keeps_its_blocks_and_arrays() {
    let mut allocator = tiny_machine(TINY, 1);
    let class = SizeClass::new(20);
    let kept = allocator.allocate_array(class, 5, WORKER, None).unwrap();
    let memory = kept.block.table().memory().clone();
    for index in [0, 4] {
        let incarnation = kept.address(index).unwrap().offset() as usize + 8;
        let born = kept.begin(index).incarnation.allocated();
        memory.store(incarnation, born.0, Ordering::Release);
    }
    let freed = allocator.allocate_array(class, 5, WORKER, None).unwrap();
    release_all(&mut allocator, &freed);

    let mut adopter = BlockAllocator::new(TINY, |_near| Err(AllocError::NoRegion("none".into())));
    let changes = adopter.changes();
    let table = BlockTable::open(memory, kept.first().region()).unwrap();
    let scanned = || {
        let mut adoption = Adoption::new(table.clone());
        assert_eq!(adoption.step(u32::MAX), Ok(true));
        adoption
    };
    adopter.adopt(scanned(), 1).unwrap();
    assert_eq!(changes.count(), 1);
    assert!(matches!(
        adopter.adopt(scanned(), 1),
        Err(AllocError::RegionExists(_))
    ));
    let there = BlockUsage {
        array_objects: 2,
        ..allocator.usage().unwrap()
    };
    assert_eq!(adopter.usage().unwrap(), there);
    assert_eq!(adopter.owner_of(kept.address(4).unwrap()), Ok(WORKER));
    assert_eq!(
        adopter
            .allocate_array(class, 5, WORKER, None)
            .unwrap()
            .first(),
        freed.first()
    );
    // Two objects of the kept array are allocated; its block is released with the second of them.
    let at = |index| kept.address(index).unwrap();
    assert_eq!(
        adopter.release_of_array(at(1)),
        Err(ReleaseError::Free(at(1)))
    );
    let array_bytes = adopter.usage().unwrap().array_bytes;
    assert_eq!(adopter.release_of_array(at(0)), Ok(class));
    assert_eq!(adopter.usage().unwrap().array_bytes, array_bytes);
    assert_eq!(adopter.release_of_array(at(4)), Ok(class));
    assert!(adopter.usage().unwrap().array_bytes < array_bytes);
}

#[derive(Debug, Clone)]
enum Step {
    Slab(u8, Near),
    Array(u8, u32, Option<prop::sample::Index>),
    Free(prop::sample::Index),
    Reclaim,
}

#[derive(Debug, Clone)]
enum Near {
    In(prop::sample::Index),
    Ring(prop::sample::Index),
    Anywhere,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let index = || any::<prop::sample::Index>();
    let near = prop_oneof![
        index().prop_map(Near::In),
        index().prop_map(Near::Ring),
        Just(Near::Anywhere)
    ];
    let step = prop_oneof![
        1 => (0u8..150, near).prop_map(|(class, near)| Step::Slab(class, near)),
        4 => (0u8..150, 1u32..40, prop::option::of(index()))
            .prop_map(|(class, count, near)| Step::Array(class, count, near)),
        4 => index().prop_map(Step::Free),
        1 => Just(Step::Reclaim),
    ];
    prop::collection::vec(step, 1..120)
}

/// The allocator, and the blocks and arrays that it should have.
struct Model {
    allocator: BlockAllocator,
    live: Vec<Block>,
    arrays: Vec<ArrayRun>,
}

impl Model {
    fn region(&self, at: &prop::sample::Index) -> RegionId {
        let regions: Vec<_> = self.allocator.tables().map(BlockTable::region).collect();
        if regions.is_empty() {
            RegionId::new(9, 9).unwrap()
        } else {
            *at.get(&regions)
        }
    }

    fn fits_in(&self, region: RegionId, class: SizeClass, count: u32) -> bool {
        let table = self
            .allocator
            .tables()
            .find(|table| table.region() == region);
        table.is_some_and(|table| fits(table, class, count))
    }

    fn fits_anywhere(&self, class: SizeClass, count: u32) -> bool {
        self.allocator
            .tables()
            .any(|table| fits(table, class, count))
    }

    /// Checks that a new block overlaps no live one and is at an allowed position; then adds it to the model.
    fn check_and_add(
        &mut self,
        block: &Block,
        class: SizeClass,
        count: u32,
    ) -> Result<(), TestCaseError> {
        let range = |b: &Block| (b.index(), b.index() + b.head().run);
        for other in self
            .live
            .iter()
            .filter(|o| o.table().region() == block.table().region())
        {
            let ((from, to), (start, end)) = (range(block), range(other));
            prop_assert!(
                to <= start || end <= from,
                "{:?} overlaps {:?}",
                block,
                other
            );
        }
        prop_assert!(range(block).1 <= block.table().geometry().blocks());
        prop_assert_eq!(block.first_offset() % 64, 0);
        prop_assert!(block.first_offset() >= block.table().geometry().table_bytes());
        prop_assert!(block.slots() >= count && block.head().class == class);
        self.live.push(block.clone());
        Ok(())
    }

    /// Checks that a failed request changed nothing, and could not have been met.
    fn failed(
        &self,
        error: &AllocError,
        before: &[(RegionId, Vec<u64>)],
        class: SizeClass,
        count: u32,
    ) -> Result<(), TestCaseError> {
        prop_assert!(snapshot(&self.allocator) == before);
        match error {
            AllocError::OutOfMemory {
                asked,
                in_use,
                limit,
            } => {
                prop_assert!(!self.fits_anywhere(class, count));
                prop_assert_eq!(*asked, u64::from(count) * class.object_bytes() as u64);
                prop_assert_eq!(*in_use, before.len() as u64 * TINY.region_bytes as u64);
                prop_assert!(in_use + TINY.region_bytes as u64 > *limit);
            }
            AllocError::LargerThanRegion {
                asked,
                region_bytes,
            } => {
                prop_assert!(asked + 320 > *region_bytes);
            }
            other => prop_assert!(false, "{}", other),
        }
        Ok(())
    }

    fn slab(&mut self, class: SizeClass, near: &Near) -> Result<(), TestCaseError> {
        let before = snapshot(&self.allocator);
        let place = match near {
            Near::In(at) => Place::In(self.region(at)),
            Near::Ring(at) => Place::Near(self.region(at)),
            Near::Anywhere => Place::Anywhere,
        };
        let possible = match place {
            Place::In(region) | Place::Near(region) => self.fits_in(region, class, 1),
            Place::Anywhere => self.fits_anywhere(class, 1),
        };
        match self.allocator.acquire(class, WORKER, place) {
            Ok(Some(block)) => {
                if let Place::In(region) = place {
                    prop_assert_eq!(block.table().region(), region);
                }
                if let (Place::Near(region), true) = (place, possible) {
                    prop_assert_eq!(
                        block.table().region(),
                        region,
                        "the nearest region has room"
                    );
                }
                self.check_and_add(&block, class, 1)
            }
            Ok(None) => {
                prop_assert!(!possible && place != Place::Anywhere);
                prop_assert_eq!(snapshot(&self.allocator), before);
                Ok(())
            }
            Err(error) => self.failed(&error, &before, class, 1),
        }
    }

    fn array(
        &mut self,
        class: SizeClass,
        count: u32,
        near: Option<RegionId>,
    ) -> Result<(), TestCaseError> {
        let before = snapshot(&self.allocator);
        let near = near.filter(|near| self.fits_in(*near, class, count));
        match self.allocator.allocate_array(class, count, WORKER, near) {
            Ok(array) => {
                if let Some(near) = near {
                    prop_assert_eq!(array.first().region(), near);
                }
                self.arrays.push(array.clone());
                self.check_and_add(&array.block, class, count)
            }
            Err(error) => self.failed(&error, &before, class, count),
        }
    }

    fn free(&mut self, array: &ArrayRun) {
        release_all(&mut self.allocator, array);
        let first = array.first();
        self.arrays.retain(|array| array.first() != first);
        self.live.retain(|block| {
            (block.table().region(), block.first_offset())
                != (first.region(), first.offset() as usize)
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn runs_never_overlap_and_failures_lose_no_block(steps in steps(), seed: u64) {
        let allocator = tiny_machine(TINY, seed);
        let mut model = Model { allocator, live: vec![], arrays: vec![] };
        for step in steps {
            match step {
                Step::Slab(class, near) => model.slab(SizeClass::new(class), &near)?,
                Step::Array(class, count, near) => {
                    let near = near.map(|at| model.region(&at));
                    model.array(SizeClass::new(class), count, near)?;
                }
                Step::Free(at) if !model.arrays.is_empty() => {
                    let array = at.get(&model.arrays).clone();
                    model.free(&array);
                }
                Step::Free(_) => {}
                Step::Reclaim => _ = reclaim_all(&mut model.allocator),
            }
            for table in model.allocator.tables() {
                prop_assert_eq!(table.check(), Ok(()));
            }
        }
        while let Some(array) = model.arrays.last().cloned() {
            model.free(&array);
        }
        reclaim_all(&mut model.allocator);
        let usage = model.allocator.usage().unwrap();
        let slabs: u64 = model.live.iter().map(|block| block.bytes() as u64).sum();
        prop_assert_eq!((usage.array_bytes, usage.vacant_bytes, usage.slab_bytes), (0, 0, slabs));
        prop_assert_eq!(usage.free_bytes + slabs, usage.region_bytes);
    }
}

/// A table may fill whole blocks.
#[test]
fn regions_of_many_small_blocks_work() {
    let config = BlockConfig {
        region_bytes: 8 << 20,
        per_machine_bytes: 8 << 20,
        ..TINY
    };
    let mut allocator = tiny_machine(config, 3);
    let mut blocks = 0;
    while let Ok(Some(_)) = allocator.acquire(SizeClass::SMALLEST, WORKER, Place::Anywhere) {
        blocks += 1;
    }
    assert_eq!(blocks, 2048 - 8);
    let table = allocator.tables().next().unwrap();
    assert_eq!(table.check(), Ok(()));
    assert_eq!(table.state(7), Ok(BlockState::Table));
    assert_eq!(table.next_block(0).unwrap().unwrap().slots(), 63);
}
