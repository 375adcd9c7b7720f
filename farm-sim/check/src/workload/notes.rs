//! The requests of a script, their results, and the records of one try.

use farm_core::object::FatPointer;
use farm_txn::{ObjectId as TxObject, Tx, arrays};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::spec::Spec;
use super::value::Value;
use crate::history::{Access, ObjectId, WriteId};

/// A request of a script.
#[derive(Clone, Copy, Debug)]
pub(super) enum Want {
    /// Read an object of the workload.
    Read(usize),
    /// Read the object that a pointer names.
    Follow(FatPointer),
    /// Read all objects of an array. The pointer names the first, the number is their count.
    FollowAll(FatPointer, u32),
    /// Allocate near an object of the workload.
    Allocate {
        /// Bytes of payload.
        bytes: usize,
        /// Number of adjacent objects.
        count: u32,
        /// The index of the object of the workload.
        near: usize,
    },
    /// Commit.
    Commit,
}

/// The result of a request.
pub(super) enum Got {
    /// None: the script begins.
    Nothing,
    /// The object.
    Object(TxObject),
    /// The objects of an array. A freed member is `None`.
    Objects(arrays::Objects),
    /// The object is not allocated.
    NotThere,
}

/// The error for a value that no correct write produces, or for an object that is not allocated.
pub(super) struct Torn(pub(super) String);

/// The choices and the records of one try of a transaction.
pub(super) struct Notes {
    pub(super) spec: Spec,
    pub(super) rng: Xoshiro256PlusPlus,
    /// The first object that the try may access.
    pub(super) first: usize,
    /// Number of objects that the try may access.
    pub(super) count: usize,
    /// The common high bits of the ids of the try's writes.
    pub(super) name: u64,
    pub(super) accesses: Vec<Access>,
    /// Broken invariants. They are meaningless unless the transaction commits.
    pub(super) broken: Vec<String>,
    /// The object that the last [`Want::Read`] requested.
    pub(super) asked: usize,
}

/// An object of the workload, as this transaction read it.
#[derive(Clone, Copy)]
pub(super) struct Read {
    pub(super) object: usize,
    pub(super) handle: TxObject,
    pub(super) value: Value,
}

impl Notes {
    /// Records and returns the object that [`Want::Read`] requested. Returns `None` if the script begins.
    pub(super) fn read(&mut self, tx: &Tx, got: &Got) -> Result<Option<Read>, Torn> {
        let (object, handle) = match got {
            Got::Nothing => return Ok(None),
            Got::Object(handle) => (self.asked, *handle),
            Got::Objects(_) | Got::NotThere => {
                return Err(Torn(format!(
                    "read of object {} in a transaction: the object is not allocated",
                    self.asked
                )));
            }
        };
        let version = tx.version(handle).get();
        let value = Value::read(tx.payload(handle)).map_err(|torn| {
            let why =
                format!("read of object {object}, version {version}, in a transaction: {torn}");
            Torn(why)
        })?;
        let id = ObjectId(object as u32);
        let this = |access: &Access| matches!(access, Access::Read { object, .. } if *object == id);
        if !self.accesses.iter().any(this) {
            self.accesses.push(Access::Read {
                object: id,
                version,
                id: value.id,
                parent: value.parent,
            });
        }
        Ok(Some(Read {
            object,
            handle,
            value,
        }))
    }

    /// Returns the id of the next write of this try.
    pub(super) fn next_id(&self) -> WriteId {
        let writes = self
            .accesses
            .iter()
            .filter(|access| matches!(access, Access::Write { .. }));
        WriteId(self.name | writes.count() as u64)
    }

    /// Replaces the value of an object that was read, and records the write.
    pub(super) fn write(&mut self, tx: &mut Tx, read: Read, data: [u64; 3]) {
        let id = self.next_id();
        let parent = read.value.id;
        let value = Value { id, parent, data };
        value.write(tx.payload_mut(read.handle));
        self.accesses.push(Access::Write {
            object: ObjectId(read.object as u32),
            id,
            parent,
        });
    }
}
