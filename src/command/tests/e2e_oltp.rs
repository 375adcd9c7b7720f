//! `farm tatp` and `farm smallbank`, run as a user runs them: their measurements, checks and reports, and the
//! options that they refuse.

mod common;

use std::fs;

use common::{Place, number, only_run};
use serde_json::Value;

/// Options of a short run.
const SHORT: [&str; 4] = ["--duration", "0.3", "--warmup", "0.1"];

/// Runs a benchmark in a place, checks its output, and returns the report.
fn measure(place: &Place, command: &str, args: &[&str]) -> Value {
    let json = place.path("results.json");
    let path = json.to_str().unwrap().to_owned();
    let all = [&SHORT[..], args, &["--json", &path]].concat();
    let ended = place.small(command, &all).end().ok();
    for text in ["committed/s", "per commit", "checked at the end"] {
        assert!(
            ended.stdout.contains(text),
            "no {text:?} in\n{}",
            ended.stdout
        );
    }
    let results: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert!(results["host"]["cores_online"].is_u64());
    assert!(results["config"]["table"]["neighbourhood"].is_u64());
    assert!(results["commit"].is_string() || results["commit"].is_null());
    results
}

/// Checks the fields that the report of every run has.
#[track_caller]
fn check_run(run: &Value, machines: usize, workers: usize) {
    assert_eq!(run["check"]["wrong"], Value::Array(Vec::new()), "{run:#}");
    assert_eq!(run["failures"], Value::Array(Vec::new()), "{run:#}");
    assert!(number(run, "committed") > 0.0, "{run:#}");
    assert!(number(run, "executed") >= number(run, "committed"));
    for key in [
        "committed_per_s",
        "committed_per_s_per_worker",
        "reads_per_commit",
        "writes_per_commit",
        "messages_per_commit",
    ] {
        assert!(run[key].is_f64(), "{key} is {}", run[key]);
    }
    let all = run["machines"].as_array().unwrap();
    assert_eq!(all.len(), machines);
    for machine in all {
        assert_eq!(machine["workers"].as_array().unwrap().len(), workers);
    }
    for kind in run["kinds"].as_array().unwrap() {
        let sum: f64 = ["committed", "not_found", "declined"]
            .map(|how| number(kind, how))
            .iter()
            .sum();
        assert_eq!(sum, number(kind, "executed"), "{kind:#}");
    }
    // A cluster of one machine sends nothing over the fabric. A larger cluster does.
    let costs = ["reads_per_commit", "writes_per_commit"].map(|key| number(run, key));
    assert_eq!(costs.map(|cost| cost > 0.0), [machines > 1; 2], "{costs:?}");
}

fn kind<'a>(run: &'a Value, name: &str) -> &'a Value {
    let kinds = run["kinds"].as_array().unwrap();
    let found = kinds.iter().find(|kind| kind["kind"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {run:#}"))
}

#[test]
fn tatp_runs_on_three_machines_and_on_one() {
    let place = Place::new("tatp");
    for (machines, workers) in [("3", "1"), ("1", "1"), ("2", "2")] {
        let args = [
            "--subscribers",
            "2_000",
            "--machines",
            machines,
            "--workers",
            workers,
        ];
        let results = measure(&place, "tatp", &args);
        let run = only_run(&results);
        check_run(run, machines.parse().unwrap(), workers.parse().unwrap());
        assert_eq!(run["benchmark"], "tatp");
        assert_eq!(run["options"]["subscribers"], 2000);
        assert_eq!(number(&run["check"], "items"), 2000.0);
        let always = kind(run, "GET_SUBSCRIBER_DATA");
        assert_eq!(always["committed"], always["executed"]);
        assert_eq!(run["check"]["money"], Value::Null);
    }
}

#[test]
fn smallbank_runs_on_three_machines_and_on_one() {
    let place = Place::new("bank");
    for (machines, workers) in [("3", "1"), ("1", "1"), ("2", "2")] {
        let args = [
            "--accounts",
            "5_000",
            "--savings-rule",
            "withdraw",
            "--machines",
            machines,
            "--workers",
            workers,
        ];
        let results = measure(&place, "smallbank", &args);
        let run = only_run(&results);
        check_run(run, machines.parse().unwrap(), workers.parse().unwrap());
        assert_eq!(run["options"]["hot_accounts"], 200);
        assert_eq!(number(&run["check"], "pairs"), 10_000.0);
        let money = &run["check"]["money"];
        assert_eq!(money["least_cents"], money["most_cents"]);
        assert_eq!(money["least_cents"], money["found_cents"]);
    }
}

#[test]
fn options_come_from_files_and_from_the_command_line() {
    let place = Place::new("oltp-options");
    let file = place.write(
        "mine.toml",
        "subscribers = 300\nchoice = \"uniform\"\n[mix]\nupdate_location = 4\nget_access_data = 45\n",
    );
    let file = file.to_str().unwrap();
    let results = measure(
        &place,
        "tatp",
        &["-P", file, "-p", "subscribers=400", "--seed", "5"],
    );
    let run = only_run(&results);
    let options = &run["options"];
    assert_eq!(
        (&options["subscribers"], &options["choice"]),
        (&400.into(), &"uniform".into())
    );
    assert_eq!(options["mix"]["update_location"], 4);
    assert_eq!(run["seed"], 5);
    let json = place.write("mine.json", r#"{"accounts": 300, "hot_accounts": 7}"#);
    let args = [
        "-P",
        json.to_str().unwrap(),
        "--mix",
        "balance=100",
        "--concurrency",
        "3",
        "--without",
        "throttling,patience",
    ];
    let results = measure(&place, "smallbank", &args);
    let run = only_run(&results);
    assert_eq!(
        (&run["options"]["hot_accounts"], &run["concurrency"]),
        (&7.into(), &3.into())
    );
    assert_eq!(
        run["without"],
        serde_json::json!(["throttling", "patience"])
    );
    assert_eq!(kind(run, "Balance")["executed"], run["executed"]);
    // Balance transactions only read.
    assert_eq!(number(run, "writes_per_commit"), 0.0);
}

/// A command, its options, and the texts that its error must contain.
type Refused<'a> = (&'a str, &'a [&'a str], &'a [&'a str]);

#[track_caller]
fn refused(place: &Place, cases: &[Refused<'_>]) {
    for (command, args, texts) in cases {
        let ended = place.small(command, args).end();
        ended.failed(2, texts);
        assert_eq!(place.stale_files(), Vec::<String>::new());
    }
}

#[test]
fn invalid_options_of_tatp_are_refused_with_their_place() {
    let place = Place::new("tatp-refused");
    let bad = place.write("bad.toml", "subscribers = 300\nchoise = 1\n");
    let bad = bad.to_str().unwrap();
    let missing = place.path("missing.toml");
    let missing = missing.to_str().unwrap();
    let cases: &[Refused<'_>] = &[
        (
            "tatp",
            &["--subscribers", "0"],
            &["tatp.subscribers = 0", "give the number"][..],
        ),
        (
            "tatp",
            &["--subscribers", "many"],
            &["--subscribers many", "whole number"],
        ),
        (
            "tatp",
            &["--choice", "odd"],
            &["--choice", "`odd`", "non_uniform", "uniform"],
        ),
        (
            "tatp",
            &["-p", "sub=1"],
            &["-p sub=1", "no such property", "subscribers"],
        ),
        (
            "tatp",
            &["-p", "subscribers=99999999999999999999999"],
            &["-p subscribers=99999999999999999999999", "out of range"],
        ),
        (
            "tatp",
            &["-P", bad],
            &["bad.toml", "line 2", "choise", "choice"],
        ),
        (
            "tatp",
            &["-P", missing],
            &["missing.toml", "--properties", "No such file"],
        ),
        (
            "tatp",
            &["--mix", "balance=100"],
            &["--mix balance=100", "update_location"],
        ),
        (
            "tatp",
            &["--mix", "update_location=99"],
            &["tatp.mix", "update_location 99", "100 percent", "99"],
        ),
        (
            "tatp",
            &["--mix", "update_location"],
            &["--mix", "KEY=VALUE"],
        ),
        (
            "tatp",
            &["--subscribers", "-5"],
            &["--subscribers -5", "a whole number"],
        ),
        (
            "tatp",
            &["--mix", "update_location=many"],
            &["--mix update_location=many", "percent"],
        ),
        ("tatp", &["--concurrency", "0"], &["--concurrency"]),
        (
            "tatp",
            &["--concurrency", "257"],
            &["--concurrency 257", "256", "worker.operations_in_flight"],
        ),
        (
            "tatp",
            &["--without", "patience,luck"],
            &["luck", "--without", "throttling"],
        ),
        (
            "tatp",
            &["--neighbourhood", "5"],
            &["--neighbourhood", "2, 4, 6, 8 or 12"],
        ),
    ];
    refused(&place, cases);
    let nowhere = place.path("no/such/dir/results.json");
    let args = ["--json", nowhere.to_str().unwrap()];
    let ended = place.small("tatp", &args).end();
    ended.failed(1, &["results.json", "--json", "No such file"]);
}

#[test]
fn invalid_options_of_smallbank_are_refused_with_their_place() {
    let place = Place::new("bank-refused");
    let cases: &[Refused<'_>] = &[
        (
            "smallbank",
            &["--accounts", "1"],
            &["smallbank.accounts = 1", "2 or more"],
        ),
        (
            "smallbank",
            &["--hot-accounts", "200000"],
            &["smallbank.hot_accounts = 200000"],
        ),
        (
            "smallbank",
            &["--hot-percent", "101"],
            &["smallbank.hot_percent = 101", "0 to 100"],
        ),
        (
            "smallbank",
            &["--hot-percent", "300"],
            &["--hot-percent", "0 to 100"],
        ),
        (
            "smallbank",
            &["--savings-rule", "steal"],
            &["--savings-rule", "deposit", "withdraw"],
        ),
        (
            "smallbank",
            &["--initial-cents=-5"],
            &["smallbank.initial_cents = -5"],
        ),
        (
            "smallbank",
            &["--set", "table.value_bites=5"],
            &["table.value_bites", "value_bytes"],
        ),
        ("smallbank", &["--machines", "0"], &["--machines"]),
    ];
    refused(&place, cases);
}

#[test]
fn tables_that_do_not_fit_end_the_run() {
    let place = Place::new("oltp-full");
    let args = ["--subscribers", "3_000_000", "--duration", "30"];
    let ended = place.small("tatp", &args).end();
    ended.failed(1, &["machine", "no room for its shards"]);
}

/// A command's cluster ends with the command: a second run finds no configuration of the first, and both leave no file.
#[test]
fn a_command_with_copies_of_its_data_runs_again() {
    let place = Place::new("oltp-copies");
    let copies = [
        "--machines",
        "2",
        "--accounts",
        "2_000",
        "--set",
        "durability.mode=memory",
    ];
    for _ in 0..2 {
        let report = measure(&place, "smallbank", &copies);
        check_run(only_run(&report), 2, 1);
    }
    // A directory that the user names is kept, with the data, and a run that finds a configuration there refuses.
    place.keeps_data();
    let store = place.path("store");
    let named = format!("durability.dir={}", store.display());
    let named = [&copies[..], &["--set", &named]].concat();
    measure(&place, "smallbank", &named);
    assert!(store.exists());
    let args = [&SHORT[..], &named].concat();
    let refused = place.small("smallbank", &args).end();
    refused.failed(1, &["has the configuration of a cluster", "durability.dir"]);
}
