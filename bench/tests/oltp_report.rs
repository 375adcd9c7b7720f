//! Reports of transactional benchmarks: the fields of the JSON form, merging of machines, checks, and the table.

mod json;

use farm_bench::oltp::audit::Audited;
use farm_bench::oltp::recorder::{Aborts, Costs, Recorder};
use farm_bench::oltp::report::{MachineReport, RunResult, Setup, WorkerReport};
use farm_bench::oltp::{Benchmark, Decision, Outcome};
use farm_bench::report::{Header, Report, Started};
use farm_bench::slices::Slices;
use farm_bench::smallbank::{self, Kind, Ledger};
use farm_bench::tatp;
use json::assert_fields;
use serde_json::{Value, json};
use smallvec::SmallVec;

fn setup() -> Setup {
    Setup {
        benchmark: Benchmark::Smallbank(smallbank::Options {
            accounts: 100,
            hot_accounts: 4,
            initial_cents: 1_000,
            ..Default::default()
        }),
        seed: 7,
        concurrency: 8,
        without: vec![],
        warmup_s: 0.5,
    }
}

/// Returns the report of a worker that executed `each` balance transactions and `each` deposits. The first deposit was
/// declined.
fn worker(each: u64, duration_s: f64) -> WorkerReport {
    let mut recorder = Recorder::new(Kind::ALL.len(), 1);
    let mut ledger = Ledger::default();
    for latency_us in 1..=each {
        let latency = Some(latency_us * 1000);
        recorder.finish(Kind::Balance.index(), Outcome::Committed, latency);
        let outcome = match latency_us {
            1 => Outcome::Declined,
            _ => Outcome::Committed,
        };
        recorder.finish(Kind::DepositChecking.index(), outcome, None);
        ledger.committed(&Decision {
            outcome,
            writes: SmallVec::new(),
            delta_cents: 130,
        });
    }
    recorder.aborts = Aborts {
        locked: each,
        ..Aborts::default()
    };
    recorder.costs = Costs {
        reads: 6 * each,
        writes: 3 * each,
        messages: each,
        ..Costs::default()
    };
    WorkerReport {
        duration_s,
        recorder,
        slices: Slices {
            slice_ns: 500_000_000,
            counts: vec![each, 3 * each],
        },
        ledger,
        failure: None,
    }
}

fn machines() -> [MachineReport; 2] {
    [("1", 101, 1.0), ("2", 201, 2.0)].map(|(machine, each, duration_s)| MachineReport {
        machine: machine.to_owned(),
        load_s: duration_s,
        load_rows: 100,
        workers: vec![worker(each, duration_s)],
    })
}

/// Returns the result of a correct audit, after 300 committed deposits of 130 cents.
fn audited() -> Audited {
    Audited {
        items: 100,
        rows: 200,
        cents: 200 * 1_000 + 300 * 130,
        pairs: 200,
        wrong: None,
    }
}

fn result() -> RunResult {
    RunResult::new(&setup(), &machines(), &audited()).unwrap()
}

#[test]
fn the_json_fields_are_pinned() {
    let header = Header::new(&Started::now(), vec!["farm".to_owned()], None);
    let report = Report::new(header, json!({}), json!({}), vec![result()]);
    let json: Value = serde_json::from_str(&report.to_json()).unwrap();
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
    assert_eq!(json["uneven"][0]["what"], "smallbank: executed/s");
    check_run_fields(&json["runs"][0]);
    check_part_fields(&json["runs"][0]);
}

fn check_run_fields(run: &Value) {
    assert_fields(
        run,
        [
            "benchmark",
            "options",
            "seed",
            "concurrency",
            "without",
            "warmup_s",
            "duration_s",
            "executed",
            "executed_per_s",
            "slices",
            "committed",
            "committed_per_s",
            "committed_per_s_per_worker",
            "aborts",
            "abort_share",
            "reads_per_commit",
            "writes_per_commit",
            "messages_per_commit",
            "costs",
            "kinds",
            "machines",
            "load_s",
            "load_rows",
            "load_rows_per_s",
            "check",
            "failures",
        ],
    );
}

fn check_part_fields(run: &Value) {
    assert_fields(&run["aborts"], ["locked", "changed", "timed_out", "busy"]);
    assert_fields(
        &run["costs"],
        [
            "reads",
            "header_reads",
            "writes",
            "lock_records",
            "commit_records",
            "abort_records",
            "truncate_records",
            "messages",
            "lock_replies",
        ],
    );
    assert_fields(
        &run["kinds"][0],
        [
            "kind",
            "executed",
            "committed",
            "not_found",
            "declined",
            "latency_us",
        ],
    );
    assert_fields(
        &run["kinds"][1]["latency_us"],
        ["p50", "p90", "p99", "p999", "max", "sampled_1_in"],
    );
    assert_fields(&run["machines"][0], ["machine", "workers"]);
    assert_fields(
        &run["machines"][0]["workers"][0],
        ["executed", "executed_per_s", "committed", "committed_per_s"],
    );
    assert_fields(&run["check"], ["items", "rows", "pairs", "money", "wrong"]);
    assert_fields(
        &run["check"]["money"],
        ["found_cents", "least_cents", "most_cents"],
    );
    assert_eq!(run["options"]["mix"]["balance"], 15);
}

#[test]
fn machines_are_merged_and_judged() {
    let run = result();
    assert!(run.is_right(), "{run}");
    assert_eq!(
        (run.executed, run.committed, run.duration_s),
        (604, 602, 2.0)
    );
    let rates = (run.executed_per_s, run.committed_per_s);
    assert_eq!(rates, (Some(302.0), Some(301.0)));
    assert_eq!(run.committed_per_s_per_worker, Some(150.5));
    assert_eq!((run.aborts.locked, run.abort_share), (302, Some(1.0 / 3.0)));
    assert_eq!(
        (
            run.reads_per_commit,
            run.writes_per_commit,
            run.messages_per_commit
        ),
        (Some(3.0), Some(1.5), Some(0.5))
    );
    let kind = |of: Kind| &run.kinds[of.index()];
    assert_eq!(kind(Kind::DepositChecking).declined, 2);
    assert_eq!(kind(Kind::DepositChecking).latency_us, None);
    assert_eq!(kind(Kind::Balance).executed, 302);
    assert_eq!(kind(Kind::Balance).kind, "Balance");
    assert_eq!(run.machines[0].workers[0].committed_per_s, Some(201.0));
    assert_eq!((run.load_rows, run.load_rows_per_s), (200, Some(100.0)));
    let text = serde_json::to_string(&run).unwrap();
    assert_eq!(serde_json::from_str::<RunResult>(&text).unwrap(), run);
}

#[test]
fn wrong_results_and_failures_are_reported() {
    let mut off = audited();
    off.cents += 1;
    let run = RunResult::new(&setup(), &machines(), &off).unwrap();
    assert!(!run.is_right());
    assert_eq!(
        run.check.wrong,
        [
            "all balances together are 239001 cents, and committed transactions leave 239000 to \
             239000"
        ]
    );
    let damaged = Audited {
        wrong: Some("a row is missing".into()),
        ..off
    };
    let run = RunResult::new(&setup(), &machines(), &damaged).unwrap();
    assert_eq!(run.check.wrong, ["a row is missing"]);
    let few = Audited {
        items: 99,
        ..audited()
    };
    let run = RunResult::new(&setup(), &machines(), &few).unwrap();
    assert_eq!(run.check.wrong, ["only 99 of 100 accounts were checked"]);
    let mut failed = machines();
    failed[1].workers[0].failure = Some("no memory".into());
    let run = RunResult::new(&setup(), &failed, &audited()).unwrap();
    assert_eq!(run.failures, ["machine 2, worker 0: no memory"]);
    assert!(
        !run.is_right() && run.to_string().contains("FAILED"),
        "{run}"
    );
}

#[test]
fn fields_that_do_not_apply_are_null() {
    let setup = Setup {
        benchmark: Benchmark::Tatp(tatp::Options::default()),
        ..setup()
    };
    let run = RunResult::new(&setup, &[], &Audited::default()).unwrap();
    let json = serde_json::to_value(&run).unwrap();
    for field in [
        "executed_per_s",
        "committed_per_s",
        "abort_share",
        "reads_per_commit",
    ] {
        assert_eq!(json[field], Value::Null, "{field}");
    }
    assert_eq!(json["check"]["money"], Value::Null);
}

#[test]
fn a_machines_report_survives_json() {
    let text = serde_json::to_string(&machines()).unwrap();
    let received: [MachineReport; 2] = serde_json::from_str(&text).unwrap();
    let run = RunResult::new(&setup(), &received, &audited()).unwrap();
    assert_eq!(run, result());
}

#[test]
fn the_table_shows_the_main_figures() {
    let table = result().to_string();
    for line in [
        "smallbank, up to 8 transactions in flight on a worker, 2.0 s measured",
        "  1.0                           202              201              201",
        "  total                         302              301              602",
        "  DepositChecking                   302          300            0            2",
        "  tried again        302 locked, 0 changed, 0 timed out, 0 busy: 33.3 % of all attempts",
        "  per commit         3.000 one-sided reads, 1.500 log records, 0.500 messages",
        "  checked at the end 100 items, 200 rows, 200 pairs walked",
        "  money              239000 cents, 239000 expected",
        "  slices, executed   2 of 0.5 s, 604 to 1,812 /s: UNEVEN",
    ] {
        assert!(
            table.lines().any(|one| one == line),
            "no {line:?} in\n{table}"
        );
    }
}
