//! Features that all measuring commands share: bounds of a run, the origin of a report, repeated runs.

mod common;

use std::fs;
use std::path::PathBuf;

use common::{Place, measure, number, only_run, runs};
use serde_json::Value;

/// Options of a small table with small values.
const SMALL: [&str; 8] = [
    "--records",
    "5000",
    "--value-bytes",
    "32",
    "--warmup",
    "0.1",
    "--distribution",
    "uniform",
];

fn with<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&SMALL[..], args].concat()
}

/// Regression: `farm ycsb` ignored `-p operationcount=…` and `-p threadcount=…`, and ran for 10 seconds with 768
/// operations in flight.
#[test]
fn a_run_ends_after_the_requested_number_of_operations() {
    let place = Place::new("operationcount");
    // With a thread count of 1, a single worker runs all operations.
    for (count, threads, machines) in [(3001, 7, "3"), (20, 1, "2"), (500, 600, "3")] {
        let (operations, in_flight) = (
            format!("operationcount={count}"),
            format!("threadcount={threads}"),
        );
        let args = with(&[
            "--workload",
            "a",
            "--verify",
            "--machines",
            machines,
            "-p",
            &operations,
            "-p",
            &in_flight,
        ]);
        let results = measure(&place, &args);
        let run = only_run(&results);
        assert_eq!(run["ops"], count, "{run:#}");
        assert_eq!(
            (&run["errors"], &run["verify_failures"]),
            (&0.into(), &0.into())
        );
        assert_eq!(run["operation_count"], count);
        assert_eq!(run["in_flight"], threads);
        let each = run["machines"].as_array().unwrap();
        let sum: u64 = each.iter().map(|one| one["ops"].as_u64().unwrap()).sum();
        assert_eq!(sum, count);
    }
}

/// Regression: `-p target=2000` was ignored, and the run made 300,000 operations a second.
#[test]
fn a_run_keeps_to_the_requested_rate() {
    let place = Place::new("target");
    let args = [
        "--records",
        "5000",
        "-p",
        "target=2000",
        "-p",
        "operationcount=1200",
        "--warmup",
        "0",
    ];
    let results = measure(&place, &args);
    let run = only_run(&results);
    assert_eq!(
        (&run["ops"], &run["target_ops_per_s"]),
        (&1200.into(), &2000.into())
    );
    // Each of three workers runs 400 operations. The last one begins after 399 intervals.
    let fastest = 2000.0 * 400.0 / 399.0;
    assert!(number(run, "ops_per_s") <= fastest, "{run:#}");
}

#[test]
fn a_duration_option_overrides_the_operation_count_of_a_file() {
    let place = Place::new("count-or-time");
    let file = place.write("mine", "recordcount=2000\noperationcount=9\nfieldcount=1\n");
    let file = file.to_str().unwrap();
    let json = place.path("results.json");
    let args = [
        "-P",
        file,
        "--json",
        json.to_str().unwrap(),
        "--warmup",
        "0",
    ];
    let ops = |more: &[&str]| {
        let ended = place.small("ycsb", &[&args[..], more].concat()).end().ok();
        let results: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
        (only_run(&results)["ops"].as_u64().unwrap(), ended.stderr)
    };
    let (count, stderr) = ops(&[]);
    assert_eq!(count, 9);
    assert!(stderr.contains("until 9 operations are done"), "{stderr}");
    assert!(!stderr.contains("table.value_bytes"), "{stderr}");
    let (count, stderr) = ops(&["--duration", "0.3"]);
    assert!(count > 9, "{count}");
    let note = "mine:2) is overridden by --duration 0.3";
    assert!(stderr.contains(note), "{stderr}");
    let (count, stderr) = ops(&["--duration", "30", "-p", "operationcount=12"]);
    assert_eq!(count, 12);
    assert!(!stderr.contains("overridden"), "{stderr}");
}

#[test]
fn invalid_bounds_are_refused() {
    let place = Place::new("bounds-refused");
    for (property, texts) in [
        (
            "threadcount=800",
            &[
                "threadcount = '800' (-p)",
                "from 1 to 768",
                "worker.operations_in_flight",
            ][..],
        ),
        ("threadcount=0", &["threadcount = '0' (-p)", "from 1 on"]),
        ("target=fast", &["target = 'fast' (-p)", "whole number"]),
        (
            "workload=site.ycsb.workloads.RestWorkload",
            &["RestWorkload' (-p)", "CoreWorkload, the only supported"],
        ),
        ("dotransactions=false", &["dotransactions = 'false' (-p)"]),
    ] {
        let ended = place.small("ycsb", &with(&["-p", property])).end();
        ended.failed(2, texts);
        assert_eq!(place.stale_files(), Vec::<String>::new());
    }
}

/// Checks the fields of a report that describe its origin, which all measuring commands have.
#[track_caller]
fn check_origin(results: &Value, command: &str, stdout: &str) {
    assert_eq!(results["schema_version"], 1);
    let words = results["command"].as_array().unwrap();
    assert!(words.iter().any(|word| word == command), "{words:?}");
    assert!(words.iter().any(|word| word == "--json"), "{words:?}");
    let started = results["started_at"].as_str().unwrap();
    assert!(started.starts_with("20") && started.ends_with('Z') && started.len() == 20);
    assert!(number(results, "took_s") > 0.0 && number(results, "cores") >= 1.0);
    let processor = results["processor"].as_str().unwrap();
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap();
    let model = cpuinfo.lines().find(|line| line.starts_with("model name"));
    match model {
        Some(line) => assert!(line.ends_with(processor), "{line:?} {processor:?}"),
        None => assert!(!processor.is_empty()),
    }
    assert!(stdout.starts_with(processor), "{stdout}");
    assert!(results["host"]["cores_online"].is_u64());
    assert!(results["config"]["table"]["neighbourhood"].is_u64());
    assert!(results["uneven"].is_array());
}

/// Runs a command with `--repeat 2`, checks the output, and returns the report.
fn repeated(place: &Place, command: &[&str], args: &[&str]) -> Value {
    let json = place.path("results.json");
    let path = json.to_str().unwrap();
    let all = [args, &["--repeat", "2", "--json", path]].concat();
    let ended = match command {
        ["bench", what] => {
            let run_dir = format!("cluster.run_dir={}", place.path("run").display());
            let name = format!("cluster.name={}", place.name());
            let base = ["bench", what, "--set", &run_dir, "--set", &name];
            place.farm(&[&base[..], &all].concat()).end().ok()
        }
        _ => place.small(command[0], &all).end().ok(),
    };
    let results: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    check_origin(&results, command[0], &ended.stdout);
    for text in ["2 runs: median (least to most)", "the median of 2"] {
        assert!(ended.stdout.contains(text), "{}", ended.stdout);
    }
    for text in ["run 1 of 2", "run 2 of 2"] {
        assert!(ended.stderr.contains(text), "{}", ended.stderr);
    }
    for group in results["repeated"].as_array().unwrap() {
        assert_eq!(group["repeats"], 2);
        let figures = group["figures"].as_array().unwrap();
        assert!(!figures.is_empty());
        for figure in figures {
            let [least, median, most] = ["least", "median", "most"].map(|key| number(figure, key));
            assert!(least <= median && median <= most, "{figure:#}");
        }
    }
    results
}

fn first_figure(results: &Value) -> &str {
    results["repeated"][0]["figures"][0]["name"]
        .as_str()
        .unwrap()
}

#[test]
fn ycsb_repeats_and_reports_its_settings() {
    let place = Place::new("repeat-ycsb");
    let args = with(&[
        "--workload",
        "b,c",
        "--duration",
        "0.2",
        "--seed",
        "5",
        "--verify",
    ]);
    let results = repeated(&place, &["ycsb"], &args);
    let names: Vec<&Value> = runs(&results).iter().map(|run| &run["workload"]).collect();
    assert_eq!(names, ["b", "c", "b", "c"]);
    assert_eq!(results["repeated"].as_array().unwrap().len(), 2);
    assert_eq!(first_figure(&results), "ops/s");
    let run = &runs(&results)[2];
    assert_eq!(
        (&run["seed"], &run["record_count"]),
        (&5.into(), &5000.into())
    );
    assert_eq!(
        (&run["verify"], &run["warmup_s"]),
        (&true.into(), &0.1.into())
    );
    assert_eq!(
        (&run["value_bytes"], &run["in_flight"]),
        (&32.into(), &768.into())
    );
    assert_eq!(run["mix"]["read"], 0.95);
    assert_eq!(run["operation_count"], Value::Null);
}

#[test]
fn transactional_benchmarks_repeat() {
    let place = Place::new("repeat-oltp");
    let short = ["--duration", "0.2", "--warmup", "0.1", "--machines", "2"];
    let tatp = [&short[..], &["--subscribers", "1000"]].concat();
    let results = repeated(&place, &["tatp"], &tatp);
    assert_eq!(first_figure(&results), "committed/s");
    let bank = [&short[..], &["--accounts", "1000"]].concat();
    let results = repeated(&place, &["smallbank"], &bank);
    for run in runs(&results) {
        assert_eq!(run["check"]["wrong"], Value::Array(Vec::new()));
    }
}

/// Regression test: the second start found the configuration that the first one had stored, and refused.
#[test]
fn commits_with_copies_are_measured_repeatedly() {
    let place = Place::new("repeat-commit");
    let copies = [
        "--duration",
        "0.02",
        "--set",
        "durability.mode=memory",
        "--set",
        "durability.replicas=2",
    ];
    let results = repeated(&place, &["bench", "commit"], &copies);
    for row in runs(&results)[0]["commits"]["rows"].as_array().unwrap() {
        assert!(row["commits"]["per_s"].as_f64().unwrap() > 0.0);
        if row["hot"] == false {
            let [others, own] =
                [0, 1].map(|log| row["log_bytes_per_commit"][log].as_f64().unwrap());
            assert!(others > 100.0 && own >= 0.0, "{row}");
        }
    }
}

#[test]
fn component_benches_repeat_and_report_their_origin() {
    let place = Place::new("repeat-bench");
    let rings = ["--sizes", "16", "--duration", "0.2"];
    let results = repeated(&place, &["bench", "ring"], &rings);
    assert_eq!(first_figure(&results), "16 B ring round trip p50, ns");
    assert_eq!(runs(&results)[1]["rows"][0]["bytes"], 16);
}

/// Regression: `--set table.value_bytes=48` created a table with values of 48 bytes, but the report said 1,000
/// bytes. In a configuration file, `table.value_bytes` was ignored without a message.
#[test]
fn the_reported_value_length_is_that_of_the_table() {
    let place = Place::new("value-bytes");
    let set = ["--set", "table.value_bytes=48", "--verify"];
    let short = ["--records", "2000", "--duration", "0.1", "--warmup", "0"];
    let results = measure(&place, &[&set[..], &short].concat());
    assert_eq!(only_run(&results)["value_bytes"], 48);
    let file = place.write(
        "mine.toml",
        "[[machine]]\nid = 1\n[table]\nvalue_bytes = 40\n",
    );
    let args = [
        "--config",
        file.to_str().unwrap(),
        "--records",
        "100",
        "--duration",
        "0.1",
    ];
    let stderr = place.small("ycsb", &args).end().ok().stderr;
    let note = "values have 1000 bytes; table.value_bytes = 40";
    assert!(stderr.contains(note), "{stderr}");
    let fields = place.write("short", "recordcount=100\nfieldcount=1\nfieldlength=10\n");
    let fields = fields.to_str().unwrap();
    let args = [
        "--workload",
        "a",
        "-P",
        fields,
        "--records",
        "100",
        "--duration",
        "0.1",
    ];
    let stderr = place.small("ycsb", &args).end().ok().stderr;
    let warning = "workload short specifies values of 10 bytes, but runs with values of 1000";
    assert!(stderr.contains(warning), "{stderr}");
}

#[test]
fn kills_are_measured_and_drawn() {
    let place = Place::new("losses");
    let program = "[[machine]]\nid = 4\nmemory_bytes = 0\n";
    let config = place.config("farm.toml", "64MiB", 3, program);
    let (json, svg) = (place.path("losses.json"), place.path("losses.svg"));
    // The file has the mode "none".
    let mode = ["--set", "durability.mode=auto"];
    let bench = [&["bench", "losses", "--config", &config], &mode[..]].concat();
    let files = [
        ["--json", json.to_str().unwrap()],
        ["--svg", svg.to_str().unwrap()],
    ];
    let size = ["--kills", "4", "--duration", "1", "--in-flight", "2"];
    let more = ["--ballast", "1MiB"];
    let args = [&bench[..], &files.concat(), &size, &more].concat();
    let ended = place.farm(&args).end().ok();
    assert!(ended.stdout.contains("no money is missing"));
    assert!(ended.stdout.contains("all copies full"));
    let results: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let kills = results["runs"][0]["kills"].as_array().unwrap();
    let killed = kills.iter().map(|kill| kill["killed"].as_str().unwrap());
    let expected = ["manager", "machine", "machine", "program"];
    assert_eq!(killed.collect::<Vec<_>>(), expected);
    assert!(kills.iter().all(|kill| number(kill, "after_per_s") > 0.0));
    let returned = kills.iter().map(|kill| kill["returned"].is_object());
    assert_eq!(returned.collect::<Vec<_>>(), [true, true, true, false]);
    assert!(fs::read_to_string(svg).unwrap().contains("</svg>"));
    assert_eq!(place.memory(), Vec::<PathBuf>::new());

    let stops = [
        "--stop",
        "--kills",
        "4",
        "--duration",
        "3",
        "--in-flight",
        "2",
    ];
    let lease = ["--set", "durability.lease_ms=100"];
    let ended = place
        .farm(&[&bench[..], &stops, &lease].concat())
        .end()
        .ok();
    assert!(ended.stdout.contains("a lease is 100 ms"));
    assert!(ended.stdout.contains("no money is missing"));

    let only = ["--only", "manager", "--kills", "2", "--duration", "1"];
    let ended = place.farm(&[&bench[..], &only].concat()).end().ok();
    let lines = ["    the manager  ", "    a machine  "].map(|line| ended.stdout.contains(line));
    assert_eq!(lines, [true, false], "{}", ended.stdout);

    let all = ["--all", "--kills", "2", "--ballast", "1MiB"];
    let ended = place.farm(&[&bench[..], &all].concat()).end().ok();
    assert!(ended.stdout.contains("first commit"), "{}", ended.stdout);
    assert!(ended.stdout.contains("no money is missing"));
    assert_eq!(place.memory(), Vec::<PathBuf>::new());

    let one = [&bench[..], &["--set", "durability.replicas=1"]].concat();
    let texts = ["does not survive the loss", "durability.replicas of 2"];
    place.farm(&one).end().failed(2, &texts);
    let without = [&bench[..], &["--set", "durability.mode=none"]].concat();
    place.farm(&without).end().failed(2, &texts);
    // It has copies without a mode, as its help says.
    let two = ["--set", "durability.replicas=2"];
    let short = ["--kills", "1", "--duration", "1"];
    place.farm(&[&bench[..], &two, &short].concat()).end().ok();
    let brief = ["--stop", "--duration", "0.9"];
    place
        .farm(&[&bench[..], &brief].concat())
        .end()
        .failed(2, &["observe twice as long", "durability.lease_ms"]);
    let none = [&bench[..], &["--kills", "0"]].concat();
    let no_program = ["bench", "losses", "--only", "program"];
    place
        .farm(&no_program)
        .end()
        .failed(2, &["no program to kill"]);
    place.farm(&none).end().failed(2, &["--kills"]);
    let nowhere = [&bench[..], &["--svg", "/nowhere/losses.svg"]].concat();
    place.farm(&nowhere).end().failed(1, &["--svg", "/nowhere"]);
}
