//! Lower bounds of the versions and incarnations of a block's objects.

use rand::Rng;

use super::header::{INCARNATION_BITS, Incarnation, Version};
use crate::alloc::SizeClass;
use crate::mutants;

const VERSION_BITS: u32 = 62;
/// The first incarnation of a slot is the base shifted right by this number of bits.
const INCARNATION_SHIFT: u32 = VERSION_BITS - INCARNATION_BITS;
/// Number of low bits of a base that are zero: as many as a line version has, so that zeroed lines are consistent with
/// a slot's first header.
const ZERO_BITS: u32 = u16::BITS;
/// The least base. Words with smaller incarnations are not headers.
const LEAST: u64 = 1 << 59;
/// Upper bound of random bases, which leaves three quarters of the numbers for growth.
const FIRST_BELOW: u64 = 1 << 60;

/// Lower bound of the versions and incarnations of a block's objects. It is greater than all versions and incarnations
/// that the memory had before the block was created. Versions and incarnations at an address therefore never go back,
/// whatever objects the memory stores.
///
/// The first base of a block is random, so that payload bytes do not look like a header with the incarnation of an
/// old pointer.
///
/// A base is a multiple of 2^16, at least 2^59 and below 2^62. The first version of a slot is the base; its first
/// incarnation is the base divided by 2^7. Reclaiming a block raises its base by at least 2^16, and beyond the greatest
/// version. With one write per nanosecond, versions reach 2^62 after a century.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Base(u64);

impl Base {
    /// The least incarnation of any header.
    pub const LEAST_INCARNATION: u64 = LEAST >> INCARNATION_SHIFT;

    /// Returns a random base, for memory that has stored no object.
    pub fn random(rng: &mut impl Rng) -> Self {
        Self(rng.random_range(LEAST >> ZERO_BITS..FIRST_BELOW >> ZERO_BITS) << ZERO_BITS)
    }

    /// Returns the base with these bits, or `None` if they are not a valid base.
    pub const fn from_bits(bits: u64) -> Option<Self> {
        let possible = bits >= LEAST && bits >> VERSION_BITS == 0 && bits as u16 == 0;
        match possible {
            true => Some(Self(bits)),
            false => None,
        }
    }

    /// Returns the 64 bits of the base.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns the first version of a slot.
    #[inline]
    pub fn version(self) -> Version {
        Version::new(self.0)
    }

    /// Returns the second word of a slot's first header, not allocated.
    #[inline]
    pub const fn incarnation(self, class: SizeClass) -> Incarnation {
        Incarnation::new(class, self.0 >> INCARNATION_SHIFT)
    }

    /// Returns the least base that is greater than this one, `version`, and `incarnation` times 2^7, or `None` if there
    /// is none below 2^62.
    pub fn beyond(self, version: u64, incarnation: u64) -> Option<Self> {
        if mutants::is_on("a reused block's versions begin anew") {
            return Some(self);
        }
        let incarnation = incarnation.checked_mul(1 << INCARNATION_SHIFT)?;
        let most = self.0.max(version).max(incarnation);
        let next = (most >> ZERO_BITS) + 1;
        Self::from_bits(next.checked_mul(1 << ZERO_BITS)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand_xoshiro::Xoshiro256PlusPlus;

    #[test]
    fn bits_out_of_range_are_not_a_base() {
        let last = Base::from_bits((1 << 62) - (1 << 16)).unwrap();
        assert_eq!(last.beyond(0, 0), None);
        let first = Base::from_bits(LEAST).unwrap();
        assert_eq!(first.beyond((1 << 62) - 1, 0), None);
        assert_eq!(first.beyond(0, (1 << 55) - 1), None);
        for bits in [0, 1 << 16, LEAST - (1 << 16), LEAST + 1, 1 << 62, u64::MAX] {
            assert_eq!(Base::from_bits(bits), None, "{bits:#x}");
        }
    }

    proptest! {
        #[test]
        fn bases_grow_beyond_all_versions_and_incarnations(
            seed: u64,
            writes in prop::collection::vec((0u64..1 << 40, 0u64..1 << 30), 1..40),
        ) {
            let mut base = Base::random(&mut Xoshiro256PlusPlus::seed_from_u64(seed));
            let class = SizeClass::new(seed as u8);
            for (writes, frees) in writes {
                let (version, incarnation) = (base.version(), base.incarnation(class));
                prop_assert_eq!(Base::from_bits(base.to_bits()), Some(base));
                prop_assert_eq!(version.line(), 0, "zeroed lines are consistent with it");
                prop_assert!(incarnation.count() >= Base::LEAST_INCARNATION);
                prop_assert!(!incarnation.is_allocated());
                prop_assert_eq!(incarnation.class(), class);
                let last = (version.get() + writes, incarnation.count() + frees);
                base = base.beyond(last.0, last.1).unwrap();
                prop_assert!(base.version().get() > last.0);
                prop_assert!(base.incarnation(class).count() > last.1);
            }
        }
    }
}
