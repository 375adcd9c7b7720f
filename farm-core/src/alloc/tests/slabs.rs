//! Slab allocators, case by case.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use super::{TINY, tiny_machine};
use crate::alloc::testing::set_allocated;
use crate::alloc::{
    AllocError, BlockAllocator, BlockConfig, Mismatch, ReleaseError, Reserved, SizeClass, Slab,
};
use crate::ids::{Address, WorkerId};
use crate::object::Incarnation;

pub(super) fn worker(id: u16) -> WorkerId {
    WorkerId::new(id).unwrap()
}

fn one_slab() -> (BlockAllocator, Slab) {
    let blocks = tiny_machine(TINY, 1);
    let slab = Slab::new(worker(0), blocks.changes());
    (blocks, slab)
}

#[test]
fn slots_are_adjacent_and_freed_slots_are_reused_first() {
    let (mut blocks, mut slab) = one_slab();
    let class = SizeClass::new(1);
    let reserved: Vec<_> = (0..40)
        .map(|_| slab.reserve(class, None, &mut blocks).unwrap())
        .collect();
    // Block 0 has 4096 - 320 bytes: 29 objects of 128 bytes. The other objects are in the next block.
    let offsets: Vec<_> = reserved.iter().map(|r| r.address.offset()).collect();
    let expected: Vec<_> = (0..29)
        .map(|i| 320 + i * 128)
        .chain((0..11).map(|i| 4096 + i * 128))
        .collect();
    assert_eq!(offsets, expected);
    slab.release(reserved[33].address).unwrap();
    slab.release(reserved[31].address).unwrap();
    let again = slab.reserve(class, None, &mut blocks).unwrap();
    assert_eq!(again.address, reserved[31].address);
    let usage = slab.usage(class);
    assert_eq!(
        (usage.blocks, usage.slots, usage.live, usage.free_slots()),
        (2, 61, 39, 22)
    );
    assert_eq!(usage.reserved_bytes, 8192);
    assert!((usage.internal_fragmentation(class, 39 * 99) - 0.1).abs() < 1e-9);
    assert!((usage.external_fragmentation(class) - (1.0 - 39.0 * 128.0 / 8192.0)).abs() < 1e-9);
    assert_eq!(
        slab.usage(SizeClass::LARGEST)
            .external_fragmentation(SizeClass::LARGEST),
        0.0
    );
}

#[test]
fn releasing_an_address_that_is_not_a_reserved_slot_fails() {
    let (mut blocks, mut slab) = one_slab();
    let class = SizeClass::new(1);
    let reserved = slab.reserve(class, None, &mut blocks).unwrap();
    let at = |bytes| reserved.address.checked_add(bytes).unwrap();
    let no_object = |bytes| ReleaseError::NoObject {
        address: at(bytes),
        object_bytes: 128,
    };
    for (address, error) in [
        (at(64), no_object(64)),
        (at(128), ReleaseError::Free(at(128))),
        (at(29 * 128), no_object(29 * 128)), // in the block, behind its last object
        (at(4096), ReleaseError::NotOurs(at(4096))),
        (at(1 << 30), ReleaseError::NotOurs(at(1 << 30))),
        (
            Address::new(reserved.address.region(), 0),
            ReleaseError::NoObject {
                address: Address::new(reserved.address.region(), 0),
                object_bytes: 128,
            },
        ),
        (Address::NULL, ReleaseError::NotOurs(Address::NULL)),
    ] {
        assert_eq!(slab.release(address), Err(error), "{address}");
        assert!(!slab.is_reserved(address));
    }
    let mut other = Slab::new(worker(1), blocks.changes());
    assert_eq!(
        other.release(reserved.address),
        Err(ReleaseError::NotOurs(reserved.address))
    );
    assert_eq!(slab.release(reserved.address), Ok(class));
    assert_eq!(
        slab.release(reserved.address),
        Err(ReleaseError::Free(reserved.address))
    );
    assert_eq!(slab.usage(class).live, 0);
}

#[test]
fn out_of_memory_is_a_typed_error_until_a_slot_is_released() {
    let config = BlockConfig {
        per_machine_bytes: TINY.region_bytes as u64,
        ..TINY
    };
    let mut blocks = tiny_machine(config, 5);
    let mut slab = Slab::new(worker(0), blocks.changes());
    let class = SizeClass::new(10);
    let mut reserved = Vec::new();
    let error = loop {
        match slab.reserve(class, None, &mut blocks) {
            Ok(slot) => reserved.push(slot),
            Err(error) => break error,
        }
    };
    assert_eq!(
        error.to_string(),
        "out of memory: cannot allocate 704 bytes, because regions take 65536 of 65536 bytes; \
         free objects and retry, or raise memory.per_machine_bytes, or memory_bytes of this [[machine]] if it has one"
    );
    assert_eq!(reserved.len() as u64, slab.usage(class).slots);
    let hint = Some(reserved[0].address);
    assert!(matches!(
        slab.reserve(class, hint, &mut blocks),
        Err(AllocError::OutOfMemory { .. })
    ));
    assert!(
        slab.reserve(SizeClass::SMALLEST, hint, &mut blocks)
            .is_err()
    );
    let freed = reserved.swap_remove(7);
    slab.release(freed.address).unwrap();
    assert_eq!(slab.reserve(class, None, &mut blocks).unwrap(), freed);
}

#[test]
fn a_hint_prefers_its_block_then_region_then_ring_then_anywhere() {
    let mut blocks = tiny_machine(
        BlockConfig {
            per_machine_bytes: 3 << 16,
            ..TINY
        },
        11,
    );
    let mut slab = Slab::new(worker(0), blocks.changes());
    let class = SizeClass::new(15); // four objects of 1 KiB in a block, three in the first
    let mut seen = Vec::new();
    // A second class takes a block of the hint's region: a hint may be an object of another class.
    let first = slab
        .reserve(SizeClass::SMALLEST, None, &mut blocks)
        .unwrap();
    let hint = Some(first.address);
    let near = loop {
        let reserved = slab.reserve(class, hint, &mut blocks).unwrap();
        if reserved.address.region() != first.address.region() {
            break reserved;
        }
        seen.push(reserved);
    };
    assert_eq!(seen.len(), 15 * 4, "the hint's region is filled first");
    assert_eq!(
        near.address.region(),
        first.address.region().successor(),
        "the next region on the ring follows"
    );
    // A slot in the hint's own block is preferred to other slots of the region.
    slab.release(seen[9].address).unwrap();
    slab.release(seen[50].address).unwrap();
    let hint = Some(seen[51].address);
    assert_eq!(
        slab.reserve(class, hint, &mut blocks).unwrap().address,
        seen[50].address
    );
    assert_eq!(
        slab.reserve(class, hint, &mut blocks).unwrap().address,
        seen[9].address
    );
}

#[test]
fn the_nearest_region_on_the_ring_is_used_first() {
    let mut blocks = tiny_machine(
        BlockConfig {
            per_machine_bytes: 3 << 16,
            ..TINY
        },
        11,
    );
    let mut slab = Slab::new(worker(0), blocks.changes());
    let class = SizeClass::new(15);
    let first = slab
        .reserve(SizeClass::SMALLEST, None, &mut blocks)
        .unwrap();
    let (here, hint) = (first.address.region(), Some(first.address));
    let all: Vec<_> = std::iter::from_fn(|| slab.reserve(class, hint, &mut blocks).ok())
        .map(|reserved| reserved.address)
        .collect();
    let mut regions: Vec<_> = all.iter().map(|address| address.region()).collect();
    regions.dedup();
    let (after, before) = (here.successor(), regions[2]);
    assert_eq!(
        (regions[1], before.successor()),
        (after, here),
        "the new regions are on both sides of the first"
    );
    // One slot is free in each region but `before`, the last, which is two positions from `after`.
    let in_region = |region| {
        *all.iter()
            .find(|address| address.region() == region)
            .unwrap()
    };
    for region in [here, after] {
        slab.release(in_region(region)).unwrap();
    }
    for region in [here, after] {
        let hint = Some(in_region(before));
        let reserved = slab.reserve(class, hint, &mut blocks).unwrap();
        assert_eq!(reserved.address.region(), region);
    }
}

#[test]
fn an_address_on_another_machine_has_no_effect_as_hint() {
    let (mut blocks, mut slab) = one_slab();
    let first = slab
        .reserve(SizeClass::SMALLEST, None, &mut blocks)
        .unwrap()
        .address;
    for hint in [
        Address::new(first.region().successor(), 4096),
        Address::NULL,
    ] {
        let reserved = slab
            .reserve(SizeClass::SMALLEST, Some(hint), &mut blocks)
            .unwrap();
        assert_eq!(reserved.address.region(), first.region());
    }
    assert_eq!(blocks.tables().count(), 1);
}

/// A full region is not requested again with every hint, but it is after a block was freed.
#[test]
fn a_full_region_is_requested_again_after_a_change() {
    let (mut blocks, mut slab) = one_slab();
    let class = SizeClass::new(15);
    let array = blocks.allocate_array(class, 20, worker(0), None).unwrap();
    let hint = Some(array.first());
    let region = array.first().region();
    let outside = loop {
        let reserved = slab.reserve(class, hint, &mut blocks).unwrap();
        if reserved.address.region() != region {
            break reserved;
        }
    };
    assert_eq!(outside.address.region().ring(), region.ring());
    for index in 0..20 {
        blocks
            .release_of_array(array.address(index).unwrap())
            .unwrap();
    }
    let inside = slab.reserve(class, hint, &mut blocks).unwrap();
    assert_eq!(inside.address, array.first());
}

#[test]
fn nothing_grows_on_the_warm_path() {
    let (mut blocks, mut slab) = one_slab();
    let classes = [SizeClass::new(0), SizeClass::new(3), SizeClass::new(20)];
    let mut live: Vec<Reserved> = Vec::new();
    for round in 0..150 {
        live.push(slab.reserve(classes[round % 3], None, &mut blocks).unwrap());
    }
    let capacity = slab.capacity();
    for round in 0..20 {
        // Releases all and reserves them again, so that every block enters its list and leaves it.
        for reserved in &live {
            slab.release(reserved.address).unwrap();
        }
        for (i, reserved) in live.iter_mut().enumerate() {
            let hint = (round % 2 == 0).then_some(reserved.address);
            *reserved = slab.reserve(classes[i % 3], hint, &mut blocks).unwrap();
        }
        assert_eq!(slab.capacity(), capacity);
    }
}

#[test]
fn workers_share_a_block_allocator_behind_a_lock() {
    let mut shared = Arc::new(Mutex::new(tiny_machine(TINY, 1)));
    let changes = shared.lock().unwrap().changes();
    let (mut a, mut b) = (
        Slab::new(worker(0), changes.clone()),
        Slab::new(worker(1), changes),
    );
    let class = SizeClass::new(4);
    let ours = a.reserve(class, None, &mut shared).unwrap();
    let theirs = b.reserve(class, Some(ours.address), &mut shared).unwrap();
    assert_eq!(ours.address.region(), theirs.address.region());
    let owner = |address| shared.lock().unwrap().owner_of(address).unwrap();
    assert_eq!(
        (owner(ours.address), owner(theirs.address)),
        (worker(0), worker(1))
    );
    assert_eq!((a.owner(), b.owner()), (worker(0), worker(1)));
}

#[test]
fn a_slab_that_disagrees_with_memory_is_detected() {
    let (mut blocks, mut slab) = one_slab();
    let class = SizeClass::new(2);
    let reserved = slab.reserve(class, None, &mut blocks).unwrap();
    let address = reserved.address;
    let not_committed = Mismatch::Object {
        address,
        reserved: true,
        allocated: false,
    };
    assert_eq!(slab.check(blocks.tables()), Err(not_committed));
    set_allocated(&slab, &reserved, true);
    assert_eq!(slab.check(blocks.tables()), Ok(()));
    slab.release(address).unwrap();
    let not_freed = Mismatch::Object {
        address,
        reserved: false,
        allocated: true,
    };
    assert_eq!(slab.check(blocks.tables()), Err(not_freed));
    assert_eq!(slab.check([]), Err(Mismatch::Blocks { known: 1, given: 0 }));
    let stranger = Slab::new(worker(0), blocks.changes());
    let unknown = Mismatch::Block {
        region: address.region(),
        block: 0,
    };
    assert_eq!(stranger.check(blocks.tables()), Err(unknown));
}

/// The process that began to use a slot was killed between the two words of its header. Other headers with version 0 are wrong.
#[test]
fn half_of_a_first_header_is_sound() {
    let (mut blocks, mut slab) = one_slab();
    let class = SizeClass::new(2);
    let reserved = slab.reserve(class, None, &mut blocks).unwrap();
    let begun = slab.begin(&reserved).incarnation;
    slab.release(reserved.address).unwrap();
    let (memory, at) = (slab.memory(&reserved), reserved.address.offset() as usize);
    memory.store(at, 0, Ordering::Relaxed);
    assert_eq!(slab.check(blocks.tables()), Ok(()));
    let other = Incarnation::new(class, begun.count() + 1);
    memory.store(at + 8, other.0, Ordering::Relaxed);
    let found = slab.check(blocks.tables());
    assert!(matches!(found, Err(Mismatch::Header { .. })), "{found:?}");
}
