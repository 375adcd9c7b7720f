//! The one place where the suite looks at a clock: so that a fabric that loses something fails a
//! test instead of hanging it.

use std::time::{Duration, Instant};

/// A moment by which something must have happened.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    started: Instant,
    at: Instant,
}

#[allow(clippy::disallowed_methods)] // Real time, against hangs: nothing simulated depends on it.
impl Deadline {
    /// The moment that comes after `most` from now.
    pub fn after(most: Duration) -> Self {
        let started = Instant::now();
        Self {
            started,
            at: started + most,
        }
    }

    /// Whether it has passed.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.at
    }

    /// What is left of the time.
    pub fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Time since it was set.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// # Panics
    /// When it has passed, with what was waited for.
    #[track_caller]
    pub fn check(&self, what: &str) {
        assert!(
            !self.is_over(),
            "waited {:?} in vain for {what}",
            self.elapsed()
        );
    }
}
