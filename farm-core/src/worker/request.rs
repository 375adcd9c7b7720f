//! What a lock-free read reads, and why it fails.

use crate::alloc::SizeClass;
use crate::fabric::Slot;
use crate::ids::{Address, MachineId};
use crate::mem::LINE_BYTES;
use crate::object::{FatPointer, HEADER_BYTES};

/// Lines of an object in a read of one object's header.
pub(super) const HEADER_ONLY: u16 = 0;

/// What to read: one object, or adjacent ones of the same size class.
#[derive(Clone, Copy, Debug)]
pub struct ReadRequest {
    /// The first object.
    pub(super) address: Address,
    /// Bytes to read, whole lines.
    pub(super) bytes: u32,
    /// Lines of one object, or [`HEADER_ONLY`].
    pub(super) lines: u16,
    /// Size class that each header must have.
    pub(super) class: SizeClass,
    /// Whether the read is of a fat pointer, kept by the slot's number.
    pub(super) is_named: bool,
}
// Every read in flight has one: it stays as small as it can be.
const _: () = assert!(size_of::<ReadRequest>() == 16);

impl ReadRequest {
    /// A read of one object.
    #[inline]
    pub fn object(address: Address, class: SizeClass) -> Self {
        Self::objects(address, class, 1)
    }

    /// A read of `count` adjacent objects.
    #[inline]
    pub fn objects(first: Address, class: SizeClass, count: u32) -> Self {
        Self {
            address: first,
            bytes: class.object_bytes() as u32 * count,
            lines: class.lines() as u16,
            class,
            is_named: false,
        }
    }

    /// A read of the object that a fat pointer names.
    pub(super) fn named(pointer: FatPointer) -> Self {
        Self {
            is_named: true,
            ..Self::object(pointer.address, pointer.class())
        }
    }

    /// A read of an object's header.
    #[inline]
    pub(super) fn header(address: Address) -> Self {
        Self {
            address,
            bytes: HEADER_BYTES as u32,
            lines: HEADER_ONLY,
            class: SizeClass::SMALLEST,
            is_named: false,
        }
    }

    /// Bytes that the read brings.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Bytes of one object.
    #[inline]
    pub(super) fn stride(&self) -> u32 {
        u32::from(self.lines) * LINE_BYTES as u32
    }
}

/// Why a lock-free read failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The connection to the machine that holds the object is broken.
    #[error("machine {0}, which holds the object, is lost")]
    PeerLost(MachineId),
    /// The address is outside of its region, or the words there are not a header of an object.
    #[error("address {0} is not an object's")]
    BadAddress(Address),
    /// The header has another size class than the read: the size is wrong, or the object was freed and its memory
    /// serves objects of another size. The read is not tried again.
    #[error(
        "the object at {address} takes {} bytes of memory, and the read expected {}: read it with the size with which \
         it was allocated",
        is.object_bytes(), asked.object_bytes()
    )]
    WrongSize {
        /// The object.
        address: Address,
        /// Size class of the read.
        asked: SizeClass,
        /// Size class in the header.
        is: SizeClass,
    },
    /// The object that a fat pointer names was freed.
    #[error("the object that was at {0} is gone: it was freed after the pointer was made")]
    Gone(Address),
    /// Nobody knows the region.
    #[error("the region of address {0} does not exist")]
    NoRegion(Address),
    /// The object stayed locked for all of a bounded number of tries.
    #[error("the object at {0} stayed locked")]
    StaysLocked(Address),
    /// Too many reads are in flight: the arena has no slot. Returned when a read is begun, never by its
    /// continuation. See [`Worker::when_slot`](super::Worker::when_slot).
    #[error("too many reads in flight")]
    Busy,
}

/// The end of a lock-free read: the slot holds consistent images. Give it back to the arena.
pub type ReadResult = Result<Slot, ReadError>;
