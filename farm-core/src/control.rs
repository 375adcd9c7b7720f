//! Stopping a machine, and the reason why it stopped.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

/// The stop request of a machine, shared by its workers and its owner.
#[derive(Debug, Default)]
pub struct Control {
    stop: AtomicBool,
    leave: AtomicBool,
    /// Number of workers that have left.
    left: AtomicUsize,
    has_left: AtomicBool,
    failure: Mutex<Option<String>>,
    /// Why the machine has stopped without a failure.
    end: OnceLock<String>,
    may_join_again: AtomicBool,
    was_evicted: AtomicBool,
}

impl Control {
    /// Requests that the workers end after their current turn.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// As [`Control::stop`], because the cluster has ended in this way. Only the first reason is stored, and none if a stop was requested before.
    pub(crate) fn end(&self, why: String) {
        if !self.is_stopping() {
            let _ = self.end.set(why);
        }
        self.stop();
    }

    /// Requests that the workers leave the cluster in order, and stop when all of them have left: see
    /// [`Worker::leave`](crate::worker::Worker::leave).
    pub fn leave(&self) {
        self.leave.store(true, Ordering::Release);
    }

    /// Returns whether the workers must leave.
    #[inline]
    pub fn is_leaving(&self) -> bool {
        self.leave.load(Ordering::Relaxed)
    }

    /// Records that one of `workers` workers has left. The last one stops the machine.
    pub(crate) fn worker_left(&self, workers: usize) {
        if self.left.fetch_add(1, Ordering::AcqRel) + 1 == workers {
            self.has_left.store(true, Ordering::Release);
            self.stop();
        }
    }

    /// Returns whether all workers have left.
    pub fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Acquire)
    }

    /// Stops the machine with a reason. Only the first reason is stored.
    pub fn fail(&self, why: String) {
        let mut failure = self.lock_failure();
        if failure.is_none() {
            tracing::error!("{why}");
            *failure = Some(why);
        }
        drop(failure);
        self.stop();
    }

    /// As [`Control::fail`], when the cluster has changed while the machine joined, or has ended: another start of it can join.
    pub(crate) fn fail_to_join(&self, why: String) {
        let mut failure = self.lock_failure();
        if failure.is_none() {
            tracing::info!("{why}");
            *failure = Some(why);
            self.may_join_again.store(true, Ordering::Release);
        }
        drop(failure);
        self.stop();
    }

    /// As [`Control::fail`], when the other machines have gone on without this one.
    pub(crate) fn end_evicted(&self, why: String) {
        self.was_evicted.store(true, Ordering::Release);
        self.fail(why);
    }

    /// Returns whether the machine has stopped because the others have gone on without it.
    pub fn was_evicted(&self) -> bool {
        self.was_evicted.load(Ordering::Acquire)
    }

    /// Returns whether the machine has stopped because the cluster has changed while it joined, or has ended.
    pub fn may_join_again(&self) -> bool {
        self.may_join_again.load(Ordering::Acquire)
    }

    /// Returns whether the workers must end.
    #[inline]
    pub fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Returns the failure because of which the machine stopped, if any.
    pub fn failure(&self) -> Option<String> {
        self.lock_failure().clone()
    }

    /// Returns why the machine stopped: its failure, or that another machine has left and so ended the cluster; `None` if it was only asked to
    /// stop.
    pub fn why_stopped(&self) -> Option<String> {
        self.failure().or_else(|| self.end.get().cloned())
    }

    fn lock_failure(&self) -> MutexGuard<'_, Option<String>> {
        self.failure
            .lock()
            .expect("no thread panics while it holds the lock of the failure reason")
    }
}
