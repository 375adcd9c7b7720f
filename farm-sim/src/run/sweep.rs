//! Runs many seeds on several threads. Each run is within one thread.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use farm_core::marks::Reached;

use super::{Outcome, Plan, RunOptions, Scenario, run};

/// The seeds and options of a sweep.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    /// The first seed.
    pub first: u64,
    /// The number of seeds.
    pub seeds: u64,
    /// The scenario of every run; `None` for all scenarios in turn.
    pub scenario: Option<Scenario>,
    /// The number of threads.
    pub jobs: usize,
    /// The options of every run.
    pub options: RunOptions,
}

/// The results of a sweep.
#[derive(Clone, Debug, Default)]
pub struct Swept {
    /// Number of runs.
    pub runs: u64,
    /// The failed runs, by ascending seed.
    pub failures: Vec<Outcome>,
    /// The marks that runs reached, with counts.
    pub reached: Reached,
    /// Number of ended operations of all runs.
    pub operations: u64,
    /// Hash of all runs: equal for equal sweeps, in any order of the runs.
    pub hash: u64,
}

/// Does something for each seed, in their order, on this many threads. If `each` returns false, no further seed follows.
pub fn on_threads(seeds: Range<u64>, jobs: usize, each: impl Fn(u64) -> bool + Sync) {
    let next = AtomicU64::new(seeds.start);
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    if !each(seed) {
                        next.store(seeds.end, Ordering::Relaxed);
                    }
                }
            });
        }
    });
}

impl Sweep {
    /// Returns the plan of a seed in this sweep.
    pub fn plan(&self, seed: u64) -> Plan {
        Plan::new(
            seed,
            self.scenario.unwrap_or_else(|| Scenario::of_seed(seed)),
        )
    }

    /// Runs all seeds. Calls `each` with the outcome of every run as it ends, in any order. If `each` returns false, no
    /// further run begins.
    pub fn run(&self, each: impl Fn(&Outcome) -> bool + Sync) -> Swept {
        let swept = Mutex::new(Swept::default());
        let seeds = self.first..self.first.saturating_add(self.seeds);
        on_threads(seeds, self.jobs, |seed| {
            let outcome = run(&self.plan(seed), self.options);
            let goes_on = each(&outcome);
            let mut swept = swept
                .lock()
                .expect("no thread panics while it holds the lock of the sweep's results");
            swept.add(outcome);
            goes_on
        });
        let mut swept = swept
            .into_inner()
            .expect("no thread panics while it holds the lock of the sweep's results");
        swept.failures.sort_by_key(|outcome| outcome.plan.seed);
        swept
    }
}

impl Swept {
    fn add(&mut self, outcome: Outcome) {
        self.runs += 1;
        self.operations += outcome.operations;
        // Addition does not depend on the order in which runs end.
        self.hash = self.hash.wrapping_add(outcome.hash);
        for (mark, count) in &outcome.reached {
            *self.reached.entry(mark).or_default() += count;
        }
        if outcome.failure.is_some() {
            self.failures.push(outcome);
        }
    }
}
