//! `--lose-machines`: machines are killed and stopped while benchmarks run, and the checks after the run are those of a run without losses.

mod common;

use std::fs;
use std::path::PathBuf;

use common::{DEADLINE, Place, degrees, number, only_run, wait_until};
use rustix::process::Signal;
use serde_json::Value;

/// A run that is long enough for several losses, with leases that are short.
const LOSING: [&str; 10] = [
    "--lose-machines",
    "--machines",
    "4",
    "--set",
    "durability.lease_ms=100",
    "--set",
    "memory.per_machine_bytes=128MiB",
    "--duration",
    "4",
    "--warmup=0",
];

/// Runs a benchmark, and returns its report.
#[track_caller]
fn lose(command: &str, args: &[&str]) -> (Value, String) {
    let place = Place::new(&format!("losing-{command}"));
    let json = place.path("results.json");
    let path = json.to_str().unwrap();
    let all = [&LOSING[..], args, &["--json", path]].concat();
    let ended = place.small(command, &all).end().ok();
    let said = ended
        .stderr
        .lines()
        .rfind(|line| line.starts_with("machines were lost"));
    let said = said.unwrap_or_else(|| panic!("no losses in {}", ended.stderr));
    let times: u32 = said.split(' ').nth(3).unwrap().parse().unwrap();
    assert!(
        times > 0 && said.ends_with("all copies are equal"),
        "{said}"
    );
    assert_eq!(place.memory(), Vec::<PathBuf>::new());
    let results = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    (results, ended.stderr)
}

#[test]
fn ycsb_loses_no_record() {
    let sizes = ["--records", "20000", "--workload", "a,d", "--verify"];
    let (results, stderr) = lose("ycsb", &sizes);
    assert!(stderr.contains("checked "), "{stderr}");
    for run in results["runs"].as_array().unwrap() {
        assert!(number(run, "ops") > 0.0);
        assert_eq!(number(run, "errors"), 0.0);
        assert_eq!(number(run, "verify_failures"), 0.0);
    }
}

#[test]
fn tatp_is_right_after_losses() {
    let (results, _) = lose("tatp", &["--subscribers", "2000"]);
    assert!(number(only_run(&results), "committed") > 0.0);
}

#[test]
fn smallbank_loses_no_money() {
    let (results, _) = lose("smallbank", &["--accounts", "2000"]);
    assert!(number(only_run(&results), "committed") > 0.0);
}

#[test]
fn linkbench_counts_its_links_right_after_losses() {
    let place = Place::new("losing-degrees");
    let degrees = degrees(&place);
    let (results, stderr) = lose("linkbench", &["-D", "maxid1=3001", "-D", &degrees]);
    assert!(stderr.contains("lists of 3000 nodes"), "{stderr}");
    assert_eq!(number(&results, "errors"), 0.0);
}

#[test]
fn taobench_finds_what_was_written_after_losses() {
    let (results, _) = lose("taobench", &["--edges", "2000"]);
    assert_eq!(number(only_run(&results), "errors"), 0.0);
}

/// The files of a machine that was down stayed when a command was interrupted.
#[test]
fn an_interrupted_run_leaves_nothing_of_the_machine_that_is_down() {
    let place = Place::new("losing-interrupted");
    let args = [&LOSING[..], &["--accounts", "2000"]].concat();
    let run = place.small("smallbank", &args);
    let mut most = 0;
    wait_until("no machine is down", DEADLINE, || {
        let running = place.processes().len();
        most = most.max(running);
        running < most
    });
    run.signal(Signal::INT);
    run.end();
    assert_eq!(place.stale_files(), Vec::<String>::new());
}

#[test]
fn a_run_that_cannot_lose_machines_is_refused() {
    let place = Place::new("losing-refused");
    let refuse = |command: &str, args: &[&str], texts: &[&str]| {
        let args = [&["--lose-machines"], args].concat();
        place.small(command, &args).end().failed(2, texts);
    };
    refuse("tatp", &["--machines", "2"], &["three machines or more"]);
    let one = ["--machines", "4", "--set", "durability.replicas=1"];
    refuse("smallbank", &one, &["two copies"]);
    refuse(
        "ycsb",
        &["-p", "operationcount=10"],
        &["operationcount", "--duration"],
    );
    refuse("ycsb", &["-p", "threadcount=2"], &["threadcount"]);
    refuse("linkbench", &["-D", "requesters=2"], &["requesters"]);
}
