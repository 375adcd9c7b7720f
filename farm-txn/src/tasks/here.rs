//! The worker whose task a thread polls. Calls of that task use the worker at once, without a request to it.

use std::cell::{Cell, RefCell};

use farm_core::mem::Lent;
use farm_core::worker::Worker;

use super::TaskFuture;
use super::queue::TaskQueue;

thread_local! {
    /// The worker, while it polls a task.
    static POLLING: Lent<Worker> = const { Lent::new() };

    /// The number of the queue of that worker.
    static QUEUE: Cell<Option<u64>> = const { Cell::new(None) };

    /// Whether a panic has interrupted the use of the worker by a task.
    static BROKEN: Cell<bool> = const { Cell::new(false) };

    /// The tasks of the workers that run on this thread, with the numbers of their queues. They are stored here and not
    /// with the worker, whose state must be `Send`: the state of a task need not be `Send`, nor need the compiler be able
    /// to prove that it is.
    static FUTURES: RefCell<Vec<(u64, Futures)>> = const { RefCell::new(Vec::new()) };
}

/// Tasks by number. A task is `None` while it is polled.
pub(super) type Futures = slab::Slab<Option<TaskFuture>>;

/// Calls `poll`, within which [`with_worker`] finds the worker of the queue `id`.
#[inline]
pub(super) fn polling<R>(worker: &mut Worker, id: u64, poll: impl FnOnce() -> R) -> R {
    let outer = QUEUE.replace(Some(id));
    let result = Lent::lend(&POLLING, worker, poll);
    QUEUE.set(outer);
    result
}

/// Calls `work` with the worker of the queue `id`, if this thread polls a task of that worker. Otherwise returns `None`,
/// and does not call `work`.
#[inline(always)]
pub(super) fn with_worker<R>(id: u64, work: impl FnOnce(&mut Worker) -> R) -> Option<R> {
    if QUEUE.get() != Some(id) {
        return None;
    }
    let entered = Entered;
    let result = Lent::with(&POLLING, work);
    std::mem::forget(entered);
    result
}

/// Calls `work` with the worker of a queue: at once if this thread polls a task of that worker, and otherwise as a request.
pub(super) fn on_worker(queue: &TaskQueue, work: impl Fn(&mut Worker) + Copy + Send + 'static) {
    if with_worker(queue.id, work).is_none() {
        queue.request(work);
    }
}

/// Exists while a task uses the worker. It is dropped only by a panic.
struct Entered;

impl Drop for Entered {
    fn drop(&mut self) {
        BROKEN.set(true);
    }
}

/// Returns whether a panic has interrupted the use of a worker by a task of this thread: the state of the worker may be
/// incomplete.
pub(super) fn is_broken() -> bool {
    BROKEN.get()
}

/// Accesses the tasks of a worker. Futures must be dropped outside of `work`.
#[inline]
pub(super) fn futures<R>(id: u64, work: impl FnOnce(&mut Futures) -> R) -> R {
    FUTURES.with_borrow_mut(|all| {
        // A thread runs one worker, except in the simulator, which runs some.
        let index = match all.iter().position(|(queue, _)| *queue == id) {
            Some(index) => index,
            None => {
                all.push((id, Futures::new()));
                all.len() - 1
            }
        };
        work(&mut all[index].1)
    })
}

/// Takes the tasks of a worker that stops; `None` if it has none, or if the thread is ending.
pub(super) fn take_futures(id: u64) -> Option<Futures> {
    // Other workers of the thread are not affected.
    let _ = BROKEN.try_with(|broken| broken.set(false));
    let taken = FUTURES.try_with(|all| {
        let mut all = all.borrow_mut();
        let index = all.iter().position(|(queue, _)| *queue == id)?;
        Some(all.swap_remove(index).1)
    });
    taken.ok().flatten()
}
