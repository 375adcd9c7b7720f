//! Headers as transactions write them, for tests.

use super::{Reserved, Slab};
use crate::ids::Address;
use crate::mem::Memory;
use crate::object::write::{self, Room};

/// Changes a header as a committing transaction does.
pub(crate) fn set_allocated(slab: &Slab, reserved: &Reserved, allocated: bool) {
    let Room {
        version,
        incarnation,
        ..
    } = slab.begin(reserved);
    let word = if allocated {
        incarnation.allocated()
    } else {
        incarnation.freed()
    };
    let (memory, at) = (slab.memory(reserved), reserved.address.offset() as usize);
    let bytes = reserved.class.object_bytes();
    write::install_new(memory, at, bytes, version.next(), word, &[]);
}

/// Changes the header of an allocated object as a transaction does that frees it.
pub(crate) fn set_freed(memory: &Memory, address: Address) {
    let at = address.offset() as usize;
    let (version, incarnation) = (
        write::load_version(memory, at).version(),
        write::load_incarnation(memory, at),
    );
    let bytes = incarnation.class().object_bytes();
    write::install_new(memory, at, bytes, version.next(), incarnation.freed(), &[]);
}
