//! The slab allocators of two workers against a model: the set of live objects.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::blocks::fits;
use super::slabs::worker;
use super::{TINY, adopt_copies, tiny_machine};
use crate::alloc::testing::{set_allocated, set_freed};
use crate::alloc::{AllocError, BlockAllocator, Reserved, SizeClass, Slab};
use crate::ids::{Address, WorkerId};

#[derive(Debug, Clone)]
enum Step {
    Reserve {
        worker: usize,
        class: u8,
        hint: Option<prop::sample::Index>,
    },
    Free(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let hint = prop::option::of(any::<prop::sample::Index>());
    let class = prop_oneof![4 => Just(20u8), 2 => 0u8..30, 1 => 30u8..150];
    let reserve = (0usize..2, class, hint).prop_map(|(worker, class, hint)| Step::Reserve {
        worker,
        class,
        hint,
    });
    let step = prop_oneof![3 => reserve, 2 => any::<prop::sample::Index>().prop_map(Step::Free)];
    prop::collection::vec(step, 1..400)
}

/// Two workers, and the objects that they should have, by address.
struct Model {
    blocks: BlockAllocator,
    slabs: [Slab; 2],
    live: BTreeMap<Address, (usize, Reserved)>,
}

impl Model {
    /// Returns the bounds of the block that contains `at`, if the worker can reserve an object of `class` in it.
    fn free_in_block(&self, at: Address, worker: usize, class: SizeClass) -> Option<(u32, u32)> {
        let table = self
            .blocks
            .tables()
            .find(|table| table.region() == at.region())?;
        let (index, head) = table.block_at(at.offset()).ok()?;
        if head.owner.index() != worker || head.class != class {
            return None;
        }
        let geometry = table.geometry();
        let (start, end) = (geometry.start(index) as u32, (index + head.run) * 4096);
        let range = Address::new(at.region(), start)..Address::new(at.region(), end);
        let live = self.live.range(range).count() as u32;
        (live < geometry.slots(index, head.run, class)).then_some((start, end))
    }

    /// Returns whether `worker` can reserve an object of `class` in the region.
    fn free_in_region(&self, at: Address, worker: usize, class: SizeClass) -> bool {
        let tables = self
            .blocks
            .tables()
            .filter(|table| table.region() == at.region());
        tables.into_iter().any(|table| {
            let in_blocks = (0..table.geometry().blocks()).any(|block| {
                let at = Address::new(at.region(), table.geometry().start(block) as u32);
                self.free_in_block(at, worker, class).is_some()
            });
            in_blocks || fits(table, class, 1)
        })
    }

    fn anything_free(&self, worker: usize, class: SizeClass) -> bool {
        self.blocks
            .tables()
            .any(|table| self.free_in_region(Address::new(table.region(), 0), worker, class))
    }

    fn reserve(
        &mut self,
        worker: usize,
        class: SizeClass,
        hint: Option<Address>,
    ) -> Result<(), TestCaseError> {
        let block = hint.and_then(|hint| self.free_in_block(hint, worker, class));
        let in_region = hint.is_some_and(|hint| self.free_in_region(hint, worker, class));
        let usage = self.slabs[worker].usage(class);
        let reserved = match self.slabs[worker].reserve(class, hint, &mut self.blocks) {
            Ok(reserved) => reserved,
            Err(AllocError::OutOfMemory { .. }) => {
                prop_assert!(!self.anything_free(worker, class));
                prop_assert_eq!(self.slabs[worker].usage(class), usage);
                return Ok(());
            }
            Err(AllocError::LargerThanRegion { .. }) => {
                prop_assert!(class.object_bytes() + 192 > TINY.region_bytes);
                return Ok(());
            }
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        };
        let address = reserved.address;
        if let Some((start, end)) = block {
            let same = address.region() == hint.unwrap().region();
            prop_assert!(
                same && (start..end).contains(&address.offset()),
                "the object is not in the block of the hint"
            );
        } else if in_region {
            prop_assert_eq!(address.region(), hint.unwrap().region());
        }
        self.check_and_add(worker, class, reserved)
    }

    /// Checks that a new object overlaps no live one, is whole within its region, and belongs to its worker; then adds
    /// it to the model.
    fn check_and_add(
        &mut self,
        worker: usize,
        class: SizeClass,
        reserved: Reserved,
    ) -> Result<(), TestCaseError> {
        let (address, bytes) = (reserved.address, class.object_bytes() as u32);
        prop_assert!(reserved.class == class && address.is_line_aligned());
        prop_assert!((address.offset() + bytes) as usize <= TINY.region_bytes);
        let end = address.checked_add(bytes).unwrap();
        if let Some((before, (_, other))) = self.live.range(..end).next_back() {
            let other_end = before
                .checked_add(other.class.object_bytes() as u32)
                .unwrap();
            prop_assert!(other_end <= address, "{} overlaps {}", address, before);
        }
        prop_assert_eq!(
            self.blocks.owner_of(address).map(WorkerId::index),
            Ok(worker)
        );
        prop_assert!(self.slabs[worker].is_reserved(address));
        set_allocated(&self.slabs[worker], &reserved, true);
        self.live.insert(address, (worker, reserved));
        Ok(())
    }

    fn free(&mut self, address: Address) {
        let (worker, reserved) = self.live.remove(&address).unwrap();
        set_allocated(&self.slabs[worker], &reserved, false);
        assert_eq!(self.slabs[worker].release(address), Ok(reserved.class));
    }

    /// Checks that slab allocators that know memory alone agree with the live ones.
    fn check_against_memory(&self) -> Result<(), TestCaseError> {
        let (blocks, adopters) = adopt_copies(&self.blocks, 2, |_, _| {});
        for (worker, (slab, adopter)) in self.slabs.iter().zip(&adopters).enumerate() {
            prop_assert_eq!(slab.check(self.blocks.tables()), Ok(()));
            prop_assert_eq!(adopter.check(blocks.tables()), Ok(()));
            for class in SizeClass::all() {
                prop_assert_eq!(adopter.usage(class).live, slab.usage(class).live);
            }
            for (address, (owner, _)) in &self.live {
                prop_assert_eq!(adopter.is_reserved(*address), *owner == worker);
            }
        }
        Ok(())
    }

    /// Has another machine adopt the regions while transactions free some of the objects, and checks that it then hands out all memory
    /// but that of the others.
    fn check_adoption(
        &self,
        workers: u16,
        freed: &[prop::sample::Index],
    ) -> Result<(), TestCaseError> {
        let all: Vec<Address> = self.live.keys().copied().collect();
        let mut freed = freed.iter().filter(|_| !all.is_empty());
        let mut left = self.live.clone();
        let (mut blocks, mut slabs) = adopt_copies(&self.blocks, workers, |adoption, memory| {
            let Some(address) = freed.next().map(|at| *at.get(&all)) else {
                return;
            };
            if memory.0 == address.region() && left.remove(&address).is_some() {
                set_freed(&memory.1, address);
                adoption.release(address);
            }
        });
        for slab in &slabs {
            prop_assert_eq!(slab.check(blocks.tables()), Ok(()));
        }
        let mut taken: BTreeMap<Address, u32> = left
            .iter()
            .map(|(address, (_, one))| (*address, one.class.object_bytes() as u32))
            .collect();
        for (worker, class) in [(0, 20), (slabs.len() - 1, 0), (0, 5), (slabs.len() - 1, 40)] {
            let class = SizeClass::new(class);
            while let Ok(new) = slabs[worker].reserve(class, None, &mut blocks) {
                let (at, bytes) = (new.address, class.object_bytes() as u32);
                let end = at.checked_add(bytes).unwrap();
                if let Some((before, bytes)) = taken.range(..end).next_back() {
                    prop_assert!(
                        before.checked_add(*bytes).unwrap() <= at,
                        "{before} and {at}"
                    );
                }
                taken.insert(at, bytes);
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn objects_never_overlap_hints_are_obeyed_and_memory_agrees(
        steps in steps(),
        seed: u64,
        workers in 1u16..4,
        freed in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let blocks = tiny_machine(TINY, seed);
        let slabs = [0, 1].map(|id| Slab::new(worker(id), blocks.changes()));
        let mut model = Model { blocks, slabs, live: BTreeMap::new() };
        for step in steps {
            match step {
                Step::Reserve { worker, class, hint } => {
                    let addresses: Vec<_> = model.live.keys().copied().collect();
                    let hint = hint.filter(|_| !addresses.is_empty()).map(|at| *at.get(&addresses));
                    model.reserve(worker, SizeClass::new(class), hint)?;
                }
                Step::Free(at) if !model.live.is_empty() => {
                    let addresses: Vec<_> = model.live.keys().copied().collect();
                    model.free(*at.get(&addresses));
                }
                Step::Free(_) => {}
            }
        }
        model.check_against_memory()?;
        model.check_adoption(workers, &freed)?;
        while let Some(address) = model.live.keys().next().copied() {
            model.free(address);
        }
        model.check_against_memory()?;
        for slab in &model.slabs {
            for class in SizeClass::all() {
                prop_assert_eq!(slab.usage(class).free_slots(), slab.usage(class).slots);
            }
        }
    }
}
