//! Results: the JSON contract, the merging, and the table.

mod json;

use farm_bench::report::{MachineReport, Report, RunResult, TableFacts};
use farm_bench::ycsb::recorder::{Counters, RecorderError};
use farm_bench::ycsb::{OpKind, Recorder};
use json::assert_fields;
use serde_json::{Value, json};

fn machine(name: &str, reads: u64, duration_s: f64) -> MachineReport {
    let mut recorder = Recorder::new(1);
    for latency_us in 1..=reads {
        recorder.finish(OpKind::Read, Some(latency_us * 1000));
    }
    recorder.finish(OpKind::ReadModifyWrite, Some(5_000));
    recorder.counters = Counters {
        errors: 1,
        hits: 100,
        misses: 50,
        reads_of_hits: 104,
        reads_of_misses: 60,
        read_restarts: 3,
        lookups_local: 30,
        lookups_remote: 120,
        verified: 100,
        verify_failures: 0,
    };
    MachineReport {
        machine: name.to_owned(),
        duration_s,
        load_s: 2.0,
        load_pairs: 5000,
        table: TableFacts {
            pairs: 900,
            slots: 1000,
            pair_bytes: 900 * 48,
            table_bytes: 72_000,
        },
        recorder,
    }
}

fn two_machines() -> RunResult {
    let machines = [machine("0", 999, 1.0), machine("1", 499, 2.0)];
    RunResult::from_machines("f", "zipfian-plain 0.99", &machines).unwrap()
}

fn report(run: RunResult) -> Report {
    Report {
        host: json!({"name": "here"}),
        config: json!({"machines": 2}),
        commit: Some("0123abc".to_owned()),
        runs: vec![run],
    }
}

#[test]
fn the_json_fields_are_pinned() {
    let json: Value = serde_json::from_str(&report(two_machines()).to_json()).unwrap();
    assert_fields(&json, ["host", "config", "commit", "runs"]);
    let run = &json["runs"][0];
    assert_fields(
        run,
        [
            "workload",
            "distribution",
            "ops",
            "ops_per_s",
            "errors",
            "latency_us",
            "reads_per_lookup",
            "reads_per_miss",
            "read_restarts_per_lookup",
            "local_share",
            "occupancy",
            "space_utilization",
            "bytes_per_pair",
            "machines",
            "lookups_local",
            "lookups_remote",
            "verified",
            "verify_failures",
            "duration_s",
            "load_s",
            "load_pairs_per_s",
        ],
    );
    assert_fields(&run["latency_us"], ["read", "read_modify_write"]);
    assert_fields(
        &run["latency_us"]["read"],
        ["p50", "p90", "p99", "p999", "max", "sampled_1_in"],
    );
    assert_fields(&run["machines"][0], ["machine", "ops", "ops_per_s"]);
    let names = OpKind::ALL.map(|kind| serde_json::to_value(kind).unwrap());
    assert_eq!(
        names,
        ["read", "update", "insert", "read_modify_write"].map(|name| json!(name))
    );
    assert_eq!(OpKind::ALL.map(|kind| json!(kind.name())), names);
}

#[test]
fn machines_are_merged() {
    let run = two_machines();
    assert_eq!((run.ops, run.errors), (1500, 2));
    assert_eq!((run.duration_s, run.ops_per_s), (2.0, Some(750.0)));
    assert_eq!(run.machines[0].ops_per_s, Some(1000.0));
    assert_eq!(run.machines[1].ops_per_s, Some(250.0));
    assert_eq!(
        (run.reads_per_lookup, run.reads_per_miss),
        (Some(1.04), Some(1.2))
    );
    assert_eq!(run.read_restarts_per_lookup, Some(0.02));
    assert_eq!(run.local_share, Some(0.2));
    assert_eq!((run.lookups_local, run.lookups_remote), (60, 240));
    assert_eq!(
        (run.occupancy, run.space_utilization),
        (Some(0.9), Some(0.6))
    );
    assert_eq!(run.bytes_per_pair, Some(80.0));
    assert_eq!(
        (run.load_s, run.load_pairs_per_s),
        (Some(2.0), Some(5000.0))
    );
    let read = run.latency_us[&OpKind::Read];
    assert!((read.p50 - 375.0).abs() < 1.0, "{read:?}");
    assert!((read.max - 999.0).abs() < 1.0, "{read:?}");
    let text = report(run.clone()).to_json();
    let back: Report = serde_json::from_str(&text).unwrap();
    assert_eq!(back.runs, [run]);
}

#[test]
fn what_does_not_apply_is_null() {
    let nothing = MachineReport {
        machine: "0".to_owned(),
        duration_s: 0.0,
        load_s: 0.0,
        load_pairs: 0,
        table: TableFacts::default(),
        recorder: Recorder::new(16),
    };
    let run = RunResult::from_machines("c", "uniform", &[nothing]).unwrap();
    let json = serde_json::to_value(&run).unwrap();
    for field in [
        "ops_per_s",
        "reads_per_lookup",
        "reads_per_miss",
        "read_restarts_per_lookup",
        "local_share",
        "occupancy",
        "space_utilization",
        "bytes_per_pair",
        "load_s",
        "load_pairs_per_s",
    ] {
        assert_eq!(json[field], Value::Null, "{field}");
    }
    assert_eq!(json["latency_us"], json!({}));
    assert!(run.to_string().contains("- of a hit"), "{run}");
}

#[test]
fn machines_that_sample_differently_are_refused() {
    let mut other = machine("1", 1, 1.0);
    other.recorder = Recorder::new(8);
    let result = RunResult::from_machines("a", "uniform", &[machine("0", 1, 1.0), other]);
    assert_eq!(
        result,
        Err(RecorderError::MixedSampling { ours: 1, theirs: 8 })
    );
}

#[test]
fn a_machines_report_travels_as_json() {
    let sent = machine("0", 100, 1.5);
    let text = serde_json::to_string(&sent).unwrap();
    let received: MachineReport = serde_json::from_str(&text).unwrap();
    let merged = |report| RunResult::from_machines("a", "uniform", &[report]).unwrap();
    assert_eq!(merged(received), merged(sent));
}

#[test]
fn the_table_shows_what_people_ask_for() {
    let expected = "\
workload f, zipfian-plain 0.99, 2.0 s measured

  machine                       ops            ops/s
  0                           1,000            1,000
  1                             500              250
  total                       1,500              750

  latency, us               p50        p90        p99      p99.9          max  sampled
  read                   375.04     850.43     985.09     998.40       999.42  1 in 1
  read_modify_write        5.00       5.00       5.00       5.00         5.00  1 in 1

  lookups            60 local (20.0 %), 240 remote
  reads per lookup   1.0400 of a hit, 1.2000 of a miss, 0.020000 restarts
  table              occupancy 90.0 %, space utilization 60.0 %, 80.0 bytes per pair
  load               2.0 s, 5,000 pairs/s
  values checked     200 right, 0 wrong
  errors             2
";
    let table = report(two_machines()).to_string();
    assert_eq!(table, expected, "\n{table}");
}
