//! The worker whose task a thread polls. Calls of that task use the worker at once, without a request to it.

use std::cell::Cell;

use farm_core::mem::Lent;
use farm_core::worker::Worker;

use super::queue::TaskQueue;

thread_local! {
    /// The worker, while it polls a task.
    static POLLING: Lent<Worker> = const { Lent::new() };

    /// The number of the queue of that worker.
    static QUEUE: Cell<Option<u64>> = const { Cell::new(None) };

    /// Whether a panic has interrupted the use of the worker by a task.
    static BROKEN: Cell<bool> = const { Cell::new(false) };
}

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

/// Forgets such a panic, when the worker has ended: others of the thread are not affected.
pub(super) fn mend() {
    // The thread itself may be ending.
    let _ = BROKEN.try_with(|broken| broken.set(false));
}
