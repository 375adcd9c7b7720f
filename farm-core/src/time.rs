//! Time of the platform: nanoseconds that never decrease, passed in by the code that runs a worker. Protocol code reads
//! no clock of its own; the simulator passes in virtual time.

use std::ops::{Add, Sub};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A time, in nanoseconds since an arbitrary origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Returns the time a duration later; saturates at the largest time.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)),
        )
    }

    /// Returns the duration since an earlier time; zero if `earlier` is not earlier.
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

/// The source of a worker's time.
#[derive(Clone, Debug, Default)]
pub enum Clock {
    /// The host's monotonic clock.
    #[default]
    Host,
    /// Virtual time, which the simulator sets.
    Virtual(Arc<VirtualTime>),
}

/// Virtual time, which the simulator sets.
#[derive(Debug, Default)]
pub struct VirtualTime {
    nanos: AtomicU64,
    /// Number of ticks since the time was last changed.
    ticks: AtomicU64,
}

impl VirtualTime {
    /// Sets the time to `now`.
    pub fn set(&self, now: Nanos) {
        if self.nanos.swap(now.0, Ordering::Relaxed) != now.0 {
            self.ticks.store(0, Ordering::Relaxed);
        }
    }
}

impl VirtualTime {
    /// Returns the time at which [`Clock::tick`] returned `tick`.
    pub fn of_tick(tick: u64) -> Nanos {
        Nanos(tick >> TICK_BITS)
    }
}

/// Bits that number the ticks of one virtual nanosecond.
const TICK_BITS: u32 = 16;

impl Clock {
    /// Returns the current time.
    #[inline]
    pub fn now(&self) -> Nanos {
        match self {
            Clock::Host => Nanos(host_nanos()),
            Clock::Virtual(time) => Nanos(time.nanos.load(Ordering::Relaxed)),
        }
    }

    /// Returns a number that grows from call to call, whichever worker of the simulation calls: an earlier call returns
    /// a smaller number, also within one virtual nanosecond. The host's clock returns its nanoseconds, which may be
    /// equal for calls close together.
    pub fn tick(&self) -> u64 {
        match self {
            Clock::Host => host_nanos(),
            Clock::Virtual(time) => {
                let tick = time.ticks.fetch_add(1, Ordering::Relaxed);
                assert!(
                    tick < 1 << TICK_BITS,
                    "too many ticks in one virtual nanosecond: {tick}"
                );
                time.nanos.load(Ordering::Relaxed) << TICK_BITS | tick
            }
        }
    }
}

#[inline]
#[allow(clippy::disallowed_methods)] // The only place where the platform reads the host's clock.
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
    fn the_host_clock_never_decreases_and_virtual_time_is_settable() {
        let before = Clock::Host.now();
        assert!(Clock::Host.now() >= before);
        let virtual_time = Arc::<VirtualTime>::default();
        let clock = Clock::Virtual(Arc::clone(&virtual_time));
        virtual_time.set(Nanos(9));
        assert_eq!(clock.now(), Nanos(9));
        let ticks = [clock.tick(), clock.tick()];
        virtual_time.set(Nanos(9));
        let later = clock.tick();
        virtual_time.set(Nanos(10));
        assert!(ticks[0] < ticks[1] && ticks[1] < later && later < clock.tick());
        assert_eq!(Nanos(5).after(Duration::MAX), Nanos(u64::MAX));
        assert_eq!(Nanos(5) - Nanos(9), 0);
    }
}
