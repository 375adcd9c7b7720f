//! Transactions as `async` functions: tasks that run on the worker's own event loop.
//!
//! ```text
//!  task ──polls──▶ future of a call ──▶ queue of requests ──▶ executor, with the worker: api, retry
//!   ▲                    ▲                                        │
//!   └──── woken ─────────┴───────── slot ◀──── continuation ◀─────┘
//! ```
//!
//! [`spawn`] starts a task. The task gets a [`Handle`], with which it begins a [`Transaction`] or reads without a
//! transaction. No other thread is involved: a task runs on the worker on which it was spawned, between continuations,
//! and must not block it. A call of a transaction uses the functions of [`crate::api`]; it costs what they cost, plus a
//! check of two queues.
//!
//! If a future is dropped before it completes, alone or together with its task, its transaction aborts, and an answer
//! that arrives later is discarded. A commit that has begun continues; its outcome is not reported.
//!
//! Between two calls a transaction owns its context, so that payloads are plain borrows of the transaction. The
//! compiler ensures that no payload outlives the transaction, and that a transaction is not used after its commit:
//!
//! ```compile_fail,E0382
//! async fn twice(farm: farm_txn::Handle) {
//!     let tx = farm.begin();
//!     tx.commit().await;
//!     tx.commit().await; // error: the first commit consumed it.
//! }
//! ```
//! ```compile_fail,E0382
//! async fn read_after(farm: farm_txn::Handle, at: farm_core::ids::Address) {
//!     let mut tx = farm.begin();
//!     tx.commit().await;
//!     tx.read(at, 8).await;
//! }
//! ```
//! ```compile_fail,E0505
//! async fn payload_after(mut tx: farm_txn::Transaction, object: farm_txn::ObjectId) {
//!     let payload = tx.payload_mut(object).unwrap();
//!     tx.commit().await; // error: the payload borrows from it.
//!     payload[0] = 1;
//! }
//! ```
//! ```compile_fail,E0499
//! async fn payload_over_a_call(mut tx: farm_txn::Transaction, object: farm_txn::ObjectId) {
//!     let payload = tx.payload_mut(object).unwrap();
//!     tx.alloc(8, None).await; // error: the buffers of the transaction may move.
//!     payload[0] = 1;
//! }
//! ```
//! ```compile_fail,E0597
//! async fn payload_of_another(farm: farm_txn::Handle, object: farm_txn::ObjectId) {
//!     let kept: &[u8];
//!     {
//!         let other = farm.begin();
//!         kept = other.payload(object).unwrap();
//!     }
//!     farm.begin().commit().await;
//!     assert!(kept.is_empty());
//! }
//! ```
//!
//! The same functions without these errors compile:
//!
//! ```
//! async fn right(farm: farm_txn::Handle, at: farm_core::ids::Address) -> Result<(), farm_txn::TxError> {
//!     let mut tx = farm.begin();
//!     let object = tx.read(at, 8).await?;
//!     tx.payload_mut(object)?[0] = 1;
//!     tx.alloc(8, None).await?;
//!     tx.commit().await
//! }
//! ```

mod executor;
mod handle;
mod queue;
mod transaction;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use farm_core::machine::{Machine, MachineError};
use farm_core::worker::Worker;

pub use handle::Handle;
pub(crate) use queue::TaskQueue;
pub use transaction::Transaction;

use queue::TaskWaker;

/// The future of a task.
type TaskFuture = Pin<Box<dyn Future<Output = ()>>>;

thread_local! {
    /// The tasks of the workers that run on this thread. They are stored here and not with the worker, whose state must
    /// be `Send`: the state of a task need not be `Send`, nor need the compiler be able to prove that it is.
    static HERE: RefCell<BTreeMap<u64, slab::Slab<Task>>> = const { RefCell::new(BTreeMap::new()) };
}

/// Accesses the tasks of a worker. Futures must be dropped outside of `work`.
fn here<R>(worker: u64, work: impl FnOnce(&mut slab::Slab<Task>) -> R) -> R {
    HERE.with_borrow_mut(|all| work(all.entry(worker).or_default()))
}

/// A worker's access to its tasks.
pub(crate) struct Tasks {
    /// Key of the worker's tasks in `HERE`.
    id: u64,
    shared: Arc<TaskQueue>,
}

struct Task {
    /// Future of the task; `None` while it is polled.
    future: Option<TaskFuture>,
    waker: Arc<TaskWaker>,
}

impl Tasks {
    fn new(worker: &Worker) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            shared: Arc::new(TaskQueue::new(
                Arc::clone(worker.inbox()),
                worker.me(),
                executor::run,
            )),
        }
    }

    /// Returns the number of tasks and of open calls, with their names.
    pub(crate) fn held(&self) -> [(&'static str, usize); 2] {
        [
            ("tasks", here(self.id, |all| all.len())),
            ("calls of tasks", self.shared.open()),
        ]
    }
}

/// Drops the futures first, then closes the shared state. Requests that the futures make when they are dropped are
/// discarded, because the worker no longer executes them.
impl Drop for Tasks {
    fn drop(&mut self) {
        let all = HERE.try_with(|here| here.borrow_mut().remove(&self.id));
        drop(all);
        self.shared.close();
    }
}

pub(crate) fn attach(worker: &mut Worker) {
    let tasks = Tasks::new(worker);
    worker.put_layer(Box::new(tasks));
}

pub(crate) fn set_patience(worker: &mut Worker, patience: Duration) {
    tasks(worker).shared.set_patience(patience);
}

pub(crate) fn tasks(worker: &mut Worker) -> &mut Tasks {
    worker
        .layer()
        .expect("farm_txn::attach must be called for a worker before it runs transactions")
}

/// Starts a task on this worker: the event loop polls the future that `body` returns until it completes or the worker
/// stops. The task itself must send its results to where they are needed. The state of the task need not be `Send`: a
/// worker that has tasks stays on its thread.
///
/// A task that panics ends, and so does one whose `body` panics: the panic is logged, the task's transaction aborts, and
/// the worker continues. A panic in
/// [`Handle::with_worker`], in a continuation or in a message handler stops the machine, because the state of the
/// worker may be incomplete.
///
/// ```
/// # use std::sync::{Arc, mpsc};
/// # use farm_core::{config::Config, machine::start_all};
/// # use farm_txn::TxError;
/// # let mut config = Config::tiny_for(1, 1);
/// # config.cluster.name = "doc-tasks".into();
/// # let machine = start_all(&config, &(Arc::new(farm_txn::attach) as _))?.remove(0);
/// let hello: Result<Vec<u8>, TxError> = machine.ask(0, |worker, answer| {
///     farm_txn::spawn(worker, |farm| async move {
///         let written = farm.transact(async |tx| {
///             let object = tx.alloc(5, None).await?;
///             tx.payload_mut(object)?[..5].copy_from_slice(b"hello");
///             tx.address(object)
///         });
///         let read = match written.await {
///             Ok(address) => farm.read_lock_free(address, 5).await,
///             Err(error) => Err(error),
///         };
///         let _ = answer.send(read);
///     });
/// })?;
/// assert_eq!(hello.unwrap(), b"hello");
/// # machine.stop()?;
/// # Ok::<_, farm_core::machine::MachineError>(())
/// ```
///
/// # Panics
/// If the layer is not attached to the worker.
pub fn spawn<F>(worker: &mut Worker, body: impl FnOnce(Handle) -> F)
where
    F: Future<Output = ()> + 'static,
{
    let shared = Arc::clone(&tasks(worker).shared);
    match catch_unwind(AssertUnwindSafe(|| body(Handle::new(shared)))) {
        Ok(future) => executor::spawn(worker, Box::pin(future)),
        Err(panic) => executor::report_panic(&*panic),
    }
}

/// Runs a task on a worker of a machine of this process, and waits for its result. For threads outside of the workers.
///
/// ```
/// # use std::sync::Arc;
/// # use farm_core::{config::Config, machine::start_all};
/// # let mut config = Config::tiny_for(1, 1);
/// # config.cluster.name = "doc-block-on".into();
/// # let machine = start_all(&config, &(Arc::new(farm_txn::attach) as _))?.remove(0);
/// let address = farm_txn::block_on(&machine, 0, async |farm| {
///     let born = async |tx: &mut farm_txn::Transaction| {
///         let object = tx.alloc(5, None).await?;
///         tx.address(object)
///     };
///     farm.transact(born).await
/// })?;
/// assert!(!address.unwrap().is_null());
/// # machine.stop()?;
/// # Ok::<_, farm_core::machine::MachineError>(())
/// ```
///
/// # Errors
/// [`MachineError::TaskPanicked`] if the task panics, which ends only the task. [`MachineError::Failed`] if the machine
/// stops before the task has ended.
///
/// # Panics
/// If the machine has no such worker.
pub fn block_on<T, F>(
    machine: &Machine,
    worker: usize,
    body: impl FnOnce(Handle) -> F + Send + 'static,
) -> Result<T, MachineError>
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    let ended = machine.ask(worker, |worker, answer| {
        spawn(worker, |farm| {
            let me = farm.me();
            // `body` itself may panic before it returns a future.
            let future = Caught(Box::pin(async move { body(farm).await }));
            async move {
                let ended = future.await.map_err(|message| MachineError::TaskPanicked {
                    worker: me,
                    message,
                });
                // The waiting thread may be gone.
                let _ = answer.send(ended);
            }
        });
    });
    ended?
}

/// A future that returns a panic as an error.
struct Caught<F>(Pin<Box<F>>);

impl<F: Future> Future for Caught<F> {
    type Output = Result<F::Output, String>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context)));
        match polled {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Poll::Ready(Err(executor::panic_message(&*panic).to_owned())),
        }
    }
}
