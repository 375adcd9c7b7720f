//! Time as the platform sees it: nanoseconds that only go forward, handed in by whoever runs the
//! worker. Protocol code reads no clock of its own; the simulator hands in virtual time.

use std::ops::{Add, Sub};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A moment, in nanoseconds since an arbitrary one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Later by a duration; stays at the end of time.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)),
        )
    }

    /// Time since an earlier moment; zero if it is not earlier.
    pub fn since(self, earlier: Nanos) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<u64> for Nanos {
    type Output = Nanos;
    fn add(self, nanos: u64) -> Nanos {
        Nanos(self.0.saturating_add(nanos))
    }
}

impl Sub for Nanos {
    type Output = u64;
    fn sub(self, earlier: Nanos) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Where a worker's time comes from.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The host's monotonic clock.
    #[default]
    Host,
    /// Virtual time, which the simulator sets.
    Virtual(Arc<AtomicU64>),
}

impl Clock {
    /// The moment it is.
    #[inline]
    pub fn now(&self) -> Nanos {
        match self {
            Clock::Host => Nanos(host_nanos()),
            Clock::Virtual(nanos) => Nanos(nanos.load(Ordering::Relaxed)),
        }
    }
}

#[inline]
#[allow(clippy::disallowed_methods)] // The one place where the platform reads the host's clock.
fn host_nanos() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_clock_goes_forward_and_virtual_time_is_what_it_is_set_to() {
        let before = Clock::Host.now();
        assert!(Clock::Host.now() >= before);
        let virtual_time = Arc::new(AtomicU64::new(7));
        let clock = Clock::Virtual(Arc::clone(&virtual_time));
        virtual_time.store(9, Ordering::Relaxed);
        assert_eq!(clock.now(), Nanos(9));
        assert_eq!(Nanos(5).after(Duration::MAX), Nanos(u64::MAX));
        assert_eq!(Nanos(5) - Nanos(9), 0);
    }
}
