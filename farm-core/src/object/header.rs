//! The two words of an object's header, and fat pointers.
//!
//! ```text
//!          63             56 55        54                     2 1     0
//! word 0  |                 version (62)                       | mode |
//! word 1  | size class (8)  | allocated |      incarnation (55)       |
//! pointer | size class (8)  |     0     |      incarnation (55)       |  after the address
//! ```

use crate::alloc::SizeClass;
use crate::ids::Address;
use crate::mem::Ptr;

/// Lock mode of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LockMode {
    /// Not locked.
    #[default]
    Unlocked,
    /// Locked by a single-machine transaction that has not begun to install: lock-free reads may still succeed
    /// (`FaRM'14 §3.4`).
    Readable,
    /// Locked against all readers and writers.
    Exclusive,
}

/// A version of an object, below 2^62. It grows with every committed write. At an address it never goes back, even if
/// the memory stores objects of other sizes in between ([`Base`](super::Base)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version(u64);

/// The line version that means "being written". It is never the low 16 bits of a version.
pub const BEING_WRITTEN: u16 = u16::MAX;

impl Version {
    /// The version of memory that was never written.
    pub const ZERO: Version = Version(0);

    /// Creates the version with this number.
    ///
    /// # Panics
    /// If the low 16 bits are [`BEING_WRITTEN`] or the number needs more than 62 bits.
    pub fn new(number: u64) -> Self {
        assert!(
            number as u16 != BEING_WRITTEN && number >> 62 == 0,
            "{number:#x} is not a version number: it is too large, or reserved for lines that are being written"
        );
        Self(number)
    }

    /// Returns the version with a number that another machine sent, or `None` if the number is not valid.
    pub fn checked(number: u64) -> Option<Self> {
        (number as u16 != BEING_WRITTEN && number >> 62 == 0).then_some(Self(number))
    }

    /// Returns the number of the version.
    pub fn get(self) -> u64 {
        self.0
    }

    /// Returns the next version, skipping those whose low bits mean "being written".
    #[must_use]
    pub fn next(self) -> Self {
        let next = self.0 + crate::mutants::version_step();
        Self(if next as u16 == BEING_WRITTEN {
            next + 1
        } else {
            next
        })
    }

    /// Returns the line version with which each further line of an object of this version begins.
    #[inline]
    pub fn line(self) -> u16 {
        self.0 as u16
    }
}

/// The first word of a header: version and lock mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionWord(pub u64);

impl VersionWord {
    /// Creates the word of a version and a lock mode.
    #[inline]
    pub const fn of(version: Version, mode: LockMode) -> Self {
        let mode = match mode {
            LockMode::Unlocked => 0,
            LockMode::Readable => 1,
            LockMode::Exclusive => 2,
        };
        Self(version.0 << 2 | mode)
    }

    /// Returns the version.
    #[inline]
    pub fn version(self) -> Version {
        Version(self.0 >> 2)
    }

    /// Returns the lock mode. The fourth bit pattern is never written. It counts as exclusive, so that every reader
    /// rejects the object.
    #[inline]
    pub fn mode(self) -> LockMode {
        match self.0 & 3 {
            0 => LockMode::Unlocked,
            1 => LockMode::Readable,
            _ => LockMode::Exclusive,
        }
    }
}

/// Bits of an incarnation's count.
pub const INCARNATION_BITS: u32 = 55;
const COUNT_MASK: u64 = (1 << INCARNATION_BITS) - 1;
const ALLOCATED: u64 = 1 << INCARNATION_BITS;
/// Number of bits below the size class.
pub(super) const CLASS_SHIFT: u32 = INCARNATION_BITS + 1;
// Count, allocated bit and size class fill the word.
const _: () = assert!(CLASS_SHIFT + u8::BITS == u64::BITS);

/// The second word of a header: the object's size class (8 bits), the allocated bit, and the incarnation (55 bits),
/// which grows when the object is freed, or when its chain changes under readers.
///
/// The word is zero in a slot that was never used since its block was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// Creates the word of an object that is not allocated, from the low 55 bits of `count`.
    #[inline]
    pub const fn new(class: SizeClass, count: u64) -> Self {
        Self((class.get() as u64) << CLASS_SHIFT | count & COUNT_MASK)
    }

    /// Returns the object's size class.
    #[inline]
    pub const fn class(self) -> SizeClass {
        SizeClass::new((self.0 >> CLASS_SHIFT) as u8)
    }

    /// Returns whether the object is allocated.
    #[inline]
    pub const fn is_allocated(self) -> bool {
        self.0 & ALLOCATED != 0
    }

    /// Returns the count, below 2^55.
    #[inline]
    pub const fn count(self) -> u64 {
        self.0 & COUNT_MASK
    }

    /// Returns the word with the same class and count, allocated.
    #[must_use]
    pub const fn allocated(self) -> Self {
        Self(self.0 | ALLOCATED)
    }

    /// Returns the word of the freed object: not allocated and with the next count, so that older pointers no longer
    /// match.
    #[must_use]
    pub fn freed(self) -> Self {
        Self(self.incremented().0 & !ALLOCATED)
    }

    /// Returns the word with the next count, and the same class and allocated bit: older pointers no longer match
    /// (`objIncrementIncarnation`, `FaRM'14` figure 6).
    #[must_use]
    pub fn incremented(self) -> Self {
        if crate::mutants::is_on("incarnation not bumped") {
            return self;
        }
        Self(self.0 & !COUNT_MASK | (self.0 + 1) & COUNT_MASK)
    }
}

/// A pointer to one incarnation of an object: 128 bits with the address, the size class (8) and the incarnation (55)
/// (`FaRM'14 §3.5`).
///
/// Its second word is the header's second word with the allocated bit clear, so that a pointer stored in an object does
/// not look like the header of an allocated object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FatPointer {
    /// Address of the object.
    pub address: Address,
    /// Size class and count; not allocated.
    expected: Incarnation,
}

impl FatPointer {
    /// Creates the pointer to an object with this header word.
    pub const fn new(address: Address, incarnation: Incarnation) -> Self {
        Self {
            address,
            expected: Incarnation(incarnation.0 & !ALLOCATED),
        }
    }

    /// Returns the size class of the object.
    #[inline]
    pub const fn class(&self) -> SizeClass {
        self.expected.class()
    }

    /// Returns whether an object with this header word is the object of the pointer, and is allocated.
    #[inline]
    pub fn names(&self, incarnation: Incarnation) -> bool {
        incarnation == self.expected.allocated()
    }

    /// Returns whether an object with this header word is not the object of the pointer and never will be, because
    /// incarnations do not go back. False while the commit that makes the pointer valid is not installed.
    pub fn is_stale(&self, incarnation: Incarnation) -> bool {
        let (expected, found) = (self.expected.count(), incarnation.count());
        incarnation.class() != self.class() || found != expected && found + 1 != expected
    }

    /// Returns the 16 bytes of the pointer, as two words.
    pub const fn to_words(self) -> [u64; 2] {
        [self.address.to_bits(), self.expected.0]
    }

    /// Creates the pointer with these words, or returns `None` if the address is not valid or the allocated bit is set.
    pub fn from_words(words: [u64; 2]) -> Option<Self> {
        let expected = Incarnation(words[1]);
        Some(Self {
            address: Address::from_bits(words[0])?,
            expected: (!expected.is_allocated()).then_some(expected)?,
        })
    }
}

impl<T> From<FatPointer> for Ptr<T> {
    fn from(pointer: FatPointer) -> Self {
        Self::from_words(pointer.to_words())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RegionId;
    use proptest::prelude::*;

    #[test]
    fn versions_skip_the_being_written_mark() {
        let before = Version::new(0xFFFE);
        assert_eq!(before.next(), Version::new(0x1_0000));
        assert_ne!(before.next().line(), BEING_WRITTEN);
        assert_eq!(Version::ZERO.next(), Version::new(1));
    }

    #[test]
    fn a_version_word_round_trips_version_and_mode() {
        for mode in [LockMode::Unlocked, LockMode::Readable, LockMode::Exclusive] {
            let word = VersionWord::of(Version::new(77), mode);
            assert_eq!((word.version(), word.mode()), (Version::new(77), mode));
        }
        assert_eq!(VersionWord(3).mode(), LockMode::Exclusive);
    }

    #[test]
    fn the_bits_are_as_in_the_module_diagram() {
        let word = Incarnation::new(SizeClass::new(0xab), 0x1234).allocated();
        assert_eq!(word.0, 0xab80_0000_0000_1234);
        let address = Address::new(RegionId::new(1, 2).unwrap(), 128);
        let words = FatPointer::new(address, word).to_words();
        assert_eq!(words, [address.to_bits(), 0xab00_0000_0000_1234]);
        assert_eq!(FatPointer::from_words([address.to_bits(), word.0]), None);
        assert_eq!(FatPointer::from_words([64, 0]), None);
    }

    proptest! {
        #[test]
        fn counting_keeps_the_class_and_the_allocated_bit(class: u8, count: u64, allocated: bool) {
            let class = SizeClass::new(class);
            let mut word = Incarnation::new(class, count);
            if allocated {
                word = word.allocated();
            }
            let next = (word.count() + 1) % (1 << 55);
            let parts = |word: Incarnation| (word.class(), word.is_allocated(), word.count());
            prop_assert_eq!(parts(word), (class, allocated, count % (1 << 55)));
            prop_assert_eq!(parts(word.incremented()), (class, allocated, next));
            prop_assert_eq!(parts(word.freed()), (class, false, next));
            prop_assert_eq!(parts(word.allocated()), (class, true, count % (1 << 55)));
        }

        #[test]
        fn a_fat_pointer_names_only_its_class_and_incarnation(class: u8, count: u64, other: u8) {
            let address = Address::new(RegionId::new(1, 2).unwrap(), 128);
            let born = Incarnation::new(SizeClass::new(class), count).allocated();
            let pointer = FatPointer::new(address, born);
            prop_assert_eq!(pointer.class(), SizeClass::new(class));
            prop_assert!(pointer.names(born));
            prop_assert!(!pointer.names(born.freed()), "freed");
            prop_assert!(!pointer.names(born.freed().allocated()), "reused");
            prop_assert!(!pointer.names(born.incremented()), "incremented");
            prop_assert!(!pointer.is_stale(born));
            prop_assert!(pointer.is_stale(born.freed()) && pointer.is_stale(born.incremented()));
            // Before the commit that allocates the object or gives it a new incarnation.
            let unborn = Incarnation::new(SizeClass::new(class), count);
            prop_assert!(!pointer.is_stale(unborn));
            let renamed = FatPointer::new(address, born.incremented());
            prop_assert!(!renamed.is_stale(born) || born.count() == COUNT_MASK);
            let of_other = Incarnation::new(SizeClass::new(other), count).allocated();
            prop_assert_eq!(pointer.names(of_other), other == class);
            prop_assert_eq!(FatPointer::from_words(pointer.to_words()), Some(pointer));
            // A stored pointer does not name itself.
            prop_assert!(!pointer.names(Incarnation(pointer.to_words()[1])));
        }
    }
}
