//! A task's access to its worker.

use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use farm_core::alloc::class_for_payload;
use farm_core::ids::{Address, WorkerRef};
use farm_core::object::FatPointer;
use farm_core::worker::{Cont, Worker};

use super::Transaction;
use super::executor;
use super::queue::{Answer, Found, Op, Request, TaskQueue};
use crate::error::TxError;
use crate::object_run::ObjectRun;
use crate::retry::state::Tries;
use crate::retry::{Left, Remedy};

/// A task's access to its worker. Clones access the same worker.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<TaskQueue>,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle({})", self.shared.me)
    }
}

impl Handle {
    pub(super) fn new(shared: Arc<TaskQueue>) -> Self {
        Self { shared }
    }

    /// Returns the worker.
    pub fn me(&self) -> WorkerRef {
        self.shared.me
    }

    /// Begins a transaction that is tried once. To retry it until it commits, use [`Handle::transact`].
    pub fn begin(&self) -> Transaction {
        Transaction::new(Arc::clone(&self.shared))
    }

    /// Starts another task on the worker: see [`spawn`](super::spawn).
    pub fn spawn<F>(&self, body: impl FnOnce(Handle) -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        let begin = |worker: &mut Worker| super::spawn(worker, body);
        self.shared.request(Request::Do(Box::new(begin)));
    }

    /// Reads an object that holds payloads of `payload_bytes`, on any machine, as it was at one moment: without a
    /// transaction and without validation (`FaRM'14 §3.5`). Returns `payload_bytes` bytes.
    ///
    /// # Errors
    /// [`TxError::NotAllocated`], [`TxError::Address`], [`TxError::TooLarge`]; [`TxError::WrongSize`] if the object has
    /// another size class; [`Abort::Lost`](crate::Abort::Lost), [`Abort::TimedOut`](crate::Abort::TimedOut).
    /// [`TxError::Ended`] if the worker has stopped.
    pub async fn read_lock_free(
        &self,
        address: Address,
        payload_bytes: usize,
    ) -> Result<Vec<u8>, TxError> {
        let found = self.read_array_lock_free(address, payload_bytes, 1).await?;
        let found = found.into_iter().next().flatten();
        found.ok_or(TxError::NotAllocated(address))
    }

    /// Reads `count` adjacent objects that hold payloads of `payload_bytes` each, by one one-sided read: each as it was
    /// at one moment, which may differ between objects. Returns `None` for each slot without an object.
    ///
    /// # Errors
    /// As [`Handle::read_lock_free`], except [`TxError::NotAllocated`]; [`TxError::ArrayTooLong`];
    /// [`TxError::EmptyArray`].
    pub async fn read_array_lock_free(
        &self,
        first: Address,
        payload_bytes: usize,
        count: u32,
    ) -> Result<Vec<Option<Vec<u8>>>, TxError> {
        let class = class_for_payload(payload_bytes)?;
        let objects = ObjectRun {
            first,
            class,
            count,
        };
        let payload = |(_, mut payload): Found| {
            payload.truncate(payload_bytes);
            payload
        };
        let found = self.look(objects, None).await?.into_iter();
        Ok(found.map(|found| found.map(payload)).collect())
    }

    /// Reads the object that a fat pointer names, as [`Handle::read_lock_free`] does, and never an object that was
    /// later created at its address (`FaRM'14 §3.5`), whatever the memory stores meanwhile: it is always safe to follow
    /// a pointer. Returns the whole payload of the object.
    ///
    /// # Errors
    /// As [`Handle::read_lock_free`], but [`TxError::NotAllocated`] in place of [`TxError::WrongSize`]: the object of
    /// the pointer was freed.
    pub async fn read_pointer_lock_free(&self, pointer: FatPointer) -> Result<Vec<u8>, TxError> {
        let object = ObjectRun::one(pointer.address, pointer.class());
        let found = self.look(object, Some(pointer)).await?;
        match found.into_iter().next().flatten() {
            Some((incarnation, payload)) if pointer.names(incarnation) => Ok(payload),
            _ => Err(TxError::NotAllocated(pointer.address)),
        }
    }

    async fn look(
        &self,
        objects: ObjectRun,
        pointer: Option<FatPointer>,
    ) -> Result<Vec<Option<Found>>, TxError> {
        match self.shared.call(None, Op::Look(objects, pointer)).await.1 {
            Answer::Looked(found) => found,
            _ => Err(TxError::Ended),
        }
    }

    /// Waits for at least `time`. The worker does other work meanwhile.
    pub async fn sleep(&self, time: Duration) {
        self.shared.call(None, Op::Sleep(time)).await;
    }

    /// Calls a function with the worker, in a turn of the worker. The function can do everything except wait for a
    /// continuation.
    ///
    /// # Errors
    /// [`TxError::Ended`] if the worker has stopped.
    pub async fn with_worker<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Worker) -> R + Send + 'static,
    ) -> Result<R, TxError> {
        let work = Box::new(|worker: &mut Worker| Box::new(work(worker)) as _);
        match self.shared.call(None, Op::Work(work)).await.1 {
            Answer::Value(value) => value.downcast().map(|r| *r).map_err(|_| TxError::Ended),
            _ => Err(TxError::Ended),
        }
    }

    /// Waits for an operation of a layer above, such as a hashtable, that is not part of a transaction: `begin` starts it
    /// on the worker, and its continuation receives the result.
    ///
    /// # Errors
    /// Those of the operation; [`TxError::Ended`] if the worker has stopped.
    pub async fn operation<T: Send + 'static>(
        &self,
        begin: impl FnOnce(&mut Worker, Cont<Result<T, TxError>>) + Send + 'static,
    ) -> Result<T, TxError> {
        let begin = |worker: &mut Worker, slot| {
            begin(worker, Cont::new(executor::operated::<T>, slot));
        };
        let Answer::Value(answer) = self.shared.call(None, Op::Alone(Box::new(begin))).await.1
        else {
            return Err(TxError::Ended);
        };
        let answer = answer.downcast::<Result<T, TxError>>();
        answer.map_or(Err(TxError::Ended), |answer| *answer)
    }

    /// Runs a transaction until it commits, and returns the value of the body of that try; or returns an error that no
    /// retry can resolve. The module [`retry`](crate::retry) lists how each error is handled. At most as many
    /// transactions run on a worker at the same time as its [`Backoff`](crate::Backoff) allows; the others wait in
    /// order.
    ///
    /// A body may await another `transact`, on any handle. The inner transaction is independent: it commits on its own,
    /// and does not wait in the queue. What it committed remains if the outer try fails and its body is called again.
    /// If it writes objects that the outer transaction has read, the outer one fails in each try. A body must not wait
    /// for another task that awaits a `transact` on this worker: that transaction may wait in the queue until the body
    /// has ended. If a body drops a call before it completes, its transaction ends, and the result is
    /// [`TxError::Ended`] instead of the body's error, because the reads can no longer be validated.
    ///
    /// The body starts afresh in each try. It must not commit: the commit follows the body. The objects that it has
    /// read may be mutually inconsistent; then its commit fails, or its error is not reported, and it is called again:
    /// every error of a body is validated first, except a lost machine and an outcome in doubt. A body that ends with
    /// an error, such as [`TxError::GivenUp`] or [`TxError::Refused`], has no effect. A body that follows pointers must
    /// not loop for ever in a cycle that inconsistent reads have made: it must return such an error if what it reads
    /// does not fit together.
    ///
    /// # Errors
    /// Those of the body, of the calls that it made, and of [`Transaction::commit`].
    pub async fn transact<T>(
        &self,
        mut body: impl AsyncFnMut(&mut Transaction) -> Result<T, TxError>,
    ) -> Result<T, TxError> {
        let mut permit = Permit::of(&self.shared).await?;
        let mut tries = Tries::default();
        loop {
            let mut tx = self.begin();
            let tried = inside(body(&mut tx)).await;
            let (error, remedy) = match tried {
                Ok(value) => match tx.commit().await {
                    Ok(()) => {
                        permit.left = Left::Committed;
                        return Ok(value);
                    }
                    Err(error) => {
                        let remedy = tries.of_commit(&error);
                        (error, remedy)
                    }
                },
                Err(error) => {
                    let (now, patience) = (self.shared.now(), self.shared.patience());
                    match tries.of_body(&error, now, patience) {
                        Remedy::Validate => match tx.validate().await {
                            Ok(()) => return Err(error),
                            Err(conflict) => {
                                let remedy = Tries::of_validation(&conflict);
                                (conflict, remedy)
                            }
                        },
                        remedy => {
                            drop(tx);
                            (error, remedy)
                        }
                    }
                }
            };
            let wait = match remedy {
                Remedy::Wait => Op::Conflict(tries.next()),
                Remedy::Room => Op::Room,
                Remedy::Validate | Remedy::Report => return Err(error),
            };
            if let Answer::Stopped = self.shared.call(None, wait).await.1 {
                return Err(TxError::Ended);
            }
        }
    }
}

thread_local! {
    /// Number of nested bodies of transactions that this thread is polling.
    static BODIES: Cell<usize> = const { Cell::new(0) };
}

/// Runs the body of a transaction, counted in [`BODIES`].
async fn inside<F: Future>(body: F) -> F::Output {
    Inside(pin!(body)).await
}

/// The body of a transaction, counted in [`BODIES`] while it is polled.
struct Inside<'a, F>(Pin<&'a mut F>);

impl<F: Future> Future for Inside<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        /// Decrements the count also if the body panics.
        struct Polled;
        impl Drop for Polled {
            fn drop(&mut self) {
                BODIES.set(BODIES.get() - 1);
            }
        }
        BODIES.set(BODIES.get() + 1);
        let _polled = Polled;
        self.0.as_mut().poll(context)
    }
}

/// The permission to run a transaction; dropping it leaves the gate. A transaction inside of another one needs no
/// permission: if the limit is reached, the inner transaction would wait for the end of the outer one, which waits for
/// the inner one.
struct Permit {
    shared: Option<Arc<TaskQueue>>,
    left: Left,
}

impl Permit {
    async fn of(shared: &Arc<TaskQueue>) -> Result<Self, TxError> {
        let left = Left::Failed;
        if BODIES.get() > 0 {
            return Ok(Self { shared: None, left });
        }
        match shared.call(None, Op::Enter).await.1 {
            Answer::Entered => Ok(Self {
                shared: Some(Arc::clone(shared)),
                left,
            }),
            _ => Err(TxError::Ended),
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.request(Request::Leave(self.left));
        }
    }
}
