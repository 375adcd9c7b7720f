//! Tests of the single rules, of their bounds under any history, and of a closed loop that finds its limits.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::*;

const UNIT: u64 = 1_000;
const MS: u64 = 1_000_000;

/// Eight concurrent transactions, from which three halvings lead to one.
fn config() -> BackoffConfig {
    BackoffConfig {
        unit_ns: UNIT,
        concurrency: 8,
        ..BackoffConfig::default()
    }
}

fn rng(seed: u64) -> Xoshiro256PlusPlus {
    Xoshiro256PlusPlus::seed_from_u64(seed)
}

/// Records one whole sample of `attempts`, `retries` of which met conflicts, starting at `now`. Returns the earliest
/// start of the next sample.
fn sample(backoff: &mut Backoff, now: u64, attempts: u64, retries: u64) -> u64 {
    let mut rng = rng(0);
    for attempt in 0..attempts {
        let at = Nanos(now + attempt * MS / attempts);
        if attempt < retries {
            backoff.aborted(0, at, &mut rng);
        } else {
            backoff.committed(at);
        }
    }
    now + MS
}

/// Returns `c_max` and `t_max / t0` after each of several samples with a retry rate in percent.
fn course(config: BackoffConfig, percents: &[u64]) -> Vec<(usize, u64)> {
    let mut backoff = Backoff::new(config);
    let mut now = 50 * MS;
    let mut course = Vec::new();
    for (place, percent) in percents.iter().chain([&30]).enumerate() {
        now = sample(&mut backoff, now, 100, *percent);
        // A sample takes effect with the first attempt after it.
        if place > 0 {
            let limit = backoff.limit().as_nanos() as u64 / UNIT;
            course.push((backoff.concurrency(), limit));
        }
    }
    course
}

#[test]
fn concurrency_changes_before_the_limit_in_both_directions() {
    let small = BackoffConfig {
        concurrency: 6,
        doublings: 3,
        ..config()
    };
    let high = [60; 7];
    assert_eq!(
        course(small, &high),
        [(3, 1), (1, 1), (1, 2), (1, 4), (1, 8), (1, 8), (1, 8)]
    );
    let high_then_low = [60, 60, 60, 60, 5, 5, 5, 5, 5, 5];
    assert_eq!(
        course(small, &high_then_low)[4..],
        [(2, 4), (4, 4), (6, 4), (6, 2), (6, 1), (6, 1)]
    );
}

#[test]
fn nothing_changes_between_the_water_marks() {
    assert_eq!(course(config(), &[10, 30, 50, 10]), [(8, 1); 4]);
    assert_eq!(course(config(), &[51, 10, 50]), [(4, 1); 3]);
    assert_eq!(course(config(), &[51, 9]), [(4, 1), (8, 1)]);
}

#[test]
fn each_part_can_be_switched_off() {
    let fixed = BackoffConfig {
        dynamic_limit: false,
        ..config()
    };
    assert_eq!(
        course(fixed, &[90; 5]),
        [(4, 1024), (2, 1024), (1, 1024), (1, 1024), (1, 1024)]
    );
    let unthrottled = BackoffConfig {
        throttling: false,
        ..config()
    };
    assert_eq!(course(unthrottled, &[90, 90, 5]), [(8, 2), (8, 4), (8, 2)]);
    let mut eager = Backoff::new(BackoffConfig {
        backoff: false,
        ..config()
    });
    assert_eq!(eager.aborted(9, Nanos(1), &mut rng(1)), Duration::ZERO);
    let bare = BackoffConfig::PARTS
        .iter()
        .fold(config(), |config, part| config.without(part));
    let mut bare = Backoff::new(bare);
    for attempt in 0..100 {
        let wait = bare.aborted(attempt, Nanos(0), &mut rng(1));
        let own = bare.patience(attempt, UNIT, 8, &mut rng(1));
        assert_eq!((wait, own), (Duration::ZERO, Duration::ZERO));
        bare.aborted(attempt, Nanos(MS * u64::from(attempt)), &mut rng(1));
        assert_eq!(bare.concurrency(), config().concurrency);
    }
}

#[test]
fn waits_double_up_to_the_limit_with_up_to_one_unit_of_jitter() {
    let fixed = BackoffConfig {
        dynamic_limit: false,
        doublings: 4,
        ..config()
    };
    let mut backoff = Backoff::new(fixed);
    let mut rng = rng(2);
    for attempt in [0, 1, 2, 3, 4, 5, 63, 64, u32::MAX] {
        let least = UNIT << attempt.min(4);
        let waits: Vec<u64> = (0..200)
            .map(|_| backoff.aborted(attempt, Nanos(0), &mut rng).as_nanos() as u64 - least)
            .collect();
        assert!(waits.iter().all(|wait| *wait <= UNIT));
        let mean = waits.iter().sum::<u64>() / 200;
        assert!((400..600).contains(&mean), "attempt {attempt}: {mean}");
    }
}

#[test]
fn patience_starts_after_three_conflicts_and_doubles() {
    let mut rng = rng(1);
    let backoff = Backoff::new(config());
    let mut longest = |before: u32| {
        let waits = (0..1_000).map(|_| backoff.patience(before, 100, 4, &mut rng).as_nanos());
        waits.max().unwrap_or(0)
    };
    assert_eq!((longest(0), longest(2)), (0, 0));
    for (before, most) in [(3, 100), (4, 200), (7, 1_600), (1_000, 1_600)] {
        let found = longest(before);
        assert!((most * 9 / 10..=most).contains(&found), "{found} of {most}");
    }
}

#[test]
fn few_attempts_are_no_sample_and_idle_time_discards_them() {
    let mut backoff = Backoff::new(config());
    let mut rng = rng(3);
    // 15 conflicts, one every two milliseconds: the sample continues, and nothing changes.
    for place in 0..15 {
        backoff.aborted(0, Nanos(MS * (100 + 2 * place)), &mut rng);
    }
    assert_eq!(backoff.concurrency(), 8);
    // The 16th attempt completes the sample; the next attempt acts on it.
    let mut later = backoff.clone();
    later.aborted(0, Nanos(130 * MS), &mut rng);
    later.committed(Nanos(131 * MS));
    assert_eq!(later.concurrency(), 4);
    // One second without attempts: the 15 attempts are not added to those that follow.
    for _ in 0..15 {
        backoff.aborted(0, Nanos(1_130 * MS), &mut rng);
    }
    backoff.committed(Nanos(1_131 * MS));
    assert_eq!((backoff.concurrency(), backoff.sample.attempts), (8, 16));
    // A whole sample that is evaluated late still counts, once.
    backoff.committed(Nanos(100_000 * MS));
    backoff.committed(Nanos(200_000 * MS));
    assert_eq!(backoff.concurrency(), 4);
}

#[test]
fn extreme_settings_and_clocks_are_safe() {
    let zeroes = BackoffConfig {
        unit_ns: 0,
        doublings: 0,
        concurrency: 0,
        sample_ns: 0,
        least_attempts: 0,
        ..config()
    };
    let huge = BackoffConfig {
        unit_ns: u64::MAX,
        doublings: u32::MAX,
        concurrency: usize::MAX,
        sample_ns: u64::MAX,
        least_attempts: u32::MAX,
        ..config()
    };
    for config in [zeroes, huge] {
        let mut backoff = Backoff::new(config);
        assert!(backoff.may_begin(0));
        for now in [5, 3, u64::MAX, 0, u64::MAX] {
            backoff.aborted(now as u32, Nanos(now), &mut rng(4));
            backoff.committed(Nanos(now));
        }
        assert!(backoff.may_begin(0) && backoff.limit() > Duration::ZERO);
    }
}

/// Steps of time, each with whether the attempt that ends then met a conflict.
fn history() -> impl Strategy<Value = Vec<(u64, bool)>> {
    // Stretches of one retry rate, so that limits change by many steps.
    let stretch = (0u32..=100, 1usize..400, 1u64..40_000);
    proptest::collection::vec((stretch, any::<u64>()), 1..12).prop_map(|stretches| {
        let mut all = Vec::new();
        for ((percent, count, longest), seed) in stretches {
            let mut rng = rng(seed);
            all.extend((0..count).map(|_| {
                let retry = rng.random_range(0..100) < percent;
                (rng.random_range(0..=longest), retry)
            }));
            all.push((rng.random_range(0..100 * MS), false));
        }
        all
    })
}

fn any_config() -> impl Strategy<Value = BackoffConfig> {
    (
        1u64..5_000,
        0u32..12,
        1usize..20,
        1u32..40,
        any::<[bool; 4]>(),
    )
        .prop_map(
            |(unit_ns, doublings, concurrency, least_attempts, on)| BackoffConfig {
                unit_ns,
                doublings,
                concurrency,
                least_attempts,
                sample_ns: MS,
                backoff: on[0],
                dynamic_limit: on[1],
                throttling: on[2],
                patience: on[3],
            },
        )
}

proptest! {
    #[test]
    fn bounds_always_hold_and_a_seed_reproduces_everything(
        config in any_config(),
        history in history(),
        seed: u64,
    ) {
        let mut twins = [Backoff::new(config), Backoff::new(config)];
        let mut rngs = [rng(seed), rng(seed)];
        let (mut now, mut attempt) = (Nanos(0), 0);
        for (step, retry) in history {
            now = now + step;
            let mut waits = [Duration::ZERO; 2];
            for ((backoff, rng), wait) in twins.iter_mut().zip(&mut rngs).zip(&mut waits) {
                if retry {
                    *wait = backoff.aborted(attempt, now, rng);
                } else {
                    backoff.committed(now);
                }
            }
            attempt = if retry { attempt + 1 } else { 0 };
            let [one, other] = &twins;
            prop_assert_eq!(waits[0], waits[1]);
            prop_assert_eq!(one.limit(), other.limit());
            prop_assert_eq!(one.concurrency(), other.concurrency());
            prop_assert!((1..=config.concurrency).contains(&one.concurrency()));
            let limit = one.limit().as_nanos() as u64;
            prop_assert!((config.unit_ns..=config.unit_ns << config.doublings).contains(&limit));
            prop_assert!(waits[0] <= one.limit() + Duration::from_nanos(config.unit_ns));
            prop_assert!(config.throttling || one.concurrency() == config.concurrency);
            prop_assert!(config.dynamic_limit || limit == config.unit_ns << config.doublings);
        }
    }

    /// From any state, more conflicts never lead to more concurrency or to shorter waits.
    #[test]
    fn reaction_is_monotone(
        config in any_config(),
        history in history(),
        retries in (0u64..=100, 0u64..=100),
    ) {
        let mut backoff = Backoff::new(config);
        let mut now = 0;
        for (step, retry) in history {
            now += step;
            if retry {
                backoff.aborted(0, Nanos(now), &mut rng(0));
            } else {
                backoff.committed(Nanos(now));
            }
        }
        now += 10_000 * MS;
        let after = |retries| {
            let mut backoff = backoff.clone();
            let end = sample(&mut backoff, now, 100, retries);
            backoff.committed(Nanos(end + MS));
            backoff
        };
        let (calm, wild) = (after(retries.0.min(retries.1)), after(retries.0.max(retries.1)));
        prop_assert!(calm.concurrency() >= wild.concurrency());
        prop_assert!(calm.limit() <= wild.limit());
    }
}

/// Workers in a closed loop: each transaction locks one object for one round trip; an attempt that finds the object
/// locked loses one round trip.
struct Model {
    workers: Vec<Backoff>,
    /// Number of transactions that wait for permission to begin, by worker.
    idle: Vec<usize>,
    /// Time until which each object is locked.
    locked: Vec<u64>,
    /// Attempts, by the time at which they begin: worker, object and number of failed tries.
    due: BinaryHeap<Reverse<(u64, usize, usize, u32)>>,
    rng: Xoshiro256PlusPlus,
    commits: u64,
    retries: u64,
}

impl Model {
    fn new(config: BackoffConfig, workers: usize, objects: usize) -> Self {
        Self {
            workers: vec![Backoff::new(config); workers],
            idle: vec![config.concurrency; workers],
            locked: vec![0; objects],
            due: BinaryHeap::new(),
            rng: rng(9),
            commits: 0,
            retries: 0,
        }
    }

    fn begin(&mut self, worker: usize, now: u64) {
        let total = self.workers[worker].config.concurrency;
        while self.idle[worker] > 0 && self.workers[worker].may_begin(total - self.idle[worker]) {
            self.idle[worker] -= 1;
            let object = self.rng.random_range(0..self.locked.len());
            let begins = now + self.rng.random_range(1..=UNIT);
            self.due.push(Reverse((begins, worker, object, 0)));
        }
    }

    /// Runs the model from one time to another.
    fn run(mut self, from: u64, until: u64) -> Self {
        for worker in 0..self.workers.len() {
            self.begin(worker, from);
        }
        while let Some(Reverse((now, worker, object, tries))) = self.due.pop() {
            if now > until {
                break;
            }
            let end = now + UNIT;
            if self.locked[object] > now {
                self.retries += 1;
                let wait = self.workers[worker].aborted(tries, Nanos(end), &mut self.rng);
                let again = end + wait.as_nanos() as u64;
                self.due.push(Reverse((again, worker, object, tries + 1)));
            } else {
                self.locked[object] = end;
                self.commits += 1;
                self.workers[worker].committed(Nanos(end));
                self.idle[worker] += 1;
                self.begin(worker, end);
            }
        }
        self
    }

    /// Returns the share of attempts that met a conflict.
    fn rate(&self) -> f64 {
        self.retries as f64 / (self.retries + self.commits) as f64
    }
}

#[test]
fn a_closed_loop_adapts_its_limits_to_the_contention() {
    let off = BackoffConfig {
        backoff: false,
        dynamic_limit: false,
        throttling: false,
        ..config()
    };
    let contended = Model::new(config(), 16, 1).run(0, 100 * MS);
    let helpless = Model::new(off, 16, 1).run(0, 10 * MS);
    // The paper has t_max = 2^10·t0 for skewed updates. At times one worker succeeds more often and raises its
    // concurrency.
    for worker in &contended.workers {
        assert_eq!(worker.limit().as_nanos(), 1024 * u128::from(UNIT));
    }
    let running: usize = contended.workers.iter().map(Backoff::concurrency).sum();
    assert!(running <= 2 * 16, "{running} of 128");
    let (with, without) = (contended.rate(), helpless.rate());
    assert!(with < 0.7 && without > 0.95, "{with} {without}");

    // The same workers without contention from now on: t_max = t0, as for uniform updates.
    let mut calm = Model::new(config(), 16, 1_000_000);
    calm.workers = contended.workers;
    let calm = calm.run(200 * MS, 230 * MS);
    for worker in &calm.workers {
        assert_eq!(worker.limit().as_nanos(), u128::from(UNIT));
        assert_eq!(worker.concurrency(), 8);
    }
    assert!(calm.rate() < 0.01, "{}", calm.rate());
}
