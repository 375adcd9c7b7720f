//! The executor: begins the calls of other threads on the worker, passes answers to the calls, and polls the tasks. It
//! runs from the event loop.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use farm_core::worker::{Cont, Worker};

use super::queue::{Request, TaskWaker};
use super::{here, run, tasks};

/// Maximum number of requests served, and of tasks polled, in one run; other work of the worker follows.
const MOST_STEPS: usize = 64;

/// A task: its future and its waker. The worker, which has its tasks, stays on its thread, so the state of the future need
/// not be `Send`.
pub(super) struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    /// The waker, in both of its forms.
    own: Arc<TaskWaker>,
    waker: Waker,
}

/// Starts a task.
pub(super) fn spawn(worker: &mut Worker, future: Pin<Box<dyn Future<Output = ()>>>) {
    let own = tasks(worker);
    let queue = Arc::clone(&own.queue);
    let entry = own.tasks.vacant_entry();
    let number = entry.key();
    let own = TaskWaker::new(queue, number);
    let waker = Waker::from(Arc::clone(&own));
    entry.insert(Some(Task { future, own, waker }));
    wake(worker, number);
}

/// Serves the requests of other threads, at most [`MOST_STEPS`] of them; if more may be left, it continues in a deferred
/// call.
pub(super) fn serve(worker: &mut Worker) {
    for _ in 0..MOST_STEPS {
        let own = tasks(worker);
        let next = own.queue.next(&mut own.ready);
        make_ready(worker);
        match next {
            Some(Request::Do(work)) => work(worker),
            Some(Request::Call(index, start)) => {
                let own = tasks(worker);
                if let Some((slot, run)) = own.queue.start(index) {
                    run::begin_call(&mut own.transactions, run);
                    start(worker, slot);
                }
            }
            None => return,
        }
    }
    worker.defer(Cont::new(|worker: &mut Worker, (), ()| serve(worker), ()));
}

/// Makes a task of this worker ready to be polled.
pub(super) fn wake(worker: &mut Worker, task: usize) {
    tasks(worker).ready.push_back(task);
    make_ready(worker);
}

/// Polls a task whose call was answered. If another task is polled, it follows.
///
/// This runs in the continuation that answers the call, as does the code that a program passes as a continuation. The
/// result, and what the task uses, are in the processor's cache at this time.
#[inline]
pub(super) fn poll_or_wake(worker: &mut Worker, task: usize) {
    match tasks(worker).current {
        None => poll(worker, task),
        Some(_) => wake(worker, task),
    }
}

/// Ensures that ready tasks are polled.
fn make_ready(worker: &mut Worker) {
    let own = tasks(worker);
    if !own.ready.is_empty() && !std::mem::replace(&mut own.runs, true) {
        worker.defer(Cont::new(poll_ready, ()));
    }
}

/// Polls ready tasks, at most [`MOST_STEPS`] of them; if more may be left, it continues in a deferred call.
pub(super) fn poll_ready(worker: &mut Worker, (): (), (): ()) {
    for _ in 0..MOST_STEPS {
        let own = tasks(worker);
        let Some(task) = own.ready.pop_front() else {
            own.runs = false;
            return;
        };
        poll(worker, task);
    }
    worker.defer(Cont::new(poll_ready, ()));
}

/// Polls a task.
#[inline]
fn poll(worker: &mut Worker, number: usize) {
    let own = tasks(worker);
    let id = own.id;
    // A task that has ended may have been woken before.
    let Some(mut task) = own.tasks.get_mut(number).and_then(Option::take) else {
        return;
    };
    task.own.rest();
    own.current = Some((number, task.waker.data().addr()));
    let pending = here::polling(worker, id, || {
        let mut context = Context::from_waker(&task.waker);
        let poll = || task.future.as_mut().poll(&mut context);
        match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(Poll::Pending) => Some(task),
            ended => {
                end(ended.map(drop), task);
                None
            }
        }
    });
    let own = tasks(worker);
    own.current = None;
    match pending {
        Some(_) => own.tasks[number] = pending,
        None => _ = own.tasks.remove(number),
    }
}

/// Drops a task that has ended.
#[cold]
fn end(outcome: std::thread::Result<()>, task: Task) {
    // Values of the task may panic when they are dropped.
    for outcome in [outcome, catch_unwind(AssertUnwindSafe(|| drop(task)))] {
        match outcome {
            Ok(()) => {}
            Err(panic) if here::is_broken() => resume_unwind(panic),
            Err(panic) => report_panic(&*panic),
        }
    }
}

/// Reports that a task panicked. The task ends, its transactions abort, and the worker continues: the state of the worker
/// is complete, because the panic did not happen while the task used it.
#[cold]
pub(super) fn report_panic(panic: &(dyn Any + Send)) {
    tracing::error!(
        "a task panicked; ending the task and aborting its transaction: {}",
        panic_message(panic)
    );
}

/// Returns the message of a panic.
pub(super) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
}
