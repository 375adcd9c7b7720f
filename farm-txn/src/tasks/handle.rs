//! A program's access to a worker.

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

use super::answers::{Answer, Slot};
use super::call::Call;
use super::executor;
use super::here;
use super::look::{self, Look};
use super::queue::TaskQueue;
use super::reply::answer;
use super::run::Step;
use super::step::{Open, next_step, of_value};
use super::transaction::{Begun, Transaction};
use super::tries;
use crate::error::TxError;
use crate::object_run::ObjectRun;

/// A program's access to a worker: for the tasks of that worker, and for all other threads, with any runtime. Clones
/// access the same worker.
///
/// A task of the worker uses it at once. Any other thread sends requests to it.
#[derive(Clone)]
pub struct Handle {
    pub(super) queue: Arc<TaskQueue>,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle({})", self.queue.me)
    }
}

impl Handle {
    pub(super) fn new(queue: Arc<TaskQueue>) -> Self {
        Self { queue }
    }

    /// Returns the worker.
    pub fn me(&self) -> WorkerRef {
        self.queue.me
    }

    /// Returns why the worker's machine has stopped, if it was not asked to.
    pub fn why_stopped(&self) -> Option<String> {
        self.queue.why_stopped()
    }

    /// Returns how often the lock of the worker's queue was taken.
    #[doc(hidden)]
    #[cfg(debug_assertions)]
    pub fn locks(&self) -> u64 {
        self.queue.locks.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Makes a call to the worker: `start` begins it there, and causes one call of [`answer`] with the slot, at once or
    /// later. `finish` takes the result out of the answer.
    pub fn call<S, F, T>(&self, start: S, finish: F) -> Call<'_, S, F>
    where
        S: FnOnce(&mut Worker, Slot) + Send + 'static,
        F: FnOnce(&mut Answer) -> T,
    {
        Call::new(&self.queue, None, start, finish)
    }

    /// Begins a transaction that is tried once. To retry it until it commits, use [`Handle::transact`].
    ///
    /// # Errors
    /// [`TxError::Stopped`].
    pub async fn begin(&self) -> Result<Begun<'_>, TxError> {
        match self.call(tries::begin_once, next_step).await? {
            Step::Try(key) => Ok(Begun::new(Transaction::new(&self.queue, key))),
            Step::Done | Step::OwnError => Err(TxError::Ended),
        }
    }

    /// Starts a task on the worker: see [`spawn`](super::spawn).
    pub fn spawn<F>(&self, body: impl FnOnce(Handle) -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        self.queue.request(|worker| super::spawn(worker, body));
    }

    /// As [`Handle::spawn`], from a task of the worker itself. The future need not be `Send`.
    ///
    /// # Panics
    /// If the calling code is not part of a task of this worker.
    pub fn spawn_here(&self, future: impl Future<Output = ()> + 'static) {
        let future = Box::pin(future);
        here::with_worker(self.queue.id, |worker| executor::spawn(worker, future))
            .expect("`spawn_here` is called by a task of the worker");
    }

    /// Reads an object that holds payloads of `payload_bytes`, on any machine, as it was at one moment: without a
    /// transaction and without validation (`FaRM'14 §3.5`). Returns `payload_bytes` bytes.
    ///
    /// # Errors
    /// [`TxError::NotAllocated`], [`TxError::Address`], [`TxError::TooLarge`]; [`TxError::WrongSize`] if the object has
    /// another size class; [`Abort::Lost`](crate::Abort::Lost), [`Abort::TimedOut`](crate::Abort::TimedOut).
    /// [`TxError::Stopped`].
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
        let objects = ObjectRun {
            first,
            class: class_for_payload(payload_bytes)?,
            count,
        };
        let finish = move |answer: &mut Answer| Ok(look::payloads(answer.ok()?, payload_bytes));
        self.call(Look::start(objects, None), finish).await
    }

    /// Reads the object that a fat pointer names, as [`Handle::read_lock_free`] does, and never an object that was
    /// later created at its address (`FaRM'14 §3.5`), whatever the memory stores meanwhile: it is always safe to follow
    /// a pointer. Returns the whole payload of the object.
    ///
    /// # Errors
    /// As [`Handle::read_lock_free`], but [`TxError::NotAllocated`] in place of [`TxError::WrongSize`]: the object of
    /// the pointer was freed.
    pub async fn read_pointer_lock_free(&self, pointer: FatPointer) -> Result<Vec<u8>, TxError> {
        self.look_at(pointer, <[u8]>::to_vec).await
    }

    /// As [`Handle::read_pointer_lock_free`], but returns what `read` makes of the payload.
    ///
    /// # Errors
    /// As [`Handle::read_pointer_lock_free`].
    pub async fn look_at<T>(
        &self,
        pointer: FatPointer,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, TxError> {
        let object = ObjectRun::one(pointer.address, pointer.class());
        let finish = |answer: &mut Answer| {
            let payload = look::payload_of(answer.ok()?, pointer);
            payload
                .map(read)
                .ok_or(TxError::NotAllocated(pointer.address))
        };
        self.call(Look::start(object, Some(pointer)), finish).await
    }

    /// Waits for at least `time`. The worker does other work meanwhile.
    pub async fn sleep(&self, time: Duration) {
        let start = move |worker: &mut Worker, slot| {
            let woken = |worker: &mut Worker, slot, ()| answer(worker, slot, |_| ());
            worker.set_timer(time, Cont::new(woken, slot));
        };
        self.call(start, |_| ()).await;
    }

    /// Lets other tasks and operations of the worker run.
    pub async fn let_others_run(&self) {
        let start = move |worker: &mut Worker, slot| {
            let resumed = |worker: &mut Worker, slot, ()| answer(worker, slot, |_| ());
            worker.defer(Cont::new(resumed, slot));
        };
        self.call(start, |_| ()).await;
    }

    /// Calls a function with the worker, in a turn of the worker. The function can do everything except wait for a
    /// continuation.
    ///
    /// # Errors
    /// [`TxError::Stopped`].
    pub async fn with_worker<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Worker) -> R + Send + 'static,
    ) -> Result<R, TxError> {
        let start = move |worker: &mut Worker, slot| {
            let value = Box::new(work(worker));
            answer(worker, slot, |answer| answer.value = Some(value));
        };
        self.call(start, Answer::take_value).await
    }

    /// Calls a function with the worker at once, if the calling thread polls a task of the worker. Otherwise returns `None`,
    /// and does not call it.
    #[inline]
    pub fn at_once<R>(&self, work: impl FnOnce(&mut Worker) -> R) -> Option<R> {
        here::with_worker(self.queue.id, work)
    }

    /// Waits for an operation of a layer above, such as a hashtable, that is not part of a transaction: `begin` starts it
    /// on the worker, and its continuation receives the result.
    ///
    /// # Errors
    /// Those of the operation; [`TxError::Stopped`].
    pub async fn operation<T: Send + 'static>(
        &self,
        begin: impl FnOnce(&mut Worker, Cont<Result<T, TxError>>) + Send + 'static,
    ) -> Result<T, TxError> {
        let start = move |worker: &mut Worker, slot| begin(worker, of_value(slot));
        self.call(start, Answer::take_value).await
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
    /// [`TxError::Ended`] instead of the body's error, because the reads can no longer be validated; unless a call has met a
    /// conflict, as when the first error of several calls ends them all: then the body is called again.
    ///
    /// A body may wait for something outside of the cluster: after a short time, another transaction runs in its place.
    /// A transaction that is open for longer than `transactions.open_ms` of the configuration ends with
    /// [`TxError::OpenTooLong`].
    ///
    /// The body starts afresh in each try. The objects that it has read may be mutually inconsistent; then its commit
    /// fails, or its error is not reported, and it is called again: every error of a body is validated first, except a
    /// lost machine and an outcome in doubt. A body that ends with an error has no effect. A body that follows pointers
    /// must not loop for ever in a cycle that inconsistent reads have made: it must return an error if what it reads
    /// does not fit together.
    ///
    /// # Errors
    /// Those of the body, of the calls that it made, and of [`Begun::commit`].
    pub async fn transact<'f, T, Fut>(
        &'f self,
        body: impl FnMut(Transaction<'f>) -> Fut,
    ) -> Result<T, TxError>
    where
        Fut: Future<Output = Result<T, TxError>>,
    {
        self.try_transact(body).await
    }

    /// As [`Handle::transact`], for a body with an error of any type into which a [`TxError`] can be converted. If a call
    /// of the try has met a conflict, or if the reads of the try turn out to be mutually inconsistent, the error of the
    /// body is not reported, and the body is called again.
    ///
    /// # Errors
    /// As [`Handle::transact`].
    pub async fn try_transact<'f, T, E, Fut>(
        &'f self,
        mut body: impl FnMut(Transaction<'f>) -> Fut,
    ) -> Result<T, E>
    where
        E: From<TxError>,
        Fut: Future<Output = Result<T, E>>,
    {
        let within = BODIES.get() > 0;
        let begin = move |worker: &mut Worker, slot| tries::begin(worker, slot, within);
        let mut next = self.call(begin, next_step).await.map_err(E::from)?;
        let mut tried = None;
        loop {
            let key = match (next, tried.take()) {
                (Step::Try(key), _) => key,
                (Step::Done | Step::OwnError, Some(result)) => return result,
                (Step::Done | Step::OwnError, None) => return Err(TxError::Ended.into()),
            };
            let open = Open(&self.queue, key);
            let result = inside(body(Transaction::new(&self.queue, key))).await;
            let failed = result.is_err();
            let end = move |worker: &mut Worker, slot| tries::end(worker, key, failed, slot);
            let ended = self.call(end, next_step).await;
            std::mem::forget(open);
            next = ended.map_err(E::from)?;
            tried = Some(result);
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
