//! Many seeds, on several threads, each run in one of them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use farm_core::marks::Reached;

use super::{Outcome, Plan, RunOptions, Scenario, run};

/// What to sweep over.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    /// The first seed.
    pub first: u64,
    /// How many.
    pub seeds: u64,
    /// What each is of; all scenarios in turn, if not given.
    pub scenario: Option<Scenario>,
    /// Threads.
    pub jobs: usize,
    /// How each is run.
    pub options: RunOptions,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Swept {
    /// Runs that came to a verdict.
    pub runs: u64,
    /// Those that failed, by ascending seeds.
    pub failures: Vec<Outcome>,
    /// Rare branches that were taken.
    pub reached: Reached,
    /// Operations of the workloads.
    pub operations: u64,
    /// Hash of all runs: equal for equal sweeps.
    pub hash: u64,
}

impl Sweep {
    /// The plan of a seed in this sweep.
    pub fn plan(&self, seed: u64) -> Plan {
        Plan::new(
            seed,
            self.scenario.unwrap_or_else(|| Scenario::of_seed(seed)),
        )
    }

    /// Runs all seeds; `each` hears of every run as it ends, in no order, and says whether to go on.
    pub fn run(&self, each: impl Fn(&Outcome) -> bool + Sync) -> Swept {
        let next = AtomicU64::new(self.first);
        let end = self.first.saturating_add(self.seeds);
        let swept = Mutex::new(Swept::default());
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                scope.spawn(|| {
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= end {
                            return;
                        }
                        let outcome = run(&self.plan(seed), self.options);
                        if !each(&outcome) {
                            next.store(end, Ordering::Relaxed);
                        }
                        let mut swept = swept.lock().expect("counting does not panic");
                        swept.add(outcome);
                    }
                });
            }
        });
        let mut swept = swept.into_inner().expect("counting does not panic");
        swept.failures.sort_by_key(|outcome| outcome.plan.seed);
        swept
    }
}

impl Swept {
    fn add(&mut self, outcome: Outcome) {
        self.runs += 1;
        self.operations += outcome.operations;
        // In whatever order runs end.
        self.hash = self.hash.wrapping_add(outcome.hash);
        for (mark, count) in &outcome.reached {
            *self.reached.entry(mark).or_default() += count;
        }
        if outcome.failure.is_some() {
            self.failures.push(outcome);
        }
    }
}
