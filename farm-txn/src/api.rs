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
//! | `lockFreeStart`, `lockFreeRead`, `lockFreeEnd` | [`Worker::pin`], [`Worker::read_lock_free`], [`Worker::unpin`] |
//! | `objGetIncarnation`, `objIncrementIncarnation` | [`with`] [`Tx::incarnation`], [`Tx::increment_incarnation`] |
//! | `msgRegisterHandler`, `msgSend` | [`Worker::register`], [`Worker::call`] and [`Worker::send`] to [`Worker::worker_at`] an address |
//!
//! No function calls a continuation before it returns, regardless of the machine of the object.

use farm_core::alloc::{SizeClass, class_for_payload};
use farm_core::ids::Address;
use farm_core::object::FatPointer;
use farm_core::worker::{AddressError, Cont, Worker};

#[doc(inline)]
pub use crate::arrays::{alloc_array, read_array};
use crate::calls::{DeferredResult, RemoteCall};
use crate::commit::drive;
use crate::contexts::checkin;
use crate::error::{Abort, TxError};
pub use crate::handle::TxHandle;
use crate::layer::transactions;
pub use crate::open::{begin, with};
use crate::open::{context_of, end};
use crate::remote;
use crate::results;
use crate::tx::{ObjectId, Place, Tx};

/// Reads an object that stores payloads of `payload_bytes`, on any machine. The continuation receives the object, or
/// [`TxError::Ended`] if the transaction has ended by then.
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

/// Reads an object of a known size class, such as that of a fat pointer, as [`read`] does.
///
/// The continuation receives [`TxError::WrongSize`] if the object has another class, on any machine: the class is in
/// its header.
///
/// If no object starts at the address, the continuation receives [`TxError::Address`] if the address is on this
/// machine. On another machine the read finds payload instead of a header, and ends with [`TxError::WrongSize`] or
/// [`TxError::Address`]; or, if the payload has the right class by chance and looks locked, with [`Abort::TimedOut`].
/// Payload that looks like an unlocked object of the class is returned as such an object. A fat pointer excludes that
/// by its incarnation.
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

/// Reads the object to which a fat pointer refers, as [`read`] does, and not an object that was later allocated in its
/// place (`FaRM'14 §3.5`). The continuation receives [`TxError::NotAllocated`] if the object was freed.
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

/// Delivers the result of a read of this machine's memory, or reads from the machine that stores the object.
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
        // The object may stay locked for a round trip. A lock-free read waits for it, so that this worker can do other
        // work meanwhile.
        Err(TxError::Abort(Abort::Locked(_))) => None,
        _ => return deliver(worker, tx, cont, result),
    };
    let place = Place {
        address,
        machine,
        class,
    };
    let asked = RemoteCall {
        tx,
        place,
        pointer,
        allocates: false,
        cont,
    };
    remote::read(worker, asked);
}

/// Allocates an object for payloads of `payload_bytes`. If there is a `hint`, the object is on the machine of that
/// address, and near it if possible. Without a hint it is on this machine, or on any machine if this one stores nothing. The
/// continuation receives the object, or [`TxError::Ended`] if the transaction has ended by then.
///
/// The length of the payload is the capacity of its size class: `payload_bytes` or more. For an object of another
/// machine, the payload must fit into a log record there when the transaction commits, which is an eighth of
/// `rings.log_bytes`. Otherwise the commit ends with [`TxError::TooLargeForLog`].
pub fn alloc(
    worker: &mut Worker,
    tx: TxHandle,
    payload_bytes: usize,
    hint: Option<Address>,
    cont: Cont<Result<ObjectId, TxError>>,
) {
    let elsewhere = remote::elsewhere_for_new(worker, hint);
    let result = match (elsewhere, class_for_payload(payload_bytes)) {
        (Some(_), _) if transactions(worker).leaving => Err(TxError::Stopped(None)),
        (Some(machine), Ok(class)) => {
            let place = Place {
                address: hint.unwrap_or(Address::NULL),
                machine: Some(machine),
                class,
            };
            let asked = RemoteCall {
                tx,
                place,
                pointer: None,
                allocates: true,
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

/// Frees the objects of an array when the transaction commits. The memory of an array is reused when all of its objects
/// are freed.
///
/// # Errors
/// [`TxError::Ended`], [`TxError::OtherTransaction`]; [`TxError::NotAllocated`] if the transaction has freed one of the
/// objects before. After an error, this call frees none of the objects.
pub fn free_array(worker: &mut Worker, tx: TxHandle, objects: &[ObjectId]) -> Result<(), TxError> {
    with(worker, tx, |tx, _| tx.free_all(objects))?
}

/// Frees an object that was read, when the transaction commits. The `ObjectId` is invalid from this call on.
///
/// # Errors
/// [`TxError::Ended`], [`TxError::OtherTransaction`]; [`TxError::NotAllocated`] if the transaction has freed the object
/// before.
pub fn free(worker: &mut Worker, tx: TxHandle, object: ObjectId) -> Result<(), TxError> {
    context_of(worker, tx, object)?.free(object);
    Ok(())
}

/// Returns the address of an object.
///
/// # Errors
/// As [`free`].
pub fn address(worker: &mut Worker, tx: TxHandle, object: ObjectId) -> Result<Address, TxError> {
    Ok(context_of(worker, tx, object)?.address(object))
}

/// Returns the payload of an object, as the transaction sees it. Its length is the capacity of the size class, which
/// may exceed the requested length.
///
/// # Errors
/// As [`free`]; [`TxError::Forgotten`].
pub fn payload(worker: &mut Worker, tx: TxHandle, object: ObjectId) -> Result<&[u8], TxError> {
    let context = context_of(worker, tx, object)?;
    context.check_payload(object)?;
    Ok(context.payload(object))
}

/// Returns the payload of an object, to change it: the commit writes the payload. The length is that of [`payload`].
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

/// Forgets the payload of an object that was only read; the commit still validates its version. See
/// [`Tx::forget_payload`].
///
/// # Errors
/// As [`free`].
pub fn forget_payload(worker: &mut Worker, tx: TxHandle, object: ObjectId) -> Result<(), TxError> {
    context_of(worker, tx, object)?.forget_payload(object);
    Ok(())
}

/// Commits. The continuation receives the outcome: the transaction took effect as a whole, or not at all. The handle
/// ends at once.
pub fn commit(worker: &mut Worker, tx: TxHandle, cont: Cont<Result<(), TxError>>) {
    match end(worker, tx) {
        Ok(context) => drive::begin(worker, context, cont),
        Err(error) => results::defer(worker, DeferredResult::NotCommitted(cont, error)),
    }
}

/// Commits the transaction of a context that [`checkout`](crate::checkout) returned. The continuation is called from
/// the event loop: it receives `Ok` if all of the transaction took effect, and otherwise the reason why it had no
/// effect.
pub fn commit_context(worker: &mut Worker, tx: Box<Tx>, cont: Cont<Result<(), TxError>>) {
    drive::begin(worker, tx, cont);
}

/// Ends the transaction of a context without effect, and validates its reads: see [`validate`].
pub fn validate_context(worker: &mut Worker, mut tx: Box<Tx>, cont: Cont<Result<(), TxError>>) {
    tx.give_up_writes(worker);
    drive::begin(worker, tx, cont);
}

/// Ends a transaction without effect, and validates its reads. The continuation receives `Ok` if all of them are from
/// one moment, or the conflict. Use a result of the transaction only if this succeeds: its reads may be mutually
/// inconsistent.
///
/// The continuation may receive [`Abort`], as from [`commit`], or [`TxError::Ended`].
pub fn validate(worker: &mut Worker, tx: TxHandle, cont: Cont<Result<(), TxError>>) {
    // If the transaction has ended, `commit` reports that.
    let _ = with(worker, tx, |tx, worker| tx.give_up_writes(worker));
    commit(worker, tx, cont);
}

/// Ends a transaction without effect. No-op if it has ended already.
pub fn abort(worker: &mut Worker, tx: TxHandle) {
    if let Ok(context) = end(worker, tx) {
        checkin(worker, context);
    }
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
