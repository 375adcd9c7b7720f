//! Runs each bench once with short time slices. The tests check which figures a report contains, and not how fast it
//! is.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use farm_core::config::{Config, HugePages};
use farm_core::mem::Memory;
use serde_json::Value;

use super::limit::{LimitOptions, ReadRate, raw_limit};
use super::*;
use crate::report::Measured;

const MIB: usize = 1 << 20;

/// Returns a short run with its own directory, which is removed when the second value is dropped.
fn quick(name: &str, sizes: &[usize]) -> (MicroRun, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::default_for(1, 1);
    config.cluster.name = format!("{name}-{}", std::process::id());
    config.cluster.run_dir = dir.path().join("run").into();
    config.memory.dir = dir.path().to_owned();
    config.memory.huge_pages = HugePages::Off;
    let run = MicroRun {
        config,
        sizes: sizes.to_vec(),
        cores: Vec::new(),
        repeats: 2,
        slice: Duration::from_millis(1),
    };
    (run, dir)
}

/// Returns the files that a bench left in its directory. Subdirectories with the machines' locks and logs do not count.
fn stale_files(dir: &tempfile::TempDir) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir.path()).unwrap();
    entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .collect()
}

/// Not a test: the other process of the tests below, which start this program with this name.
#[test]
fn child() {
    if std::env::var_os(CHILD_VARIABLE).is_some() {
        assert_eq!(child_main(), ExitCode::SUCCESS);
    }
}

fn launcher() -> Launcher {
    let arguments = [
        "--exact",
        "micro::tests::child",
        "--nocapture",
        "--test-threads=1",
    ];
    Launcher {
        arguments: arguments.map(Into::into).to_vec(),
        ..Launcher::this_program().unwrap()
    }
}

/// Returns the latencies or rates at these paths of every row, without nulls.
fn checked<'a>(report: &'a Value, paths: &'a [&str]) -> impl Iterator<Item = &'a Value> {
    let rows = report["rows"].as_array().unwrap().iter();
    rows.flat_map(|row| paths.iter().map(|path| row.pointer(path).unwrap()))
        .filter(|found| !found.is_null())
}

fn assert_measured(report: &Value, latencies: &[&str], rates: &[&str]) {
    for latency in checked(report, latencies) {
        let [p50, p99] = ["p50_ns", "p99_ns"].map(|key| latency[key].as_u64().unwrap());
        assert!(latency["samples"].as_u64() > Some(1), "{latency}");
        assert!(0 < p50 && p50 <= p99, "{latency}");
    }
    for rate in checked(report, rates) {
        let [median, least, most] =
            ["per_s", "least", "most"].map(|key| rate[key].as_f64().unwrap());
        assert!(0.0 < least && least <= median && median <= most, "{rate}");
    }
}

#[test]
fn limit_measures_every_variant_at_every_size() {
    let memory = [Memory::anonymous(2 * MIB)];
    let options = LimitOptions {
        repeats: 2,
        slice: Duration::from_micros(200),
        core: None,
    };
    for (stride, bytes) in [(192, 384), (64, 64), (64, 16)] {
        let limit = raw_limit(&memory, stride, bytes, &options).unwrap();
        let batched = |name: &str| {
            let of = |rate: &&ReadRate| rate.access == "batch" && rate.variant == name;
            limit.rates.iter().filter(of).count()
        };
        assert_eq!((batched("memcpy"), batched("words")), (4, 4));
        assert!(
            limit
                .rates
                .iter()
                .all(|rate| rate.least > 0.0 && rate.least <= rate.most)
        );
        assert!(limit.best.reads_per_s >= limit.best_batched.reads_per_s);
        assert_eq!(
            (limit.best_batched.access.as_str(), limit.dependent.batch),
            ("batch", 1)
        );
        assert_eq!(limit.best_checked.is_some(), bytes != 16);
        let shares = limit.best.gb_per_s * 1e9 / limit.best.reads_per_s;
        assert_eq!(shares.round() as usize, bytes);
        let table = limit.to_string();
        assert_eq!(table.contains("checked words"), bytes != 16, "{table}");
    }
}

#[test]
fn options_that_cannot_be_measured_with_are_refused() {
    let memory = [Memory::anonymous(MIB)];
    let options = LimitOptions {
        repeats: 1,
        slice: Duration::from_millis(1),
        core: None,
    };
    let limit = |stride, bytes| raw_limit(&memory, stride, bytes, &options).unwrap_err();
    let ring = |program: &str, size| {
        let launcher = Launcher {
            program: program.into(),
            arguments: Vec::new(),
        };
        let (run, _dir) = quick("refused", &[size]);
        ring::run(&run, &launcher, &mut |_| {}).unwrap_err()
    };
    let fabric = |bytes: usize, size| {
        let (run, _dir) = quick("refused", &[size]);
        fabric::run(&run, bytes as u64, &mut |_| {}).unwrap_err()
    };
    for (refused, option) in [
        (limit(64, 7), "bytes per read: "),
        (limit(100, 64), "stride: "),
        (ring("", 1 << 20), "sizes: "),
        (
            ring("/no/such/program", 64),
            "cannot start the other process",
        ),
        (fabric(MIB, 0), "sizes: "),
        (fabric(MIB, 12), "sizes: "),
        (fabric(4096, 8192), "bytes: "),
        (fabric(100, 64), "bytes: "),
    ] {
        assert!(refused.to_string().starts_with(option), "{refused}");
    }
}

#[test]
fn ring_measures_rings_workers_and_sockets() {
    let (run, dir) = quick("ring", &[16, 24, 4096]);
    let report = ring::run(&run, &launcher(), &mut |_| {}).unwrap();
    let sizes: Vec<usize> = report.rows.iter().map(|row| row.bytes).collect();
    assert_eq!(sizes, run.sizes);
    let json = serde_json::to_value(&report).unwrap();
    let latencies = ["/ring_rtt", "/call_rtt", "/unix_rtt", "/tcp_rtt"];
    assert_measured(
        &json,
        &latencies,
        &["/stream_msgs", "/ring_calls", "/calls"],
    );
    assert!(json["rows"][0]["stream_gb_per_s"].as_f64() > Some(0.0));
    let conditions = &json["conditions"];
    let pinned = conditions["pinned"].as_array().unwrap();
    assert_eq!(pinned.is_empty(), conditions["not_pinned"].is_string());
    assert_eq!(stale_files(&dir), Vec::<PathBuf>::new());
    assert!(report.to_string().contains("Unix socket"));
    let names = report.figures().into_iter().map(|figure| figure.name);
    let names: Vec<String> = names.filter(|name| name.starts_with("16 B ")).collect();
    assert_eq!(
        names,
        [
            "16 B ring round trip p50, ns",
            "16 B one-way messages/s",
            "16 B ring calls/s",
            "16 B one-way messages, GB/s",
            "16 B worker's call p50, ns",
            "16 B worker's calls/s",
            "16 B Unix socket p50, ns",
            "16 B loopback TCP p50, ns",
        ]
    );
    let figures = report.figures().into_iter();
    assert_eq!(figures.filter(|figure| figure.slices.is_some()).count(), 9);
}

#[test]
fn fabric_measures_reads_and_writes() {
    let (run, dir) = quick("fabric", &[16, 64, 4096]);
    let report = fabric::run(&run, MIB as u64, &mut |_| {}).unwrap();
    let json = serde_json::to_value(&report).unwrap();
    let objects: Vec<bool> = json["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["read_object"].is_null())
        .collect();
    assert_eq!(objects, [true, false, false]);
    let latencies = ["/read_raw/latency", "/write/latency"];
    let rates = [
        "/read_raw/one",
        "/read_raw/of_32",
        "/read_raw/of_256",
        "/write/one",
        "/write/of_32",
        "/write/of_256",
        "/memcpy_of_32",
        "/memcpy_one",
    ];
    assert_measured(&json, &latencies, &rates);
    let whole_lines = serde_json::json!({ "rows": [json["rows"][2]["read_object"]] });
    assert_measured(&whole_lines, &["/latency"], &["/one", "/of_32", "/of_256"]);
    assert_eq!(stale_files(&dir), Vec::<PathBuf>::new());
    assert!(report.to_string().contains("read object"));
}

#[test]
fn the_machines_are_beside_the_cluster_they_are_for() {
    let (mut run, _dir) = quick("beside", &[]);
    run.config.cluster.name = "a".repeat(40);
    let config = run.machines();
    assert_eq!(config.cluster.name.len(), 38, "at most 40 characters");
    assert_eq!(config.memory.dir, run.config.memory.dir);
}

#[test]
fn rates_are_medians() {
    let rate = Rate::of(vec![3.0, 1.0, 2.0]);
    assert_eq!((rate.per_s, rate.least, rate.most), (2.0, 1.0, 3.0));
    assert_eq!(Rate::of(vec![4.0, 1.0]).per_s, 2.5);
    assert_eq!(Rate::of(Vec::new()), Rate::default());
    assert_eq!(rate.gb_per_s(500_000_000), 1.0);
}
