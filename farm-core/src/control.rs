//! Stopping a machine, and the reason why it stopped.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The stop request of a machine, shared by its workers and its owner.
#[derive(Debug, Default)]
pub struct Control {
    stop: AtomicBool,
    failure: Mutex<Option<String>>,
}

impl Control {
    /// Requests that the workers end after their current turn.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Stops the machine with a reason. Only the first reason is stored.
    pub fn fail(&self, why: String) {
        let mut failure = self
            .failure
            .lock()
            .expect("no thread panics while it holds the lock of the failure reason");
        if failure.is_none() {
            tracing::error!("{why}");
            *failure = Some(why);
        }
        drop(failure);
        self.stop();
    }

    /// Returns whether the workers must end.
    #[inline]
    pub fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Returns the failure because of which the machine stopped, if any.
    pub fn failure(&self) -> Option<String> {
        self.failure
            .lock()
            .expect("no thread panics while it holds the lock of the failure reason")
            .clone()
    }
}
