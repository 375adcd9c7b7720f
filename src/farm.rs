//! Access to a cluster: from any thread, from the tasks of a worker, and inside of a transaction.

use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytemuck::Pod;
use farm_core::ids::{MachineId, WorkerRef};
use farm_core::machine::Machine;
use farm_core::mem::Ptr;
use farm_core::worker::Worker;
use farm_txn::tasks::Answer;
use farm_txn::{Handle, TxError};

use crate::error::{Error, Kind, Result};
use crate::promise::Promise;
use crate::ptr::{decode, fat};
use crate::tx::Tx;

/// A program's access to the cluster, through the workers of one machine of this process. It can be cloned and shared
/// between threads, and any runtime can await its futures.
///
/// If a future is dropped before it completes, its transaction has no effect, unless its commit has begun.
#[derive(Clone)]
pub struct Farm {
    workers: Arc<Workers>,
}

struct Workers {
    machine: MachineId,
    handles: Vec<Handle>,
    /// Number of the next operation; the workers take them in turn.
    next: AtomicUsize,
}

impl std::fmt::Debug for Farm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Farm({})", self.workers.machine)
    }
}

impl Farm {
    /// Returns the access to the cluster through a machine that this process runs, to whose workers [`layers`](crate::layers)
    /// attached the layers. A [`Cluster`](crate::Cluster) has it already.
    ///
    /// # Errors
    /// [`Kind::Stopped`] if the machine has stopped.
    pub fn of(machine: &Machine) -> Result<Self> {
        let handles = (0..machine.workers()).map(|worker| farm_txn::handle(machine, worker));
        let handles: Vec<Handle> = handles.collect::<Result<_, _>>()?;
        assert!(!handles.is_empty(), "a machine has at least one worker");
        let workers = Workers {
            machine: machine.id(),
            handles,
            next: AtomicUsize::new(0),
        };
        Ok(Self {
            workers: Arc::new(workers),
        })
    }

    /// Returns the machine through which this accesses the cluster.
    pub fn machine(&self) -> MachineId {
        self.workers.machine
    }

    /// Returns the workers of the machine, for the interfaces below this one.
    pub fn handles(&self) -> &[Handle] {
        &self.workers.handles
    }

    /// Returns the worker for the next operation.
    #[inline]
    pub(crate) fn worker(&self) -> &Handle {
        match &self.workers.handles[..] {
            [only] => only,
            all => &all[self.workers.next.fetch_add(1, Ordering::Relaxed) % all.len()],
        }
    }

    /// Runs a transaction until it commits, and returns the value of its body; or returns an error that no retry can
    /// resolve. All of its changes take effect at one moment, or none does.
    ///
    /// The body is called once for each try. If what it has read turns out to be inconsistent, its error is not reported:
    /// it is called again. So it should have no effects besides the transaction, and an error that it reports is certain.
    /// The transaction is a name that can be copied; its calls may run at the same time.
    ///
    /// A body may await another `transact`. The inner transaction is independent, and what it has committed remains. A
    /// body may wait for something else, such as a request to another system; but a transaction ends with
    /// [`Kind::OpenTooLong`] when it has been open for `transactions.open_ms` of the configuration, because memory that
    /// is freed meanwhile cannot be used for other things.
    ///
    /// ```
    /// # use farm::prelude::*;
    /// # let cluster = Cluster::local(1).start()?;
    /// # let stock: Table<u64, u64> = cluster.create_table("stock", 100)?;
    /// # cluster.block_on(async |farm| {
    /// stock.insert(&farm, 7, 3).await?;
    /// let left = farm.transact(async |tx| {
    ///     let left = stock.get(tx, 7).await?.ok_or(Error::not_found("item 7"))?;
    ///     let left = left.checked_sub(1).ok_or(Error::refused("item 7 is sold out"))?;
    ///     stock.put(tx, 7, left).await?;
    ///     Ok(left)
    /// }).await?;
    /// assert_eq!(left, 2);
    /// # Ok::<_, Error>(())
    /// # })?;
    /// # cluster.stop()?;
    /// # Ok::<_, Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the body and of its calls; [`Kind::Conflict`], [`Kind::Lost`], [`Kind::Unknown`], [`Kind::OpenTooLong`],
    /// [`Kind::Stopped`].
    pub async fn transact<'f, T, Fut>(&'f self, body: impl FnMut(Tx<'f>) -> Fut) -> Result<T>
    where
        Fut: Future<Output = Result<T>>,
    {
        transact(self.worker(), body).await
    }

    /// As [`Farm::transact`], for a body with an error of the program's own type.
    ///
    /// ```
    /// # use farm::prelude::*;
    /// #[derive(Debug)]
    /// enum Sold { Out, Farm(farm::Error) }
    /// impl From<farm::Error> for Sold {
    ///     fn from(error: farm::Error) -> Self { Sold::Farm(error) }
    /// }
    /// # let cluster = Cluster::local(1).start()?;
    /// # let stock: Table<u64, u64> = cluster.create_table("stock", 100)?;
    /// # cluster.block_on(async |farm| {
    /// let sold = farm.try_transact(async |tx| {
    ///     match stock.get(tx, 7).await? {
    ///         None | Some(0) => Err(Sold::Out),
    ///         Some(left) => Ok(stock.put(tx, 7, left - 1).await?),
    ///     }
    /// }).await;
    /// assert!(matches!(sold, Err(Sold::Out)));
    /// # Ok::<_, Error>(())
    /// # })?;
    /// # cluster.stop()?;
    /// # Ok::<_, Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Farm::transact`].
    pub async fn try_transact<'f, T, E, Fut>(
        &'f self,
        body: impl FnMut(Tx<'f>) -> Fut,
    ) -> Result<T, E>
    where
        E: From<Error>,
        Fut: Future<Output = Result<T, E>>,
    {
        transact(self.worker(), body).await
    }

    /// Reads an object as it was at one moment, without a transaction: by one one-sided read, if another machine stores
    /// it. It is always safe to follow a pointer.
    ///
    /// # Errors
    /// [`Kind::NotFound`] if the object was freed; [`Kind::Lost`], [`Kind::Stopped`].
    pub async fn get<T: Pod + Send>(&self, ptr: Ptr<T>) -> Result<T> {
        Ok(self.worker().look_at(fat(ptr)?, decode).await?)
    }

    /// Calls a function with a worker of the machine, in a turn of the worker, and waits until a continuation completes the
    /// promise: for operations by continuations, which the function begins. The function must not block.
    ///
    /// ```
    /// # use farm::prelude::*;
    /// # let cluster = Cluster::local(2).start()?;
    /// # cluster.block_on(async |farm| {
    /// let at = farm.call(|worker, promise| {
    ///     let tx = txn::begin(worker);
    ///     promise.keep(worker, tx.to_context());
    ///     txn::alloc(worker, tx, 8, None, Cont::new(allocated, promise));
    /// }).await??;
    /// assert!(!at.is_null());
    ///
    /// fn allocated(worker: &mut Worker, promise: Promise<Result<Address, TxError>>, object: Result<ObjectId, TxError>) {
    ///     let tx = TxHandle::from_context(promise.kept(worker));
    ///     let address = object.and_then(|object| txn::address(worker, tx, object));
    ///     txn::abort(worker, tx);
    ///     promise.complete(worker, address);
    /// }
    /// # Ok::<_, Error>(())
    /// # })?;
    /// # cluster.stop()?;
    /// # Ok::<_, Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Kind::Stopped`].
    pub async fn call<T: Send + 'static>(
        &self,
        start: impl FnOnce(&mut Worker, Promise<T>) + Send + 'static,
    ) -> Result<T> {
        call(self.worker(), start).await
    }

    /// Waits for at least `time`.
    pub async fn sleep(&self, time: Duration) {
        self.worker().sleep(time).await;
    }

    /// Runs a task on a worker of the machine, and returns its result. The task is not `Send`, stays on the worker, and
    /// must not block it; its operations use the worker directly. It goes on if the future is dropped.
    ///
    /// # Errors
    /// [`Kind::Stopped`], also if the task panics.
    pub async fn run<R, Fut>(
        &self,
        body: impl FnOnce(LocalFarm) -> Fut + Send + 'static,
    ) -> Result<R>
    where
        R: Send + 'static,
        Fut: Future<Output = R> + 'static,
    {
        run_on(self.worker(), body).await
    }

    /// Runs a task on each worker of the machine at the same time, and returns their results, in the order of the
    /// workers.
    ///
    /// # Errors
    /// As [`Farm::run`]: the first error.
    pub async fn run_on_all<R, Fut>(
        &self,
        body: impl FnOnce(LocalFarm) -> Fut + Clone + Send + 'static,
    ) -> Result<Vec<R>>
    where
        R: Send + 'static,
        Fut: Future<Output = R> + 'static,
    {
        let handles = self.workers.handles.iter();
        let running = handles.map(|worker| run_on(worker, body.clone()));
        futures_util::future::try_join_all(running).await
    }
}

async fn call<T: Send + 'static>(
    worker: &Handle,
    start: impl FnOnce(&mut Worker, Promise<T>) + Send + 'static,
) -> Result<T> {
    let start = |worker: &mut Worker, slot| start(worker, Promise::new(slot));
    Ok(worker.call(start, Answer::take_value).await?)
}

/// Starts a task on a worker, and returns the future of its result.
fn run_on<R, Fut, B>(worker: &Handle, body: B) -> impl Future<Output = Result<R>> + use<R, Fut, B>
where
    B: FnOnce(LocalFarm) -> Fut + Send + 'static,
    R: Send + 'static,
    Fut: Future<Output = R> + 'static,
{
    let (done, result) = futures_channel::oneshot::channel();
    worker.spawn(move |handle| async move {
        // Nobody may wait for the result any more.
        let _ = done.send(body(LocalFarm::new(handle)).await);
    });
    let worker = worker.clone();
    async move {
        result.await.map_err(|_| {
            let me = worker.me();
            Error::new(
                Kind::Stopped,
                match worker.why_stopped() {
                    Some(why) => format!("worker {me} has stopped: {why}"),
                    None => format!("worker {me} has stopped, or the task panicked; see its log"),
                },
            )
        })
    }
}

/// The access of a task to the worker on which it runs: see [`Farm::run`]. It uses the worker directly, and cannot leave
/// it.
///
/// ```compile_fail
/// fn is_send<T: Send>() {}
/// is_send::<farm::LocalFarm>();
/// ```
#[derive(Clone)]
pub struct LocalFarm {
    handle: Handle,
    _stays: PhantomData<*const ()>,
}

impl std::fmt::Debug for LocalFarm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LocalFarm({})", self.handle.me())
    }
}

impl LocalFarm {
    pub(crate) fn new(handle: Handle) -> Self {
        Self {
            handle,
            _stays: PhantomData,
        }
    }

    /// Returns the worker.
    pub fn me(&self) -> WorkerRef {
        self.handle.me()
    }

    /// Returns the access to the worker by the interfaces below this one.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// See [`Farm::transact`].
    ///
    /// # Errors
    /// As [`Farm::transact`].
    pub async fn transact<'f, T, Fut>(&'f self, body: impl FnMut(Tx<'f>) -> Fut) -> Result<T>
    where
        Fut: Future<Output = Result<T>>,
    {
        transact(&self.handle, body).await
    }

    /// See [`Farm::try_transact`].
    ///
    /// # Errors
    /// As [`Farm::transact`].
    pub async fn try_transact<'f, T, E, Fut>(
        &'f self,
        body: impl FnMut(Tx<'f>) -> Fut,
    ) -> Result<T, E>
    where
        E: From<Error>,
        Fut: Future<Output = Result<T, E>>,
    {
        transact(&self.handle, body).await
    }

    /// See [`Farm::get`].
    ///
    /// # Errors
    /// As [`Farm::get`].
    pub async fn get<T: Pod + Send>(&self, ptr: Ptr<T>) -> Result<T> {
        Ok(self.handle.look_at(fat(ptr)?, decode).await?)
    }

    /// See [`Farm::call`].
    ///
    /// # Errors
    /// As [`Farm::call`].
    pub async fn call<T: Send + 'static>(
        &self,
        start: impl FnOnce(&mut Worker, Promise<T>) + Send + 'static,
    ) -> Result<T> {
        call(&self.handle, start).await
    }

    /// See [`Farm::sleep`].
    pub async fn sleep(&self, time: Duration) {
        self.handle.sleep(time).await;
    }

    /// Starts another task on the worker.
    ///
    /// # Panics
    /// If the calling code is not part of a task of the worker.
    pub fn spawn<Fut>(&self, body: impl FnOnce(LocalFarm) -> Fut)
    where
        Fut: Future<Output = ()> + 'static,
    {
        self.handle.spawn_here(body(self.clone()));
    }
}

/// Starts a task on a worker, from a continuation: see [`Farm::run`].
///
/// # Panics
/// If the layers are not attached to the worker.
pub fn spawn<Fut>(worker: &mut Worker, body: impl FnOnce(LocalFarm) -> Fut)
where
    Fut: Future<Output = ()> + 'static,
{
    farm_txn::spawn(worker, |handle| body(LocalFarm::new(handle)));
}

/// The error of a body, or of its transaction.
enum Failed<E> {
    Body(E),
    Tx(TxError),
}

impl<E> From<TxError> for Failed<E> {
    fn from(error: TxError) -> Self {
        Self::Tx(error)
    }
}

async fn transact<'f, T, E, Fut>(
    worker: &'f Handle,
    mut body: impl FnMut(Tx<'f>) -> Fut,
) -> Result<T, E>
where
    E: From<Error>,
    Fut: Future<Output = Result<T, E>>,
{
    let body = |tx| {
        let body = body(Tx(tx));
        async move { body.await.map_err(Failed::Body) }
    };
    match worker.try_transact(body).await {
        Ok(value) => Ok(value),
        Err(Failed::Body(error)) => Err(error),
        Err(Failed::Tx(error)) => Err(Error::from(error).into()),
    }
}
