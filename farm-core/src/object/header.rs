//! The two words of an object's header, and fat pointers.

use crate::ids::Address;

/// How an object is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// Not at all.
    Unlocked,
    /// By a single-machine transaction that has not begun to install: lock-free reads may pass
    /// (`FaRM'14 §3.4`).
    Readable,
    /// Against everybody.
    Exclusive,
}

/// A version of an object: grows with every committed write and never goes back while the object's
/// block keeps its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version(u64);

/// The line version that means "being written"; no version has it as its low bits.
pub const BEING_WRITTEN: u16 = u16::MAX;

impl Version {
    /// The version of memory that was never written.
    pub const ZERO: Version = Version(0);

    /// From its number.
    ///
    /// # Panics
    /// If the low 16 bits are [`BEING_WRITTEN`] or the number needs more than 62 bits.
    pub fn new(number: u64) -> Self {
        assert!(
            number as u16 != BEING_WRITTEN && number >> 62 == 0,
            "no version has the number {number:#x}"
        );
        Self(number)
    }

    /// From a number that somebody else wrote; `None` if no version has it.
    pub fn checked(number: u64) -> Option<Self> {
        (number as u16 != BEING_WRITTEN && number >> 62 == 0).then_some(Self(number))
    }

    /// Its number.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The version after this one. Counting skips the value that means "being written".
    #[must_use]
    pub fn next(self) -> Self {
        let next = self.0 + crate::mutants::version_step();
        Self(if next as u16 == BEING_WRITTEN {
            next + 1
        } else {
            next
        })
    }

    /// What the lines of an object of this version begin with.
    #[inline]
    pub fn line(self) -> u16 {
        self.0 as u16
    }
}

/// The first word of a header: version and lock mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionWord(pub u64);

impl VersionWord {
    /// The word of a version in a mode.
    #[inline]
    pub fn of(version: Version, mode: LockMode) -> Self {
        let mode = match mode {
            LockMode::Unlocked => 0,
            LockMode::Readable => 1,
            LockMode::Exclusive => 2,
        };
        Self(version.0 << 2 | mode)
    }

    /// Its version.
    #[inline]
    pub fn version(self) -> Version {
        Version(self.0 >> 2)
    }

    /// Its lock mode. The fourth bit pattern is never written; it reads as exclusive, the mode that
    /// lets nobody trust the object.
    #[inline]
    pub fn mode(self) -> LockMode {
        match self.0 & 3 {
            0 => LockMode::Unlocked,
            1 => LockMode::Readable,
            _ => LockMode::Exclusive,
        }
    }
}

/// The second word of a header: how often the object was freed or its chain changed under its
/// readers, and in the lowest bit whether it is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// Whether the object is allocated.
    #[inline]
    pub fn is_allocated(self) -> bool {
        self.0 & 1 == 1
    }

    /// The count, without the allocated bit.
    #[inline]
    pub fn count(self) -> u64 {
        self.0 >> 1
    }

    /// The same count, allocated.
    #[must_use]
    pub fn allocated(self) -> Self {
        Self(self.0 | 1)
    }

    /// Freed: not allocated, and one up, so that pointers to what was here no longer match.
    #[must_use]
    pub fn freed(self) -> Self {
        if crate::mutants::is_on("incarnation not bumped") {
            return Self(self.0 & !1);
        }
        Self((self.0 & !1).wrapping_add(2))
    }

    /// One up and still allocated: pointers held from before no longer match
    /// (`objIncrementIncarnation`, `FaRM'14` figure 6).
    #[must_use]
    pub fn incremented(self) -> Self {
        if crate::mutants::is_on("incarnation not bumped") {
            return self;
        }
        Self(self.0.wrapping_add(2))
    }
}

/// A pointer that knows which object it meant: 128 bits of address, size class and the low 56 bits
/// of the incarnation's count (`FaRM'14 §3.5`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FatPointer {
    /// Where.
    pub address: Address,
    /// How large, as a size class.
    pub class: u8,
    /// Which incarnation was meant: the count's low 56 bits.
    incarnation: u64,
}

const INCARNATION_BITS: u32 = 56;

impl FatPointer {
    /// The pointer to an object as it is now.
    pub fn new(address: Address, class: u8, incarnation: Incarnation) -> Self {
        Self {
            address,
            class,
            incarnation: incarnation.count() & ((1 << INCARNATION_BITS) - 1),
        }
    }

    /// Whether an object with this header word is the one that was meant, and is allocated.
    pub fn names(&self, incarnation: Incarnation) -> bool {
        incarnation.is_allocated()
            && incarnation.count() & ((1 << INCARNATION_BITS) - 1) == self.incarnation
    }

    /// Its 16 bytes, as two words.
    pub fn to_words(self) -> [u64; 2] {
        [
            self.address.to_bits(),
            u64::from(self.class) << INCARNATION_BITS | self.incarnation,
        ]
    }

    /// From two words; `None` if the address names nothing.
    pub fn from_words(words: [u64; 2]) -> Option<Self> {
        let address = Address::from_bits(words[0])?;
        Some(Self {
            address,
            class: (words[1] >> INCARNATION_BITS) as u8,
            incarnation: words[1] & ((1 << INCARNATION_BITS) - 1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RegionId;

    #[test]
    fn counting_skips_the_mark() {
        let before = Version::new(0xFFFE);
        assert_eq!(before.next(), Version::new(0x1_0000));
        assert_ne!(before.next().line(), BEING_WRITTEN);
        assert_eq!(Version::ZERO.next(), Version::new(1));
    }

    #[test]
    fn words_hold_version_and_mode() {
        for mode in [LockMode::Unlocked, LockMode::Readable, LockMode::Exclusive] {
            let word = VersionWord::of(Version::new(77), mode);
            assert_eq!((word.version(), word.mode()), (Version::new(77), mode));
        }
        assert_eq!(VersionWord(3).mode(), LockMode::Exclusive);
    }

    #[test]
    fn a_fat_pointer_stops_naming_what_was_freed() {
        let address = Address::new(RegionId::new(1, 2).unwrap(), 128);
        let born = Incarnation::default().allocated();
        let pointer = FatPointer::new(address, 3, born);
        assert!(pointer.names(born));
        assert!(!pointer.names(born.freed()), "freed");
        assert!(!pointer.names(born.freed().allocated()), "reused");
        assert!(!pointer.names(born.incremented()), "incremented");
        assert_eq!(FatPointer::from_words(pointer.to_words()), Some(pointer));
    }
}
