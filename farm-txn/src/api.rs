//! Transactions by handles and continuations: the calls of `FaRM'14` figure 6.
//!
//! | figure 6 | here |
//! |---|---|
//! | `txCreate` | [`begin`] |
//! | `txAlloc` | [`alloc`], [`alloc_array`] |
//! | `txFree` | [`free`], [`free_array`] |
//! | `txRead` | [`read`], [`read_pointer`], [`read_array`] |
//! | `txWrite` | [`payload_mut`] of an object that was read |
//! | `txCommit` | [`commit`] |
//! | `lockFreeStart`, `lockFreeRead`, `lockFreeEnd` | [`Worker::begin_operation`], [`Worker::read_lock_free`], [`Worker::end_operation`] |
//! | `objGetIncarnation`, `objIncrementIncarnation` | [`with`] [`Tx::incarnation`], [`Tx::increment_incarnation`] |
//! | `msgRegisterHandler`, `msgSend` | [`Worker::register`], [`Worker::call`] and [`Worker::send`] to [`Worker::worker_at`] an address |
//!
//! A continuation is never called inside the call that begins its operation, wherever the object is.

use farm_core::alloc::{SizeClass, class_for_payload};
use farm_core::ids::Address;
use farm_core::object::FatPointer;
use farm_core::worker::{AddressError, Cont, Worker};

#[doc(inline)]
pub use crate::arrays::{alloc_array, read_array};
use crate::commit::drive;
use crate::error::{Abort, TxError};
use crate::handle::OpenTx;
pub use crate::handle::TxHandle;
use crate::layer::{checkin, transactions};
use crate::remote::{self, Asked};
use crate::results::{self, DeferredResult};
use crate::tx::{ObjectId, Place, Tx};

/// Begins a transaction.
pub fn begin(worker: &mut Worker) -> TxHandle {
    open(worker, None)
}

/// Begins a transaction that is a try of a run.
pub(crate) fn begin_of_run(worker: &mut Worker, run: usize) -> TxHandle {
    open(worker, Some(run))
}

/// The run of which a transaction is a try.
pub(crate) fn run_of(worker: &mut Worker, tx: TxHandle) -> Result<Option<usize>, TxError> {
    Ok(entry(worker, tx)?.run)
}

fn open(worker: &mut Worker, run: Option<usize>) -> TxHandle {
    let operation = worker.begin_operation();
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

/// Reads an object that holds payloads of `payload_bytes`, wherever it is; the continuation gets the
/// object, or [`TxError::Ended`] if the transaction has ended by then.
pub fn read(
    worker: &mut Worker,
    tx: TxHandle,
    address: Address,
    payload_bytes: usize,
    cont: Cont<Result<ObjectId, TxError>>,
) {
    match class_for_payload(payload_bytes) {
        Ok(class) => read_class(worker, tx, address, class, cont),
        Err(error) => deliver(worker, tx, cont, Err(error.into())),
    }
}

/// As [`read`], of an object of a known size class: what a fat pointer names.
///
/// The continuation gets [`TxError::WrongSize`] if the object has another class, on any machine: the class is in its
/// header.
///
/// If no object starts at the address, it gets [`TxError::Address`] on this machine. On another machine the read finds
/// payload instead of a header, and ends with [`TxError::WrongSize`] or [`TxError::Address`]; or, if the payload has
/// the right class by chance and looks locked, with [`Abort::TimedOut`]. Payload that looks like an unlocked object of
/// the class is given as one. A fat pointer excludes that by its incarnation.
pub fn read_class(
    worker: &mut Worker,
    tx: TxHandle,
    address: Address,
    class: SizeClass,
    cont: Cont<Result<ObjectId, TxError>>,
) {
    let result = with(worker, tx, |tx, worker| {
        tx.read_class(worker, address, class)
    });
    read_on(worker, tx, (address, class), None, cont, result);
}

/// As [`read`], of the object that a fat pointer names, and of no other that came to be in its place
/// (`FaRM'14 §3.5`). The continuation gets [`TxError::NotAllocated`] if that object was freed.
pub fn read_pointer(
    worker: &mut Worker,
    tx: TxHandle,
    pointer: FatPointer,
    cont: Cont<Result<ObjectId, TxError>>,
) {
    let result = with(worker, tx, |tx, worker| tx.read_pointer(worker, pointer));
    let place = (pointer.address, pointer.class());
    read_on(worker, tx, place, Some(pointer), cont, result);
}

/// Delivers what a read of this machine gave, or reads from the machine that has the object.
fn read_on(
    worker: &mut Worker,
    tx: TxHandle,
    (address, class): (Address, SizeClass),
    pointer: Option<FatPointer>,
    cont: Cont<Result<ObjectId, TxError>>,
    result: Result<Result<ObjectId, TxError>, TxError>,
) {
    let result = result.and_then(|result| result);
    let machine = match result {
        Err(TxError::Address(AddressError::Elsewhere { machine, .. })) => Some(machine),
        // It may stay locked for a round trip, in which this worker has others to serve.
        Err(TxError::Abort(Abort::Locked(_))) => None,
        _ => return deliver(worker, tx, cont, result),
    };
    let place = Place {
        address,
        machine,
        class,
    };
    let asked = Asked {
        tx,
        place,
        pointer,
        cont,
    };
    remote::read(worker, asked);
}

/// Allocates an object for payloads of `payload_bytes`, near `hint` if it can be, which is on the
/// machine where that object is; the continuation gets the object, or [`TxError::Ended`] if the
/// transaction has ended by then.
///
/// The payload is as long as its size class has room: `payload_bytes`, or some more. On another machine it
/// must fit a log record there when the transaction commits, which is an eighth of `rings.log_bytes`: else that
/// is [`TxError::TooLargeForLog`].
pub fn alloc(
    worker: &mut Worker,
    tx: TxHandle,
    payload_bytes: usize,
    hint: Option<Address>,
    cont: Cont<Result<ObjectId, TxError>>,
) {
    let elsewhere = hint.and_then(|near| Some((near, remote::elsewhere(worker, near)?)));
    let result = match (elsewhere, class_for_payload(payload_bytes)) {
        (Some((near, machine)), Ok(class)) => {
            let place = Place {
                address: near,
                machine: Some(machine),
                class,
            };
            let asked = Asked {
                tx,
                place,
                pointer: None,
                cont,
            };
            return remote::alloc(worker, asked);
        }
        (_, Err(error)) => Err(error.into()),
        (None, Ok(_)) => with(worker, tx, |tx, worker| {
            tx.alloc(worker, payload_bytes, hint)
        })
        .and_then(|result| result),
    };
    deliver(worker, tx, cont, result);
}

/// Frees all of these objects when the transaction commits: those of an array, whose memory serves again
/// when none of its objects is left.
///
/// # Errors
/// [`TxError::Ended`], [`TxError::OtherTransaction`], [`TxError::NotAllocated`] of one that the transaction has
/// freed before: none of them will be freed by this.
pub fn free_array(worker: &mut Worker, tx: TxHandle, objects: &[ObjectId]) -> Result<(), TxError> {
    with(worker, tx, |tx, _| tx.free_all(objects))?
}

/// Frees an object that was read, when the transaction commits. It is none of the transaction's from now on.
///
/// # Errors
/// [`TxError::Ended`], [`TxError::OtherTransaction`]; [`TxError::NotAllocated`] of one that the transaction has
/// freed before.
pub fn free(worker: &mut Worker, tx: TxHandle, object: ObjectId) -> Result<(), TxError> {
    context_of(worker, tx, object)?.free(object);
    Ok(())
}

/// Where an object is.
///
/// # Errors
/// As [`free`].
pub fn address(worker: &mut Worker, tx: TxHandle, object: ObjectId) -> Result<Address, TxError> {
    Ok(context_of(worker, tx, object)?.address(object))
}

/// The payload of an object, as the transaction sees it: all that its size class has room for, which may be
/// more than was asked for.
///
/// # Errors
/// As [`free`]; [`TxError::Forgotten`].
pub fn payload(worker: &mut Worker, tx: TxHandle, object: ObjectId) -> Result<&[u8], TxError> {
    let context = context_of(worker, tx, object)?;
    context.check_payload(object)?;
    Ok(context.payload(object))
}

/// The payload of an object, to be changed: it is written when the transaction commits. Of the length that
/// [`payload`] gives.
///
/// # Errors
/// As [`payload`].
pub fn payload_mut(
    worker: &mut Worker,
    tx: TxHandle,
    object: ObjectId,
) -> Result<&mut [u8], TxError> {
    let context = context_of(worker, tx, object)?;
    context.check_payload(object)?;
    Ok(context.payload_mut(object))
}

/// Forgets the payload of an object that was only read; the commit validates its version all the same. See
/// [`Tx::forget_payload`].
///
/// # Errors
/// As [`free`].
pub fn forget_payload(worker: &mut Worker, tx: TxHandle, object: ObjectId) -> Result<(), TxError> {
    context_of(worker, tx, object)?.forget_payload(object);
    Ok(())
}

/// Commits; the continuation hears whether all or nothing took effect. The handle ends at once.
pub fn commit(worker: &mut Worker, tx: TxHandle, cont: Cont<Result<(), TxError>>) {
    match end(worker, tx) {
        Ok(context) => drive::begin(worker, context, cont),
        Err(error) => results::defer(worker, DeferredResult::NotCommitted(cont, error)),
    }
}

/// Commits the transaction of a context that [`checkout`](crate::checkout) returned. The continuation is called from the
/// event loop: it gets `Ok` if all of the transaction took effect, and otherwise the reason why nothing did.
pub fn commit_context(worker: &mut Worker, tx: Box<Tx>, cont: Cont<Result<(), TxError>>) {
    drive::begin(worker, tx, cont);
}

/// Ends the transaction of a context without effect, and validates its reads: see [`validate`].
pub fn validate_context(worker: &mut Worker, mut tx: Box<Tx>, cont: Cont<Result<(), TxError>>) {
    tx.give_up_writes(worker);
    drive::begin(worker, tx, cont);
}

/// Ends a transaction without effect, and validates what it read: the continuation gets `Ok` if all of that is
/// of one moment, or the conflict. What a transaction found out is to be reported only if this succeeds: its
/// reads may be mutually inconsistent.
///
/// The continuation may get [`Abort`], as from [`commit`], or [`TxError::Ended`].
pub fn validate(worker: &mut Worker, tx: TxHandle, cont: Cont<Result<(), TxError>>) {
    // If the transaction has ended, `commit` reports that.
    let _ = with(worker, tx, |tx, worker| tx.give_up_writes(worker));
    commit(worker, tx, cont);
}

/// Ends a transaction; nothing of it takes effect. One that has ended already stays so.
pub fn abort(worker: &mut Worker, tx: TxHandle) {
    if let Ok(context) = end(worker, tx) {
        checkin(worker, context);
    }
}

/// Works on the context itself: everything that [`Tx`] can do. There, an object of another transaction
/// is a panic, which stops the machine; [`Tx::check`] finds out.
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

fn entry(worker: &mut Worker, tx: TxHandle) -> Result<&mut OpenTx, TxError> {
    transactions(worker).entry(tx)
}

/// The context of a transaction that has the object.
fn context_of(worker: &mut Worker, tx: TxHandle, object: ObjectId) -> Result<&mut Tx, TxError> {
    let context = entry(worker, tx)?.tx.as_mut().ok_or(TxError::Ended)?;
    context.check(object)?;
    Ok(context)
}

/// Takes the context of a transaction out, which stays open: [`put_back`] follows.
pub(crate) fn take_out(worker: &mut Worker, tx: TxHandle) -> Option<Box<Tx>> {
    entry(worker, tx).ok()?.tx.take()
}

/// Puts the context of a transaction back.
pub(crate) fn put_back(worker: &mut Worker, tx: TxHandle, context: Box<Tx>) {
    let entry = entry(worker, tx).expect("a transaction whose context is out stays open");
    entry.tx = Some(context);
}

/// Takes the context of a transaction, whose handle ends.
fn end(worker: &mut Worker, tx: TxHandle) -> Result<Box<Tx>, TxError> {
    let layer = transactions(worker);
    let context = layer.entry(tx)?.tx.take().ok_or(TxError::Ended)?;
    layer.open.remove(tx.key as usize);
    Ok(context)
}

#[inline]
fn deliver(
    worker: &mut Worker,
    tx: TxHandle,
    cont: Cont<Result<ObjectId, TxError>>,
    result: Result<ObjectId, TxError>,
) {
    results::defer(worker, DeferredResult::of_object(tx, cont, result));
}
