//! The pool of transaction contexts.

use farm_core::worker::Worker;

use crate::layer::transactions;
use crate::tx::Tx;

/// Returns a context from the worker's pool. The caller returns the context by [`checkin`], [`commit`](crate::commit)
/// or [`validate`](crate::validate). Until then, memory that is freed on any machine is not reused for objects of
/// another size.
///
/// # Panics
/// If the layer is not attached.
pub fn checkout(worker: &mut Worker) -> Box<Tx> {
    let guard = worker.pin();
    transactions(worker).context(guard)
}

/// Returns a context to the worker's pool; its transaction is aborted.
pub fn checkin(worker: &mut Worker, mut tx: Box<Tx>) {
    end_of(worker, &mut tx);
    transactions(worker).keep(tx);
}

/// Ends the transaction of a context, and aborts it if it has not committed.
pub(crate) fn end_of(worker: &mut Worker, tx: &mut Tx) {
    tx.abort(worker);
    tx.trim();
    if let Some(guard) = tx.guard.take() {
        worker.unpin(guard);
    }
}
