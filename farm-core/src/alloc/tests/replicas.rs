//! Replicas of a region: what must be equal, and what may differ.

use std::sync::atomic::Ordering;

use proptest::prelude::*;

use crate::alloc::replicas::{
    BlockDigest, Part, SlotDigest, block_digests, different_blocks, different_parts,
    different_slots, slot_digests,
};
use crate::alloc::table::table_bases;
use crate::alloc::{
    BlockHead, BlockKind, BlockTable, Difference, SizeClass, TableError, compare_replicas,
};
use crate::ids::{RegionId, WorkerId};
use crate::mem::Memory;
use crate::object::{Base, write};

const BLOCK_BYTES: usize = 4096;
const BLOCKS: u32 = 16;
/// The class of all objects: 256 B.
const CLASS: SizeClass = SizeClass::new(3);
const OBJECT_BYTES: usize = 256;

fn region() -> RegionId {
    RegionId::new(5, 77).unwrap()
}

fn head(class: SizeClass, run: u32) -> BlockHead {
    BlockHead {
        kind: BlockKind::Slab,
        class,
        owner: WorkerId::FIRST,
        run,
    }
}

/// Offset of an object of block 2.
fn at(slot: usize) -> usize {
    2 * BLOCK_BYTES + slot * OBJECT_BYTES
}

/// Creates a replica of a region with a run of two blocks at block 2. Object 0 was written twice, object 1 was freed, and object 9 was
/// written once.
fn replica() -> BlockTable {
    let memory = Memory::anonymous(BLOCKS as usize * BLOCK_BYTES);
    let bases = &mut table_bases(7, region());
    let table = BlockTable::format(memory, region(), BLOCK_BYTES, bases).unwrap();
    let block = table.write_run(2, head(CLASS, 2)).unwrap();
    let memory = table.memory();
    for (slot, writes) in [(0, 2), (1, 2), (9, 1)] {
        let room = write::begin(memory, at(slot), CLASS, block.base());
        let mut version = room.version;
        for number in 0..writes {
            version = version.next();
            let incarnation = match (slot, number) {
                (1, 1) => room.incarnation.allocated().freed(),
                _ => room.incarnation.allocated(),
            };
            let payload = [slot as u8 + number; 200];
            write::install_new(
                memory,
                at(slot),
                OBJECT_BYTES,
                version,
                incarnation,
                &payload,
            );
        }
    }
    table
}

fn digests(table: &BlockTable) -> Vec<BlockDigest> {
    block_digests(table).map(Result::unwrap).collect()
}

fn slots(table: &BlockTable) -> Vec<SlotDigest> {
    let block = table.run_at(2).unwrap().unwrap();
    slot_digests(&block, 0..u32::MAX).collect()
}

#[test]
fn replicas_with_the_same_objects_are_equal() {
    let (one, other) = (replica(), replica());
    assert_eq!(compare_replicas(&one, &other), Ok(2));
    let digests = digests(&one);
    assert_eq!(digests.len() as u32, BLOCKS - 1, "one of a run");
    let used: Vec<_> = digests.iter().filter_map(|it| it.used).collect();
    assert_eq!(used.len(), 1);
    assert_eq!((used[0].run, used[0].class, used[0].objects), (2, 3, 2));
    let found: Vec<_> = slots(&one)
        .iter()
        .map(|slot| (slot.offset as usize, slot.bytes.is_some()))
        .collect();
    assert_eq!(found, [(at(0), true), (at(1), false), (at(9), true)]);
}

#[test]
fn reservations_and_dead_bytes_may_differ() {
    let (one, other) = (replica(), replica());
    // A slot that a transaction reserved before it aborted.
    let block = one.run_at(2).unwrap().unwrap();
    write::begin(one.memory(), at(4), CLASS, block.base());
    // A run that is only reserved, and has the greatest base of its blocks.
    let bases = [5, 6, 7].map(|block| one.base(block).unwrap());
    let run = one.write_run(5, head(SizeClass::new(0), 3)).unwrap();
    assert_eq!(run.base(), bases.into_iter().max().unwrap());
    write::begin(one.memory(), 5 * BLOCK_BYTES, SizeClass::new(0), run.base());
    // The bytes of a freed object, and those of a slot that was never used.
    for offset in [at(1) + 64, at(2) + 128] {
        one.memory().store(offset, 1, Ordering::Relaxed);
    }
    assert_eq!(compare_replicas(&one, &other), Ok(2));
    assert_eq!(compare_replicas(&other, &one), Ok(2));
}

/// Flips bits of a word of one of two equal replicas. Returns the difference, and checks that the order does not matter.
fn flipped(offset: usize, bits: u64) -> Difference {
    let (one, other) = (replica(), replica());
    let word = other.memory().load(offset, Ordering::Relaxed);
    other.memory().store(offset, word ^ bits, Ordering::Relaxed);
    assert!(compare_replicas(&other, &one).is_err());
    compare_replicas(&one, &other).unwrap_err()
}

#[test]
fn every_change_of_an_object_is_found() {
    const VERSION: u64 = 1 << 2;
    const LOCK: u64 = 1;
    const INCARNATION: u64 = 1;
    const ALLOCATED: u64 = 1 << 55;
    for (slot, word, bits, part) in [
        (0, 0, VERSION << 1, Part::Version),
        (0, 0, LOCK, Part::Version),
        (0, 8, INCARNATION << 3, Part::Incarnation),
        (0, 8, 1 << 56, Part::Incarnation),
        (0, 8, ALLOCATED, Part::Allocated),
        (1, 0, VERSION << 4, Part::Version),
        (1, 8, INCARNATION, Part::Incarnation),
        (1, 8, ALLOCATED, Part::Allocated),
        (9, 16, 1 << 63, Part::Bytes),
        (9, 248, 1, Part::Bytes),
        // The line version of a further line.
        (9, 64, 1, Part::Bytes),
    ] {
        let difference = flipped(at(slot) + word, bits);
        let named = matches!(&difference, Difference::Object { address, .. } if address.offset() as usize == at(slot));
        assert!(named, "slot {slot}, word {word}: {difference}");
        let (one, other) = (replica(), replica());
        let memory = other.memory();
        let before = memory.load(at(slot) + word, Ordering::Relaxed);
        memory.store(at(slot) + word, before ^ bits, Ordering::Relaxed);
        let (one, other) = (slots(&one), slots(&other));
        let differ = different_slots(&one, &other);
        assert_eq!(differ.len(), 1);
        let [one, other] = differ[0].1;
        assert_eq!(
            different_parts(one, other),
            [part],
            "slot {slot}, word {word}"
        );
    }
}

#[test]
fn an_object_that_one_replica_does_not_have_is_found() {
    let (one, other) = (replica(), replica());
    other.memory().zero(at(9), OBJECT_BYTES);
    let difference = compare_replicas(&one, &other).unwrap_err().to_string();
    assert!(
        difference.ends_with("never used at the backup"),
        "{difference}"
    );
    let (one, other) = (slots(&one), slots(&other));
    let [one, other] = different_slots(&one, &other)[0].1;
    assert_eq!(different_parts(one, other), [Part::Allocated]);
}

#[test]
fn every_change_of_a_block_head_is_found() {
    type Change = fn(&BlockTable);
    let changes: [(&str, Change); 5] = [
        ("class", |table| {
            table.rewrite_head(2, head(SizeClass::new(1), 2))
        }),
        ("run", |table| {
            table.clear_run(2, 2);
            table.write_run(2, head(CLASS, 3)).unwrap();
        }),
        ("freed", |table| table.clear_run(2, 2)),
        ("base of a run", |table| {
            let base = table.base(2).unwrap();
            table.set_base(2, Base::from_bits(base.to_bits() - (1 << 16)).unwrap());
        }),
        ("base of a free block", |table| {
            let base = table.base(9).unwrap();
            table.set_base(9, base.beyond(0, 0).unwrap());
        }),
    ];
    for (what, change) in changes {
        let (one, other) = (replica(), replica());
        change(&other);
        let difference = compare_replicas(&one, &other).unwrap_err();
        let at = match what {
            "base of a free block" => 9,
            _ => 2,
        };
        let named = matches!(difference, Difference::Block { block, .. } if block == at);
        assert!(named, "{what}: {difference}");
    }
    // The base of a further block of a run.
    let (one, other) = (replica(), replica());
    let base = other.base(3).unwrap();
    other.set_base(3, base.beyond(0, 0).unwrap());
    assert!(compare_replicas(&one, &other).is_err());
    // The owner and the kind may differ.
    let (one, other) = (replica(), replica());
    let kind = BlockKind::Array;
    other.rewrite_head(
        2,
        BlockHead {
            kind,
            ..head(CLASS, 2)
        },
    );
    assert_eq!(compare_replicas(&one, &other), Ok(2));
}

#[test]
fn a_damaged_table_is_an_error_and_ends_the_digests() {
    let table = replica();
    table
        .memory()
        .store(64 + 16 * 9, u64::MAX, Ordering::Relaxed);
    let found: Vec<_> = block_digests(&table).collect();
    assert!(matches!(
        found.last(),
        Some(Err(TableError::BadState { block: 9, .. }))
    ));
    assert_eq!(found.iter().filter(|it| it.is_err()).count(), 1);
    let other = replica();
    assert!(matches!(
        compare_replicas(&other, &table),
        Err(Difference::Table(_))
    ));
}

proptest! {
    /// A table can be overwritten after it was opened.
    #[test]
    fn digests_of_any_table_are_items_or_an_error(
        words in prop::collection::vec((0usize..32, any::<u64>(), 0u64..0x4_0000), 1..6),
    ) {
        let table = replica();
        for (entry, bits, low) in words {
            for value in [bits, low | bits << 32 & 0xf_0000_0000] {
                table.memory().store(64 + 8 * entry, value, Ordering::Relaxed);
                let found: Vec<_> = block_digests(&table).collect();
                prop_assert!(found.len() <= BLOCKS as usize);
                let errors = found.iter().filter(|it| it.is_err()).count();
                prop_assert!(errors == 0 || errors == 1 && found.last().unwrap().is_err());
            }
        }
    }

    #[test]
    fn any_digests_can_be_compared(
        one in prop::collection::vec((0u32..8, 0u64..3, 0u8..2), 0..8),
        other in prop::collection::vec((0u32..8, 0u64..3, 0u8..2), 0..8),
    ) {
        let block = |(block, base, class): (u32, u64, u8)| BlockDigest {
            block,
            base,
            used: (class > 0).then_some(crate::alloc::replicas::UsedBlock {
                run: block,
                class,
                objects: base,
                digest: base,
            }),
        };
        let slot = |(offset, version, incarnation): (u32, u64, u8)| SlotDigest {
            offset,
            version,
            incarnation: incarnation.into(),
            bytes: (incarnation > 0).then_some(version),
        };
        let blocks = [&one, &other].map(|list| list.iter().copied().map(block).collect::<Vec<_>>());
        let slots = [&one, &other].map(|list| list.iter().copied().map(slot).collect::<Vec<_>>());
        let differ = different_blocks(&blocks[0], &blocks[1]);
        prop_assert_eq!(&differ, &different_blocks(&blocks[1], &blocks[0]));
        prop_assert!(differ.is_sorted());
        prop_assert!(different_blocks(&blocks[0], &blocks[0]).is_empty());
        for (_, [one, other]) in different_slots(&slots[0], &slots[1]) {
            prop_assert!(!different_parts(one, other).is_empty());
            let _ = (SlotDigest::text(one), SlotDigest::text(other));
        }
    }
}
