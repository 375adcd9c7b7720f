//! Blocks that change their class: case by case, and against a model that remembers every freed object.

use proptest::prelude::*;
use std::collections::BTreeMap;

use super::slabs::worker;
use super::{TINY, tiny_machine};
use crate::alloc::testing::set_allocated;
use crate::alloc::{
    Adoption, AllocError, BlockAllocator, BlockConfig, BlockSource, BlockTable, Cut, ReleaseError,
    Reserved, SizeClass, Slab,
};
use crate::ids::Address;
use crate::object::write::Room;
use crate::object::{LockMode, VersionWord};

const ONE_REGION: BlockConfig = BlockConfig {
    per_machine_bytes: TINY.region_bytes as u64,
    ..TINY
};

/// Reserves objects until memory is full.
fn fill(slab: &mut Slab, class: SizeClass, blocks: &mut BlockAllocator) -> Vec<Reserved> {
    std::iter::from_fn(|| slab.reserve(class, None, blocks).ok()).collect()
}

#[test]
fn memory_full_of_one_class_serves_another_after_a_cut() {
    let mut blocks = tiny_machine(ONE_REGION, 5);
    let mut slab = Slab::new(worker(0), blocks.changes());
    let (small, large) = (SizeClass::new(1), SizeClass::new(20));
    let objects = fill(&mut slab, small, &mut blocks);
    assert!(blocks.is_low() && blocks.available_bytes() == 0);
    assert_eq!((slab.retire(&mut blocks), blocks.cut()), (0, None));
    for object in &objects {
        set_allocated(&slab, object, true);
        set_allocated(&slab, object, false);
        slab.release(object.address).unwrap();
    }
    let usage = slab.usage(small);
    assert!(slab.reserve(large, None, &mut blocks).is_err());
    assert_eq!(slab.retire(&mut blocks), usage.blocks as usize);
    assert_eq!(slab.usage(small), Default::default());
    assert_eq!(slab.check(blocks.tables()), Ok(()));
    let first = objects[0].address;
    assert_eq!(slab.release(first), Err(ReleaseError::NotOurs(first)));
    assert!(!slab.is_reserved(first));
    // The blocks are retired, but no epoch has ended.
    assert!(slab.reserve(large, None, &mut blocks).is_err());
    let cut = blocks.cut().unwrap();
    assert!(slab.reserve(large, None, &mut blocks).is_err());
    assert_eq!(blocks.reclaim(cut), Ok(usage.reserved_bytes));
    let others = fill(&mut slab, large, &mut blocks);
    assert!(others.len() > 40, "{} objects", others.len());
    assert_eq!(blocks.usage().unwrap().vacant_bytes, 0);
}

/// An object of the same class reuses the block and its headers before the epoch ends.
#[test]
fn a_retired_block_serves_its_own_class_at_any_time() {
    let mut blocks = tiny_machine(ONE_REGION, 5);
    let mut slab = Slab::new(worker(0), blocks.changes());
    let class = SizeClass::new(1);
    let object = slab.reserve(class, None, &mut blocks).unwrap();
    set_allocated(&slab, &object, true);
    set_allocated(&slab, &object, false);
    slab.release(object.address).unwrap();
    assert_eq!(slab.retire(&mut blocks), 1);
    let cut = blocks.cut().unwrap();
    let mut other = Slab::new(worker(1), blocks.changes());
    let again = other.reserve(class, None, &mut blocks).unwrap();
    assert_eq!(again.address, object.address);
    assert_eq!(blocks.owner_of(again.address), Ok(worker(1)));
    let before = room_at(&other, &again);
    assert!(!before.is_new, "the header is unchanged");
    assert_eq!(blocks.reclaim(cut), Ok(0));
    other.release(again.address).unwrap();
    assert_eq!(other.retire(&mut blocks), 1);
    assert_eq!(
        blocks.reclaim(cut),
        Ok(0),
        "the block was retired again, after the cut"
    );
    let cut = blocks.cut().unwrap();
    assert_eq!(blocks.reclaim(cut), Ok(4096));
    let fresh = slab.reserve(class, None, &mut blocks).unwrap();
    assert_eq!(fresh.address, object.address);
    let after = room_at(&slab, &fresh);
    assert!(
        after.is_new && after.version > before.version,
        "{after:?} after {before:?}"
    );
    assert!(after.incarnation.count() > before.incarnation.count());
}

/// A machine dies while it renews a block: objects with headers that it had not zeroed continue, and the others start
/// from a greater base.
#[test]
fn a_half_renewed_block_is_reused_by_its_class() {
    let mut blocks = tiny_machine(ONE_REGION, 5);
    let mut slab = Slab::new(worker(0), blocks.changes());
    let class = SizeClass::new(1);
    let objects: Vec<_> = (0..10)
        .map(|_| {
            let object = slab.reserve(class, None, &mut blocks).unwrap();
            set_allocated(&slab, &object, true);
            set_allocated(&slab, &object, false);
            object
        })
        .collect();
    let before: Vec<Room> = objects.iter().map(|one| room_at(&slab, one)).collect();
    for object in &objects {
        slab.release(object.address).unwrap();
    }
    slab.retire(&mut blocks);
    let cut = blocks.cut().unwrap();
    let block = blocks.take_vacant_before(cut).unwrap().unwrap();
    block.renew().unwrap();
    // As if the last five objects had not been zeroed yet.
    let memory = block.table().memory().clone();
    for (object, room) in objects.iter().zip(&before).skip(5) {
        let version = VersionWord::of(room.version, LockMode::Unlocked).0;
        let header = [version, room.incarnation.0];
        memory.write_words(object.address.offset() as usize, &header);
    }
    let region = block.table().region();
    let table = BlockTable::open_after_crash(memory, region).unwrap();
    let mut adopter =
        BlockAllocator::new(ONE_REGION, |_near| Err(AllocError::NoRegion("none".into())));
    let mut adoption = Adoption::new(table);
    assert_eq!(adoption.step(u32::MAX), Ok(true));
    adopter.adopt(adoption, 1).unwrap();
    let mut slab = Slab::new(worker(0), adopter.changes());
    for (index, room) in before.into_iter().enumerate() {
        let object = slab.reserve(class, None, &mut adopter).unwrap();
        assert_eq!(object.address, objects[index].address);
        let now = room_at(&slab, &object);
        if index < 5 {
            assert!(
                now.is_new && now.version > room.version,
                "{now:?}, {room:?}"
            );
        } else {
            assert_eq!(now, room);
        }
    }
}

/// The base of a run is beyond the versions and incarnations of all of its blocks.
#[test]
fn a_run_starts_beyond_the_versions_of_all_its_blocks() {
    let mut blocks = tiny_machine(ONE_REGION, 5);
    let mut slab = Slab::new(worker(0), blocks.changes());
    let objects = fill(&mut slab, SizeClass::SMALLEST, &mut blocks);
    let mut most = (0, 0);
    for (index, object) in objects.iter().enumerate() {
        // Some objects are written and freed far more often than others.
        for _ in 0..if index % 97 == 0 { 200 } else { 1 } {
            set_allocated(&slab, object, true);
            set_allocated(&slab, object, false);
        }
        let room = room_at(&slab, object);
        most.0 = most.0.max(room.version.get());
        most.1 = most.1.max(room.incarnation.count());
        slab.release(object.address).unwrap();
    }
    slab.retire(&mut blocks);
    let cut = blocks.cut().unwrap();
    blocks.reclaim(cut).unwrap();
    let class = SizeClass::for_object_bytes(3000).unwrap();
    let array = blocks.allocate_array(class, 20, worker(0), None).unwrap();
    assert!(array.block.head().run > 12);
    for index in 0..20 {
        let room = array.begin(index);
        assert!(room.version.get() > most.0 && room.incarnation.count() > most.1);
        assert_eq!(room.incarnation.class(), class);
    }
}

/// The last block moves to the position of the removed one.
#[test]
fn remaining_blocks_are_found_after_others_are_retired() {
    let mut blocks = tiny_machine(TINY, 5);
    let mut slab = Slab::new(worker(0), blocks.changes());
    let classes = [1, 20, 9, 1, 30, 20].map(SizeClass::new);
    let objects: Vec<_> = classes
        .into_iter()
        .flat_map(|class| {
            let mut object = || slab.reserve(class, None, &mut blocks).unwrap();
            [object(), object(), object()]
        })
        .collect();
    for object in objects.iter().filter(|object| object.class == classes[1]) {
        slab.release(object.address).unwrap();
    }
    let retired = slab.retire(&mut blocks);
    assert!(retired > 0, "{retired}");
    assert_eq!(slab.usage(classes[1]), Default::default());
    for object in objects.iter().filter(|object| object.class != classes[1]) {
        assert!(slab.is_reserved(object.address));
        slab.release(object.address).unwrap();
    }
    for class in classes {
        let usage = slab.usage(class);
        assert_eq!(usage.free_slots(), usage.slots);
    }
    slab.retire(&mut blocks);
    assert_eq!(slab.check(blocks.tables()), Ok(()));
    assert_eq!(blocks.usage().unwrap().slab_bytes, 0);
}

#[test]
fn adjacent_freed_blocks_form_one_free_range() {
    let mut blocks = tiny_machine(ONE_REGION, 5);
    let mut slab = Slab::new(worker(0), blocks.changes());
    let objects = fill(&mut slab, SizeClass::SMALLEST, &mut blocks);
    for object in objects {
        slab.release(object.address).unwrap();
    }
    slab.retire(&mut blocks);
    let cut = blocks.cut().unwrap();
    blocks.reclaim(cut).unwrap();
    let wide = SizeClass::for_object_bytes(15 * 4096).unwrap();
    assert!(slab.reserve(wide, None, &mut blocks).is_ok());
}

fn room_at(slab: &Slab, reserved: &Reserved) -> Room {
    slab.begin(reserved)
}

#[derive(Debug, Clone)]
enum Step {
    Reserve(usize, u8),
    Free(prop::sample::Index),
    Retire(usize),
    Cut,
    Reclaim,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let class = prop_oneof![Just(0u8), Just(1), Just(7), 0u8..40, 40u8..120];
    let step = prop_oneof![
        6 => (0usize..2, class).prop_map(|(worker, class)| Step::Reserve(worker, class)),
        6 => any::<prop::sample::Index>().prop_map(Step::Free),
        1 => (0usize..2).prop_map(Step::Retire),
        1 => Just(Step::Cut),
        1 => Just(Step::Reclaim),
    ];
    prop::collection::vec(step, 1..400)
}

/// A freed object: its class, its header when it was freed, and the step at which it was freed.
#[derive(Clone, Copy, Debug)]
struct Gone {
    class: SizeClass,
    room: Room,
    freed_at: usize,
}

struct Model {
    blocks: BlockAllocator,
    slabs: [Slab; 2],
    live: BTreeMap<Address, (usize, Reserved)>,
    gone: BTreeMap<Address, Gone>,
    /// The last cut, and the step at which it was made; `reclaimed_to` is the step of the last cut that was reclaimed.
    cut: Option<(Cut, usize)>,
    reclaimed_to: usize,
}

impl Model {
    fn reserve(&mut self, by: usize, class: SizeClass) -> Result<(), TestCaseError> {
        let object = match self.slabs[by].reserve(class, None, &mut self.blocks) {
            Ok(object) => object,
            Err(AllocError::OutOfMemory { .. } | AllocError::LargerThanRegion { .. }) => {
                return Ok(());
            }
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        };
        let start = object.address;
        let end = start.checked_add(class.object_bytes() as u32).unwrap();
        let bytes = |class: SizeClass| class.object_bytes() as u32;
        if let Some((at, (_, other))) = self.live.range(..end).next_back() {
            prop_assert!(at.checked_add(bytes(other.class)).unwrap() <= start);
        }
        let room = room_at(&self.slabs[by], &object);
        prop_assert_eq!(room.incarnation.class(), class);
        let under: Vec<(Address, Gone)> = self
            .gone
            .range(..end)
            .rev()
            .take_while(|(at, _)| at.region() == start.region())
            .filter(|(at, gone)| at.checked_add(bytes(gone.class)).unwrap() > start)
            .map(|(at, gone)| (*at, *gone))
            .collect();
        for (at, gone) in under {
            let same = at == start && gone.class == class && gone.room == room;
            prop_assert!(
                same || gone.freed_at < self.reclaimed_to,
                "{object:?} overlaps {gone:?}, which was at {at}"
            );
            let (now, then) = (room.incarnation.count(), gone.room.incarnation.count());
            prop_assert!(
                same || room.version > gone.room.version && now > then,
                "{room:?} is not beyond {gone:?} at {at}"
            );
            self.gone.remove(&at);
        }
        set_allocated(&self.slabs[by], &object, true);
        self.live.insert(start, (by, object));
        Ok(())
    }

    fn free(&mut self, address: Address, now: usize) {
        let (by, object) = self.live.remove(&address).unwrap();
        set_allocated(&self.slabs[by], &object, false);
        let gone = Gone {
            class: object.class,
            room: room_at(&self.slabs[by], &object),
            freed_at: now,
        };
        self.gone.insert(address, gone);
        self.slabs[by].release(address).unwrap();
    }

    fn check(&self) -> Result<(), TestCaseError> {
        for slab in &self.slabs {
            prop_assert_eq!(slab.check(self.blocks.tables()), Ok(()));
        }
        for (address, (by, _)) in &self.live {
            prop_assert!(self.slabs[*by].is_reserved(*address));
        }
        let usage = self.blocks.usage().unwrap();
        let unmade = TINY.per_machine_bytes - usage.region_bytes;
        let first_blocks = usage.regions as u64 * usage.table_bytes / usage.regions.max(1) as u64;
        let available = self.blocks.available_bytes();
        prop_assert!(available >= usage.free_bytes + unmade);
        prop_assert!(available <= usage.free_bytes + unmade + first_blocks);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn memory_changes_its_class_only_after_a_cut_later_than_its_objects(
        steps in steps(),
        seed: u64,
    ) {
        let config = BlockConfig { per_machine_bytes: TINY.per_machine_bytes, ..TINY };
        let blocks = tiny_machine(config, seed);
        let slabs = [0, 1].map(|id| Slab::new(worker(id), blocks.changes()));
        let mut model = Model {
            blocks,
            slabs,
            live: BTreeMap::new(),
            gone: BTreeMap::new(),
            cut: None,
            reclaimed_to: 0,
        };
        for (now, step) in steps.into_iter().enumerate() {
            match step {
                Step::Reserve(by, class) => model.reserve(by, SizeClass::new(class))?,
                Step::Free(at) if !model.live.is_empty() => {
                    let addresses: Vec<_> = model.live.keys().copied().collect();
                    model.free(*at.get(&addresses), now);
                }
                Step::Free(_) => {}
                Step::Retire(by) => {
                    let slab = &mut model.slabs[by];
                    slab.retire(&mut model.blocks as &mut dyn BlockSource);
                    prop_assert_eq!(slab.retire(&mut model.blocks), 0);
                }
                Step::Cut => {
                    if let Some(cut) = model.blocks.cut() {
                        model.cut = Some((cut, now));
                    }
                }
                Step::Reclaim => if let Some((cut, made)) = model.cut.take() {
                    model.blocks.reclaim(cut).unwrap();
                    model.reclaimed_to = made;
                },
            }
            model.check()?;
        }
    }
}
