//! `farm ycsb` and `farm demo`, run as a user runs them: their measurements, checks and reports.

mod common;

use std::fs;

use common::{Place, measure, number, only_run, runs};
use serde_json::Value;

/// Options of a short run.
const SHORT: [&str; 4] = ["--duration", "0.3", "--warmup", "0.1"];

fn with<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&SHORT[..], args].concat()
}

/// Fields of a run that are floating-point numbers.
const NUMBERS: [&str; 5] = [
    "ops_per_s",
    "read_restarts_per_lookup",
    "occupancy",
    "space_utilization",
    "bytes_per_pair",
];
/// Number of operations from which on every kind has sampled latencies.
const ENOUGH: f64 = 20_000.0;
/// Fields of a run that are integers.
const COUNTS: [&str; 6] = [
    "ops",
    "errors",
    "lookups_local",
    "lookups_remote",
    "verified",
    "verify_failures",
];

/// Checks that a report has the fields and types that scripts rely on.
#[track_caller]
fn check_contract(results: &Value, workloads: &[&str]) {
    assert!(
        results["host"]["cores_online"].is_u64(),
        "{:#}",
        results["host"]
    );
    assert!(
        results["config"]["table"]["neighbourhood"].is_u64(),
        "{:#}",
        results["config"]
    );
    assert!(results["commit"].is_string() || results["commit"].is_null());
    let names: Vec<&str> = runs(results)
        .iter()
        .map(|run| run["workload"].as_str().unwrap())
        .collect();
    assert_eq!(names, workloads);
    for run in runs(results) {
        let has = |key: &str| {
            run.get(key)
                .unwrap_or_else(|| panic!("no {key} in {run:#}"))
        };
        for key in COUNTS {
            assert!(has(key).is_u64(), "{key} is {}", has(key));
        }
        for key in NUMBERS {
            assert!(has(key).is_f64(), "{key} is {}", has(key));
        }
        // These are null if nothing was counted: a workload may have no misses, and a short run on a busy host
        // may start no lookup.
        for key in ["reads_per_lookup", "reads_per_miss", "local_share"] {
            assert!(
                has(key).is_f64() || has(key).is_null(),
                "{key} is {}",
                has(key)
            );
        }
        let latencies = has("latency_us").as_object().unwrap();
        assert!(number(run, "ops") < ENOUGH || !latencies.is_empty());
        for (kind, latency) in latencies {
            let steps = ["p50", "p90", "p99", "p999", "max"].map(|step| number(latency, step));
            assert!(steps[0] > 0.0 && steps.is_sorted(), "{kind}: {latency:#}");
            assert!(latency["sampled_1_in"].is_u64());
        }
        for machine in has("machines").as_array().unwrap() {
            assert!(number(machine, "ops") > 0.0 && number(machine, "ops_per_s") > 0.0);
        }
    }
}

/// Checks that no operation failed, and that values were verified and none was wrong.
#[track_caller]
fn check_verified(run: &Value) {
    assert_eq!(
        (number(run, "errors"), number(run, "verify_failures")),
        (0.0, 0.0),
        "{run:#}"
    );
    assert!(
        number(run, "ops") > 0.0 && number(run, "verified") > 0.0,
        "{run:#}"
    );
}

/// Checks that latencies were sampled of exactly these kinds of operations, or of some of them in a short run.
#[track_caller]
fn check_kinds(run: &Value, wanted: &[&str]) {
    let latencies = run["latency_us"].as_object().unwrap();
    let kinds: Vec<&str> = latencies.keys().map(String::as_str).collect();
    let enough = number(run, "ops") >= ENOUGH;
    let some = kinds.iter().all(|kind| wanted.contains(kind));
    assert!(kinds == wanted || some && !enough, "{kinds:?}");
}

#[track_caller]
fn check_near(what: f64, wanted: f64, by: f64) {
    assert!((what - wanted).abs() <= by, "{what} instead of {wanted}");
}

/// Runs every workload with `--verify` on a cluster with this number of machines and of workers per machine.
fn every_workload(place: &Place, machines: usize, workers: usize) {
    let (count, each) = (machines.to_string(), workers.to_string());
    let args = [
        "--workload",
        "a,b,c,f,d",
        "--records",
        "20000",
        "--value-bytes",
        "32",
        "--verify",
        "--machines",
        &count,
        "--workers",
        &each,
    ];
    let results = measure(place, &with(&args));
    check_contract(&results, &["a", "b", "c", "f", "d"]);
    for run in runs(&results) {
        check_verified(run);
        assert_eq!(run["machines"].as_array().unwrap().len(), machines);
        if number(run, "ops") >= ENOUGH {
            check_near(number(run, "local_share"), 1.0 / machines as f64, 0.15);
        }
        // Workload D inserts pairs. The other workloads do not change the number of pairs.
        match run["workload"].as_str().unwrap() {
            "d" => assert!(number(run, "occupancy") > 0.9),
            _ => check_near(number(run, "occupancy"), 0.9, 0.01),
        }
    }
    let runs = runs(&results);
    check_kinds(&runs[0], &["read", "update"]);
    check_kinds(&runs[2], &["read"]);
    check_kinds(&runs[3], &["read", "read_modify_write"]);
    check_kinds(&runs[4], &["insert", "read"]);
}

#[test]
fn every_workload_runs_on_three_machines() {
    every_workload(&Place::new("three"), 3, 1);
}

#[test]
fn every_workload_runs_on_two_machines_of_two_workers() {
    every_workload(&Place::new("two-by-two"), 2, 2);
}

#[test]
fn uniform_lookups_take_little_more_than_one_read() {
    let place = Place::new("uniform");
    let args = [
        "--workload",
        "c",
        "--distribution",
        "uniform",
        "--records",
        "60000",
        "--value-bytes",
        "32",
        "--neighbourhood",
        "6",
        "--verify",
    ];
    let results = measure(&place, &with(&args));
    let run = only_run(&results);
    check_verified(run);
    assert_eq!(run["distribution"], "uniform");
    let reads = number(run, "reads_per_lookup");
    assert!((1.0..=1.12).contains(&reads), "{reads} reads per lookup");
    check_near(number(run, "occupancy"), 0.9, 0.01);
    let utilization = number(run, "space_utilization");
    assert!(
        (0.60..=1.0).contains(&utilization),
        "space utilization {utilization}"
    );
    check_near(number(run, "bytes_per_pair"), 48.0 / utilization, 0.01);
    let lookups = number(run, "lookups_local") + number(run, "lookups_remote");
    if lookups > 0.0 {
        let share = number(run, "lookups_local") / lookups;
        check_near(number(run, "local_share"), share, 1e-9);
    }
}

#[test]
fn every_neighbourhood_works_and_larger_ones_read_less() {
    let place = Place::new("neighbourhoods");
    let mut before = f64::INFINITY;
    for h in ["2", "4", "6", "8", "12"] {
        let args = [
            "--workload",
            "c,a",
            "--distribution",
            "uniform",
            "--records",
            "20000",
            "--value-bytes",
            "32",
            "--verify",
            "--neighbourhood",
            h,
        ];
        let results = measure(&place, &with(&args));
        assert_eq!(results["config"]["table"]["neighbourhood"].to_string(), h);
        for run in runs(&results) {
            check_verified(run);
            check_near(number(run, "occupancy"), 0.9, 0.01);
        }
        let reads = number(&runs(&results)[0], "reads_per_lookup");
        assert!(
            (1.0..before).contains(&reads),
            "H = {h}: {reads} reads, before {before}"
        );
        before = reads;
    }
}

#[test]
fn the_table_has_the_requested_occupancy() {
    let place = Place::new("occupancy");
    for (asked, occupancy) in [("0.5", 0.5), ("1", 1.0)] {
        let args = [
            "--records",
            "20000",
            "--value-bytes",
            "32",
            "--verify",
            "--occupancy",
            asked,
        ];
        let results = measure(&place, &with(&args));
        check_verified(only_run(&results));
        check_near(
            number(only_run(&results), "occupancy"),
            occupancy,
            0.01 * occupancy,
        );
    }
}

#[test]
fn values_of_every_size_are_read_whole() {
    let place = Place::new("values");
    for (bytes, records) in [
        ("1", "5000"),
        ("1000", "5000"),
        ("20000", "1000"),
        ("60KiB", "300"),
    ] {
        let args = [
            "--workload",
            "f,c",
            "--verify",
            "--value-bytes",
            bytes,
            "--records",
            records,
        ];
        for run in runs(&measure(&place, &with(&args))) {
            check_verified(run);
        }
    }
    // The largest values: an overflow block, which holds two pairs, is an object of almost 1 MiB.
    let args = [
        "--workload",
        "c",
        "--verify",
        "--value-bytes",
        "450000",
        "--records",
        "20",
        "--neighbourhood",
        "2",
        "--occupancy",
        "0.5",
        "--set",
        "rings.ring_bytes=4MiB",
        "--set",
        "rings.max_message_bytes=512KiB",
    ];
    check_verified(only_run(&measure(&place, &with(&args))));
}

#[test]
fn reports_name_the_distribution_with_its_parameters() {
    let place = Place::new("distributions");
    for (asked, named) in [
        ("zipfian", "zipfian-scrambled 0.99"),
        ("zipfian-plain", "zipfian-plain 0.99"),
        ("latest", "latest 0.99"),
        ("hotspot", "hotspot 0.8 on 0.2"),
        ("exponential", "exponential 95% in 0.8571428571"),
        ("sequential", "sequential"),
    ] {
        let args = [
            "--records",
            "5000",
            "--value-bytes",
            "32",
            "--verify",
            "--duration",
            "0.1",
            "--warmup",
            "0",
            "--distribution",
            asked,
        ];
        let results = measure(&place, &args);
        check_verified(only_run(&results));
        assert_eq!(only_run(&results)["distribution"], named);
    }
}

#[test]
fn scans_are_refused_with_the_reason() {
    let place = Place::new("scans");
    let run = place.small("ycsb", &with(&["--workload", "a,e"])).end();
    run.failed(2, &["workload E", "ordered index", "use a, b, c, d or f"]);
    let file = place.write(
        "scans.properties",
        "recordcount=10\nreadproportion=0.5\nscanproportion=0.5\n",
    );
    let run = place
        .small("ycsb", &with(&["-P", file.to_str().unwrap()]))
        .end();
    run.failed(2, &["scans.properties:3", "ordered index"]);
}

/// A property file like those that YCSB ships.
const YCSB_FILE: &str = "\
# Yahoo! Cloud System Benchmark
recordcount=1000
operationcount=1000
workload=site.ycsb.workloads.CoreWorkload
fieldcount=10
fieldlength=100
readallfields=true
readproportion=0.5
updateproportion=0.5
scanproportion=0
insertproportion=0
requestdistribution=zipfian
";

#[test]
fn fields_are_stored_as_one_value_of_their_total_length() {
    let place = Place::new("fields");
    let file = place.write("workloada", YCSB_FILE);
    let results = measure(&place, &with(&["-P", file.to_str().unwrap(), "--verify"]));
    let run = only_run(&results);
    check_verified(run);
    assert_eq!(run["workload"], "workloada");
    assert_eq!(results["config"]["table"]["value_bytes"], 1000);
    let pair = number(run, "bytes_per_pair") * number(run, "space_utilization");
    check_near(pair, 1016.0, 0.1);
}

#[test]
fn later_settings_override_earlier_ones() {
    let place = Place::new("precedence");
    let first = place.write("first", YCSB_FILE);
    let second = place.write("second", "recordcount=2000\nrequestdistribution=latest\n");
    let (first, second) = (first.to_str().unwrap(), second.to_str().unwrap());
    let json = place.path("results.json");
    let mut args = with(&["--json", json.to_str().unwrap(), "-P", first, "-P", second]);
    let mut run_with = |more: &[&'static str]| {
        args.extend(more);
        let ended = place.small("ycsb", &args).end().ok();
        let results: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
        let distribution = only_run(&results)["distribution"]
            .as_str()
            .unwrap()
            .to_owned();
        let value_bytes = results["config"]["table"]["value_bytes"].as_u64().unwrap();
        let loaded = ended.stderr.split("loaded ").nth(1).unwrap();
        let records: u64 = loaded.split(' ').next().unwrap().parse().unwrap();
        (records, distribution, value_bytes)
    };
    assert_eq!(run_with(&[]), (2000, "latest 0.99".to_owned(), 1000));
    let by_property = run_with(&[
        "-p",
        "recordcount=3000",
        "-p",
        "requestdistribution=uniform",
    ]);
    assert_eq!(by_property, (3000, "uniform".to_owned(), 1000));
    let option = [
        "--records",
        "4000",
        "--distribution",
        "zipfian-plain",
        "--value-bytes",
        "50",
    ];
    assert_eq!(
        run_with(&option),
        (4000, "zipfian-plain 0.99".to_owned(), 50)
    );
}

#[test]
fn an_unknown_property_is_listed_and_the_rest_runs() {
    let place = Place::new("unknown-property");
    let file = place.write(
        "mine",
        &format!("{YCSB_FILE}recordcuont=5\nredis.host=example.org\n"),
    );
    let args = with(&["-P", file.to_str().unwrap(), "-p", "colour=red"]);
    let ended = place.small("ycsb", &args).end().ok();
    for text in [
        "warning: workload mine: unknown property 'recordcuont'",
        "mine:13); did you mean 'recordcount'?",
        "unknown property 'redis.host'",
        "mine:14)",
        "unknown property 'colour' (-p)",
        "loaded 1000 records",
    ] {
        assert!(
            ended.stderr.contains(text),
            "no {text:?} in\n{}",
            ended.stderr
        );
    }
}

#[test]
fn impossible_properties_are_refused_with_file_and_line() {
    let place = Place::new("impossible-property");
    for (lines, texts) in [
        (
            "recordcount=-1",
            vec!["bad:2", "recordcount = '-1'", "whole number"],
        ),
        ("recordcount=many", vec!["bad:2", "recordcount = 'many'"]),
        (
            "recordcount=0",
            vec!["bad:2", "recordcount = '0'", "from 1"],
        ),
        ("recordcount=5000000000", vec!["bad:2", "2147483647"]),
        (
            "recordcount=10\noperationcount=x",
            vec!["bad:3", "operationcount = 'x'"],
        ),
        (
            "recordcount=10\nreadproportion=1.5",
            vec!["bad:3", "readproportion = '1.5'"],
        ),
        (
            "recordcount=10\nreadproportion=0.9\nupdateproportion=0.9",
            vec!["bad:3", "bad:4", "add up to 1.8"],
        ),
        (
            "recordcount=10\nrequestdistribution=zipf",
            vec!["bad:3", "'zipf'", "zipfian-plain"],
        ),
        (
            "recordcount=10\nzipfianconstant=1",
            vec!["bad:3", "zipfianconstant"],
        ),
        ("recordcount=10\nfieldcount=0", vec!["fieldcount 0"]),
        (
            "recordcount=10\nfieldlength=99999999",
            vec!["fieldlength 99999999", "983040"],
        ),
        (
            "recordcount=10\ninsertstart=11",
            vec!["insertstart 11", "recordcount 10"],
        ),
        ("recordcount=10\ntable=\\uzzzz", vec!["bad:3"]),
        (
            "readproportion=1",
            vec!["recordcount is not set", "-p recordcount="],
        ),
    ] {
        let file = place.write("bad", &format!("# A comment.\n{lines}\n"));
        place
            .small("ycsb", &["-P", file.to_str().unwrap()])
            .end()
            .failed(2, &texts);
        assert_eq!(place.stale_files(), Vec::<String>::new());
    }
    let missing = place.path("nowhere");
    let run = place
        .small("ycsb", &["-P", missing.to_str().unwrap()])
        .end();
    run.failed(2, &["nowhere", "No such file"]);
    place
        .small("ycsb", &["-p", "recordcount=0"])
        .end()
        .failed(2, &["recordcount = '0' (-p)"]);
    place
        .small("ycsb", &["-p", "recordcount"])
        .end()
        .failed(2, &["'recordcount'", "KEY=VALUE"]);
}

#[test]
fn results_that_cannot_be_written_are_refused_before_the_run() {
    let place = Place::new("results");
    let file = place.path("no/such/results.json");
    let args = [
        "--records",
        "100",
        "--duration",
        "30",
        "--json",
        file.to_str().unwrap(),
    ];
    let ended = place.small("ycsb", &args).end();
    assert!(!ended.stderr.contains("running"), "{}", ended.stderr);
    ended.failed(1, &["results.json", "--json", "No such file"]);
}

#[test]
fn a_run_succeeds_with_closed_standard_output() {
    let place = Place::new("unheard");
    let json = place.path("results.json");
    let args = with(&[
        "--records",
        "5000",
        "--verify",
        "--json",
        json.to_str().unwrap(),
    ]);
    place.small_with_closed_output("ycsb", &args).end().ok();
    let results: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    check_verified(only_run(&results));
}

#[test]
fn the_demo_shows_a_table_and_writes_it() {
    let place = Place::new("demo");
    let json = place.path("demo.json");
    let args = [
        "--records",
        "30000",
        "--duration",
        "0.3",
        "--json",
        json.to_str().unwrap(),
    ];
    let ended = place.small("demo", &args).end().ok();
    for text in [
        "workload c",
        "workload b",
        "m1",
        "m3",
        "total",
        "p99.9",
        "reads per lookup",
        "occupancy",
    ] {
        assert!(
            ended.stdout.contains(text),
            "no {text:?} in\n{}",
            ended.stdout
        );
    }
    let results: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    check_contract(&results, &["c", "b"]);
    for run in runs(&results) {
        assert_eq!(number(run, "errors"), 0.0);
        check_near(number(run, "occupancy"), 0.9, 0.01);
    }
}
