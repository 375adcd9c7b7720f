//! Reports of transactional benchmarks: the fields of the JSON form, merging of machines, checks, and the table.

mod json;

use farm_bench::closed_loop;
use farm_bench::oltp::audit::AuditResult;
use farm_bench::oltp::costs::{Aborts, Costs, Counters};
use farm_bench::oltp::driver::Ran;
use farm_bench::oltp::report::{MachineReport, RunResult, Setup};
use farm_bench::oltp::{Benchmark, Decision, Outcome};
use farm_bench::recorder::Recorder;
use farm_bench::report::{Header, Report, Started};
use farm_bench::slices::Slices;
use farm_bench::smallbank::{self, Kind, Ledger};
use farm_bench::tatp;
use json::{assert_fields, assert_lines};
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

/// Returns a worker that executed `each` balances and `each` deposits, of which one was declined.
fn worker(each: u64, duration_s: f64) -> Ran {
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
    recorder.counters = Counters {
        aborts: Aborts {
            locked: each,
            ..Aborts::default()
        },
        costs: Costs {
            reads: 6 * each,
            writes: 3 * each,
            messages: each,
            ..Costs::default()
        },
    };
    let slices = Slices {
        slice_ns: 500_000_000,
        counts: vec![each, 3 * each],
    };
    let transactions = closed_loop::Ran {
        recorder,
        slices,
        duration_s,
        failure: None,
    };
    Ran {
        transactions,
        ledger,
    }
}

fn machines() -> [MachineReport; 2] {
    [("1", 101, 1.0), ("2", 201, 2.0)].map(|(machine, each, duration_s)| MachineReport {
        machine: machine.to_owned(),
        load_s: duration_s,
        loaded: 100,
        tables: (),
        workers: vec![worker(each, duration_s)],
    })
}

/// Returns the result of a correct audit, after 300 committed deposits of 130 cents.
fn audited() -> AuditResult {
    AuditResult {
        items: 100,
        rows: 200,
        cents: 200 * 1_000 + 300 * 130,
        pairs: 200,
        wrong: None,
    }
}

fn result() -> RunResult {
    RunResult::new(&setup(), &machines(), None, &audited()).unwrap()
}

#[test]
fn the_json_fields_are_pinned() {
    let header = Header::new(&Started::now(), vec!["farm".to_owned()], None);
    let report = Report::new(header, json!({}), json!({}), vec![result()]);
    let json: Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_fields(&json, json::REPORT);
    assert_eq!(json["uneven"][0]["what"], "smallbank: executed/s");
    let run = &json["runs"][0];
    assert_fields(
        run,
        "benchmark options seed concurrency without warmup_s duration_s executed executed_per_s \
         slices committed committed_per_s committed_per_s_per_worker aborts abort_share \
         reads_per_commit writes_per_commit messages_per_commit costs by_tasks kinds machines load_s \
         load_rows load_rows_per_s check failures",
    );
    assert_fields(&run["aborts"], "locked changed timed_out busy");
    assert_fields(
        &run["costs"],
        "reads header_reads writes lock_records commit_records abort_records truncate_records \
         messages lock_replies",
    );
    assert_fields(
        &run["kinds"][0],
        "kind executed committed not_found declined latency_us",
    );
    assert_fields(&run["kinds"][1]["latency_us"], json::LATENCY);
    assert_fields(&run["machines"][0], "machine workers");
    assert_fields(
        &run["machines"][0]["workers"][0],
        "executed executed_per_s committed committed_per_s",
    );
    assert_fields(&run["check"], "items rows pairs money wrong");
    assert_fields(&run["check"]["money"], "found_cents least_cents most_cents");
    assert_eq!(run["options"]["mix"]["balance"], 15);
}

/// The tasks run after the continuations, on the same accounts.
#[test]
fn the_run_as_tasks_is_reported_and_its_money_counts() {
    let (machines, mut audited) = (machines(), audited());
    let one = |audited: &AuditResult| {
        RunResult::new(&setup(), &machines, Some(&machines), audited).unwrap()
    };
    assert!(!one(&audited).is_right(), "the money of one run is missing");
    audited.cents += 300 * 130;
    let run = one(&audited);
    assert!(run.is_right(), "{run}");
    let by_tasks = run.by_tasks.as_ref().unwrap();
    assert_eq!(
        (by_tasks.executed, by_tasks.of_continuations),
        (604, Some(1.0))
    );
    assert_eq!(by_tasks.abort_share, Some(1.0 / 3.0));
    let words = run.to_string();
    let line = "302 executed/s, 301 committed/s: 100.0 % of the rate by continuations";
    assert!(words.contains(line), "{words}");
    let json = serde_json::to_value(&run).unwrap();
    assert_fields(
        &json["by_tasks"],
        "executed executed_per_s committed_per_s abort_share of_continuations",
    );
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
}

#[test]
fn what_is_wrong_or_failed_is_told() {
    let result = |audited| RunResult::new(&setup(), &machines(), None, &audited).unwrap();
    let all = "all balances together are 239001 cents, but the committed transactions imply 239000 to 239000 cents";
    let off = AuditResult {
        cents: audited().cents + 1,
        ..audited()
    };
    let damaged = AuditResult {
        wrong: Some("a row is missing".into()),
        ..off.clone()
    };
    let few = AuditResult {
        items: 99,
        ..audited()
    };
    for (found, wrong) in [
        (off, all),
        (damaged, "a row is missing"),
        (few, "only 99 of 100 accounts were checked"),
    ] {
        let run = result(found);
        assert_eq!(
            (run.is_right(), run.check.wrong),
            (false, vec![wrong.to_owned()])
        );
    }
    let mut failed = machines();
    failed[1].workers[0].transactions.failure = Some("no memory".into());
    let run = RunResult::new(&setup(), &failed, None, &audited()).unwrap();
    assert_eq!(run.failures, ["machine 2, worker 0: no memory"]);
    let table = run.to_string();
    assert!(!run.is_right() && table.contains("FAILED"), "{table}");
}

#[test]
fn fields_that_do_not_apply_are_null() {
    let setup = Setup {
        benchmark: Benchmark::Tatp(tatp::Options::default()),
        ..setup()
    };
    let run = RunResult::new(&setup, &[], None, &AuditResult::default()).unwrap();
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
    let run = RunResult::new(&setup(), &received, None, &audited()).unwrap();
    assert_eq!(run, result());
}

#[test]
fn the_table_shows_the_main_figures() {
    let table = result().to_string();
    let lines = [
        "smallbank, up to 8 transactions in flight on a worker, 2.0 s measured",
        "  1.0                           202              201              201",
        "  total                         302              301              602",
        "  DepositChecking                   302          300            0            2",
        "  tried again        302 locked, 0 changed, 0 timed out, 0 for lack of room; in total 33.3 % of all attempts",
        "  per commit         3.000 one-sided reads, 1.500 log records, 0.500 messages",
        "  checked at the end 100 items, 200 rows, 200 pairs walked",
        "  money              239000 cents, 239000 expected",
        "  slices, executed   2 of 0.5 s, 604 to 1,812 /s: UNEVEN",
    ];
    assert_lines(&table, &lines);
}
