//! Results on their way to continuations, which are called from the event loop, never inside the call that began the
//! operation.

use farm_core::worker::{Cont, Worker};

use crate::error::TxError;
use crate::handle::TxHandle;
use crate::layer::{Transactions, transactions};
use crate::tx::ObjectId;

/// A result and its continuation.
///
/// Successes are small variants of their own: a [`Result`] with room for the errors would be moved through memory several
/// times, and each move would wait for the stores before it.
pub(crate) enum DeferredResult {
    /// An object of an open transaction; if the transaction ends before the continuation is called, that gets
    /// [`TxError::Ended`].
    Object(TxHandle, Cont<Result<ObjectId, TxError>>, ObjectId),
    NoObject(Cont<Result<ObjectId, TxError>>, TxError),
    Committed(Cont<Result<(), TxError>>),
    NotCommitted(Cont<Result<(), TxError>>, TxError),
}

impl DeferredResult {
    /// The result of a read or an allocation.
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

/// Passes a result to its continuation from the event loop.
#[inline(always)]
pub(crate) fn defer(worker: &mut Worker, result: DeferredResult) {
    let deferred = store(transactions(worker), result);
    worker.defer(deferred);
}

/// Stores a result. Returns the continuation that passes it on, which is to be deferred.
#[inline(always)]
pub(crate) fn store(state: &mut Transactions, result: DeferredResult) -> Cont<()> {
    Cont::new(resume, state.results.insert(result))
}

fn resume(worker: &mut Worker, slot: usize, (): ()) {
    let layer = transactions(worker);
    match layer.results.remove(slot) {
        DeferredResult::Object(tx, cont, object) => {
            let result = layer.entry(tx).map(|_| object);
            cont.resume(worker, result);
        }
        DeferredResult::NoObject(cont, error) => cont.resume(worker, Err(error)),
        DeferredResult::Committed(cont) => cont.resume(worker, Ok(())),
        DeferredResult::NotCommitted(cont, error) => cont.resume(worker, Err(error)),
    }
}
