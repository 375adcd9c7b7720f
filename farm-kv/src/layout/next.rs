//! The 14 bytes of a pointer to an overflow block.

use farm_core::ids::{Address, RegionId};
use farm_core::mem::LINE_BYTES;
use farm_core::object::Incarnation;

/// Bytes of a next pointer.
pub const NEXT_BYTES: usize = 14;

const INCARNATION_BITS: u32 = 48;
const OFFSET_BITS: u32 = 26;
const REGION_SHIFT: u32 = INCARNATION_BITS + OFFSET_BITS;
const SPARE_SHIFT: u32 = REGION_SHIFT + 32;
const _: () = assert!(SPARE_SHIFT + 6 == NEXT_BYTES as u32 * 8);

/// A pointer to an overflow block: its address and its incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    /// Address of the block.
    pub address: Address,
    incarnation: u64,
}

impl Next {
    /// Creates the pointer to a block whose header has this incarnation.
    pub fn new(address: Address, incarnation: Incarnation) -> Self {
        Self {
            address,
            incarnation: incarnation.count() & ((1 << INCARNATION_BITS) - 1),
        }
    }

    /// Returns whether a header with this incarnation belongs to the block of the pointer.
    #[inline]
    pub fn names(&self, incarnation: Incarnation) -> bool {
        incarnation.is_allocated()
            && incarnation.count() & ((1 << INCARNATION_BITS) - 1) == self.incarnation
    }
}

/// Encodes a pointer that may be null, and six spare bits.
pub(super) fn pack(next: Option<Next>, spare: u8) -> [u8; NEXT_BYTES] {
    let pointer = next.map_or(0, |next| {
        u128::from(next.address.region().to_bits()) << REGION_SHIFT
            | u128::from(next.address.offset() as usize as u64 / LINE_BYTES as u64)
                << INCARNATION_BITS
            | u128::from(next.incarnation)
    });
    let bytes = (pointer | u128::from(spare & 63) << SPARE_SHIFT).to_le_bytes();
    bytes[..NEXT_BYTES]
        .try_into()
        .expect("the slice has the length of a next pointer")
}

pub(super) fn unpack(bytes: &[u8]) -> (Option<Next>, u8) {
    let mut wide = [0; 16];
    wide[..NEXT_BYTES].copy_from_slice(&bytes[..NEXT_BYTES]);
    let bits = u128::from_le_bytes(wide);
    let next = RegionId::from_bits((bits >> REGION_SHIFT) as u32).map(|region| {
        let line = (bits >> INCARNATION_BITS) as u32 & ((1 << OFFSET_BITS) - 1);
        let incarnation = bits as u64 & ((1 << INCARNATION_BITS) - 1);
        Next {
            address: Address::new(region, line * LINE_BYTES as u32),
            incarnation,
        }
    });
    (next, (bits >> SPARE_SHIFT) as u8 & 63)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farm_core::alloc::SizeClass;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_next_pointer_round_trips_through_fourteen_bytes(
            ring in 0u32..100, at in 1u32..1 << 25, line in 0u32..1 << 26, count in 0u64..1 << 48, spare in 0u8..64,
        ) {
            let address = Address::new(RegionId::new(ring, at).unwrap(), line * 64);
            let incarnation = Incarnation::new(SizeClass::new(1), count).allocated();
            let next = Next::new(address, incarnation);
            prop_assert_eq!(unpack(&pack(Some(next), spare)), (Some(next), spare));
            prop_assert_eq!(unpack(&pack(None, spare)), (None, spare));
            prop_assert!(next.names(incarnation) && !next.names(incarnation.freed()));
        }
    }
}
