//! Transactions by handles and continuations: the calls of `FaRM'14` figure 6.
//!
//! | figure 6 | here |
//! |---|---|
//! | `txCreate` | [`begin`] |
//! | `txAlloc` | [`alloc`] |
//! | `txFree` | [`free`] |
//! | `txRead` | [`read`] |
//! | `txWrite` | [`payload_mut`] of an object that was read |
//! | `txCommit` | [`commit`] |
//! | `objGetIncarnation`, `objIncrementIncarnation` | [`with`] [`Tx::incarnation`], [`Tx::increment_incarnation`] |
//!
//! A continuation is never called inside the call that begins its operation, wherever the object is.

use farm_core::ids::Address;
use farm_core::worker::{Cont, Worker};

use crate::layer::{give, take, transactions};
use crate::tx::{ObjectId, Tx, TxError};

/// Names an open transaction of this worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxHandle {
    key: u32,
    generation: u32,
}

impl TxHandle {
    /// As the context of a continuation.
    pub fn to_context(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.key)
    }

    /// From the context of a continuation.
    pub fn from_context(context: u64) -> Self {
        Self { key: context as u32, generation: (context >> 32) as u32 }
    }
}

/// A transaction that a handle names, and the result that is on its way to a continuation.
pub(crate) struct Open {
    generation: u32,
    /// Out while a call works on it.
    tx: Option<Tx>,
    result: Option<Step>,
}

enum Step {
    Object(Cont<Result<ObjectId, TxError>>, Result<ObjectId, TxError>),
    Done(Cont<Result<(), TxError>>, Result<(), TxError>),
}

/// Begins a transaction.
pub fn begin(worker: &mut Worker) -> TxHandle {
    let tx = take(worker);
    let layer = transactions(worker);
    layer.generation = layer.generation.wrapping_add(1);
    let generation = layer.generation;
    let key = layer.open.insert(Open { generation, tx: Some(tx), result: None });
    TxHandle { key: key as u32, generation }
}

/// Reads an object that holds payloads of `payload_bytes`; the continuation gets the object.
pub fn read(
    worker: &mut Worker,
    tx: TxHandle,
    address: Address,
    payload_bytes: usize,
    cont: Cont<Result<ObjectId, TxError>>,
) {
    let result = with(worker, tx, |tx, worker| tx.read(worker, address, payload_bytes));
    deliver(worker, tx, Step::Object(cont, result.and_then(|result| result)));
}

/// Allocates an object for payloads of `payload_bytes`, near `hint` if it can be.
pub fn alloc(
    worker: &mut Worker,
    tx: TxHandle,
    payload_bytes: usize,
    hint: Option<Address>,
    cont: Cont<Result<ObjectId, TxError>>,
) {
    let result = with(worker, tx, |tx, worker| tx.alloc(worker, payload_bytes, hint));
    deliver(worker, tx, Step::Object(cont, result.and_then(|result| result)));
}

/// Frees an object that was read, when the transaction commits.
///
/// # Errors
/// [`TxError::Ended`].
pub fn free(worker: &mut Worker, tx: TxHandle, object: ObjectId) -> Result<(), TxError> {
    with(worker, tx, |tx, _| tx.free(object))
}

/// The payload of an object, as the transaction sees it.
///
/// # Errors
/// [`TxError::Ended`].
pub fn payload(worker: &mut Worker, tx: TxHandle, object: ObjectId) -> Result<&[u8], TxError> {
    Ok(context(worker, tx)?.payload(object))
}

/// The payload of an object, to be changed: it is written when the transaction commits.
///
/// # Errors
/// [`TxError::Ended`].
pub fn payload_mut(worker: &mut Worker, tx: TxHandle, object: ObjectId) -> Result<&mut [u8], TxError> {
    Ok(context(worker, tx)?.payload_mut(object))
}

/// Commits; the continuation hears whether all or nothing took effect. The handle ends.
pub fn commit(worker: &mut Worker, tx: TxHandle, cont: Cont<Result<(), TxError>>) {
    let result = with(worker, tx, |tx, worker| tx.commit(worker));
    deliver(worker, tx, Step::Done(cont, result.and_then(|result| result)));
}

/// Ends a transaction; nothing of it takes effect. One that has ended already stays so.
pub fn abort(worker: &mut Worker, tx: TxHandle) {
    if let Ok(open) = entry(worker, tx)
        && let Some(context) = open.tx.take()
    {
        transactions(worker).open.remove(tx.key as usize);
        give(worker, context);
    }
}

/// Works on the context itself: everything that [`Tx`] can do.
///
/// # Errors
/// [`TxError::Ended`].
pub fn with<R>(worker: &mut Worker, tx: TxHandle, work: impl FnOnce(&mut Tx, &mut Worker) -> R) -> Result<R, TxError> {
    let mut context = entry(worker, tx)?.tx.take().ok_or(TxError::Ended)?;
    let result = work(&mut context, worker);
    entry(worker, tx)?.tx = Some(context);
    Ok(result)
}

fn entry(worker: &mut Worker, tx: TxHandle) -> Result<&mut Open, TxError> {
    let open = transactions(worker).open.get_mut(tx.key as usize);
    open.filter(|open| open.generation == tx.generation).ok_or(TxError::Ended)
}

fn context(worker: &mut Worker, tx: TxHandle) -> Result<&mut Tx, TxError> {
    entry(worker, tx)?.tx.as_mut().ok_or(TxError::Ended)
}

/// Hands a result to its continuation from the event loop. A handle that has ended has no entry to
/// keep it in: it gets one for that long.
fn deliver(worker: &mut Worker, tx: TxHandle, step: Step) {
    let handle = match entry(worker, tx) {
        Ok(open) => {
            open.result = Some(step);
            tx
        }
        Err(_) => {
            let layer = transactions(worker);
            layer.generation = layer.generation.wrapping_add(1);
            let generation = layer.generation;
            let key = layer.open.insert(Open { generation, tx: None, result: Some(step) });
            TxHandle { key: key as u32, generation }
        }
    };
    worker.defer(Cont::new(resume, handle.to_context()));
}

fn resume(worker: &mut Worker, context: u64, (): ()) {
    let handle = TxHandle::from_context(context);
    let Ok(open) = entry(worker, handle) else { return };
    let step = open.result.take();
    let ended = open.tx.is_none() || matches!(step, Some(Step::Done(..)));
    if ended && let Some(context) = transactions(worker).open.remove(handle.key as usize).tx {
        give(worker, context);
    }
    match step {
        Some(Step::Object(cont, result)) => cont.resume(worker, result),
        Some(Step::Done(cont, result)) => cont.resume(worker, result),
        None => {}
    }
}
