//! The limit of a worker's work requests in flight: SMART's adaptive throttling (§4.2, algorithm
//! 1).
//!
//! A NIC caches the state of outstanding requests, and too many requests of all threads together
//! thrash the cache. The best limit depends on the number of threads and on the load. So each
//! worker tries a few limits in turn, counts how many requests end with each, uses the best for a
//! while, and tries again. The paper's candidates are meant for many threads. Larger candidates are
//! added, because a machine with few threads needs more requests in flight to keep its NIC busy.

use std::time::Duration;

use crate::time::Nanos;

/// Duration of a candidate's trial.
const TRIAL: Duration = Duration::from_millis(8);
/// Number of trial durations for which the best candidate is used.
const STABLE_TRIALS: u32 = 60;
/// Candidates for the limit. The largest possible limit is added as the last candidate.
const CANDIDATES: [u32; 8] = [4, 6, 8, 10, 12, 16, 32, 64];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The throttle does not adapt: the limit stays.
    Off,
    /// The candidate with this index is on trial.
    Trying(usize),
    /// The best candidate is in use.
    Stable,
}

/// The credits of one worker, or of the workers that share queue pairs.
#[derive(Clone, Debug)]
pub(super) struct Throttle {
    candidates: Vec<u32>,
    phase: Phase,
    /// Start of the phase; `None` before the first tick.
    since: Option<Nanos>,
    limit: u32,
    /// Number of requests that may be posted: the limit minus the requests in flight. Negative for
    /// a while after the limit was lowered.
    credit: i64,
    /// Number of requests ended in this phase.
    ended: u64,
    /// Best candidate of this round, and the number of requests that ended with it.
    best: (u32, u64),
}

impl Throttle {
    /// Creates a throttle with at most `most` requests in flight. An adaptive throttle lowers the
    /// limit if more requests end in trials with a lower limit.
    pub(super) fn new(most: u32, is_adaptive: bool) -> Self {
        let smaller = CANDIDATES.into_iter().filter(|limit| *limit < most);
        Self {
            candidates: smaller.chain([most]).collect(),
            phase: match is_adaptive {
                true => Phase::Stable,
                false => Phase::Off,
            },
            since: None,
            limit: most,
            credit: i64::from(most),
            ended: 0,
            best: (most, 0),
        }
    }

    /// Returns the credits for posts to spend.
    #[inline]
    pub(super) fn credit(&mut self) -> &mut i64 {
        &mut self.credit
    }

    /// Adds the credits of `count` requests that have ended.
    #[inline]
    pub(super) fn give(&mut self, count: u32) {
        self.credit += i64::from(count);
        self.ended += u64::from(count);
    }

    /// Returns the current limit.
    #[cfg(test)]
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    fn set_limit(&mut self, limit: u32) {
        self.credit += i64::from(limit) - i64::from(self.limit);
        self.limit = limit;
    }

    /// Advances the time to `now`: ends trials and stable phases.
    pub(super) fn tick(&mut self, now: Nanos) {
        let since = *self.since.get_or_insert(now);
        let passed = now.since(since);
        match self.phase {
            Phase::Off => return,
            Phase::Trying(_) if passed < TRIAL => return,
            Phase::Stable if passed < TRIAL * STABLE_TRIALS => return,
            Phase::Stable => {
                self.best = (self.limit, 0);
                self.phase = Phase::Trying(0);
                self.set_limit(self.candidates[0]);
            }
            Phase::Trying(index) => {
                // Among equal candidates, prefer the later, larger one: without a benefit of
                // throttling, no request should wait.
                if self.ended >= self.best.1 {
                    self.best = (self.limit, self.ended);
                }
                let next = self.candidates.get(index + 1);
                self.phase = next.map_or(Phase::Stable, |_| Phase::Trying(index + 1));
                self.set_limit(next.copied().unwrap_or(self.best.0));
            }
        }
        self.ended = 0;
        self.since = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the limit on which the throttle settles with a device that ends `rate(limit)`
    /// requests per trial.
    fn settle(rate: impl Fn(u32) -> u32) -> u32 {
        let mut throttle = Throttle::new(256, true);
        let mut now = Nanos(1);
        throttle.tick(now);
        for _ in 0..200 {
            let count = rate(throttle.limit());
            *throttle.credit() -= i64::from(count);
            throttle.give(count);
            now = now.after(TRIAL);
            throttle.tick(now);
            let in_flight = i64::from(throttle.limit()) - *throttle.credit();
            assert_eq!(in_flight, 0, "no credits are created or lost");
        }
        while throttle.phase != Phase::Stable {
            now = now.after(TRIAL);
            throttle.give(rate(throttle.limit()));
            *throttle.credit() -= i64::from(rate(throttle.limit()));
            throttle.tick(now);
        }
        throttle.limit()
    }

    #[test]
    fn the_limit_with_most_ended_requests_is_chosen() {
        assert_eq!(
            settle(|limit| limit),
            256,
            "a larger limit is always better"
        );
        assert_eq!(
            settle(|limit| 1000 - limit.abs_diff(10)),
            10,
            "a larger limit thrashes the cache"
        );
        assert_eq!(
            settle(|limit| limit.min(32)),
            256,
            "a larger limit than needed does no harm"
        );
        assert_eq!(settle(|_| 0), 256, "no requests end");
    }

    #[test]
    fn without_adapting_the_limit_stays() {
        let mut throttle = Throttle::new(20, false);
        for trial in 0..200 {
            throttle.tick(Nanos(0).after(TRIAL * trial));
            assert_eq!((throttle.limit(), *throttle.credit()), (20, 20));
        }
    }

    /// Requests in flight when the limit is lowered keep their credits: nothing is posted until
    /// enough of them have ended.
    #[test]
    fn a_lower_limit_waits_for_requests_in_flight() {
        let mut throttle = Throttle::new(256, true);
        *throttle.credit() -= 256;
        throttle.tick(Nanos(1));
        throttle.tick(Nanos(1).after(TRIAL * STABLE_TRIALS));
        assert_eq!((throttle.limit(), *throttle.credit()), (4, -252));
        throttle.give(253);
        assert_eq!(*throttle.credit(), 1);
    }
}
