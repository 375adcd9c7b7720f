//! How a machine is told to stop, and why it did.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Shared by a machine's workers and whoever runs it.
#[derive(Debug, Default)]
pub struct Control {
    stop: AtomicBool,
    failure: Mutex<Option<String>>,
}

impl Control {
    /// Asks the workers to end after their current turn.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Stops with a reason; the first reason is kept.
    pub fn fail(&self, why: String) {
        let mut failure = self
            .failure
            .lock()
            .expect("nothing panics while it holds the reason");
        if failure.is_none() {
            tracing::error!("{why}");
            *failure = Some(why);
        }
        drop(failure);
        self.stop();
    }

    /// Whether the workers are to end.
    #[inline]
    pub fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Why the machine stopped, if not because it was asked to.
    pub fn failure(&self) -> Option<String> {
        self.failure
            .lock()
            .expect("nothing panics while it holds the reason")
            .clone()
    }
}
