//! Transactions as `async` functions: for tasks that run on the worker's own event loop, and for the futures of any other
//! thread and runtime.
//!
//! ```text
//!  task of the worker ──polls──▶ call ──begins──▶ api, retry
//!   ▲                                                │
//!   └──── ready ◀──── entry of the call ◀──── continuation
//!
//!  other thread ──polls──▶ call ──▶ queue of requests ──▶ worker ──▶ api, retry
//!   ▲                                                                  │
//!   └──── woken ◀──── entry of the call, in the queue ◀──── continuation
//! ```
//!
//! [`spawn`] starts a task. The task gets a [`Handle`], with which it runs transactions or reads without a transaction. A
//! task runs on the worker on which it was spawned, between continuations, and must not block it. While it is polled, its
//! calls use the worker directly: they take no lock, and allocate nothing once there are as many entries as calls at one
//! time. A call costs what the functions of [`crate::api`] cost, its entry, and a poll of the task.
//!
//! [`handle`] returns the same [`Handle`] for other threads. Their calls are queued for the worker, and their answers are
//! returned through the queue.
//!
//! If a future is dropped before it completes, alone or together with its task, its transaction aborts, and an answer
//! that arrives later is discarded. A commit that has begun continues; its outcome is not reported.
//!
//! ```
//! async fn increment(farm: farm_txn::Handle, at: farm_core::ids::Address) -> Result<(), farm_txn::TxError> {
//!     farm.transact(async |tx| {
//!         let object = tx.read(at, 8).await?;
//!         tx.change(object, |payload| payload[0] += 1).await
//!     })
//!     .await
//! }
//! ```

mod answers;
mod arrays;
mod call;
mod executor;
mod handle;
mod here;
mod look;
mod queue;
mod reply;
mod run;
mod step;
mod transaction;
mod tries;

use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use farm_core::machine::{Machine, MachineError};
use farm_core::worker::Worker;

pub use answers::{Answer, Slot};
pub use call::Call;
pub use handle::Handle;
pub use reply::{answer, is_open, with_answer};
pub use transaction::{Begun, Transaction};

use answers::Answers;
use queue::TaskQueue;

/// The tasks and the calls of a worker, as the worker knows them.
pub(crate) struct Tasks {
    /// The number of the queue.
    id: u64,
    queue: Arc<TaskQueue>,
    /// The calls of tasks that the worker polls.
    answers: Answers,
    /// Tasks to poll.
    ready: VecDeque<usize>,
    /// Whether the event loop will poll the tasks that are ready.
    runs: bool,
    /// The tasks by number. A task is `None` while it is polled.
    tasks: slab::Slab<Option<executor::Task>>,
    /// The task that is polled, and the address in its waker.
    current: Option<(usize, usize)>,
    looks: slab::Slab<look::Look>,
    /// Transactions of tasks and of other threads.
    transactions: run::Runs,
    /// Whether a timer checks the open transactions.
    watches: bool,
    /// The time for which a transaction may be open.
    longest: Duration,
}

impl Tasks {
    fn new(worker: &Worker, longest: Duration) -> Self {
        let queue = TaskQueue::new(worker, executor::serve);
        Self {
            id: queue.id,
            queue: Arc::new(queue),
            answers: Answers::default(),
            ready: VecDeque::new(),
            runs: false,
            tasks: slab::Slab::new(),
            current: None,
            looks: slab::Slab::new(),
            transactions: slab::Slab::new(),
            watches: false,
            longest,
        }
    }

    /// Returns the numbers of tasks, calls and transactions, with their names.
    pub(crate) fn held(&self) -> [(&'static str, usize); 3] {
        let calls = self.answers.len() + self.queue.open() + self.looks.len();
        [
            ("tasks", self.tasks.len()),
            ("calls of tasks", calls),
            ("transactions of tasks", self.transactions.len()),
        ]
    }

    /// Returns the task that is polled, if this is its waker.
    #[inline]
    fn polled(&self, waker: &Waker) -> Option<usize> {
        let (task, address) = self.current?;
        (waker.data().addr() == address).then_some(task)
    }
}

/// Drops the futures first, then closes the queue. Requests that the futures make when they are dropped are discarded,
/// because the worker no longer executes them.
impl Drop for Tasks {
    fn drop(&mut self) {
        drop(std::mem::take(&mut self.tasks));
        here::mend();
        self.queue.close();
    }
}

pub(crate) fn attach(worker: &mut Worker, longest: Duration) {
    let tasks = Tasks::new(worker, longest);
    worker.put_layer(Box::new(tasks));
}

#[inline]
pub(crate) fn tasks(worker: &mut Worker) -> &mut Tasks {
    worker
        .layer()
        .expect("farm_txn::attach must be called for a worker before it runs transactions")
}

/// Returns the access of other threads to a worker of a machine of this process.
///
/// # Errors
/// [`MachineError::Failed`] if the machine has stopped.
///
/// # Panics
/// If the machine has no such worker.
pub fn handle(machine: &Machine, worker: usize) -> Result<Handle, MachineError> {
    machine.ask(worker, |worker, answer| {
        // The waiting thread may be gone.
        let _ = answer.send(handle_of(worker));
    })
}

/// Returns the access of tasks and other threads to a worker.
pub fn handle_of(worker: &mut Worker) -> Handle {
    Handle::new(Arc::clone(&tasks(worker).queue))
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
///             tx.write(object, b"hello").await?;
///             tx.address(object).await
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
    let handle = handle_of(worker);
    match catch_unwind(AssertUnwindSafe(|| body(handle))) {
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
///     farm.transact(async |tx| {
///         let object = tx.alloc(5, None).await?;
///         tx.address(object).await
///     })
///     .await
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

/// A future that returns a panic of the task as an error.
struct Caught<F>(Pin<Box<F>>);

impl<F: Future> Future for Caught<F> {
    type Output = Result<F::Output, String>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context)));
        match polled {
            Ok(polled) => polled.map(Ok),
            Err(panic) if here::is_broken() => resume_unwind(panic),
            Err(panic) => Poll::Ready(Err(executor::panic_message(&*panic).to_owned())),
        }
    }
}
