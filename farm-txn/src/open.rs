//! Access to open transactions by their handles.

use farm_core::worker::Worker;

use crate::error::TxError;
use crate::handle::{OpenTx, TxHandle};
use crate::layer::transactions;
use crate::tx::{ObjectId, Tx};

/// Begins a transaction.
pub fn begin(worker: &mut Worker) -> TxHandle {
    open(worker, None)
}

/// Begins a transaction for one attempt of a run.
pub(crate) fn begin_of_run(worker: &mut Worker, run: usize) -> TxHandle {
    open(worker, Some(run))
}

/// Returns the run to which a transaction belongs as an attempt.
pub(crate) fn run_of(worker: &mut Worker, tx: TxHandle) -> Result<Option<usize>, TxError> {
    Ok(entry(worker, tx)?.run)
}

fn open(worker: &mut Worker, run: Option<usize>) -> TxHandle {
    let operation = worker.pin();
    let layer = transactions(worker);
    let tx = layer.context(operation);
    layer.generation = layer.generation.wrapping_add(1);
    let generation = layer.generation;
    let key = layer.open.insert(OpenTx {
        generation,
        tx: Some(tx),
        run,
    });
    TxHandle {
        key: key as u32,
        generation,
    }
}

/// Calls `work` with the context, on which `work` can call all operations of [`Tx`]. These panic for an object of
/// another transaction, which stops the machine; [`Tx::check`] detects such an object.
///
/// # Errors
/// [`TxError::Ended`].
pub fn with<R>(
    worker: &mut Worker,
    tx: TxHandle,
    work: impl FnOnce(&mut Tx, &mut Worker) -> R,
) -> Result<R, TxError> {
    let mut context = entry(worker, tx)?.tx.take().ok_or(TxError::Ended)?;
    let result = work(&mut context, worker);
    entry(worker, tx)?.tx = Some(context);
    Ok(result)
}

/// Returns whether the context of an open transaction is taken out: a call of [`with`] is in progress.
pub(crate) fn is_in_use(worker: &mut Worker, tx: TxHandle) -> bool {
    entry(worker, tx).is_ok_and(|entry| entry.tx.is_none())
}

fn entry(worker: &mut Worker, tx: TxHandle) -> Result<&mut OpenTx, TxError> {
    transactions(worker).entry(tx)
}

/// Returns the context of a transaction that has the object.
pub(crate) fn context_of(
    worker: &mut Worker,
    tx: TxHandle,
    object: ObjectId,
) -> Result<&mut Tx, TxError> {
    let context = entry(worker, tx)?.tx.as_mut().ok_or(TxError::Ended)?;
    context.check(object)?;
    Ok(context)
}

/// Takes the context of a transaction, and ends its handle.
pub(crate) fn end(worker: &mut Worker, tx: TxHandle) -> Result<Box<Tx>, TxError> {
    let layer = transactions(worker);
    let context = layer.entry(tx)?.tx.take().ok_or(TxError::Ended)?;
    layer.open.remove(tx.key as usize);
    Ok(context)
}
