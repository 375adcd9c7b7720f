//! When a transaction that met a conflict is tried again, and how many run at once: the conflict
//! avoidance of `SMART` §4.3 (ASPLOS'24).
//!
//! Four parts, each of which can be switched off to measure what it gives, the last of which is not the
//! paper's:
//!
//! | part | rule |
//! |---|---|
//! | backoff | try `i` waits `min(t0·2^i, t_max) + rand(0..=t0)` |
//! | dynamic limit | `t_max` follows the retry rate, between `t0` and `2^10·t0` |
//! | throttling | so does `c_max`, the most transactions a worker runs at once, down to 1 |
//! | patience | a transaction that fails again and again waits by itself: [`Backoff::patience`] |
//!
//! The retry rate γ is the share of attempts that met a conflict, taken over each millisecond. One
//! sample moves one thing by one step:
//!
//! | γ | `c_max` | else, if `c_max` is at its bound already |
//! |---|---|---|
//! | above 0.5 | halves, down to 1 | `t_max` doubles |
//! | below 0.1 | doubles, up to the worker's own limit | `t_max` halves |
//!
//! `t_max` is touched only where `c_max` is at its bound, in both directions, as the paper has it
//! and as its program does. The way back is therefore not the way in reverse: concurrency comes
//! back first, the long waits go last. That is the safe order. Concurrency that is missing slows
//! every transaction down, while a high `t_max` slows only those that meet conflicts, which at that
//! time are few; and should the conflicts return with the concurrency, the long waits are there.
//!
//! What the paper leaves open:
//! - A sample of few attempts says little: the rate of one attempt is 0 or 1, whatever the truth.
//!   A sample therefore goes on beyond its millisecond until it has [`BackoffConfig::least_attempts`].
//! - A worker that was idle starts a new sample: what happened before tells nothing about now. No
//!   attempts are no evidence, so `t_max` and `c_max` stay as they were.
//! - Waiting counts as running: who asks [`Backoff::may_begin`] counts the transactions that wait
//!   for their next try too, so that at `c_max` = 1 a worker has one transaction that contends.
//!
//! Nothing here reads a clock or draws a number by itself.

use std::time::Duration;

use farm_core::limits::DEFAULT_CONCURRENCY;
use farm_core::time::Nanos;
use rand::{Rng, RngCore};
use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// 4096 cycles of a processor of 2.5 GHz, in nanoseconds: `SMART`'s t0, about a round trip of RDMA.
const RDMA_ROUND_TRIP_NS: u64 = 1_638;

/// What a [`Backoff`] is of. A 0 where it makes no sense counts as 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackoffConfig {
    /// t0 in nanoseconds: about one round trip of the fabric.
    pub unit_ns: u64,
    /// The limit of waits is at most `2^doublings · t0`.
    pub doublings: u32,
    /// The most transactions that the worker runs at once when there are no conflicts.
    pub concurrency: usize,
    /// How long a sample of the retry rate takes, in nanoseconds.
    pub sample_ns: u64,
    /// The fewest attempts that make a sample.
    pub least_attempts: u32,
    /// Whether a transaction waits before its next try.
    pub backoff: bool,
    /// Whether `t_max` follows the retry rate. If not, it is the longest there is.
    pub dynamic_limit: bool,
    /// Whether `c_max` follows the retry rate. If not, it is `concurrency`.
    pub throttling: bool,
    /// Whether a transaction that meets conflicts again and again waits by itself, too: see
    /// [`Backoff::patience`].
    /// That is none of the paper's parts.
    pub patience: bool,
}

impl Default for BackoffConfig {
    fn default() -> Self {
        Self {
            unit_ns: RDMA_ROUND_TRIP_NS,
            doublings: 10,
            concurrency: DEFAULT_CONCURRENCY as usize,
            sample_ns: 1_000_000,
            least_attempts: 16,
            backoff: true,
            dynamic_limit: true,
            throttling: true,
            patience: true,
        }
    }
}

impl BackoffConfig {
    /// The names of the parts that [`BackoffConfig::without`] knows.
    pub const PARTS: [&str; 4] = ["backoff", "limit", "throttling", "patience"];

    /// The same without one of its parts, which changes nothing if there is none of that name.
    #[must_use]
    pub fn without(mut self, part: &str) -> Self {
        let [backoff, limit, throttling, patience] = Self::PARTS.map(|name| name != part);
        self.backoff &= backoff;
        self.dynamic_limit &= limit;
        self.throttling &= throttling;
        self.patience &= patience;
        self
    }

    /// Every field where it can be worked with.
    fn normal(mut self) -> Self {
        self.unit_ns = self.unit_ns.max(1);
        self.concurrency = self.concurrency.max(1);
        self.least_attempts = self.least_attempts.max(1);
        self
    }

    /// t_M: the highest that `t_max` goes.
    fn highest_ns(&self) -> u64 {
        doubled(self.unit_ns, self.doublings)
    }
}

/// `unit · 2^times`, or the greatest number.
fn doubled(unit: u64, times: u32) -> u64 {
    let factor = 1u64.checked_shl(times).unwrap_or(u64::MAX);
    unit.saturating_mul(factor)
}

/// A transaction waits longer by itself after so many conflicts.
const PATIENT_AFTER: u32 = 3;

/// Attempts of one sample.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    began: Nanos,
    attempts: u32,
    /// Attempts that met a conflict.
    retries: u32,
}

/// Conflict avoidance of one worker.
///
/// Invariants: `t0 <= t_max <= 2^doublings·t0` and `1 <= c_max <= concurrency`.
///
/// ```
/// use farm_core::time::Nanos;
/// use farm_txn::{Backoff, BackoffConfig};
/// use rand::SeedableRng;
///
/// let mut rng = rand_xoshiro::Xoshiro256PlusPlus::seed_from_u64(1);
/// let config = BackoffConfig { unit_ns: 2_000, concurrency: 4, ..BackoffConfig::default() };
/// let mut backoff = Backoff::new(config);
/// assert!(backoff.may_begin(3) && !backoff.may_begin(4));
/// // Its first try met a conflict; t_max is t0 to begin with.
/// let wait = backoff.aborted(0, Nanos(10), &mut rng);
/// assert!((2_000..=4_000).contains(&wait.as_nanos()));
/// backoff.committed(Nanos(9_000));
/// ```
#[derive(Clone, Debug)]
pub struct Backoff {
    config: BackoffConfig,
    /// c_max.
    concurrency: usize,
    /// t_max.
    limit_ns: u64,
    sample: Sample,
    /// When the last attempt ended.
    last: Nanos,
}

impl Backoff {
    /// As it is before any conflict: all the concurrency there is, and the shortest waits.
    pub fn new(config: BackoffConfig) -> Self {
        let config = config.normal();
        Self {
            concurrency: config.concurrency,
            limit_ns: if config.dynamic_limit {
                config.unit_ns
            } else {
                config.highest_ns()
            },
            sample: Sample::default(),
            last: Nanos(0),
            config,
        }
    }

    /// Whether one more transaction may begin beside those that run, which includes those that wait
    /// for their next try. With none running the answer is yes.
    #[inline]
    pub fn may_begin(&self, running: usize) -> bool {
        running < self.concurrency
    }

    /// An attempt met a conflict. Gives how long to wait before the next. `attempt` is how many
    /// tries of this transaction failed before this one: 0 for its first. A transaction that is
    /// given up tells of its last attempt here too.
    pub fn aborted<R: RngCore + ?Sized>(
        &mut self,
        attempt: u32,
        now: Nanos,
        rng: &mut R,
    ) -> Duration {
        self.count(now, true);
        if !self.config.backoff {
            return Duration::ZERO;
        }
        let unit = self.config.unit_ns;
        let wait = doubled(unit, attempt).min(self.limit_ns);
        Duration::from_nanos(wait.saturating_add(rng.random_range(0..=unit)))
    }

    /// What a transaction waits beyond that, by itself: the rest follows the retry rate of all the worker's
    /// transactions, and two that lock each other's reads would else abort each other for as long as the
    /// others have no conflicts, each time at the same pace. Nothing at first; after some conflicts up to
    /// `unit_ns`, which should be about what one attempt takes, and doubled with each further, but no more
    /// than `doublings` times. `attempt` is as of [`Backoff::aborted`].
    pub fn patience<R: RngCore + ?Sized>(
        &self,
        attempt: u32,
        unit_ns: u64,
        doublings: u32,
        rng: &mut R,
    ) -> Duration {
        let times = attempt.checked_sub(PATIENT_AFTER);
        let Some(times) = times.filter(|_| self.config.patience) else {
            return Duration::ZERO;
        };
        let longest = doubled(unit_ns, times.min(doublings));
        Duration::from_nanos(rng.random_range(0..=longest))
    }

    /// An attempt ended without a conflict.
    pub fn committed(&mut self, now: Nanos) {
        self.count(now, false);
    }

    /// c_max: the most transactions that run at once.
    pub fn concurrency(&self) -> usize {
        self.concurrency
    }

    /// t_max: the longest wait, but for its random part, which is up to t0 more.
    pub fn limit(&self) -> Duration {
        Duration::from_nanos(self.limit_ns)
    }

    /// Counts an attempt that ended, in the sample that it belongs to.
    fn count(&mut self, now: Nanos, retry: bool) {
        self.end_sample(now);
        self.sample.attempts = self.sample.attempts.saturating_add(1);
        self.sample.retries = self.sample.retries.saturating_add(u32::from(retry));
        self.last = now;
    }

    /// Acts on the sample if it is over, and begins a new one if it is, or is out of date.
    fn end_sample(&mut self, now: Nanos) {
        if now - self.sample.began < self.config.sample_ns {
            return;
        }
        let whole = self.sample.attempts >= self.config.least_attempts;
        if whole {
            self.step();
        }
        if whole || now - self.last > self.idle_ns() {
            self.sample = Sample {
                began: now,
                ..Sample::default()
            };
        }
    }

    /// A gap between attempts that waiting does not explain.
    fn idle_ns(&self) -> u64 {
        let longest = self.config.highest_ns().saturating_add(self.config.unit_ns);
        longest.saturating_mul(4).max(self.config.sample_ns)
    }

    /// One step, as the sample has it (`SMART` §4.3).
    fn step(&mut self) {
        let retries = u64::from(self.sample.retries);
        let attempts = u64::from(self.sample.attempts);
        if 2 * retries > attempts {
            self.calm();
        } else if 10 * retries < attempts {
            self.hurry();
        }
    }

    /// γ is above its high-water mark.
    fn calm(&mut self) {
        if self.config.throttling && self.concurrency > 1 {
            self.concurrency /= 2;
        } else if self.config.dynamic_limit {
            self.limit_ns = doubled(self.limit_ns, 1).min(self.config.highest_ns());
        }
    }

    /// γ is below its low-water mark.
    fn hurry(&mut self) {
        if self.config.throttling && self.concurrency < self.config.concurrency {
            self.concurrency = (self.concurrency * 2).min(self.config.concurrency);
        } else if self.config.dynamic_limit {
            self.limit_ns = (self.limit_ns / 2).max(self.config.unit_ns);
        }
    }
}
