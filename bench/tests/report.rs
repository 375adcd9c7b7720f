//! Reports of `farm ycsb`: the fields of the JSON form, merging of machines, and the table.

mod json;

use farm_bench::report::{Header, MachineReport, Report, RunResult, Setup, Started, TableFacts};
use farm_bench::slices::Slices;
use farm_bench::ycsb::recorder::{Counters, RecorderError};
use farm_bench::ycsb::{OpKind, OperationMix, Recorder};
use json::assert_fields;
use serde_json::{Value, json};

fn setup(workload: &str, distribution: &str) -> Setup {
    Setup {
        workload: workload.to_owned(),
        distribution: distribution.to_owned(),
        mix: OperationMix {
            read: 0.5,
            update: 0.0,
            insert: 0.0,
            read_modify_write: 0.5,
        },
        record_count: 10_000,
        value_bytes: 32,
        seed: 7,
        warmup_s: 0.5,
        verify: true,
        operation_count: None,
        target_ops_per_s: None,
        in_flight: 512,
    }
}

fn slices(counts: &[u64]) -> Slices {
    Slices {
        slice_ns: 500_000_000,
        counts: counts.to_vec(),
    }
}

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
        slices: slices(&[reads / 2, reads / 2]),
    }
}

fn two_machines() -> RunResult {
    let machines = [machine("0", 999, 1.0), machine("1", 499, 2.0)];
    RunResult::from_machines(&setup("f", "zipfian-plain 0.99"), &machines).unwrap()
}

fn report(runs: Vec<RunResult>) -> Report {
    let command = ["farm", "ycsb", "--workload", "f"].map(str::to_owned);
    let header = Header::new(&Started::now(), command.to_vec(), Some("0123abc"));
    let (host, config) = (json!({"name": "here"}), json!({"machines": 2}));
    Report::new(header, host, config, runs)
}

#[test]
fn the_json_fields_are_pinned() {
    let json: Value = serde_json::from_str(&report(vec![two_machines()]).to_json()).unwrap();
    assert_fields(
        &json,
        [
            "schema_version",
            "command",
            "started_at",
            "took_s",
            "commit",
            "processor",
            "cores",
            "host",
            "config",
            "runs",
            "repeated",
            "uneven",
        ],
    );
    assert_eq!(json["schema_version"], 1);
    assert_eq!(json["command"], json!(["farm", "ycsb", "--workload", "f"]));
    let run = &json["runs"][0];
    assert_fields(
        run,
        [
            "workload",
            "distribution",
            "mix",
            "record_count",
            "value_bytes",
            "seed",
            "warmup_s",
            "verify",
            "operation_count",
            "target_ops_per_s",
            "in_flight",
            "ops",
            "ops_per_s",
            "slices",
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
    assert_fields(
        &run["mix"],
        ["read", "update", "insert", "read_modify_write"],
    );
    assert_fields(
        &run["slices"],
        ["slice_s", "per_s", "least", "most", "uneven"],
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
    assert_eq!(run.slices.as_ref().unwrap().per_s, [1496.0, 1496.0]);
    let all = report(vec![run.clone()]);
    let back: Report = serde_json::from_str(&all.to_json()).unwrap();
    assert_eq!((back.runs, back.header), (vec![run], all.header));
}

/// Of three runs, the report shows the table of the median run, and the median and spread of every figure.
#[test]
fn repeated_runs_are_reported_by_median_and_spread() {
    let run = |reads| {
        let machines = [machine("0", reads, 1.0)];
        RunResult::from_machines(&setup("c", "uniform"), &machines).unwrap()
    };
    let once = report(vec![run(99)]);
    assert_eq!(once.repeated, []);
    let thrice = report(vec![run(299), run(99), run(199)]);
    let [repeated] = &thrice.repeated[..] else {
        panic!("{:?}", thrice.repeated);
    };
    assert_eq!((repeated.repeats, repeated.median_run), (3, 2));
    assert_eq!(repeated.what, "workload c, uniform");
    let figure = &repeated.figures[0];
    let spread = figure.spread;
    assert_eq!(figure.name, "ops/s");
    assert_eq!(
        (spread.least, spread.median, spread.most),
        (100.0, 200.0, 300.0)
    );
    let json: Value = serde_json::from_str(&thrice.to_json()).unwrap();
    assert_fields(
        &json["repeated"][0],
        ["what", "repeats", "median_run", "figures"],
    );
    assert_fields(
        &json["repeated"][0]["figures"][0],
        ["name", "median", "least", "most"],
    );
    let table = thrice.to_string();
    for line in [
        "run 3 of 3, the median of 3:",
        "  total                         200              200",
        "workload c, uniform, 3 runs: median (least to most)",
        "  ops/s                                    200 (100 to 300)",
    ] {
        assert!(
            table.lines().any(|it| it == line),
            "no {line:?} in\n{table}"
        );
    }
    assert_eq!(table.matches("latency, us").count(), 1, "{table}");
}

#[test]
fn slices_that_differ_by_more_than_2x_cause_a_warning() {
    let with = |counts: &[u64]| {
        let mut machine = machine("0", 99, 1.0);
        machine.slices = slices(counts);
        let run = RunResult::from_machines(&setup("c", "uniform"), &[machine]).unwrap();
        report(vec![run])
    };
    let even = with(&[1000, 2000]);
    assert_eq!(even.uneven, []);
    assert!(!even.to_string().contains("warning"), "{even}");
    let uneven = with(&[1000, 2001]);
    assert_eq!(uneven.uneven.len(), 1);
    let json: Value = serde_json::from_str(&uneven.to_json()).unwrap();
    assert_eq!(json["runs"][0]["slices"]["uneven"], true);
    assert_fields(&json["uneven"][0], ["run", "what", "least", "most"]);
    let table = uneven.to_string();
    assert!(
        table.contains("slices             2 of 0.5 s, 2,000 to 4,002 /s: UNEVEN"),
        "{table}"
    );
    let warning = "\nwarning: 1 measurement(s) were uneven: ";
    let which = "\n  run 1, workload c, uniform: ops/s: 2,000 to 4,002 per second\n";
    assert!(table.contains(warning) && table.ends_with(which), "{table}");
    // A run that is too short for two slices has no slices in its report.
    assert_eq!(with(&[1000]).runs[0].slices, None);
}

/// Regression: for a table that inserts had filled to 16 times its slots, the report said "occupancy 1604.7 %".
#[test]
fn a_table_with_more_pairs_than_slots_is_reported_by_pairs_per_slot() {
    let mut grown = machine("0", 9, 1.0);
    grown.table.pairs = 16_047;
    let run = RunResult::from_machines(&setup("d", "latest 0.99"), &[grown]).unwrap();
    assert_eq!(run.occupancy, Some(16.047));
    let table = run.to_string();
    let words = "table              16.0 pairs per slot, those beyond 1 in overflow blocks, space";
    assert!(table.contains(words), "{table}");
    assert!(!table.contains("occupancy"), "{table}");
}

#[test]
fn the_bounds_of_a_run_are_shown() {
    let bounded = Setup {
        operation_count: Some(5000),
        target_ops_per_s: Some(1000),
        ..setup("a", "uniform")
    };
    let run = RunResult::from_machines(&bounded, &[machine("0", 9, 1.0)]).unwrap();
    assert_eq!(
        (run.operation_count, run.target_ops_per_s),
        (Some(5000), Some(1000))
    );
    let table = run.to_string();
    assert!(
        table.contains("bounded by 5,000 operations\nheld to 1,000 operations/s\n"),
        "{table}"
    );
}

#[test]
fn fields_that_do_not_apply_are_null() {
    let nothing = MachineReport {
        machine: "0".to_owned(),
        duration_s: 0.0,
        load_s: 0.0,
        load_pairs: 0,
        table: TableFacts::default(),
        recorder: Recorder::new(16),
        slices: Slices::default(),
    };
    let run = RunResult::from_machines(&setup("c", "uniform"), &[nothing]).unwrap();
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
        "slices",
        "operation_count",
        "target_ops_per_s",
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
    let result = RunResult::from_machines(&setup("a", "uniform"), &[machine("0", 1, 1.0), other]);
    assert_eq!(
        result,
        Err(RecorderError::MixedSampling { ours: 1, theirs: 8 })
    );
}

#[test]
fn a_machines_report_survives_json() {
    let sent = machine("0", 100, 1.5);
    let text = serde_json::to_string(&sent).unwrap();
    let received: MachineReport = serde_json::from_str(&text).unwrap();
    let merged = |report| RunResult::from_machines(&setup("a", "uniform"), &[report]).unwrap();
    assert_eq!(merged(received), merged(sent));
}

#[test]
fn the_table_shows_the_main_figures() {
    let expected = "\
workload f, zipfian-plain 0.99, 2.0 s measured
read 50.0 %, read_modify_write 50.0 %; 10,000 records of 32 bytes; 512 operations in flight; seed 7; warm-up 0.5 s

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
  slices             2 of 0.5 s, 1,496 to 1,496 /s
  load               2.0 s, 5,000 pairs/s
  values checked     200 right, 0 wrong
  errors             2
";
    let report = report(vec![two_machines()]);
    let table = report.to_string();
    let (header, table) = table.split_once("\n\n").unwrap();
    assert_eq!(format!("{header}\n"), report.header.to_string());
    assert_eq!(table, expected, "\n{table}");
}
