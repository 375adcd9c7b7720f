//! The transaction of a task.

use std::sync::Arc;

use farm_core::alloc::{SizeClass, class_for_payload};
use farm_core::ids::Address;
use farm_core::object::{FatPointer, Incarnation};
use farm_core::worker::{Cont, Worker};

use super::answers::{Answer, RunKey, Slot};
use super::call::Call;
use super::here;
use super::queue::TaskQueue;
use super::reply::answer;
use super::step::{Open, next_step, of_value};
use super::tries;
use crate::api;
use crate::arrays::Objects;
use crate::error::TxError;
use crate::handle::TxHandle;
use crate::open;
use crate::tx::{ObjectId, Tx};

/// Names an open transaction, whose state is with its worker. It is copied freely, also into futures that run at the same
/// time. After the transaction has ended, calls return [`TxError::Ended`].
///
/// If a call is dropped before it completes, the transaction ends, too.
#[derive(Clone, Copy)]
pub struct Transaction<'f> {
    queue: &'f Arc<TaskQueue>,
    key: RunKey,
}

impl std::fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Transaction({:?})", self.key.tx)
    }
}

impl<'f> Transaction<'f> {
    pub(super) fn new(queue: &'f Arc<TaskQueue>, key: RunKey) -> Self {
        Self { queue, key }
    }

    /// Returns the transaction's handle, for continuations on its worker.
    pub fn handle(self) -> TxHandle {
        self.key.tx
    }

    /// Makes a call that works on this transaction: see [`Handle::call`](super::Handle::call).
    pub fn call<S, F, T>(self, start: S, finish: F) -> Call<'f, S, F>
    where
        S: FnOnce(&mut Worker, Slot) + Send + 'static,
        F: FnOnce(&mut Answer) -> T,
    {
        Call::new(self.queue, Some(self.key), start, finish)
    }

    /// Reads an object that holds payloads of `payload_bytes`, on any machine, or returns the object if the transaction
    /// has it already. See [`crate::api::read`].
    ///
    /// # Errors
    /// [`Abort`](crate::Abort): a conflict, or a machine is lost. [`TxError::NotAllocated`], which may result from a
    /// conflict: it is certain only if the transaction commits. [`TxError::WrongSize`], [`TxError::Address`],
    /// [`TxError::TooLarge`], [`TxError::Limit`]. [`TxError::Ended`] if the transaction has ended, or an earlier call was
    /// dropped before it completed; [`TxError::OpenTooLong`]; [`TxError::Stopped`].
    pub async fn read(self, address: Address, payload_bytes: usize) -> Result<ObjectId, TxError> {
        self.read_class(address, class_for_payload(payload_bytes)?)
            .await
    }

    /// As [`Transaction::read`], for an object of a known size class, such as the class in a fat pointer.
    ///
    /// # Errors
    /// As [`Transaction::read`].
    pub async fn read_class(self, address: Address, class: SizeClass) -> Result<ObjectId, TxError> {
        self.object(move |worker, tx, cont| api::read_class(worker, tx, address, class, cont))
            .await
    }

    /// Reads the object that a fat pointer names, and never an object that was later created at its address (`FaRM'14
    /// §3.5`), whatever the memory stores meanwhile: it is always safe to follow a pointer.
    ///
    /// # Errors
    /// As [`Transaction::read`], but [`TxError::NotAllocated`] in place of [`TxError::WrongSize`]: the object of the
    /// pointer was freed. If the pointer does not match the object at its address, the error is certain without a
    /// commit, because incarnations never go back.
    pub async fn read_pointer(self, pointer: FatPointer) -> Result<ObjectId, TxError> {
        self.object(move |worker, tx, cont| api::read_pointer(worker, tx, pointer, cont))
            .await
    }

    /// Reads `count` adjacent objects that hold payloads of `payload_bytes` each, by one one-sided read:
    /// see [`crate::api::read_array`].
    ///
    /// # Errors
    /// As [`Transaction::read`], except [`TxError::NotAllocated`]; [`TxError::ArrayTooLong`]; [`TxError::EmptyArray`].
    pub async fn read_array(
        self,
        address: Address,
        payload_bytes: usize,
        count: u32,
    ) -> Result<Objects, TxError> {
        let class = class_for_payload(payload_bytes)?;
        self.operation(move |worker, tx, cont| {
            api::read_array(worker, tx, address, class, count, cont);
        })
        .await
    }

    /// Allocates `count` adjacent objects for payloads of `payload_bytes` each. If there is a `hint`, they are on its
    /// machine, and near it if possible. See [`crate::api::alloc_array`].
    ///
    /// # Errors
    /// As [`Transaction::alloc`]; [`TxError::ArrayTooLong`]; [`TxError::EmptyArray`].
    pub async fn alloc_array(
        self,
        payload_bytes: usize,
        count: u32,
        hint: Option<Address>,
    ) -> Result<Vec<ObjectId>, TxError> {
        let class = class_for_payload(payload_bytes)?;
        self.operation(move |worker, tx, cont| {
            api::alloc_array(worker, tx, class, count, hint, cont);
        })
        .await
    }

    /// Allocates an object for payloads of `payload_bytes`. If there is a `hint`, the object is on its machine, and
    /// near it if possible. See [`crate::api::alloc`]. Placing an object on a given machine needs the address of an
    /// object there: each machine can allocate one for itself and publish its address.
    ///
    /// # Errors
    /// [`TxError::Alloc`] and [`TxError::NoMemory`] if memory is not available, [`TxError::TooLarge`],
    /// [`TxError::Limit`], [`Abort::Lost`](crate::Abort::Lost). [`TxError::Ended`] as for [`Transaction::read`].
    pub async fn alloc(
        self,
        payload_bytes: usize,
        hint: Option<Address>,
    ) -> Result<ObjectId, TxError> {
        self.object(move |worker, tx, cont| api::alloc(worker, tx, payload_bytes, hint, cont))
            .await
    }

    /// Waits for an operation of a layer above, such as a hashtable, inside this transaction: `begin` starts it on the
    /// worker, and its continuation receives the result.
    ///
    /// # Errors
    /// Those of the operation; [`TxError::Ended`] as for [`Transaction::read`].
    pub async fn operation<T: Send + 'static>(
        self,
        begin: impl FnOnce(&mut Worker, TxHandle, Cont<Result<T, TxError>>) + Send + 'static,
    ) -> Result<T, TxError> {
        let tx = self.key.tx;
        let start = move |worker: &mut Worker, slot| begin(worker, tx, of_value(slot));
        self.call(start, Answer::take_value).await
    }

    async fn object(
        self,
        begin: impl FnOnce(&mut Worker, TxHandle, Cont<Result<ObjectId, TxError>>) + Send + 'static,
    ) -> Result<ObjectId, TxError> {
        let tx = self.key.tx;
        let start =
            move |worker: &mut Worker, slot| begin(worker, tx, Cont::new(object_came, slot));
        let finish = |answer: &mut Answer| {
            let words = answer.ok()?.words;
            Ok(ObjectId::from_words([words[0], words[1]]))
        };
        self.call(start, finish).await
    }

    /// Calls a function with the context of the transaction. The context's operations panic for an object of another
    /// transaction; [`Tx::check`] detects such an object.
    ///
    /// # Errors
    /// [`TxError::Ended`] as for [`Transaction::read`].
    pub async fn with<R: Send + 'static>(
        self,
        work: impl FnOnce(&mut Tx) -> R + Send + 'static,
    ) -> Result<R, TxError> {
        let (tx, mut work) = (self.key.tx, Some(work));
        let now = here::with_worker(self.queue.id, |worker| {
            let work = work.take()?;
            open::with(worker, tx, |context, _| work(context)).ok()
        });
        if let Some(Some(result)) = now {
            return Ok(result);
        }
        let start = move |worker: &mut Worker, slot| {
            let done = open::with(worker, tx, |context, _| work.map(|work| work(context)));
            let done = done.and_then(|done| done.ok_or(TxError::Ended));
            let store = |answer: &mut Answer, value| answer.value = Some(Box::new(value) as _);
            answer(worker, slot, |answer| answer.set(done, store));
        };
        self.call(start, Answer::take_value).await
    }

    async fn of<R: Send + 'static>(
        self,
        object: ObjectId,
        work: impl FnOnce(&mut Tx) -> Result<R, TxError> + Send + 'static,
    ) -> Result<R, TxError> {
        self.with(move |tx| tx.check(object).and_then(|()| work(tx)))
            .await?
    }

    /// Returns a copy of the payload of an object, as this transaction sees it. Its length is the capacity of the
    /// object's size class, which may be more than was requested.
    ///
    /// # Errors
    /// [`TxError::OtherTransaction`]; [`TxError::NotAllocated`] if this transaction has freed the object;
    /// [`TxError::Forgotten`]; [`TxError::Ended`] as for [`Transaction::read`].
    pub async fn payload(self, object: ObjectId) -> Result<Vec<u8>, TxError> {
        self.look(object, <[u8]>::to_vec).await
    }

    /// Returns what a function makes of the payload of an object. The worker calls the function: if it panics, the machine
    /// stops.
    ///
    /// # Errors
    /// As [`Transaction::payload`].
    pub async fn look<R: Send + 'static>(
        self,
        object: ObjectId,
        look: impl FnOnce(&[u8]) -> R + Send + 'static,
    ) -> Result<R, TxError> {
        self.of(object, move |tx| {
            tx.check_payload(object)?;
            Ok(look(tx.payload(object)))
        })
        .await
    }

    /// Changes the payload of an object, which the commit writes. The length of the payload is that of
    /// [`Transaction::payload`]. The worker calls the function: if it panics, the machine stops.
    ///
    /// # Errors
    /// As [`Transaction::payload`].
    pub async fn change<R: Send + 'static>(
        self,
        object: ObjectId,
        change: impl FnOnce(&mut [u8]) -> R + Send + 'static,
    ) -> Result<R, TxError> {
        self.of(object, move |tx| {
            tx.check_payload(object)?;
            Ok(change(tx.payload_mut(object)))
        })
        .await
    }

    /// Writes `bytes` to the beginning of the payload of an object.
    ///
    /// # Errors
    /// As [`Transaction::payload`]; [`TxError::WrongSize`] if there are more bytes than the payload has.
    pub async fn write(self, object: ObjectId, bytes: &[u8]) -> Result<(), TxError> {
        let bytes = bytes.to_vec();
        self.of(object, move |tx| {
            tx.check_payload(object)?;
            let (address, is) = (tx.address(object), tx.payload(object).len());
            let asked = bytes.len();
            if asked > is {
                return Err(TxError::WrongSize { address, asked, is });
            }
            tx.payload_mut(object)[..asked].copy_from_slice(&bytes);
            Ok(())
        })
        .await
    }

    /// Drops the payload of an object that was only read; the commit still validates the object's version. See
    /// [`Tx::forget_payload`].
    ///
    /// # Errors
    /// As [`Transaction::address`].
    pub async fn forget_payload(self, object: ObjectId) -> Result<(), TxError> {
        self.of(object, move |tx| {
            tx.forget_payload(object);
            Ok(())
        })
        .await
    }

    /// Frees an object when the transaction commits. The `ObjectId` is invalid from this call on.
    ///
    /// # Errors
    /// As [`Transaction::payload`], except [`TxError::Forgotten`].
    pub async fn free(self, object: ObjectId) -> Result<(), TxError> {
        self.of(object, move |tx| {
            tx.free(object);
            Ok(())
        })
        .await
    }

    /// Frees all of these objects when the transaction commits: see [`crate::api::free_array`].
    ///
    /// # Errors
    /// As [`Transaction::payload`]: this call then frees none of them.
    pub async fn free_array(self, objects: &[ObjectId]) -> Result<(), TxError> {
        let objects = objects.to_vec();
        self.with(move |tx| tx.free_all(&objects)).await?
    }

    /// Returns the address of an object.
    ///
    /// # Errors
    /// As [`Transaction::payload`], except [`TxError::Forgotten`].
    pub async fn address(self, object: ObjectId) -> Result<Address, TxError> {
        self.of(object, move |tx| Ok(tx.address(object))).await
    }

    /// Returns the fat pointer that names an object once the transaction has committed.
    ///
    /// # Errors
    /// As [`Transaction::payload`], except [`TxError::Forgotten`].
    pub async fn pointer(self, object: ObjectId) -> Result<FatPointer, TxError> {
        self.of(object, move |tx| Ok(tx.pointer(object))).await
    }

    /// Returns an object's incarnation as it will be once the transaction has committed: see [`Tx::incarnation`].
    ///
    /// # Errors
    /// As [`Transaction::payload`], except [`TxError::Forgotten`].
    pub async fn incarnation(self, object: ObjectId) -> Result<Incarnation, TxError> {
        self.of(object, move |tx| Ok(tx.incarnation(object))).await
    }

    /// Increments an object's incarnation when the transaction commits: see [`Tx::increment_incarnation`].
    ///
    /// # Errors
    /// As [`Transaction::payload`].
    pub async fn increment_incarnation(self, object: ObjectId) -> Result<(), TxError> {
        self.of(object, move |tx| {
            tx.check_payload(object)?;
            tx.increment_incarnation(object);
            Ok(())
        })
        .await
    }
}

fn object_came(worker: &mut Worker, slot: Slot, result: Result<ObjectId, TxError>) {
    let store = |answer: &mut Answer, object: ObjectId| {
        [answer.words[0], answer.words[1]] = object.to_words();
    };
    answer(worker, slot, |answer| answer.set(result, store));
}

/// A transaction that is tried once: see [`Handle::begin`](super::Handle::begin). [`Begun::commit`] ends it with effect;
/// dropping it ends it without. Its calls are those of [`Transaction`].
///
/// A transaction that has committed is not used again:
///
/// ```compile_fail,E0382
/// async fn twice(farm: farm_txn::Handle) -> Result<(), farm_txn::TxError> {
///     let tx = farm.begin().await?;
///     tx.commit().await?;
///     tx.commit().await // error: the first commit consumed it.
/// }
/// ```
///
/// The same function without this error compiles:
///
/// ```
/// async fn once(farm: farm_txn::Handle) -> Result<(), farm_txn::TxError> {
///     let tx = farm.begin().await?;
///     tx.commit().await
/// }
/// ```
pub struct Begun<'f> {
    tx: Transaction<'f>,
    open: Open<'f>,
}

impl std::fmt::Debug for Begun<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.tx.fmt(f)
    }
}

impl<'f> std::ops::Deref for Begun<'f> {
    type Target = Transaction<'f>;

    fn deref(&self) -> &Transaction<'f> {
        &self.tx
    }
}

impl<'f> Begun<'f> {
    pub(super) fn new(tx: Transaction<'f>) -> Self {
        let open = Open(tx.queue, tx.key);
        Self { tx, open }
    }

    /// Commits: all changes take effect at one moment, or none does. Once the future was polled, the commit continues
    /// even if the future is dropped.
    ///
    /// # Errors
    /// [`Abort`](crate::Abort): no change took effect. [`TxError::InDoubt`]: it is unknown whether the changes took
    /// effect. [`TxError::TooLargeForLog`], [`TxError::Busy`]: no change took effect. [`TxError::Ended`] if an earlier
    /// call was dropped before it completed. [`TxError::Stopped`]: it is unknown whether the changes took effect.
    pub async fn commit(self) -> Result<(), TxError> {
        self.end(false).await
    }

    /// Ends the transaction without effect, as dropping it does.
    pub fn abort(self) {}

    /// Ends the transaction without effect, and validates its reads: see [`crate::api::validate`].
    ///
    /// # Errors
    /// [`Abort`](crate::Abort): the reads are not of one moment, or a machine is lost. [`TxError::Ended`] as for
    /// [`Begun::commit`].
    pub async fn validate(self) -> Result<(), TxError> {
        self.end(true).await
    }

    async fn end(self, validates: bool) -> Result<(), TxError> {
        let (queue, key) = (self.tx.queue, self.tx.key);
        let end = move |worker: &mut Worker, slot| tries::end(worker, key, validates, slot);
        let ended = Call::new(queue, None, end, next_step).await;
        std::mem::forget(self.open);
        ended.map(|_| ())
    }
}
