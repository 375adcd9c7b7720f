//! The pool of transaction contexts.

use farm_core::worker::Worker;

use crate::layer::transactions;
use crate::tx::Tx;

/// Returns a context from the worker's pool. It goes back by [`checkin`], or by [`commit`](crate::commit) or
/// [`validate`](crate::validate). Until then no machine uses memory again, for objects of another size, that was freed
/// since.
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

/// Ends the transaction of a context; whatever it still holds is aborted.
pub(crate) fn end_of(worker: &mut Worker, tx: &mut Tx) {
    tx.abort(worker);
    tx.trim();
    if let Some(guard) = tx.guard.take() {
        worker.unpin(guard);
    }
}
