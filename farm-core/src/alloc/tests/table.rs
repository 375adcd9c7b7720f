//! Any bytes are a block table or a typed error.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use crate::alloc::{
    BlockHead, BlockKind, BlockState, BlockTable, LocateError, SizeClass, TableError,
};
use crate::ids::{RegionId, WorkerId};
use crate::mem::Memory;
use crate::object::Base;

const BLOCKS: u32 = 16;

fn region() -> RegionId {
    RegionId::new(5, 77).unwrap()
}

fn format(memory: Memory, block_bytes: usize) -> Result<BlockTable, TableError> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
    BlockTable::format(memory, region(), block_bytes, &mut rng)
}

/// Creates a table with a run of one block at 0, a run of three at 2, and a vacant block at 6.
fn sample() -> BlockTable {
    let table = format(Memory::anonymous(16 * 4096), 4096).unwrap();
    let head = |kind, class, owner, run| BlockHead {
        kind,
        class: SizeClass::new(class),
        owner: WorkerId::new(owner).unwrap(),
        run,
    };
    table.write_run(0, head(BlockKind::Slab, 0, 1, 1)).unwrap();
    table
        .write_run(2, head(BlockKind::Array, 30, 2, 3))
        .unwrap();
    table
        .write_run(6, head(BlockKind::Vacant, 3, 0, 1))
        .unwrap();
    table
}

fn state_offset(block: u32) -> usize {
    64 + 16 * block as usize
}

fn base_offset(block: u32) -> usize {
    state_offset(block) + 8
}

#[test]
fn the_bytes_are_as_in_the_module_diagram() {
    // If they change, kept::FORMAT does.
    let table = sample();
    let mut words = [0; 8 + 14];
    table.memory().read_words(0, &mut words);
    assert_eq!(words[0].to_le_bytes(), *b"FaRMblk2");
    assert_eq!(words[1], u64::from(region().to_bits()) | 16 << 32);
    assert_eq!(words[2], 4096);
    assert_eq!(
        words[3], 0xb68f_0d5c_cc84_aac6,
        "the checksum is part of the format"
    );
    assert_eq!(words[4..8], [0; 4]);
    let (one, three) = (1 << 32, 3 << 32);
    let (slab, array, vacant) = (
        one | 1 << 16 | 1,
        three | 2 << 16 | 30 << 8 | 5,
        one | 3 << 8 | 9,
    );
    let states: Vec<u64> = words[8..].iter().step_by(2).copied().collect();
    assert_eq!(states, [slab, 0, array, one | 2, 2 << 32 | 2, 0, vacant]);
    let bases: Vec<u64> = words[9..].iter().step_by(2).copied().collect();
    for (block, bits) in (0..).zip(&bases) {
        let base = Base::from_bits(*bits).unwrap();
        assert_eq!(table.base(block), Ok(base));
        assert!(bits >> 59 == 1 && *bits as u16 == 0, "{bits:#x}");
    }
    assert_eq!(bases.iter().collect::<BTreeSet<_>>().len(), 7 - 1);
    let of_run = bases[2..5].iter().max();
    assert_eq!(
        bases.get(2),
        of_run,
        "the head has the greatest base of the run"
    );
    assert_eq!(table.geometry().start(0), 64 + 256);
}

#[test]
fn offsets_are_mapped_to_their_blocks() {
    let table = sample();
    let owner = |offset| table.owner_of(offset).map(WorkerId::get);
    assert_eq!(owner(320), Ok(1));
    assert_eq!(owner(320 + 64 * 10), Ok(1));
    // Class 30 has 31 lines; its fifth object is in the run's second and third block.
    let stride = SizeClass::new(30).object_bytes() as u32;
    assert_eq!(owner(2 * 4096 + 4 * stride), Ok(2));
    let at = |offset| crate::ids::Address::new(region(), offset);
    for (offset, error) in [
        (
            0,
            LocateError::NoObject {
                address: at(0),
                object_bytes: 64,
            },
        ),
        (
            320 + 8,
            LocateError::NoObject {
                address: at(328),
                object_bytes: 64,
            },
        ),
        (4096, LocateError::NoBlock(at(4096))),
        (6 * 4096, LocateError::NoBlock(at(6 * 4096))),
        (16 * 4096, LocateError::NoBlock(at(16 * 4096))),
        (u32::MAX, LocateError::NoBlock(at(u32::MAX))),
        // Behind the last object of the run.
        (
            2 * 4096 + 6 * stride,
            LocateError::NoObject {
                address: at(2 * 4096 + 6 * stride),
                object_bytes: stride as usize,
            },
        ),
    ] {
        assert_eq!(owner(offset), Err(error), "{offset}");
    }
}

#[test]
fn each_damage_of_a_header_has_its_own_error() {
    let open = |table: &BlockTable| BlockTable::open(table.memory().clone(), region()).err();
    let region = region();
    assert_eq!(open(&sample()), None);
    let other = BlockTable::open(sample().memory().clone(), region.successor()).unwrap_err();
    assert_eq!(
        other,
        TableError::OtherRegion {
            region: region.successor(),
            found: region.to_bits()
        }
    );
    let table = sample();
    table.memory().store(16, 8192, Ordering::Release);
    assert_eq!(open(&table), Some(TableError::BadHeader { region }));
    table.memory().store(0, 7, Ordering::Release);
    assert_eq!(open(&table), Some(TableError::NoTable { region, found: 7 }));
    let half = sample().memory().window(0, 8 * 4096);
    assert!(matches!(
        BlockTable::open(half, region),
        Err(TableError::BadGeometry { blocks: 16, .. })
    ));
    assert!(matches!(
        format(Memory::anonymous(4096), 8192),
        Err(TableError::BadGeometry { blocks: 0, .. })
    ));
    let nothing = Memory::anonymous(4096).window(0, 0);
    assert_eq!(
        BlockTable::open(nothing, region).err(),
        Some(TableError::NoTable { region, found: 0 })
    );
}

#[test]
fn broken_runs_are_reported() {
    let region = region();
    let rest = |back| BlockState::Rest { back }.to_bits();
    let class = 80;
    let head = |run| {
        let (kind, owner) = (BlockKind::Slab, WorkerId::FIRST);
        BlockState::Head(BlockHead {
            kind,
            class: SizeClass::new(class),
            owner,
            run,
        })
        .to_bits()
    };
    let bad_run = |block, run, class| TableError::BadRun {
        region,
        block,
        run,
        class,
    };
    let bad_state = |block, bits| TableError::BadState {
        region,
        block,
        bits,
    };
    for (block, bits, error) in [
        (5, rest(3), TableError::Orphan { region, block: 5 }),
        (1, rest(1), TableError::Orphan { region, block: 1 }),
        (3, 0, bad_run(2, 3, 30)),
        (3, rest(2), bad_run(2, 3, 30)),
        (9, 3, bad_state(9, 3)),
        (9, 4, bad_state(9, 4)),
        (8, head(1), bad_run(8, 1, class)),
        (8, head(9), bad_run(8, 9, class)),
    ] {
        let table = sample();
        table
            .memory()
            .store(state_offset(block), bits, Ordering::Release);
        let found = BlockTable::open(table.memory().clone(), region).unwrap_err();
        assert_eq!(found, error);
    }
}

#[test]
fn invalid_bases_are_reported() {
    let region = region();
    for block in [0, 3, 15] {
        for bits in [0, 1, 1 << 16, 1 << 62, (1 << 60) + 1] {
            let table = sample();
            let at = base_offset(block);
            table.memory().store(at, bits, Ordering::Release);
            let found = BlockTable::open(table.memory().clone(), region).unwrap_err();
            let error = TableError::BadBase {
                region,
                block,
                bits,
            };
            assert_eq!(found, error);
        }
    }
}

/// Blocks beyond the end of a run that refer back to its head are not part of it.
#[test]
fn a_shortened_run_does_not_cover_its_former_blocks() {
    let table = sample();
    let (_, head) = table.block_at(3 * 4096).unwrap();
    table.rewrite_head(2, BlockHead { run: 1, ..head });
    let orphan = TableError::Orphan {
        region: region(),
        block: 3,
    };
    assert_eq!(table.block_at(3 * 4096), Err(orphan.into()));
}

/// A machine was killed while it wrote or freed a run: the blocks that remain of the run are freed.
#[test]
fn a_run_cut_short_by_a_crash_is_freed() {
    let table = sample();
    table.memory().store(state_offset(2), 0, Ordering::Release);
    let refused = BlockTable::open(table.memory().clone(), region()).unwrap_err();
    assert_eq!(
        refused,
        TableError::Orphan {
            region: region(),
            block: 3
        }
    );
    let opened = BlockTable::open_after_crash(table.memory().clone(), region()).unwrap();
    for block in 2..5 {
        assert_eq!(opened.state(block), Ok(BlockState::Free));
    }
    assert!(BlockTable::open(table.memory().clone(), region()).is_ok());
}

proptest! {
    #[test]
    fn damaged_tables_never_panic(
        damage in prop::collection::vec((0usize..40, any::<u64>(), 0u8..4), 1..6),
        offset: u32,
    ) {
        let table = sample();
        for (word, bits, how) in damage {
            // Bits masked to the fields of a state make damage that looks like a state.
            let bits = match how {
                0 => bits,
                1 => bits & 0x0000_001f_003f_ff0f,
                2 => bits & 0x0000_001f_0000_0003,
                _ => table.memory().load(word * 8, Ordering::Relaxed) ^ 1 << (bits % 64),
            };
            table.memory().store(word * 8, bits, Ordering::Release);
        }
        for offset in [offset, offset % (16 * 4096)] {
            let _ = table.owner_of(offset);
        }
        let mut next = 0;
        while let Ok(Some(block)) = table.next_block(next) {
            prop_assert!(Base::from_bits(block.base().to_bits()).is_some());
            prop_assert!(block.index() >= next && block.index() < BLOCKS);
            next = BlockTable::next_after(&block);
        }
        let sound = BlockTable::open(table.memory().clone(), region());
        if let Ok(table) = &sound {
            let mut next = 0;
            while let Some(block) = table.next_block(next)? {
                prop_assert!(block.slots() > 0);
                next = BlockTable::next_after(&block);
                prop_assert!(next <= BLOCKS);
            }
        }
        let repaired = BlockTable::open_after_crash(table.memory().clone(), region());
        prop_assert!(repaired.is_ok() || sound.is_err());
    }
}
