//! How many work requests a worker has in flight: SMART's adaptive throttling (§4.2, algorithm 1).
//!
//! A NIC keeps the state of outstanding requests in a cache; too many from all threads together and it
//! thrashes. How many are too many depends on the number of threads and on the load, so each worker tries
//! a few limits in turn, counts what each lets end, keeps the best for a while, and tries again. Beyond
//! the paper's candidates, which are meant for many threads, there are larger ones, for a machine with few
//! threads needs more in flight than those to keep its NIC busy.

use std::time::Duration;

use crate::time::Nanos;

/// How long a candidate is tried.
const TRIAL: Duration = Duration::from_millis(8);
/// How many times that the best one is kept.
const STABLE_TRIALS: u32 = 60;
/// Candidates for the most requests in flight; the most that there is room for comes last.
const CANDIDATES: [u32; 8] = [4, 6, 8, 10, 12, 16, 32, 64];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing is tried: the limit stays.
    Off,
    /// The candidate of that index is being tried.
    Trying(usize),
    /// The best is being used.
    Stable,
}

/// Credits of one worker, or of those that share queue pairs.
#[derive(Clone, Debug)]
pub(super) struct Throttle {
    candidates: Vec<u32>,
    phase: Phase,
    /// When the phase began; `None`: it has not been seen yet.
    since: Option<Nanos>,
    limit: u32,
    /// Requests that may be posted: the limit less what is in flight. Below zero for a while after the
    /// limit was lowered.
    credit: i64,
    /// Requests ended in this phase.
    ended: u64,
    /// The best candidate of this round, and what it let end.
    best: (u32, u64),
}

impl Throttle {
    /// At most `most` in flight, and fewer where that measures better, if it is adaptive.
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

    /// Credits to be spent.
    #[inline]
    pub(super) fn credit(&mut self) -> &mut i64 {
        &mut self.credit
    }

    /// So many requests have ended.
    #[inline]
    pub(super) fn give(&mut self, count: u32) {
        self.credit += i64::from(count);
        self.ended += u64::from(count);
    }

    /// The limit now.
    #[cfg(test)]
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    fn set_limit(&mut self, limit: u32) {
        self.credit += i64::from(limit) - i64::from(self.limit);
        self.limit = limit;
    }

    /// Time goes on: ends trials and stable phases.
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
                // Of equals the later, which is the larger: where nothing is to be had, none waits.
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

    /// A device that ends `rate(limit)` requests in a trial.
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
            assert_eq!(in_flight, 0, "credits are neither made nor lost");
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
    fn the_limit_goes_where_most_is_done() {
        assert_eq!(settle(|limit| limit), 256, "the more the better");
        assert_eq!(
            settle(|limit| 1000 - limit.abs_diff(10)),
            10,
            "a cache that thrashes"
        );
        assert_eq!(
            settle(|limit| limit.min(32)),
            256,
            "enough is enough, and more does no harm"
        );
        assert_eq!(settle(|_| 0), 256, "nothing to do");
    }

    #[test]
    fn without_adapting_the_limit_stays() {
        let mut throttle = Throttle::new(20, false);
        for trial in 0..200 {
            throttle.tick(Nanos(0).after(TRIAL * trial));
            assert_eq!((throttle.limit(), *throttle.credit()), (20, 20));
        }
    }

    /// What is in flight when the limit is lowered is not more than was let go: nothing is posted until
    /// enough of it has ended.
    #[test]
    fn a_lower_limit_waits_for_what_is_in_flight() {
        let mut throttle = Throttle::new(256, true);
        *throttle.credit() -= 256;
        throttle.tick(Nanos(1));
        throttle.tick(Nanos(1).after(TRIAL * STABLE_TRIALS));
        assert_eq!((throttle.limit(), *throttle.credit()), (4, -252));
        throttle.give(253);
        assert_eq!(*throttle.credit(), 1);
    }
}
