//! Determines when a transaction that met a conflict is retried, and how many run at the same time: the conflict
//! avoidance of `SMART` §4.3 (ASPLOS'24).
//!
//! It has four parts, each of which can be switched off to measure its effect. The last part is not in the paper:
//!
//! | part | rule |
//! |---|---|
//! | backoff | try `i` waits `min(t0·2^i, t_max) + rand(0..=t0)` |
//! | dynamic limit | `t_max` follows the retry rate, between `t0` and `2^10·t0` |
//! | throttling | so does `c_max`, the maximum number of transactions that a worker runs at the same time, down to 1 |
//! | patience | a transaction that fails repeatedly adds a wait of its own: [`Backoff::patience`] |
//!
//! The retry rate γ is the share of attempts that met a conflict, sampled over each millisecond. Each sample changes
//! one value by one step:
//!
//! | γ | `c_max` | if `c_max` is at its bound |
//! |---|---|---|
//! | above 0.5 | halves, down to 1 | `t_max` doubles |
//! | below 0.1 | doubles, up to the worker's own limit | `t_max` halves |
//!
//! In both directions `t_max` changes only while `c_max` is at its bound, as in the paper and its program. Recovery is
//! therefore not the reverse of the reaction: the concurrency recovers first, and the long waits end last. That order
//! is safe. Low concurrency slows every transaction down, while a high `t_max` slows only transactions that meet
//! conflicts, which are few at that time. If conflicts return with the concurrency, the long waits are still in effect.
//!
//! The paper leaves open:
//! - A sample of few attempts says little: the rate of one attempt is 0 or 1, whatever the true rate. A sample
//!   therefore continues beyond its millisecond until it has [`BackoffConfig::least_attempts`].
//! - A worker that was idle starts a new sample, because earlier attempts say nothing about the present. Without
//!   attempts there is no evidence, so `t_max` and `c_max` stay unchanged.
//! - Waiting counts as running: the caller of [`Backoff::may_begin`] also counts the transactions that wait for their
//!   next try, so that with `c_max` = 1 a worker has one transaction that contends.
//!
//! This module neither reads a clock nor draws random numbers by itself.

use std::time::Duration;

use farm_core::limits::DEFAULT_CONCURRENCY;
use farm_core::time::Nanos;
use rand::{Rng, RngCore};
use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// 4096 cycles of a processor of 2.5 GHz, in nanoseconds: the t0 of `SMART`, about a round trip of RDMA.
const RDMA_ROUND_TRIP_NS: u64 = 1_638;

/// Configuration of a [`Backoff`]. A 0 that is not valid counts as 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackoffConfig {
    /// t0, in nanoseconds: about one round trip of the fabric.
    pub unit_ns: u64,
    /// Exponent of the upper bound of `t_max`, which is `2^doublings · t0`.
    pub doublings: u32,
    /// Maximum number of transactions that the worker runs at the same time if there are no conflicts.
    pub concurrency: usize,
    /// Shortest duration of a sample of the retry rate, in nanoseconds.
    pub sample_ns: u64,
    /// Minimum number of attempts of a sample.
    pub least_attempts: u32,
    /// Whether a transaction waits before its next try.
    pub backoff: bool,
    /// Whether `t_max` follows the retry rate. If not, it is always at its upper bound.
    pub dynamic_limit: bool,
    /// Whether `c_max` follows the retry rate. If not, it is always `concurrency`.
    pub throttling: bool,
    /// Whether a transaction that repeatedly meets conflicts adds a wait of its own: see [`Backoff::patience`]. This
    /// part is not in the paper.
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
    /// The names of the parts for [`BackoffConfig::without`].
    pub const PARTS: [&str; 4] = ["backoff", "limit", "throttling", "patience"];

    /// Returns the configuration without the part of this name; unchanged if there is no such part.
    #[must_use]
    pub fn without(mut self, part: &str) -> Self {
        let [backoff, limit, throttling, patience] = Self::PARTS.map(|name| name != part);
        self.backoff &= backoff;
        self.dynamic_limit &= limit;
        self.throttling &= throttling;
        self.patience &= patience;
        self
    }

    /// Returns the configuration with all zeroes that are not valid replaced by 1.
    fn normal(mut self) -> Self {
        self.unit_ns = self.unit_ns.max(1);
        self.concurrency = self.concurrency.max(1);
        self.least_attempts = self.least_attempts.max(1);
        self
    }

    /// Returns t_M, the upper bound of `t_max`.
    fn highest_ns(&self) -> u64 {
        doubled(self.unit_ns, self.doublings)
    }
}

/// Returns `unit · 2^times`, or the largest number if that overflows.
fn doubled(unit: u64, times: u32) -> u64 {
    let factor = 1u64.checked_shl(times).unwrap_or(u64::MAX);
    unit.saturating_mul(factor)
}

/// Number of conflicts after which a transaction adds a wait of its own.
const PATIENT_AFTER: u32 = 3;

/// The attempts of one sample.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    began: Nanos,
    attempts: u32,
    /// Attempts that met a conflict.
    retries: u32,
}

/// The conflict avoidance of one worker.
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
/// // The first try of a transaction met a conflict; t_max starts at t0.
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
    /// Time at which the last attempt ended.
    last: Nanos,
}

impl Backoff {
    /// Creates the state before any conflict: full concurrency and the shortest waits.
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

    /// Returns whether one more transaction may begin. `running` includes the transactions that wait for their next
    /// try. If none runs, the result is true.
    #[inline]
    pub fn may_begin(&self, running: usize) -> bool {
        running < self.concurrency
    }

    /// Records an attempt that met a conflict, and returns the wait before the next attempt. `attempt` is the number of
    /// earlier failed tries of this transaction: 0 for its first try. A transaction that is given up must also report
    /// its last attempt here.
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

    /// Returns the wait that a transaction adds to the wait of [`Backoff::aborted`], which follows the retry rate of
    /// all the worker's transactions. Without the added wait, two transactions that lock each other's reads would abort
    /// each other, at the same pace each time, for as long as the other transactions have no conflicts. The wait is
    /// zero at first, and after some conflicts random up to `unit_ns`, which should be about the duration of one
    /// attempt. The upper bound doubles with each further conflict, at most `doublings` times. `attempt` is as for
    /// [`Backoff::aborted`].
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

    /// Records an attempt that ended without a conflict.
    pub fn committed(&mut self, now: Nanos) {
        self.count(now, false);
    }

    /// Returns c_max: the maximum number of transactions that run at the same time.
    pub fn concurrency(&self) -> usize {
        self.concurrency
    }

    /// Returns t_max: the longest wait, except its random part, which is up to t0 more.
    pub fn limit(&self) -> Duration {
        Duration::from_nanos(self.limit_ns)
    }

    /// Counts an attempt that ended, in the sample to which it belongs.
    fn count(&mut self, now: Nanos, retry: bool) {
        self.end_sample(now);
        self.sample.attempts = self.sample.attempts.saturating_add(1);
        self.sample.retries = self.sample.retries.saturating_add(u32::from(retry));
        self.last = now;
    }

    /// Acts on the sample if it is complete. Starts a new sample if this one is complete or out of date.
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

    /// Returns the gap between attempts, in nanoseconds, after which the worker counts as idle. It is longer than the
    /// waits between attempts.
    fn idle_ns(&self) -> u64 {
        let longest = self.config.highest_ns().saturating_add(self.config.unit_ns);
        longest.saturating_mul(4).max(self.config.sample_ns)
    }

    /// Changes one value by one step, according to the sample (`SMART` §4.3).
    fn step(&mut self) {
        let retries = u64::from(self.sample.retries);
        let attempts = u64::from(self.sample.attempts);
        if 2 * retries > attempts {
            self.calm();
        } else if 10 * retries < attempts {
            self.hurry();
        }
    }

    /// Handles a γ above its high-water mark.
    fn calm(&mut self) {
        if self.config.throttling && self.concurrency > 1 {
            self.concurrency /= 2;
        } else if self.config.dynamic_limit {
            self.limit_ns = doubled(self.limit_ns, 1).min(self.config.highest_ns());
        }
    }

    /// Handles a γ below its low-water mark.
    fn hurry(&mut self) {
        if self.config.throttling && self.concurrency < self.config.concurrency {
            self.concurrency = (self.concurrency * 2).min(self.config.concurrency);
        } else if self.config.dynamic_limit {
            self.limit_ns = (self.limit_ns / 2).max(self.config.unit_ns);
        }
    }
}
