//! Requests of lock-free reads, and why such reads fail.

use crate::alloc::SizeClass;
use crate::fabric::Slot;
use crate::ids::{Address, MachineId};
use crate::mem::LINE_BYTES;
use crate::object::{FatPointer, HEADER_BYTES};

/// Value of [`ReadRequest::lines`] of a read whose words are not checked: of one object's header, or of anything.
pub(super) const UNCHECKED: u16 = 0;
/// The bit of [`ReadRequest::extent`] of a read that follows a fat pointer.
const NAMED: u64 = 1 << 56;

/// What a lock-free read reads: one object, or adjacent objects of the same size class.
#[derive(Clone, Copy, Debug)]
pub struct ReadRequest {
    /// Address of the first object.
    pub(super) address: Address,
    /// From the low bits: number of bytes (32 bits), lines of one object or [`UNCHECKED`] (16 bits), size class
    /// (8 bits), and whether the read follows a fat pointer (1 bit). One integer, so that requests are passed in two
    /// registers: a request of five fields would be passed through memory, and each load of it would wait for the
    /// smaller stores before it.
    extent: u64,
}
// Every read in flight stores a request: keep it small.
const _: () = assert!(size_of::<ReadRequest>() == 16);

impl ReadRequest {
    /// Creates a request for one object.
    #[inline]
    pub fn object(address: Address, class: SizeClass) -> Self {
        Self::objects(address, class, 1)
    }

    /// Creates a request for `count` adjacent objects.
    #[inline]
    pub fn objects(first: Address, class: SizeClass, count: u32) -> Self {
        // A read that is too large for any slot of the arena is never started.
        let bytes = (class.object_bytes() as u32).saturating_mul(count);
        Self::new(first, bytes, class.lines() as u16, class)
    }

    /// Creates a request for the object that a fat pointer names.
    pub(super) fn named(pointer: FatPointer) -> Self {
        let object = Self::object(pointer.address, pointer.class());
        Self {
            extent: object.extent | NAMED,
            ..object
        }
    }

    /// Creates a request for an object's header.
    #[inline]
    pub(super) fn header(address: Address) -> Self {
        Self::new(address, HEADER_BYTES as u32, UNCHECKED, SizeClass::SMALLEST)
    }

    /// Creates a request for words as they are, whole lines, without a check.
    pub(super) fn raw(address: Address, bytes: usize) -> Self {
        Self::new(address, bytes as u32, UNCHECKED, SizeClass::SMALLEST)
    }

    #[inline]
    fn new(address: Address, bytes: u32, lines: u16, class: SizeClass) -> Self {
        Self {
            address,
            extent: u64::from(bytes) | u64::from(lines) << 32 | u64::from(class.get()) << 48,
        }
    }

    /// Returns the number of bytes to read: whole lines, or one header.
    #[inline]
    pub fn bytes(self) -> usize {
        self.extent as u32 as usize
    }

    /// Returns the lines of one object, or [`UNCHECKED`].
    #[inline]
    pub(super) fn lines(self) -> u16 {
        (self.extent >> 32) as u16
    }

    /// Returns whether the words are not checked, as those of one header.
    #[inline]
    pub(super) fn is_unchecked(self) -> bool {
        self.lines() == UNCHECKED
    }

    /// Returns the size class that each header must have.
    #[inline]
    pub(super) fn class(self) -> SizeClass {
        SizeClass::new((self.extent >> 48) as u8)
    }

    /// Returns whether the read follows a fat pointer, which the worker stores by slot index.
    #[inline]
    pub(super) fn is_named(self) -> bool {
        self.extent & NAMED != 0
    }

    /// Returns the bytes of one object.
    #[inline]
    pub(super) fn stride(self) -> u32 {
        u32::from(self.lines()) * LINE_BYTES as u32
    }
}

/// Why a lock-free read failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The connection to the machine that holds the object is broken.
    #[error("machine {0}, which holds the object, is lost")]
    PeerLost(MachineId),
    /// The address is outside of its region, or the words at the address are not an object header.
    #[error(
        "there is no object at {0}: the address is outside of its region, or holds no object header"
    )]
    BadAddress(Address),
    /// The header has another size class than the request: the requested size is wrong, or the object was freed and its
    /// memory now stores objects of another size. The read is not retried.
    #[error(
        "the object at {address} takes {} bytes of memory, and the read expected {}: read it with the size with which \
         it was allocated",
        is.object_bytes(), asked.object_bytes()
    )]
    WrongSize {
        /// Address of the object.
        address: Address,
        /// Size class of the request.
        asked: SizeClass,
        /// Size class in the header.
        is: SizeClass,
    },
    /// The object that a fat pointer names was freed.
    #[error("the object at {0} was freed after the fat pointer to it was created")]
    Gone(Address),
    /// The region does not exist.
    #[error("the region of address {0} does not exist")]
    NoRegion(Address),
    /// The object was locked in all tries of the read, whose number is bounded.
    #[error("the object at {0} stayed locked in all tries of the read")]
    StaysLocked(Address),
    /// Too many reads are in flight: the arena has no slot. Returned by the call that starts a read, never passed to
    /// its continuation. See [`Worker::when_slot`](super::Worker::when_slot).
    #[error("the read was not started: too many reads are in flight")]
    Busy,
}

/// The result of a lock-free read: a slot with consistent images, which the receiver must return to the arena.
pub type ReadResult = Result<Slot, ReadError>;
