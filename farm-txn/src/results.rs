//! Results on their way to continuations, which are called from the event loop, never inside the call that began the
//! operation.

use farm_core::worker::{Cont, Worker};

use crate::calls::DeferredResult;
use crate::layer::{Transactions, transactions};

/// Passes a result to its continuation from the event loop.
#[inline(always)]
pub(crate) fn defer(worker: &mut Worker, result: DeferredResult) {
    let deferred = store(transactions(worker), result);
    worker.defer(deferred);
}

/// Stores a result. Returns the continuation that passes the result on; the caller must defer that continuation.
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
