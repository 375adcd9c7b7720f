//! What a task has of its worker.

use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use farm_core::alloc::class_for_payload;
use farm_core::ids::{Address, WorkerRef};
use farm_core::object::FatPointer;
use farm_core::worker::Worker;

use super::Transaction;
use super::shared::{Answer, Found, Op, Request, Shared};
use crate::error::TxError;
use crate::object_run::ObjectRun;
use crate::retry::{Left, Remedy, Tries};

/// A task's way to its worker. Copies are of the same worker, whoever holds them.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle({})", self.shared.me)
    }
}

impl Handle {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// The worker.
    pub fn me(&self) -> WorkerRef {
        self.shared.me
    }

    /// Begins a transaction, which is tried once: see [`Handle::transact`] for the other kind.
    pub fn begin(&self) -> Transaction {
        Transaction::new(Arc::clone(&self.shared))
    }

    /// Begins another task on the worker: see [`spawn`](super::spawn).
    pub fn spawn<F>(&self, body: impl FnOnce(Handle) -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        let begin = |worker: &mut Worker| super::spawn(worker, body);
        self.shared.request(Request::Do(Box::new(begin)));
    }

    /// Reads an object that holds payloads of `payload_bytes`, wherever it is, as it was at one moment:
    /// no transaction, nothing to validate (`FaRM'14 §3.5`). Gives `payload_bytes` bytes.
    ///
    /// # Errors
    /// [`TxError::NotAllocated`], [`TxError::Address`], [`TxError::TooLarge`]; [`TxError::WrongSize`] when the
    /// object has another size class;
    /// [`Abort::Lost`](crate::Abort::Lost), [`Abort::TimedOut`](crate::Abort::TimedOut).
    /// [`TxError::Ended`] when the worker has stopped.
    pub async fn read_lock_free(
        &self,
        address: Address,
        payload_bytes: usize,
    ) -> Result<Vec<u8>, TxError> {
        let found = self.read_array_lock_free(address, payload_bytes, 1).await?;
        let found = found.into_iter().next().flatten();
        found.ok_or(TxError::NotAllocated(address))
    }

    /// Reads `count` adjacent objects that hold payloads of `payload_bytes` each, by one one-sided read:
    /// each as it was at one moment, which need not be the same for two of them. Gives none where there
    /// is no object.
    ///
    /// # Errors
    /// As [`Handle::read_lock_free`], but for [`TxError::NotAllocated`]; [`TxError::ArrayTooLong`];
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

    /// Reads the object that a fat pointer names, as [`Handle::read_lock_free`] does, and no other that came
    /// to be in its place (`FaRM'14 §3.5`), whatever its memory serves meanwhile: pointers stay valid for
    /// ever. Gives all bytes of its payload.
    ///
    /// # Errors
    /// As [`Handle::read_lock_free`], but [`TxError::NotAllocated`] in place of [`TxError::WrongSize`]: the object
    /// of the pointer was freed.
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

    /// Waits. The worker does other things meanwhile.
    pub async fn sleep(&self, time: Duration) {
        self.shared.call(None, Op::Sleep(time)).await;
    }

    /// Does something with the worker itself, in a turn of its: all that it can do, but for what ends
    /// by a continuation.
    ///
    /// # Errors
    /// [`TxError::Ended`] when the worker has stopped.
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

    /// Runs a transaction until it commits, and gives what the body of that try gave; or ends by an
    /// error that no other try helps against. What follows from which error, and how conflicts are
    /// avoided, is as for [`retry::run`](crate::retry::run): as many run on a worker at once as its
    /// [`Backoff`](crate::Backoff) has it, the others wait in order.
    ///
    /// A body may await another one, on any handle: that is a transaction of its own, which does not end with
    /// this one, and it does not wait in the order for this one's end. What it committed stays where this
    /// one's try fails and its body is called again; one that writes what this one has read makes it fail each
    /// time.
    ///
    /// The body begins from nothing each time. It must not commit: that comes after it. What it has
    /// read may be mutually inconsistent; then its commit fails, or its error is not reported, and it is called
    /// again: every error of a body is validated first, but for a lost machine and an outcome in doubt. A body that
    /// ends by an error, as [`TxError::GivenUp`] or [`TxError::Refused`], has no effect. One that follows pointers must not go
    /// round for ever in a circle that never was: it fails by that error when what it reads does not fit
    /// together.
    ///
    /// # Errors
    /// Those of the body, of calls that it made, and of [`Transaction::commit`].
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
    /// Bodies of transactions that this thread polls at this moment, each inside of the one before.
    static BODIES: Cell<usize> = const { Cell::new(0) };
}

/// Runs the body of a transaction.
async fn inside<F: Future>(body: F) -> F::Output {
    Inside(pin!(body)).await
}

/// The body of a transaction, which knows that it is one while it is polled.
struct Inside<'a, F>(Pin<&'a mut F>);

impl<F: Future> Future for Inside<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        /// Counts down, should the body panic too.
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

/// The right to run a transaction, given back when it is dropped. One inside of another has it by that:
/// the other would else wait for itself where as many run as may.
struct Permit {
    shared: Option<Arc<Shared>>,
    left: Left,
}

impl Permit {
    async fn of(shared: &Arc<Shared>) -> Result<Self, TxError> {
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
