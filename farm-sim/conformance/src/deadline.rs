//! Deadlines. If a fabric loses an operation or a notification, the property fails instead of hanging.
//! No other part of the suite reads a clock.

use std::time::{Duration, Instant};

/// The time by which an event must have happened.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    started: Instant,
    at: Instant,
}

#[allow(clippy::disallowed_methods)] // Real time, to end hangs. No simulated run depends on it.
impl Deadline {
    /// Returns the deadline that is `most` from now.
    pub fn after(most: Duration) -> Self {
        let started = Instant::now();
        Self {
            started,
            at: started + most,
        }
    }

    /// Returns whether the deadline has passed.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.at
    }

    /// Returns the time until the deadline, or zero after it.
    pub fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Returns the time since the deadline was set.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Checks that the deadline has not passed. `what` names the event that the caller waits for.
    ///
    /// # Panics
    /// If the deadline has passed.
    #[track_caller]
    pub fn check(&self, what: &str) {
        assert!(
            !self.is_over(),
            "timeout: waited {:?} for {what}",
            self.elapsed()
        );
    }
}
