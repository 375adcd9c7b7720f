//! Objects that entries of churn name by fat pointers.

use farm_core::alloc::SizeClass;
use farm_core::ids::Address;
use farm_core::object::FatPointer;

use super::spec::Kind;
use super::value::Value;

/// An object that an entry named when the entry was read without locks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named {
    pub(super) entry: usize,
    pub(super) born: u64,
    pub(super) pointer: FatPointer,
    /// Size class of the read. If it differs from the pointer's, the platform must refuse the read.
    pub(super) class: SizeClass,
    /// Whether the operation that read the entry is still open.
    pub(super) is_fresh: bool,
}

impl Named {
    /// Returns the object that an entry names, if any.
    pub(super) fn by(kind: Kind, entry: usize, value: &Value) -> Option<Self> {
        let pointer = pointer(value).filter(|_| kind == Kind::Churn)?;
        Some(Self {
            entry,
            born: value.data[2],
            pointer,
            class: pointer.class(),
            is_fresh: true,
        })
    }
}

/// Returns the pointer in an entry, unless it is null.
pub(super) fn pointer(value: &Value) -> Option<FatPointer> {
    let [address, rest, _] = value.data;
    FatPointer::from_words([address, rest]).filter(|pointer| !pointer.address.is_null())
}

/// Returns the address of a member of the array whose first member a pointer names.
pub(super) fn member(pointer: FatPointer, index: u32) -> Option<Address> {
    let bytes = pointer.class().object_bytes() as u32;
    pointer.address.checked_add(index.checked_mul(bytes)?)
}
