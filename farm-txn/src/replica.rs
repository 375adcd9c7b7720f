//! What records do to the objects of a replica.

use farm_core::alloc::{BlockTable, LocateError, TableError};
use farm_core::ids::Address;
use farm_core::mem::Memory;
use farm_core::mutants;
use farm_core::object::write;

use crate::record::{Effect, Object};

/// Why an object of a record cannot be in a replica.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The record names a block that its primary cannot have.
    #[error(transparent)]
    Block(#[from] TableError),
    /// The object would reach beyond its region, or into another object.
    #[error("there is no object at {0}")]
    NoObject(Address),
}

/// Returns the place of an object of a record in a replica. Writes the head of its block first, if the record has it.
///
/// # Errors
/// The replica cannot have such an object.
pub(crate) fn place<'t>(
    table: &'t BlockTable,
    object: &Object<'_>,
) -> Result<(&'t Memory, usize), ReplicaError> {
    let (address, class) = (object.address, object.class);
    if object.block != 0 && !mutants::is_on("head of a new block missing") {
        table.adopt_block(address.offset(), class, object.block)?;
    }
    // A change may arrive before the record that allocated the object and has the word of the block. The primary has checked both.
    let at = address.offset() as usize;
    let fits = match table.object_at(address.offset()) {
        Ok(head) => head.class == class,
        Err(LocateError::NoBlock(_) | LocateError::Table(_)) => {
            let (first, last) = (table.geometry().table_bytes(), table.memory().len());
            first <= at && at + class.object_bytes() <= last
        }
        Err(_) => false,
    };
    match fits {
        true => Ok((table.memory(), at)),
        false => Err(ReplicaError::NoObject(address)),
    }
}

/// Gives an object, which the caller has locked exclusively, the value of a record and the version of that, and unlocks it.
pub(crate) fn install(memory: &Memory, at: usize, object: &Object<'_>) {
    let (bytes, next) = (object.class.object_bytes(), object.version.next());
    match object.effect {
        Effect::Format => {
            write::install_zeroed(memory, at, (bytes, 1), next, object.incarnation);
        }
        _ => write::install(memory, at, bytes, next, object.incarnation, object.payload),
    }
}
