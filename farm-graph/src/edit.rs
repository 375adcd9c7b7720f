//! The objects of an edit, and its changes to them.
//!
//! An edit is a change of the graph as a value: it works on the objects that a transaction has, and does no input or
//! output. It changes copies of the objects. If the transaction lacks an object, the edit ends with
//! [`EditError::Missing`]; the caller adds that object to the transaction and makes the whole edit again. Only a
//! complete edit is written to the transaction ([`Work::apply`]; [`crate::complete`] does all that), so that an edit that fails has changed nothing.

use farm_core::alloc::class_for_payload;
use farm_core::ids::Address;
use farm_core::object::FatPointer;
use farm_txn::{ObjectId, Tx, TxError};
use smallvec::{SmallVec, smallvec};

use crate::GraphError;

/// What the transaction must have before an edit can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Existing objects: the one that was to be read, and those that will probably be read next.
    Objects(SmallVec<[FatPointer; 1]>),
    /// A new object for a payload of this length, near this address; [`Work::add_spare`] receives it.
    New(usize, Address),
}

/// Why an edit was not made. It has changed nothing.
#[derive(Debug)]
pub(crate) enum EditError {
    /// The transaction lacks objects.
    Missing(Missing),
    /// The edit is refused, the transaction conflicts with another one, or memory is damaged.
    Failed(GraphError),
}

impl From<GraphError> for EditError {
    fn from(error: GraphError) -> Self {
        EditError::Failed(error)
    }
}

impl From<TxError> for EditError {
    fn from(error: TxError) -> Self {
        EditError::Failed(error.into())
    }
}

/// A changed copy of an object's payload.
struct Copied {
    object: ObjectId,
    payload: Vec<u8>,
}

/// The changes of an edit, and the new objects that it needs. Reused: it keeps its memory from edit to edit.
#[derive(Default)]
pub(crate) struct Work {
    copies: Vec<Copied>,
    /// New objects of the transaction. The edit uses the first `used` ones.
    spares: SmallVec<[ObjectId; 4]>,
    used: usize,
    freed: SmallVec<[ObjectId; 4]>,
    /// Memory for copies.
    buffers: Vec<Vec<u8>>,
}

impl Work {
    /// Begins an edit, or an edit that lacked an object again.
    pub(crate) fn begin<'a>(&'a mut self, tx: &'a Tx, near: Address) -> Edit<'a> {
        self.forget_copies();
        self.used = 0;
        Edit {
            tx,
            work: self,
            near,
        }
    }

    /// Adds a new object, which the transaction has allocated because the edit lacked it.
    pub(crate) fn add_spare(&mut self, object: ObjectId) {
        self.spares.push(object);
    }

    /// Writes the changes of a complete edit to its transaction.
    pub(crate) fn apply(&mut self, tx: &mut Tx) {
        for copied in &self.copies {
            tx.payload_mut(copied.object)
                .copy_from_slice(&copied.payload);
        }
        for object in self.freed.iter().chain(&self.spares[self.used..]) {
            tx.free(*object);
        }
        self.spares.clear();
        self.forget_copies();
    }

    /// Ends an edit that has failed. Frees the new objects that were allocated for it.
    pub(crate) fn abandon(&mut self, tx: &mut Tx) {
        for object in self.spares.drain(..) {
            tx.free(object);
        }
        self.forget_copies();
    }

    /// Forgets an edit whose transaction has ended.
    pub(crate) fn forget(&mut self) {
        self.spares.clear();
        self.forget_copies();
    }

    fn forget_copies(&mut self) {
        self.freed.clear();
        self.buffers
            .extend(self.copies.drain(..).map(|copied| copied.payload));
    }
}

/// An edit in progress. See the [module](self).
pub(crate) struct Edit<'a> {
    tx: &'a Tx,
    work: &'a mut Work,
    /// New objects are allocated on the machine of this address.
    near: Address,
}

impl Edit<'_> {
    /// Sets the address near which new objects are allocated.
    pub(crate) fn set_near(&mut self, near: Address) {
        self.near = near;
    }

    /// Returns the payload of an object, as the edit has changed it.
    pub(crate) fn read(&self, pointer: FatPointer) -> Result<&[u8], EditError> {
        let object = self.object(pointer)?;
        Ok(match self.copy_of(object) {
            Some(copy) => &self.work.copies[copy].payload,
            None => self.tx.payload(object),
        })
    }

    /// Returns the payload of an object for changes.
    pub(crate) fn write(&mut self, pointer: FatPointer) -> Result<&mut [u8], EditError> {
        let object = self.object(pointer)?;
        let copy = match self.copy_of(object) {
            Some(copy) => copy,
            None => {
                let mut payload = self.buffer();
                payload.extend_from_slice(self.tx.payload(object));
                self.push(object, payload)
            }
        };
        Ok(&mut self.work.copies[copy].payload)
    }

    /// Creates an object whose payload has at least `bytes` bytes, all zero.
    pub(crate) fn create(&mut self, bytes: usize) -> Result<FatPointer, EditError> {
        let class = class_for_payload(bytes).map_err(TxError::from)?;
        let work = &mut *self.work;
        let of_class = |object: &ObjectId| self.tx.class(*object) == class;
        let Some(spare) = work.spares[work.used..].iter().position(of_class) else {
            return Err(EditError::Missing(Missing::New(bytes, self.near_new())));
        };
        work.spares.swap(work.used, work.used + spare);
        let object = work.spares[work.used];
        work.used += 1;
        let mut payload = self.buffer();
        payload.resize(class.payload_capacity(), 0);
        self.push(object, payload);
        Ok(self.tx.pointer(object))
    }

    /// Returns the address near which a new object is allocated. All objects of a node are on one machine, which the first of
    /// them determines if the caller has not.
    fn near_new(&self) -> Address {
        match self.work.spares.first() {
            Some(spare) if self.near.is_null() => self.tx.address(*spare),
            _ => self.near,
        }
    }

    /// Frees an object. The edit must not access it afterwards.
    pub(crate) fn free(&mut self, pointer: FatPointer) -> Result<(), EditError> {
        let object = self.object(pointer)?;
        if let Some(copy) = self.copy_of(object) {
            let copied = self.work.copies.swap_remove(copy);
            self.work.buffers.push(copied.payload);
        }
        self.work.freed.push(object);
        Ok(())
    }

    fn object(&self, pointer: FatPointer) -> Result<ObjectId, EditError> {
        let gone = Err(TxError::NotAllocated(pointer.address).into());
        match self.tx.known(pointer.address, pointer.class()) {
            None => Err(EditError::Missing(Missing::Objects(smallvec![pointer]))),
            Some(Ok(object)) if pointer.names(self.tx.incarnation(object)) => Ok(object),
            Some(Ok(_) | Err(TxError::NotAllocated(_) | TxError::WrongSize { .. })) => gone,
            Some(Err(error)) => Err(error.into()),
        }
    }

    fn copy_of(&self, object: ObjectId) -> Option<usize> {
        let copies = &self.work.copies;
        copies.iter().position(|copied| copied.object == object)
    }

    fn buffer(&mut self) -> Vec<u8> {
        let mut buffer = self.work.buffers.pop().unwrap_or_default();
        buffer.clear();
        buffer
    }

    fn push(&mut self, object: ObjectId, payload: Vec<u8>) -> usize {
        self.work.copies.push(Copied { object, payload });
        self.work.copies.len() - 1
    }
}
