//! The 8-byte allocation state of a block (`FaRM'14 §3.3`), as stored in the region's table.
//!
//! ```text
//!            63                          32 31        16 15      8 7    4 3    2 1   0
//! free       |                              all zero                                  |
//! head       |         run (32)            | owner (16) | class (8) |  0  | kind | 1  |
//! rest       |  blocks back to head (32)   |                   0                 | 2  |
//! table      |              0                                                    | 3  |
//! ```
//!
//! A block whose size is several units ("blocks of a multiple of 1 MB") is a *run*: a head, and for each further unit a
//! word with the distance back to the head, so that the head of any address is found by two loads. Every bit is checked
//! when a state is read; a state that no allocator writes is rejected.

use crate::ids::WorkerId;

use super::SizeClass;

const TAG_HEAD: u64 = 1;
const TAG_REST: u64 = 2;
const TAG_TABLE: u64 = 3;

/// How the objects of a block are allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockKind {
    /// Single objects, reserved by the slab allocator of the owner.
    Slab,
    /// Adjacent objects, allocated together as one array.
    Array,
    /// No objects at present, but headers of this class to which stale pointers may point. The block can be reused for
    /// objects of its class at once, and for other classes after an epoch has ended (`FaRM'14 §3.5`).
    Vacant,
}

/// The head of a run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHead {
    /// How the objects of the run are allocated.
    pub kind: BlockKind,
    /// Size class of the objects.
    pub class: SizeClass,
    /// Worker that allocates and frees objects in the run. A run of vacant blocks has no owner; the field is then the
    /// first worker.
    pub owner: WorkerId,
    /// Number of blocks in the run, at least one.
    pub run: u32,
}

impl BlockHead {
    /// Returns the head of the same run without objects.
    pub(super) fn vacant(self) -> Self {
        Self {
            kind: BlockKind::Vacant,
            owner: WorkerId::FIRST,
            ..self
        }
    }
}

/// The state of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// In no run.
    Free,
    /// The first block of a run.
    Head(BlockHead),
    /// A further block of the run that starts this many blocks before, at least one.
    Rest {
        /// Blocks back to the head.
        back: u32,
    },
    /// Filled by the block table itself.
    Table,
}

impl BlockState {
    /// Returns the 8 bytes that encode the state.
    pub fn to_bits(self) -> u64 {
        match self {
            BlockState::Free => 0,
            BlockState::Head(BlockHead {
                kind,
                class,
                owner,
                run,
            }) => {
                let kind = match kind {
                    BlockKind::Slab => 0,
                    BlockKind::Array => 1,
                    BlockKind::Vacant => 2,
                };
                TAG_HEAD
                    | kind << 2
                    | u64::from(class.get()) << 8
                    | u64::from(owner.get()) << 16
                    | u64::from(run) << 32
            }
            BlockState::Rest { back } => TAG_REST | u64::from(back) << 32,
            BlockState::Table => TAG_TABLE,
        }
    }

    /// Returns the state that these 8 bytes encode, or `None` if they are not valid.
    pub fn from_bits(bits: u64) -> Option<BlockState> {
        let high = (bits >> 32) as u32;
        let state = match bits & 3 {
            TAG_HEAD => {
                let kind = match bits >> 2 & 3 {
                    0 => BlockKind::Slab,
                    1 => BlockKind::Array,
                    2 => BlockKind::Vacant,
                    _ => return None,
                };
                let owner = WorkerId::new((bits >> 16) as u16)?;
                if kind == BlockKind::Vacant && owner != WorkerId::FIRST || high == 0 {
                    return None;
                }
                let class = SizeClass::new((bits >> 8) as u8);
                BlockState::Head(BlockHead {
                    kind,
                    class,
                    owner,
                    run: high,
                })
            }
            TAG_REST if high != 0 => BlockState::Rest { back: high },
            TAG_TABLE => BlockState::Table,
            0 => BlockState::Free,
            _ => return None,
        };
        // Bits that no state uses must be zero.
        (state.to_bits() == bits).then_some(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bits_of_each_state_are_as_in_the_module_diagram() {
        let head = BlockState::Head(BlockHead {
            kind: BlockKind::Array,
            class: SizeClass::new(0xab),
            owner: WorkerId::new(0x3f).unwrap(),
            run: 0x1234,
        });
        assert_eq!(head.to_bits(), 0x0000_1234_003f_ab05);
        assert_eq!(
            BlockState::Rest { back: 7 }.to_bits(),
            0x0000_0007_0000_0002
        );
        assert_eq!(
            (BlockState::Free.to_bits(), BlockState::Table.to_bits()),
            (0, 3)
        );
    }

    #[test]
    fn bits_that_are_never_written_are_rejected() {
        for bits in [
            0x0000_0000_0000_ab01, // a run of zero blocks
            0x0000_0001_0040_0001, // worker 64
            0x0000_0001_0000_000d, // unknown kind
            0x0000_0001_0001_0009, // vacant, but with an owner
            0x0000_0001_0000_0011, // an unused bit of a head
            0x0000_0000_0000_0002, // a further block that is zero blocks from its head
            0x0000_0001_0000_0102, // an unused bit of a further block
            0x0000_0000_0000_0004, // free with a bit set
            0x0000_0000_0000_0007,
        ] {
            assert_eq!(BlockState::from_bits(bits), None, "{bits:#x}");
        }
    }

    proptest! {
        #[test]
        fn any_bits_decode_to_nothing_or_to_a_state_that_encodes_to_them(bits: u64, low in 0u64..4096) {
            for bits in [bits, bits & !0xf0, low | bits << 32, low | (bits & 0x3f) << 16 | 1 << 32] {
                if let Some(state) = BlockState::from_bits(bits) {
                    prop_assert_eq!(state.to_bits(), bits);
                }
            }
        }
    }
}
