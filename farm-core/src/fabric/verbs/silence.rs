//! Connections whose device ends no more work requests.
//!
//! A device ends every request of a reliable connection: with an error, after its retries, if the peer does not answer.
//! Drivers do not always do so. `rdma_rxe` of Linux 6.1 forgets a request if the network interface goes down while the
//! request is sent; the operation would never complete. A connection that is silent for much longer than the retries
//! take is therefore treated as broken. So is one to a process that stands still (stopped by a debugger, for example) and
//! takes no notifications: the device retries these for ever.

use std::time::Duration;

use crate::time::Nanos;

/// Interval at which connections are checked.
const CHECK_EVERY: Duration = Duration::from_millis(100);
/// Longest time that counts between two checks. If the process or its host stands still for longer, so may the device.
const LONGEST_STEP: Duration = Duration::from_millis(500);
/// Least silence after which a connection is broken.
const LEAST_LIMIT: Duration = Duration::from_secs(10);
/// The limit, as a multiple of the time after which a device should give up.
const RETRIES_MARGIN: u32 = 4;
/// Unit of the acknowledgement timeout, in nanoseconds.
const TIMEOUT_UNIT: u64 = 4096;
/// A device may wait for up to this multiple of the acknowledgement timeout (InfiniBand specification, 9.7.6.1.3).
const TIMEOUT_SLACK: u64 = 4;

/// Decides when connections are checked.
#[derive(Debug)]
pub(super) struct Checks {
    limit: Duration,
    last: Option<Nanos>,
}

impl Checks {
    /// Creates the checks of connections whose acknowledgement timeout has the exponent `timeout`, and whose requests
    /// are sent `tries` times.
    pub(super) fn new(timeout: u8, tries: u8) -> Self {
        let timeout = TIMEOUT_UNIT << timeout.min(31);
        let gives_up = Duration::from_nanos(timeout * TIMEOUT_SLACK * u64::from(tries));
        Self {
            limit: LEAST_LIMIT.max(gives_up * RETRIES_MARGIN),
            last: None,
        }
    }

    /// Returns the time since the last check, if a check is due.
    #[inline]
    pub(super) fn due(&mut self, now: Nanos) -> Option<Duration> {
        let passed = now.since(*self.last.get_or_insert(now));
        if passed < CHECK_EVERY {
            return None;
        }
        self.last = Some(now);
        Some(passed.min(LONGEST_STEP))
    }

    pub(super) fn limit(&self) -> Duration {
        self.limit
    }
}

/// For how long one connection has ended no request while a completion was outstanding.
#[derive(Debug, Default)]
pub(super) struct Silence {
    ended: u64,
    lasts: Duration,
}

impl Silence {
    /// Records a check: `passed` since the last one, and the number of requests that have `ended` if the completion of
    /// a later one is outstanding. Returns the duration of the silence.
    pub(super) fn check(&mut self, passed: Duration, ended: Option<u64>) -> Duration {
        match ended {
            Some(ended) if ended == self.ended => self.lasts += passed,
            Some(ended) => (self.ended, self.lasts) = (ended, Duration::ZERO),
            None => self.lasts = Duration::ZERO,
        }
        self.lasts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_limit_is_longer_than_the_retries_of_a_device() {
        // 67 ms, 4 times as long at most, 8 times: 2.1 s.
        assert_eq!(Checks::new(14, 8).limit(), LEAST_LIMIT);
        let longest = Checks::new(31, 8).limit();
        assert!(longest > SECOND * 8796 * 32, "{longest:?}");
        let limit = Checks::new(18, 8).limit();
        assert!(limit > SECOND * 34 * RETRIES_MARGIN, "{limit:?}");
    }

    /// A process that was stopped for a minute finds its device as it left it.
    #[test]
    fn checks_are_rare_and_a_pause_of_the_process_counts_little() {
        let mut checks = Checks::new(14, 8);
        let start = Nanos(5);
        assert_eq!(checks.due(start), None);
        assert_eq!(checks.due(start.after(CHECK_EVERY / 2)), None);
        let next = start.after(CHECK_EVERY * 2);
        assert_eq!(checks.due(next), Some(CHECK_EVERY * 2));
        assert_eq!(checks.due(next), None);
        assert_eq!(checks.due(next.after(SECOND * 60)), Some(LONGEST_STEP));
    }

    #[test]
    fn only_time_without_ends_while_one_is_outstanding_is_silence() {
        let mut silence = Silence::default();
        assert_eq!(silence.check(SECOND, Some(7)), Duration::ZERO);
        assert_eq!(silence.check(SECOND, Some(7)), SECOND);
        assert_eq!(silence.check(SECOND, Some(7)), SECOND * 2);
        assert_eq!(silence.check(SECOND, Some(8)), Duration::ZERO);
        assert_eq!(silence.check(SECOND, Some(8)), SECOND);
        assert_eq!(silence.check(SECOND, None), Duration::ZERO);
        assert_eq!(silence.check(SECOND, Some(8)), SECOND);
    }
}
