//! The executor: begins the calls of other threads on the worker, passes answers to the calls, and polls the tasks. It
//! runs from the event loop.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};

use farm_core::worker::{Cont, Worker};

use super::answers::Slot;
use super::queue::{Request, TaskWaker, TaskWakers};
use super::reply::wake;
use super::{TaskFuture, here, run, tasks};

/// Maximum number of requests served, and of tasks polled, in one run; other work of the worker follows.
const MOST_STEPS: usize = 64;

/// Starts a task.
pub(super) fn spawn(worker: &mut Worker, future: TaskFuture) {
    let own = tasks(worker);
    let (id, queue) = (own.id, Arc::clone(&own.queue));
    let task = here::futures(id, |all| all.insert(Some(future)));
    let own = tasks(worker);
    own.set_waker(task, TaskWaker::new(queue, task));
    wake(worker, task);
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
                if let Some(key) = own.queue.start(index) {
                    run::begin_call(&mut own.transactions, key);
                    start(worker, Slot::of_queue(index));
                }
            }
            None => return,
        }
    }
    worker.defer(Cont::new(|worker: &mut Worker, (), ()| serve(worker), ()));
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
        let id = own.id;
        let taken = here::futures(id, |all| all.get_mut(task)?.take());
        // A task that has ended may have been woken before.
        if let Some(future) = taken {
            let waker = own.begin_poll(task);
            poll(worker, id, (task, future), waker);
        }
    }
    worker.defer(Cont::new(poll_ready, ()));
}

/// Polls a task.
#[inline]
fn poll(worker: &mut Worker, id: u64, (task, mut future): (usize, TaskFuture), waker: TaskWakers) {
    let mut context = Context::from_waker(&waker.waker);
    let pending = here::polling(worker, id, || {
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context)));
        match polled {
            Ok(Poll::Pending) => Some(future),
            ended => {
                end(ended.map(drop), future);
                None
            }
        }
    });
    let own = tasks(worker);
    own.current = None;
    match pending {
        Some(future) => {
            own.wakers[task] = Some(waker);
            here::futures(id, |all| all[task] = Some(future));
        }
        None => drop(here::futures(id, |all| all.remove(task))),
    }
}

/// Drops the future of a task that has ended.
fn end(outcome: std::thread::Result<()>, future: TaskFuture) {
    // Values of the task may panic when they are dropped.
    for outcome in [outcome, catch_unwind(AssertUnwindSafe(|| drop(future)))] {
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
