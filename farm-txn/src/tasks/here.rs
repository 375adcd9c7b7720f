//! The worker whose task a thread polls. Calls of that task use the worker at once, without a request to it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use farm_core::worker::Worker;
use scoped_tls_hkt::scoped_thread_local;

use super::{TaskFuture, tasks};

scoped_thread_local!(
    /// The worker, while it polls a task.
    static mut POLLING: Worker
);

thread_local! {
    /// Whether a panic has interrupted the use of the worker by a task.
    static BROKEN: Cell<bool> = const { Cell::new(false) };

    /// The tasks of the workers that run on this thread. They are stored here and not with the worker, whose state must
    /// be `Send`: the state of a task need not be `Send`, nor need the compiler be able to prove that it is.
    static FUTURES: RefCell<BTreeMap<u64, slab::Slab<Option<TaskFuture>>>> = const { RefCell::new(BTreeMap::new()) };
}

/// Calls `poll`, within which [`with_worker`] finds the worker.
pub(super) fn polling<R>(worker: &mut Worker, poll: impl FnOnce() -> R) -> R {
    POLLING.set(worker, poll)
}

/// Calls `work` with the worker of the queue `id`, if this thread polls a task of that worker. Otherwise returns `None`,
/// and does not call `work`.
#[inline]
pub(super) fn with_worker<R>(id: u64, work: impl FnOnce(&mut Worker) -> R) -> Option<R> {
    if !POLLING.is_set() {
        return None;
    }
    let entered = Entered;
    let result = POLLING.with(|worker| (tasks(worker).id == id).then(|| work(worker)));
    std::mem::forget(entered);
    result
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

/// Accesses the tasks of a worker. A task is `None` while it is polled. Futures must be dropped outside of `work`.
#[inline]
pub(super) fn futures<R>(
    worker: u64,
    work: impl FnOnce(&mut slab::Slab<Option<TaskFuture>>) -> R,
) -> R {
    FUTURES.with_borrow_mut(|all| work(all.entry(worker).or_default()))
}

/// Takes the tasks of a worker that stops; `None` if the thread is ending.
pub(super) fn take_futures(worker: u64) -> Option<slab::Slab<Option<TaskFuture>>> {
    // Other workers of the thread are not affected.
    let _ = BROKEN.try_with(|broken| broken.set(false));
    let all = FUTURES.try_with(|all| all.borrow_mut().remove(&worker));
    all.ok().flatten()
}
