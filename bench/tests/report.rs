//! Reports of `farm ycsb`: the fields of the JSON form, merging of machines, and the table.

mod json;

use farm_bench::closed_loop::Ran;
use farm_bench::recorder::{Outcome, RecorderError};
use farm_bench::report::{Header, Report, Started};
use farm_bench::slices::Slices;
use farm_bench::ycsb::report::{Counters, MachineReport, RunResult, Setup, TableFacts, recorder};
use farm_bench::ycsb::{OpKind, OperationMix};
use json::{assert_fields, assert_lines};
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

/// A machine with one worker, whose reads took 1 us, 2 us, ...
fn machine(name: &str, reads: u64, duration_s: f64) -> MachineReport {
    let mut recorder = recorder(1);
    let mut finish = |kind: OpKind, latency_us: u64| {
        let latency = Some(latency_us * 1000);
        recorder.finish(kind.index(), Outcome::Committed, latency);
    };
    (1..=reads).for_each(|latency_us| finish(OpKind::Read, latency_us));
    finish(OpKind::ReadModifyWrite, 5);
    recorder.counters = Counters {
        errors: 1,
        repeated: 0,
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
        load_s: 2.0,
        loaded: 5000,
        tables: TableFacts {
            pairs: 900,
            slots: 1000,
            pair_bytes: 900 * 48,
            table_bytes: 72_000,
        },
        workers: vec![Ran {
            recorder,
            slices: slices(&[reads / 2, reads / 2]),
            duration_s,
            failure: None,
        }],
    }
}

fn run_of(setup: &Setup, machines: &[MachineReport]) -> RunResult {
    RunResult::new(setup, machines).unwrap()
}

fn two_machines() -> RunResult {
    let machines = [machine("0", 999, 1.0), machine("1", 499, 2.0)];
    run_of(&setup("f", "zipfian-plain 0.99"), &machines)
}

fn report(runs: Vec<RunResult>) -> Report<RunResult> {
    let command = ["farm", "ycsb", "--workload", "f"].map(str::to_owned);
    let header = Header::new(&Started::now(), command.to_vec(), Some("0123abc"));
    let (host, config) = (json!({"name": "here"}), json!({"machines": 2}));
    Report::new(header, host, config, runs)
}

#[test]
fn the_json_fields_are_pinned() {
    let json: Value = serde_json::from_str(&report(vec![two_machines()]).to_json()).unwrap();
    assert_fields(&json, json::REPORT);
    assert_eq!(json["schema_version"], 1);
    assert_eq!(json["command"], json!(["farm", "ycsb", "--workload", "f"]));
    let run = &json["runs"][0];
    assert_fields(
        run,
        "workload distribution mix record_count value_bytes seed warmup_s verify operation_count \
         target_ops_per_s in_flight ops ops_per_s slices errors repeated latency_us reads_per_lookup \
         reads_per_miss read_restarts_per_lookup local_share occupancy space_utilization \
         bytes_per_pair machines lookups_local lookups_remote verified verify_failures duration_s \
         load_s load_pairs_per_s",
    );
    assert_fields(&run["mix"], "read update insert read_modify_write");
    assert_fields(&run["slices"], "slice_s per_s least most uneven");
    assert_fields(&run["latency_us"], "read read_modify_write");
    assert_fields(&run["latency_us"]["read"], json::LATENCY);
    assert_fields(&run["machines"][0], "machine ops ops_per_s");
    let names = "read update insert read_modify_write".split(' ');
    assert!(names.eq(OpKind::ALL.map(OpKind::name)));
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
}

/// Of three runs, the report shows the table of the median run, and the median and spread of every figure.
#[test]
fn repeats_are_told_by_median_and_spread() {
    let run = |reads| run_of(&setup("c", "uniform"), &[machine("0", reads, 1.0)]);
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
    assert_fields(&json["repeated"][0], "what repeats median_run figures");
    assert_fields(&json["repeated"][0]["figures"][0], "name median least most");
    let table = thrice.to_string();
    let lines = [
        "run 3 of 3, the median of 3:",
        "  total                         200              200",
        "workload c, uniform, 3 runs: median (least to most)",
        "  ops/s                                    200 (100 to 300)",
    ];
    assert_lines(&table, &lines);
    assert_eq!(table.matches("latency, us").count(), 1, "{table}");
}

#[test]
fn slices_that_differ_by_more_than_2x_cause_a_warning() {
    let with = |counts: &[u64]| {
        let mut machine = machine("0", 99, 1.0);
        machine.workers[0].slices = slices(counts);
        report(vec![run_of(&setup("c", "uniform"), &[machine])])
    };
    let even = with(&[1000, 2000]);
    assert_eq!(even.uneven, []);
    assert!(!even.to_string().contains("warning"), "{even}");
    let uneven = with(&[1000, 2001]);
    assert_eq!(uneven.uneven.len(), 1);
    let json: Value = serde_json::from_str(&uneven.to_json()).unwrap();
    assert_eq!(json["runs"][0]["slices"]["uneven"], true);
    assert_fields(&json["uneven"][0], "run what least most");
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
    grown.tables.pairs = 16_047;
    let run = run_of(&setup("d", "latest 0.99"), &[grown]);
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
    let table = run_of(&bounded, &[machine("0", 9, 1.0)]).to_string();
    assert!(
        table.contains("bounded by 5,000 operations\nheld to 1,000 operations/s\n"),
        "{table}"
    );
}

#[test]
fn what_does_not_apply_is_null() {
    let run = run_of(&setup("c", "uniform"), &[]);
    let json = serde_json::to_value(&run).unwrap();
    let fields = "ops_per_s reads_per_lookup reads_per_miss read_restarts_per_lookup local_share \
                  occupancy space_utilization bytes_per_pair load_s load_pairs_per_s slices \
                  operation_count target_ops_per_s";
    for field in fields.split_whitespace() {
        assert_eq!(json[field], Value::Null, "{field}");
    }
    assert_eq!(json["latency_us"], json!({}));
    assert!(run.to_string().contains("- of a hit"), "{run}");
}

#[test]
fn machines_that_sample_differently_are_refused() {
    let mut other = machine("1", 1, 1.0);
    other.workers[0].recorder = recorder(8);
    let result = RunResult::new(&setup("a", "uniform"), &[machine("0", 1, 1.0), other]);
    let (ours, theirs) = ((OpKind::ALL.len(), 1), (OpKind::ALL.len(), 8));
    assert_eq!(result, Err(RecorderError::Mixed { ours, theirs }));
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
