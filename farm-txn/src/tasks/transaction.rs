//! The transaction of a task.

use std::sync::Arc;

use farm_core::alloc::{SizeClass, class_for_payload};
use farm_core::ids::Address;
use farm_core::object::{FatPointer, Incarnation};
use farm_core::worker::{Cont, Worker};

use super::executor;
use super::queue::{Answer, Lent, Op, Request, TaskQueue};
use crate::api;
use crate::arrays::Objects;
use crate::error::TxError;
use crate::handle::TxHandle;
use crate::tx::{ObjectId, Tx};

/// An open transaction of a task. [`Transaction::commit`] ends it with effect; dropping it ends it without.
///
/// A transaction makes one call at a time. Dropping a call before it completes aborts the transaction; later calls
/// return [`TxError::Ended`].
pub struct Transaction {
    shared: Arc<TaskQueue>,
    state: State,
}

enum State {
    /// No call was made yet.
    Fresh,
    Open(TxHandle, Box<Tx>),
    /// A call is under way, or was dropped before it completed.
    Away,
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.state {
            State::Fresh => write!(f, "Transaction(nothing)"),
            State::Open(_, tx) => write!(f, "Transaction({} objects)", tx.len()),
            State::Away => write!(f, "Transaction(ended)"),
        }
    }
}

impl Transaction {
    pub(super) fn new(shared: Arc<TaskQueue>) -> Self {
        Self {
            shared,
            state: State::Fresh,
        }
    }

    /// Reads an object that holds payloads of `payload_bytes`, on any machine, or returns the object if the transaction
    /// has it already. See [`crate::api::read`].
    ///
    /// # Errors
    /// [`Abort`](crate::Abort): a conflict, or a machine is lost. [`TxError::NotAllocated`], which may result from a
    /// conflict: it is certain only if the transaction commits. [`TxError::WrongSize`], [`TxError::Address`],
    /// [`TxError::TooLarge`], [`TxError::Limit`]. [`TxError::Ended`] if an earlier call was dropped before it
    /// completed, or the worker has stopped.
    pub async fn read(
        &mut self,
        address: Address,
        payload_bytes: usize,
    ) -> Result<ObjectId, TxError> {
        self.read_class(address, class_for_payload(payload_bytes)?)
            .await
    }

    /// As [`Transaction::read`], for an object of a known size class, such as the class in a fat pointer.
    ///
    /// # Errors
    /// As [`Transaction::read`].
    pub async fn read_class(
        &mut self,
        address: Address,
        class: SizeClass,
    ) -> Result<ObjectId, TxError> {
        self.object(Op::Read(address, class)).await
    }

    /// Reads the object that a fat pointer names, and never an object that was later created at its address (`FaRM'14
    /// §3.5`), whatever the memory stores meanwhile: it is always safe to follow a pointer.
    ///
    /// # Errors
    /// As [`Transaction::read`], but [`TxError::NotAllocated`] in place of [`TxError::WrongSize`]: the object of the
    /// pointer was freed. If the pointer does not match the object at its address, the error is certain without a
    /// commit, because incarnations never go back.
    pub async fn read_pointer(&mut self, pointer: FatPointer) -> Result<ObjectId, TxError> {
        self.object(Op::ReadPointer(pointer)).await
    }

    /// Reads `count` adjacent objects that hold payloads of `payload_bytes` each, by one one-sided read:
    /// see [`crate::api::read_array`].
    ///
    /// # Errors
    /// As [`Transaction::read`], except [`TxError::NotAllocated`]; [`TxError::ArrayTooLong`]; [`TxError::EmptyArray`].
    pub async fn read_array(
        &mut self,
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
        &mut self,
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
        &mut self,
        payload_bytes: usize,
        hint: Option<Address>,
    ) -> Result<ObjectId, TxError> {
        self.object(Op::Alloc(payload_bytes, hint)).await
    }

    /// Waits for an operation of a layer above, such as a hashtable, inside this transaction: `begin` starts it on the
    /// worker, and its continuation receives the result.
    ///
    /// # Errors
    /// Those of the operation; [`TxError::Ended`] as for [`Transaction::read`].
    pub async fn operation<T: Send + 'static>(
        &mut self,
        begin: impl FnOnce(&mut Worker, TxHandle, Cont<Result<T, TxError>>) + Send + 'static,
    ) -> Result<T, TxError> {
        let begin = |worker: &mut Worker, tx, slot| {
            begin(worker, tx, Cont::new(executor::operated::<T>, slot));
        };
        let Answer::Value(answer) = self.call(Op::Operation(Box::new(begin))).await? else {
            return Err(TxError::Ended);
        };
        let answer = answer.downcast::<Result<T, TxError>>();
        answer.map_or(Err(TxError::Ended), |answer| *answer)
    }

    async fn object(&mut self, op: Op) -> Result<ObjectId, TxError> {
        match self.call(op).await? {
            Answer::Object(result) => result,
            _ => Err(TxError::Ended),
        }
    }

    /// Makes a call, during which the worker has the context.
    async fn call(&mut self, op: Op) -> Result<Answer, TxError> {
        let context = self.take()?;
        let (context, answer) = self.shared.call(context, op).await;
        if let Some((handle, tx)) = context {
            self.state = State::Open(handle, tx);
        }
        Ok(answer)
    }

    fn take(&mut self) -> Result<Option<Lent>, TxError> {
        match std::mem::replace(&mut self.state, State::Away) {
            State::Fresh => Ok(None),
            State::Open(handle, tx) => Ok(Some((handle, tx))),
            State::Away => Err(TxError::Ended),
        }
    }

    /// Returns the payload of an object, as this transaction sees it. Its length is the capacity of the object's size
    /// class, which may be more than was requested.
    ///
    /// # Errors
    /// [`TxError::OtherTransaction`]; [`TxError::NotAllocated`] if this transaction has freed the object;
    /// [`TxError::Forgotten`]; [`TxError::Ended`] as for [`Transaction::read`].
    pub fn payload(&self, object: ObjectId) -> Result<&[u8], TxError> {
        let tx = self.of(object)?;
        tx.check_payload(object)?;
        Ok(tx.payload(object))
    }

    /// Returns the payload of an object for changes, which the commit writes. Its length is that of
    /// [`Transaction::payload`].
    ///
    /// # Errors
    /// As [`Transaction::payload`].
    pub fn payload_mut(&mut self, object: ObjectId) -> Result<&mut [u8], TxError> {
        let tx = self.of_mut(object)?;
        tx.check_payload(object)?;
        Ok(tx.payload_mut(object))
    }

    /// Drops the payload of an object that was only read; the commit still validates the object's version. See
    /// [`Tx::forget_payload`].
    ///
    /// # Errors
    /// As [`Transaction::address`].
    pub fn forget_payload(&mut self, object: ObjectId) -> Result<(), TxError> {
        self.of_mut(object)?.forget_payload(object);
        Ok(())
    }

    /// Frees an object when the transaction commits. The `ObjectId` is invalid from this call on.
    ///
    /// # Errors
    /// As [`Transaction::payload`], except [`TxError::Forgotten`].
    pub fn free(&mut self, object: ObjectId) -> Result<(), TxError> {
        self.of_mut(object)?.free(object);
        Ok(())
    }

    /// Frees all of these objects when the transaction commits: see [`crate::api::free_array`].
    ///
    /// # Errors
    /// As [`Transaction::payload`]: this call then frees none of them.
    pub fn free_array(&mut self, objects: &[ObjectId]) -> Result<(), TxError> {
        match objects {
            [] => Ok(()),
            [first, ..] => self.of_mut(*first)?.free_all(objects),
        }
    }

    /// Returns the address of an object.
    ///
    /// # Errors
    /// As [`Transaction::payload`], except [`TxError::Forgotten`].
    pub fn address(&self, object: ObjectId) -> Result<Address, TxError> {
        Ok(self.of(object)?.address(object))
    }

    /// Returns the fat pointer that names an object once the transaction has committed.
    ///
    /// # Errors
    /// As [`Transaction::payload`], except [`TxError::Forgotten`].
    pub fn pointer(&self, object: ObjectId) -> Result<FatPointer, TxError> {
        Ok(self.of(object)?.pointer(object))
    }

    /// Returns an object's incarnation as it will be once the transaction has committed: see [`Tx::incarnation`].
    ///
    /// # Errors
    /// As [`Transaction::payload`], except [`TxError::Forgotten`].
    pub fn incarnation(&self, object: ObjectId) -> Result<Incarnation, TxError> {
        Ok(self.of(object)?.incarnation(object))
    }

    /// Increments an object's incarnation when the transaction commits: see [`Tx::increment_incarnation`].
    ///
    /// # Errors
    /// As [`Transaction::payload`].
    pub fn increment_incarnation(&mut self, object: ObjectId) -> Result<(), TxError> {
        let tx = self.of_mut(object)?;
        tx.check_payload(object)?;
        tx.increment_incarnation(object);
        Ok(())
    }

    /// Commits: all changes take effect at one moment, or none does. Once the future was polled, the commit continues
    /// even if the future is dropped.
    ///
    /// # Errors
    /// [`Abort`](crate::Abort): no change took effect. [`TxError::InDoubt`]: it is unknown whether the changes took
    /// effect. [`TxError::TooLargeForLog`], [`TxError::Busy`]: no change took effect. [`TxError::Ended`] if an earlier
    /// call was dropped before it completed; or if the worker has stopped; then it is unknown whether the changes took
    /// effect.
    pub async fn commit(self) -> Result<(), TxError> {
        self.end(Op::Commit).await
    }

    /// Ends the transaction without effect, as dropping it does.
    pub fn abort(self) {}

    /// Ends the transaction without effect, and validates its reads: see [`crate::api::validate`].
    ///
    /// # Errors
    /// [`Abort`](crate::Abort): the reads are not of one moment, or a machine is lost. [`TxError::Ended`] as for
    /// [`Transaction::commit`].
    pub async fn validate(self) -> Result<(), TxError> {
        self.end(Op::Validate).await
    }

    async fn end(mut self, op: Op) -> Result<(), TxError> {
        if let State::Fresh = self.state {
            return Ok(());
        }
        match self.call(op).await? {
            Answer::Done(result) => result,
            _ => Err(TxError::Ended),
        }
    }

    fn of(&self, object: ObjectId) -> Result<&Tx, TxError> {
        match &self.state {
            State::Fresh => Err(TxError::OtherTransaction),
            State::Open(_, tx) => tx.check(object).map(|()| &**tx),
            State::Away => Err(TxError::Ended),
        }
    }

    fn of_mut(&mut self, object: ObjectId) -> Result<&mut Tx, TxError> {
        match &mut self.state {
            State::Fresh => Err(TxError::OtherTransaction),
            State::Open(_, tx) => tx.check(object).map(|()| &mut **tx),
            State::Away => Err(TxError::Ended),
        }
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if let Ok(Some((handle, tx))) = self.take() {
            self.shared.request(Request::Abort(handle, Some(tx)));
        }
    }
}
