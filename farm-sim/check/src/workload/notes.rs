//! What a script wants of the platform, what it gets, and what it notes about one try.

use farm_core::object::FatPointer;
use farm_txn::{ObjectId as TxObject, Tx, arrays};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::spec::Spec;
use super::value::Value;
use crate::history::{Access, ObjectId, WriteId};

/// What a script wants next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Want {
    /// Read an object of the workload.
    Read(usize),
    /// Read what a pointer names.
    Follow(FatPointer),
    /// Read all objects of the array whose first a pointer names.
    FollowAll(FatPointer, u32),
    /// Allocate, near an object of the workload.
    Allocate {
        /// Bytes of payload.
        bytes: usize,
        /// How many adjacent ones.
        count: u32,
        /// The object.
        near: usize,
    },
    /// Commit.
    Commit,
}

/// What it got.
pub(super) enum Got {
    /// It is to begin.
    Nothing,
    /// The object.
    Object(TxObject),
    /// The objects of an array; none where there is none.
    Objects(arrays::Objects),
    /// Nothing is there.
    NotThere,
}

/// A value that no write wrote.
pub(super) struct Torn(pub(super) String);

/// The choices and the records of one try of a transaction.
pub(super) struct Notes {
    pub(super) spec: Spec,
    pub(super) rng: Xoshiro256PlusPlus,
    /// The objects that it may touch.
    pub(super) first: usize,
    pub(super) count: usize,
    /// What the ids of its writes begin with.
    pub(super) name: u64,
    pub(super) accesses: Vec<Access>,
    /// Broken invariants, of no meaning unless the transaction commits.
    pub(super) broken: Vec<String>,
    /// The object that was asked for last.
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
    /// What was got, if it is the object that was asked for; noted as read.
    pub(super) fn read(&mut self, tx: &Tx, got: &Got) -> Result<Option<Read>, Torn> {
        let (object, handle) = match got {
            Got::Nothing => return Ok(None),
            Got::Object(handle) => (self.asked, *handle),
            Got::Objects(_) | Got::NotThere => {
                return Err(Torn(format!("object {} is not there", self.asked)));
            }
        };
        let version = tx.version(handle).get();
        let value = Value::read(tx.payload(handle)).map_err(|torn| {
            let why = format!("object {object}, version {version}, in a transaction: {torn}");
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

    /// The id that the next write of this try has.
    pub(super) fn next_id(&self) -> WriteId {
        let writes = self
            .accesses
            .iter()
            .filter(|access| matches!(access, Access::Write { .. }));
        WriteId(self.name | writes.count() as u64)
    }

    /// Replaces the value of an object that was read.
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
