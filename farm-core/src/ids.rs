//! Identifiers: machines, workers, regions and addresses, each with its own type.
//!
//! An identifier of one kind cannot be passed for an identifier of another kind. No identifier holds an invalid value:
//! the constructors check it, so that code that receives an id need not check it again. Zero is never the id of a
//! machine or a region. Zeroed memory therefore contains no machine id and no region id, and the zero address is
//! [`Address::NULL`].
//!
//! ```text
//! region id, 32 bits            31        25 24                                 0
//!                              |  ring (7)  |           position (25)            |
//!
//! address, 64 bits   63                            32 31                         0
//!                   |         region id (32)         |        offset (32)         |
//! ```
//!
//! Bits that come from another machine are converted by `from_bits`, which rejects invalid bits.

use std::fmt;
use std::num::{NonZeroU16, NonZeroU32};

use serde::{Deserialize, Serialize};

use crate::limits::{
    LINE_BYTES, MAX_MACHINE_ID, MAX_WORKERS, OFFSET_BITS, POSITION_BITS, VIRTUAL_RINGS,
};

/// A machine: a process that stores regions and runs workers. Between 1 and 1023.
///
/// ```
/// use farm_core::ids::MachineId;
/// let machine = MachineId::new(3).unwrap();
/// assert_eq!(machine.to_string(), "m3");
/// assert_eq!(MachineId::new(0), None);
/// assert_eq!(MachineId::new(1024), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct MachineId(NonZeroU16);

impl MachineId {
    /// Returns the machine with this number, or `None` if the number is not valid.
    pub const fn new(number: u16) -> Option<MachineId> {
        match NonZeroU16::new(number) {
            Some(id) if number <= MAX_MACHINE_ID => Some(MachineId(id)),
            _ => None,
        }
    }

    /// Returns the machine's number, 1 ..= 1023.
    pub const fn get(self) -> u16 {
        self.0.get()
    }

    /// Returns the machine's index in a table of [`MACHINE_SLOTS`](crate::limits::MACHINE_SLOTS).
    pub const fn index(self) -> usize {
        self.0.get() as usize
    }
}

impl fmt::Display for MachineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m{}", self.0)
    }
}

/// A worker of a machine: a thread with one event loop. Between 0 and 63.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct WorkerId(u16);

impl WorkerId {
    /// The first worker, which every machine has.
    pub const FIRST: WorkerId = WorkerId(0);

    /// Returns the worker with this number, or `None` if the number is not valid.
    pub const fn new(number: u16) -> Option<WorkerId> {
        if (number as usize) < MAX_WORKERS {
            Some(WorkerId(number))
        } else {
            None
        }
    }

    /// Returns the worker's number, 0 ..= 63.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Returns the worker's index in a table of its machine's workers.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "w{}", self.0)
    }
}

/// A worker of the cluster: a machine and one of its workers.
///
/// ```
/// use farm_core::ids::{MachineId, WorkerId, WorkerRef};
/// let worker = WorkerRef::new(MachineId::new(3).unwrap(), WorkerId::FIRST);
/// assert_eq!(worker.to_string(), "m3.w0");
/// assert_eq!(WorkerRef::from_bits(worker.to_bits()), Some(worker));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WorkerRef {
    /// The machine on which the worker runs.
    pub machine: MachineId,
    /// The worker's id on its machine.
    pub worker: WorkerId,
}

impl WorkerRef {
    /// Creates the reference to the worker `worker` of `machine`.
    pub const fn new(machine: MachineId, worker: WorkerId) -> WorkerRef {
        WorkerRef { machine, worker }
    }

    /// Returns the first worker of a machine.
    pub const fn first_of(machine: MachineId) -> WorkerRef {
        Self::new(machine, WorkerId::FIRST)
    }

    /// Returns the form that records and messages carry: the machine in the high half, the worker in the low half.
    pub const fn to_bits(self) -> u32 {
        ((self.machine.get() as u32) << 16) | self.worker.get() as u32
    }

    /// Returns the worker that `bits` encode, or `None` if they are not valid.
    pub const fn from_bits(bits: u32) -> Option<WorkerRef> {
        match (
            MachineId::new((bits >> 16) as u16),
            WorkerId::new(bits as u16),
        ) {
            (Some(machine), Some(worker)) => Some(WorkerRef { machine, worker }),
            _ => None,
        }
    }
}

impl fmt::Display for WorkerRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.machine, self.worker)
    }
}

/// A region: the unit of mapping, registration and recovery. Its id consists of one of 100 virtual rings and a position
/// on it, from which consistent hashing chooses the replicas (FaRM'14 §3.3).
///
/// Position 0 of ring 0 is not a valid region, so that no region id is zero.
///
/// ```
/// use farm_core::ids::RegionId;
/// let region = RegionId::new(5, 12).unwrap();
/// assert_eq!((region.ring(), region.position()), (5, 12));
/// assert_eq!(region.to_string(), "r5.12");
/// assert_eq!(RegionId::new(100, 1), None, "there are 100 rings");
/// assert_eq!(RegionId::from_bits(0), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct RegionId(NonZeroU32);

impl RegionId {
    /// The largest position on a ring.
    pub const MAX_POSITION: u32 = (1 << POSITION_BITS) - 1;

    /// Returns the region at `position` of the virtual ring `ring`, or `None` if they are not valid.
    pub const fn new(ring: u32, position: u32) -> Option<RegionId> {
        if ring >= VIRTUAL_RINGS || position > Self::MAX_POSITION {
            return None;
        }
        match NonZeroU32::new((ring << POSITION_BITS) | position) {
            Some(id) => Some(RegionId(id)),
            None => None,
        }
    }

    /// Returns the region that `bits` encode, or `None` if they are not valid.
    pub const fn from_bits(bits: u32) -> Option<RegionId> {
        Self::new(bits >> POSITION_BITS, bits & Self::MAX_POSITION)
    }

    /// Returns the 32 bits of the id; never zero.
    pub const fn to_bits(self) -> u32 {
        self.0.get()
    }

    /// Returns the virtual ring, 0 ..= 99.
    pub const fn ring(self) -> u32 {
        self.0.get() >> POSITION_BITS
    }

    /// Returns the position on the ring, 0 ..= [`RegionId::MAX_POSITION`].
    pub const fn position(self) -> u32 {
        self.0.get() & Self::MAX_POSITION
    }

    /// Returns the region at the next position on the same ring; the first position follows the last. The search for a
    /// region id near another region tries this position first.
    pub const fn successor(self) -> RegionId {
        match Self::new(self.ring(), (self.position() + 1) & Self::MAX_POSITION) {
            Some(next) => next,
            // Position 0 of ring 0 is not a valid region: use position 1.
            None => match Self::new(0, 1) {
                Some(next) => next,
                None => unreachable!(),
            },
        }
    }
}

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}.{}", self.ring(), self.position())
    }
}

/// An address in the cluster's memory: a region and an offset within it, or null.
///
/// ```
/// use farm_core::ids::{Address, RegionId};
/// let region = RegionId::new(5, 12).unwrap();
/// let address = Address::new(region, 0x140);
/// assert_eq!(address.to_string(), "r5.12+0x140");
/// assert_eq!((address.region(), address.offset()), (region, 0x140));
/// assert_eq!(address.checked_add(64), Some(Address::new(region, 0x180)));
/// assert!(Address::NULL.is_null());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Address(u64);

impl Address {
    /// The null address: all zero.
    pub const NULL: Address = Address(0);

    /// Returns the address of the byte at `offset` of `region`.
    pub const fn new(region: RegionId, offset: u32) -> Address {
        Address(((region.to_bits() as u64) << OFFSET_BITS) | offset as u64)
    }

    /// Returns the address with these bits, or `None` if they are neither null nor contain a valid region.
    pub const fn from_bits(bits: u64) -> Option<Address> {
        if bits == 0 {
            return Some(Address::NULL);
        }
        match RegionId::from_bits((bits >> OFFSET_BITS) as u32) {
            Some(_) => Some(Address(bits)),
            None => None,
        }
    }

    /// Returns the 64 bits of the address.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns whether this is [`Address::NULL`].
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// Returns the region.
    ///
    /// # Panics
    ///
    /// If the address is null, which has no region.
    #[track_caller]
    pub const fn region(self) -> RegionId {
        match NonZeroU32::new((self.0 >> OFFSET_BITS) as u32) {
            Some(id) => RegionId(id),
            None => panic!("the null address has no region"),
        }
    }

    /// Returns the offset within the region, in bytes; 0 for null.
    pub const fn offset(self) -> u32 {
        self.0 as u32
    }

    /// Returns whether the address is at the start of a line, as every object is.
    pub const fn is_line_aligned(self) -> bool {
        self.0.is_multiple_of(LINE_BYTES)
    }

    /// Returns the address `bytes` further in the same region, or `None` if that exceeds the last offset or this
    /// address is null.
    pub const fn checked_add(self, bytes: u32) -> Option<Address> {
        if self.is_null() {
            return None;
        }
        match self.offset().checked_add(bytes) {
            Some(offset) => Some(Address((self.0 & !(u32::MAX as u64)) | offset as u64)),
            None => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_null() {
            return f.write_str("null");
        }
        write!(f, "{}+{:#x}", self.region(), self.offset())
    }
}

/// The bits are not a valid identifier of the expected kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid {kind}: {bits:#x}")]
pub struct InvalidId {
    /// Expected kind of the identifier.
    pub kind: &'static str,
    /// The invalid bits.
    pub bits: u64,
}

/// `TryFrom` for the numbers that serde and other decoders read, `From` back to them, and `Debug` as `Display`.
macro_rules! conversions {
    ($type:ty, $bits:ty, $kind:literal, $from:expr, $to:expr) => {
        impl TryFrom<$bits> for $type {
            type Error = InvalidId;
            fn try_from(bits: $bits) -> Result<Self, InvalidId> {
                $from(bits).ok_or(InvalidId {
                    kind: $kind,
                    bits: u64::from(bits),
                })
            }
        }
        impl From<$type> for $bits {
            fn from(id: $type) -> $bits {
                $to(id)
            }
        }
        debug_as_display!($type);
    };
}
macro_rules! debug_as_display {
    ($type:ty) => {
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}
conversions!(MachineId, u16, "machine", MachineId::new, MachineId::get);
conversions!(WorkerId, u16, "worker", WorkerId::new, WorkerId::get);
conversions!(
    RegionId,
    u32,
    "region",
    RegionId::from_bits,
    RegionId::to_bits
);
conversions!(
    Address,
    u64,
    "address",
    Address::from_bits,
    Address::to_bits
);
debug_as_display!(WorkerRef);

const _: () = assert!(size_of::<Option<MachineId>>() == 2);
const _: () = assert!(size_of::<Option<RegionId>>() == 4);
const _: () = assert!(size_of::<Address>() == 8);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn region(ring: u32, position: u32) -> RegionId {
        RegionId::new(ring, position).expect("a region")
    }

    #[test]
    fn machines_are_1_to_1023() {
        assert_eq!(MachineId::new(0), None);
        assert_eq!(MachineId::new(1).map(MachineId::get), Some(1));
        assert_eq!(MachineId::new(1023).map(MachineId::index), Some(1023));
        assert_eq!(MachineId::new(1024), None);
        assert_eq!(
            MachineId::try_from(1024).unwrap_err().to_string(),
            "invalid machine: 0x400"
        );
    }

    #[test]
    fn workers_are_0_to_63() {
        assert_eq!(WorkerId::new(0), Some(WorkerId::FIRST));
        assert_eq!(WorkerId::new(63).map(WorkerId::index), Some(63));
        assert_eq!(WorkerId::new(64), None);
    }

    #[test]
    fn invalid_worker_bits_are_rejected() {
        for bits in [0, 5, 0x0001_0040, 0x0400_0000, u32::MAX] {
            assert_eq!(WorkerRef::from_bits(bits), None, "{bits:#x}");
        }
    }

    #[test]
    fn a_region_id_consists_of_ring_and_position() {
        assert_eq!(RegionId::new(0, 0), None);
        assert_eq!(
            RegionId::new(99, RegionId::MAX_POSITION).map(RegionId::ring),
            Some(99)
        );
        assert_eq!(RegionId::new(0, RegionId::MAX_POSITION + 1), None);
        assert_eq!(RegionId::from_bits(u32::MAX), None);
        assert_eq!(region(1, 0).to_bits(), 1 << 25);
    }

    #[test]
    fn successor_wraps_around_the_ring_and_skips_the_invalid_id() {
        assert_eq!(region(7, 41).successor(), region(7, 42));
        assert_eq!(region(7, RegionId::MAX_POSITION).successor(), region(7, 0));
        assert_eq!(region(0, RegionId::MAX_POSITION).successor(), region(0, 1));
    }

    #[test]
    fn the_null_address_is_zero_and_prints_as_null() {
        assert_eq!(Address::default(), Address::NULL);
        assert_eq!(Address::from_bits(0), Some(Address::NULL));
        assert_eq!(
            format!("{} {:?}", Address::NULL, Address::NULL),
            "null null"
        );
        assert_eq!(Address::NULL.checked_add(64), None);
    }

    #[test]
    #[should_panic(expected = "the null address has no region")]
    fn the_region_of_null_panics() {
        let _ = Address::NULL.region();
    }

    #[test]
    fn addresses_without_a_valid_region_are_rejected() {
        assert_eq!(Address::from_bits(64), None, "an offset without region");
        assert_eq!(Address::from_bits(u64::MAX), None, "ring 127");
    }

    #[test]
    fn addition_stays_within_the_region() {
        let last = Address::new(region(3, 9), u32::MAX);
        assert_eq!(last.checked_add(1), None);
        assert_eq!(last.checked_add(0), Some(last));
    }

    #[test]
    fn ids_are_serialized_as_numbers() {
        let address = Address::new(region(5, 12), 0x140);
        let text = serde_json::to_string(&address).expect("to JSON");
        assert_eq!(text, address.to_bits().to_string());
        assert_eq!(
            serde_json::from_str::<Address>(&text).expect("from JSON"),
            address
        );
        assert!(serde_json::from_str::<Address>("64").is_err());
        assert!(serde_json::from_str::<MachineId>("0").is_err());
    }

    proptest! {
        #[test]
        fn any_bits_round_trip_or_are_rejected(bits: u64) {
            if let Some(address) = Address::from_bits(bits) {
                prop_assert_eq!(address.to_bits(), bits);
                if !address.is_null() {
                    prop_assert_eq!(Address::new(address.region(), address.offset()), address);
                }
            }
        }

        #[test]
        fn addresses_order_by_region_then_offset(
            a in (0u32..100, 1u32..1 << 25, any::<u32>()),
            b in (0u32..100, 1u32..1 << 25, any::<u32>()),
        ) {
            let address = |(ring, position, offset)| Address::new(region(ring, position), offset);
            prop_assert_eq!(address(a).cmp(&address(b)), a.cmp(&b));
        }
    }
}
