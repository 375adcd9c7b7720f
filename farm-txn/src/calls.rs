//! Operations of open transactions that have not ended: calls to other machines, and results on their way to their
//! continuations.

use farm_core::ids::MachineId;
use farm_core::object::FatPointer;
use farm_core::time::Nanos;
use farm_core::worker::Cont;

use crate::error::TxError;
use crate::handle::TxHandle;
use crate::object_run::ObjectRun;
use crate::tx::{ObjectId, Place, Tx};

/// An operation that waits for another machine, or for a lock of this machine.
#[derive(Clone, Copy)]
pub(crate) struct RemoteCall {
    pub(crate) tx: TxHandle,
    /// Place of the object to read; for an allocation, the hint.
    pub(crate) place: Place,
    /// Fat pointer of the object to read, if the caller reads by one.
    pub(crate) pointer: Option<FatPointer>,
    /// Whether the call reserves room for a new object.
    pub(crate) allocates: bool,
    pub(crate) cont: Cont<Result<ObjectId, TxError>>,
}

impl RemoteCall {
    /// Returns the machine that allocates.
    pub(crate) fn machine(&self) -> MachineId {
        self.place
            .machine
            .expect("this request has a destination, because its objects are on another machine")
    }
}

/// A commit that has not begun, because it waits until the regions of its new objects are recorded.
pub(crate) struct WaitingCommit {
    pub(crate) tx: Box<Tx>,
    pub(crate) cont: Cont<Result<(), TxError>>,
    /// When it was to begin.
    pub(crate) since: Nanos,
}

/// The objects of an array, in order; `None` for a slot without an object.
pub type Objects = Vec<Option<ObjectId>>;

/// An array that is being read or allocated.
pub(crate) struct ArrayCall {
    pub(crate) tx: TxHandle,
    /// For an allocation, `first` is the hint until room is reserved.
    pub(crate) objects: ObjectRun,
    /// Machine that stores the objects, if it is another one; `None` for this machine.
    pub(crate) machine: Option<MachineId>,
    pub(crate) cont: ArrayCont,
    /// What copies must know of the block of the first object of a new array; 0 if there are none.
    pub(crate) block: u64,
    /// The configuration in which another machine has reserved room.
    pub(crate) since: u64,
    /// Error that was found before the first step.
    pub(crate) failed: Option<TxError>,
}

/// The continuation that receives the array.
#[derive(Clone, Copy)]
pub(crate) enum ArrayCont {
    Read(Cont<Result<Objects, TxError>>),
    Allocated(Cont<Result<Vec<ObjectId>, TxError>>),
}

impl ArrayCall {
    /// Returns the place of the object at an index.
    pub(crate) fn place(&self, index: u32) -> Place {
        Place {
            address: self
                .objects
                .address(index)
                .expect("the call checked that every object of the array has an address"),
            machine: self.machine,
            class: self.objects.class,
        }
    }

    /// Returns whether the array is being allocated.
    pub(crate) fn is_new(&self) -> bool {
        matches!(self.cont, ArrayCont::Allocated(_))
    }
}

/// A result and its continuation.
///
/// Successes are small variants of their own: a [`Result`] with room for the errors would be moved through memory
/// several times, and each move would wait for the stores before it.
pub(crate) enum DeferredResult {
    /// An object of an open transaction. If the transaction ends before the continuation is called, the continuation
    /// receives [`TxError::Ended`].
    Object(TxHandle, Cont<Result<ObjectId, TxError>>, ObjectId),
    NoObject(Cont<Result<ObjectId, TxError>>, TxError),
    Committed(Cont<Result<(), TxError>>),
    NotCommitted(Cont<Result<(), TxError>>, TxError),
}

impl DeferredResult {
    /// Creates the result of a read or an allocation.
    #[inline]
    pub(crate) fn of_object(
        tx: TxHandle,
        cont: Cont<Result<ObjectId, TxError>>,
        result: Result<ObjectId, TxError>,
    ) -> Self {
        match result {
            Ok(object) => DeferredResult::Object(tx, cont, object),
            Err(error) => DeferredResult::NoObject(cont, error),
        }
    }
}
