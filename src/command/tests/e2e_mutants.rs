//! Three processes that have a deliberate bug are judged wrong: what proves that runs of real processes are
//! judged with teeth, and not only those of the simulator. Built with the feature `mutants` alone.

mod common;

use common::Place;

/// Seeds within which a bug is found. What runs at the same time no seed decides.
const MOST_SEEDS: u64 = 8;

/// Runs a workload with a bug until it is judged wrong; what was said then.
fn judged_wrong(place: &Place, kind: &str, mutant: &str, more: &[&str]) -> String {
    for seed in 0..MOST_SEEDS {
        let seed = seed.to_string();
        let mut args = vec![kind, "--verify", "--mutant", mutant, "--seed", &seed];
        // Few objects, and little to do: messages of processes that share cores are slow, so that
        // transactions are open for long and meet.
        args.extend(["--operations", "60", "--workers", "1", "--objects", "4"]);
        args.extend(more);
        let ended = place.small("workload", &args).end();
        if ended.code != Some(0) {
            assert_eq!(place.leavings(), Vec::<String>::new());
            return ended.failed(1, &["farm: error: WRONG, "]).stderr;
        }
    }
    panic!("{MOST_SEEDS} runs of {kind} with {mutant:?} were judged right");
}

#[test]
fn a_platform_that_does_not_validate_is_found_by_both_checkers() {
    let place = Place::new("mutant-append");
    let file = place.path("history.jsonl");
    let history = ["--history", file.to_str().unwrap()];
    let said = judged_wrong(&place, "append", "validation skipped", &history);
    assert!(said.contains("WRONG, adya: "), "{said}");
    // The checker that others wrote needs nothing but the file.
    let history = adya::History::parse(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let options = adya::Opts::default();
    let report = adya::check(&history, adya::Workload::ListAppend, &options);
    assert_eq!(report.valid, adya::Valid::False);
}

#[test]
fn every_workload_of_transactions_shows_bugs_of_its_commit() {
    let place = Place::new("mutant-others");
    for kind in ["cycle", "bank", "churn"] {
        judged_wrong(&place, kind, "validation skipped", &[]);
    }
    for kind in ["append", "bank"] {
        judged_wrong(&place, kind, "lock at a newer version than read", &[]);
    }
}
