//! Workloads whose results are judged, on processes of this host and in the simulator, run as a user runs
//! them.

mod common;

use std::fs;

use common::Place;

#[test]
fn three_processes_are_judged_right_in_every_workload() {
    let place = Place::new("judged");
    for kind in ["cycle", "bank", "append", "churn", "table", "graph"] {
        let options = ["--verify", "--operations", "200", "--workers", "2"];
        let args: Vec<&str> = [kind].into_iter().chain(options).collect();
        let ended = place.small("workload", &args).end().ok();
        assert!(ended.stdout.contains("right: "), "{}", ended.stdout);
        assert_eq!(place.stale_files(), Vec::<String>::new());
    }
}

#[test]
fn an_external_checker_reads_the_history_file() {
    let place = Place::new("history");
    let file = place.path("history.jsonl");
    let history = file.to_str().unwrap();
    let args = ["append", "--operations", "100", "--history", history];
    place.small("workload", &args).end().ok();
    let text = std::fs::read_to_string(&file).unwrap();
    let history = adya::History::parse(&text).unwrap();
    assert!(
        history.ops.len() > 2 * 12 * 50,
        "{} operations",
        history.ops.len()
    );
    let report = adya::check(&history, adya::Workload::ListAppend, &adya::Opts::default());
    assert_eq!(report.valid, adya::Valid::True);
}

#[test]
fn a_workload_that_cannot_be_run_is_refused_with_the_reason() {
    let place = Place::new("refused");
    let refuse = |args: &[&str], code, texts: &[&str]| {
        place.small("workload", args).end().failed(code, texts);
        assert_eq!(place.stale_files(), Vec::<String>::new());
    };
    refuse(
        &["bnak"],
        2,
        &[
            "bnak",
            "cycle, bank, append, table, churn, smallbank, tatp and graph",
        ],
    );
    refuse(
        &["bank", "--payload-bytes", "8"],
        2,
        &["--payload-bytes", "40"],
    );
    refuse(
        &["bank", "--set", "machine.3.memory_bytes=0"],
        2,
        &[
            "has objects on every machine",
            "machine m3 has no memory",
            "choose table",
        ],
    );
    // Programs built without the feature `mutants` have no deliberate bugs.
    #[cfg(not(feature = "mutants"))]
    refuse(
        &["bank", "--mutant", "validation skipped"],
        2,
        &["built without deliberate bugs", "--features mutants"],
    );
    refuse(
        &["bank", "--history", "/nowhere/h"],
        1,
        &["/nowhere/h", "--history"],
    );
}

#[test]
fn a_seed_of_the_simulator_repeats_the_run() {
    let place = Place::new("seed");
    let args = ["sim", "--seed", "5", "--scenario", "bank"];
    let [one, two] = [0, 1].map(|_| place.farm(&args).end().ok().stdout);
    assert_eq!(one, two);
    assert!(one.contains("client 0 begins"), "{one}");
    let last = one.lines().last().unwrap();
    assert!(last.starts_with("PASSED: seed 5 of bank; hash "), "{one}");
    let trace = place.path("trace.txt");
    let traced = [&args[..], &["--trace", trace.to_str().unwrap()]].concat();
    let brief = place.farm(&traced).end().ok().stdout;
    let hash = |text: &str| text.split("hash ").nth(1).map(|rest| rest[..16].to_owned());
    assert_eq!(hash(&one), hash(&brief));
    assert!(std::fs::read_to_string(trace).unwrap().contains("lands"));
}

#[test]
fn a_sweep_reports_how_many_runs_passed() {
    let place = Place::new("sweep");
    let ended = place.farm(&["sim", "--seeds", "40"]).end().ok();
    assert!(
        ended.stdout.starts_with("40 runs with "),
        "{}",
        ended.stdout
    );
    assert_eq!(ended.stderr, "");
    // The script `x` takes the hash from the end of the verdict.
    let last = ended.stdout.lines().last().unwrap();
    let hash = last.strip_prefix("PASSED: 40 runs, 0 failed; hash ");
    let is_hash =
        |text: &str| text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(hash.is_some_and(is_hash), "{}", ended.stdout);
    // Forty runs do not reach every mark of a rare branch, so with `--reach-all` the verdict is FAILED.
    let args = ["sim", "--seeds", "40", "--reach-all"];
    let ended = place.farm(&args).end().failed(1, &[]);
    let last = ended.stdout.lines().last().unwrap();
    let words = [
        "FAILED: 40 runs, 0 failed, ",
        " mark(s) listed but not reached",
        "; hash ",
    ];
    assert!(words.iter().all(|words| last.contains(words)), "{last}");
    assert!(last.ends_with(hash.unwrap()), "{last}");
}

#[test]
fn pauses_after_kills_are_simulated() {
    let place = Place::new("pauses");
    let args = ["sim", "--pauses", "2", "--lease-ms", "5", "--machines", "3"];
    let [one, two] = [0, 1].map(|_| place.farm(&args).end().ok().stdout);
    assert_eq!(one, two);
    for text in [
        "simulated: 3 machines",
        "leases of 5 ms",
        "a machine killed 2 time(s)",
        "the manager killed 2 time(s)",
    ] {
        assert!(one.contains(text), "no {text:?} in {one}");
    }
    let last = u64::MAX.to_string();
    let beyond = ["sim", "--pauses", "1", "--first", &last];
    place
        .farm(&beyond)
        .end()
        .failed(2, &["exceed the greatest seed"]);
    let two = ["sim", "--pauses", "2", "--machines", "2"];
    place.farm(&two).end().failed(2, &["--machines"]);
    let with_seeds = ["sim", "--seeds", "2", "--lease-ms", "2"];
    place.farm(&with_seeds).end().failed(2, &["--lease-ms"]);
    let alone = ["sim", "--machines", "4"];
    place.farm(&alone).end().failed(2, &["--pauses"]);
}

#[test]
fn invalid_options_of_the_simulator_are_refused() {
    let place = Place::new("sim-refused");
    let refuse = |args: &[&str], code, texts: &[&str]| {
        let all: Vec<&str> = ["sim"].iter().chain(args).copied().collect();
        place.farm(&all).end().failed(code, texts);
    };
    refuse(
        &["--seed", "1", "--scenario", "bnak"],
        2,
        &["bnak", "bank-loss"],
    );
    refuse(&["--seeds", "0"], 2, &["--seeds"]);
    refuse(&["--scenario", "bank"], 2, &["--seed N"]);
    refuse(&["--mutants"], 2, &["--features mutants"]);
    // Regression: a single seed ignored these options, so that a check of the marks could not fail.
    refuse(&["--seed", "1", "--reach-all"], 2, &["--reach-all"]);
    refuse(&["--seed", "1", "--first", "7"], 2, &["--first"]);
    refuse(
        &["--seed", "1", "--trace", "/nowhere/t"],
        1,
        &["/nowhere/t"],
    );
}

/// Regression: with a closed standard output, a sweep that failed ended with exit code 0.
#[test]
fn a_failed_sweep_fails_with_closed_standard_output() {
    let place = Place::new("sim-unheard");
    let args = ["sim", "--seeds", "1", "--reach-all"];
    place.farm_with_closed_output(&args).end().failed(1, &[]);
}

/// Regression: the file of an earlier history was truncated before the other options were checked.
#[test]
fn an_invalid_option_leaves_an_existing_history_unchanged() {
    let place = Place::new("kept-history");
    let path = place.write("history.json", "kept");
    let history = path.to_str().unwrap();
    let args = ["bank", "--mutant", "no such bug", "--history", history];
    place.small("workload", &args).end().failed(2, &[]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "kept");
}
