//! Sweeps over seeds: they pass, and their results depend neither on the repetition nor on the order of the runs.

use farm_sim::run::sweep::Sweep;
use farm_sim::run::{Plan, RunOptions, Scenario, run};

fn sweep(first: u64, jobs: usize) -> Sweep {
    Sweep {
        first,
        seeds: 80,
        scenario: None,
        jobs,
        options: RunOptions::default(),
    }
}

#[test]
fn the_same_seeds_give_the_same_runs_on_one_thread_and_on_two() {
    let [one, two] = [1, 2].map(|jobs| sweep(0, jobs).run(|_| true));
    let failures: Vec<_> = one
        .failures
        .iter()
        .map(|run| (run.command(), &run.failure))
        .collect();
    assert!(failures.is_empty(), "{failures:#?}");
    assert_eq!((one.runs, one.hash), (two.runs, two.hash));
    assert!(one.operations > 80 * 100, "{} operations", one.operations);
    let other = sweep(1000, 2).run(|_| true);
    assert_ne!(one.hash, other.hash);
}

#[test]
fn the_hash_does_not_depend_on_whether_the_trace_is_kept() {
    for scenario in Scenario::all() {
        let plan = Plan::new(7, scenario);
        let [with, without] = [true, false].map(|trace| {
            let options = RunOptions {
                trace,
                ..RunOptions::default()
            };
            run(&plan, options)
        });
        assert_eq!(with.hash, without.hash, "{scenario}");
        assert!(!with.trace.is_empty() && without.trace.is_empty());
    }
}
