//! Runs of three processes with a deliberate bug are judged wrong. This shows that the checkers find bugs in
//! runs of real processes, not only in the simulator. Built only with the feature `mutants`.

mod common;

use common::Place;

/// Number of seeds to try for a bug. A seed does not determine how the processes interleave, so one seed may not be
/// enough.
const MOST_SEEDS: u64 = 8;

/// Runs a workload with a bug until the run is judged wrong. Returns the standard error of that run.
fn judged_wrong(place: &Place, kind: &str, mutant: &str, more: &[&str]) -> String {
    for seed in 0..MOST_SEEDS {
        let seed = seed.to_string();
        let mut args = vec![kind, "--verify", "--mutant", mutant, "--seed", &seed];
        // Few objects and few operations: processes that share cores exchange messages slowly, so
        // transactions stay open for long and conflict.
        args.extend(["--operations", "60", "--workers", "1", "--objects", "4"]);
        args.extend(more);
        let ended = place.small("workload", &args).end();
        if ended.code != Some(0) {
            assert_eq!(place.stale_files(), Vec::<String>::new());
            return ended.failed(1, &["farm: error: WRONG, "]).stderr;
        }
    }
    panic!("{MOST_SEEDS} runs of {kind} with {mutant:?} were judged right");
}

#[test]
fn both_checkers_find_that_validation_is_skipped() {
    let place = Place::new("mutant-append");
    let file = place.path("history.jsonl");
    let history = ["--history", file.to_str().unwrap()];
    let stderr = judged_wrong(&place, "append", "validation skipped", &history);
    assert!(stderr.contains("WRONG, adya: "), "{stderr}");
    // The external checker `adya` finds the bug from the history file alone.
    let history = adya::History::parse(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let options = adya::Opts::default();
    let report = adya::check(&history, adya::Workload::ListAppend, &options);
    assert_eq!(report.valid, adya::Valid::False);
}

#[test]
fn every_transactional_workload_finds_bugs_of_the_commit() {
    let place = Place::new("mutant-others");
    for kind in ["cycle", "bank", "churn"] {
        judged_wrong(&place, kind, "validation skipped", &[]);
    }
    for kind in ["append", "bank"] {
        judged_wrong(&place, kind, "lock at a newer version than read", &[]);
    }
}

/// What an earlier process had in its logs is not read: transactions that were reported are lost, or done by halves.
#[test]
fn a_campaign_finds_that_what_was_kept_is_lost() {
    let place = Place::new("mutant-campaign");
    campaign_until(&place, &["--patience", "10"], " run(s) were wrong");
}

/// Nodes once went on to wait for the last operations after their launcher had given up. It killed them after some seconds, and their
/// memory was left.
#[test]
fn nodes_end_with_a_campaign_whose_operations_do_not() {
    let place = Place::new("mutant-endless");
    let more = ["--workload", "tatp", "--patience", "2"];
    campaign_until(&place, &more, "the end of all operations of machine(s) ");
}

/// Runs campaigns in which the log of an earlier process is not read, until the output of one contains a text.
fn campaign_until(place: &Place, more: &[&str], text: &str) {
    let mutant = "log of an earlier process not read";
    let found = (0..MOST_SEEDS).any(|seed| {
        let seed = seed.to_string();
        let args = ["--kills", "10", "--first", &seed, "--mutant", mutant];
        let args = [&args[..], more].concat();
        let ended = place.small("campaign", &args).end();
        // The records of a wrong run are kept.
        place.forget_temporary_files();
        assert_eq!(place.stale_files(), Vec::<String>::new());
        ended.code == Some(1) && ended.stdout.contains(text)
    });
    assert!(
        found,
        "{MOST_SEEDS} campaigns with {mutant:?} did not end with {text:?}"
    );
}
