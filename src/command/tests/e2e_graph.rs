//! `farm linkbench` and `farm taobench`, run as a user runs them: their reports, and the files and options that they
//! refuse.

mod common;

use std::fs;

use common::{Place, degrees, number, only_run};
use serde_json::Value;

/// Options of a short run of LinkBench.
const LINKS: [&str; 10] = [
    "--set",
    "memory.per_machine_bytes=256MiB",
    "-D",
    "maxid1=3001",
    "--duration",
    "0.3",
    "--warmup",
    "0.1",
    "--machines",
    "2",
];

/// Options of a short run of TAOBench.
const EDGES: [&str; 10] = [
    "--set",
    "memory.per_machine_bytes=256MiB",
    "--edges",
    "2000",
    "--duration",
    "0.3",
    "--warmup",
    "0.1",
    "--machines",
    "2",
];

fn linkbench(place: &Place, args: &[&str]) -> Value {
    let json = place.path("links.json");
    let degrees = degrees(place);
    let own = ["-D", &degrees, "--json", json.to_str().unwrap()];
    let all = [&LINKS[..], &own, args].concat();
    let ended = place.small("linkbench", &all).end().ok();
    assert!(
        ended
            .stdout
            .contains("LOAD PHASE COMPLETED. Loaded 3000 nodes")
    );
    serde_json::from_slice(&fs::read(&json).unwrap()).unwrap()
}

fn taobench(place: &Place, args: &[&str]) -> Value {
    let json = place.path("edges.json");
    let all = [&EDGES[..], args, &["--json", json.to_str().unwrap()]].concat();
    let ended = place.small("taobench", &all).end().ok();
    assert!(
        ended.stdout.contains("check              right: "),
        "{}",
        ended.stdout
    );
    serde_json::from_slice(&fs::read(&json).unwrap()).unwrap()
}

#[test]
fn linkbench_reports_its_load_and_its_requests() {
    let place = Place::new("links");
    let csv = place.path("links.csv");
    let run = linkbench(&place, &["--csv", csv.to_str().unwrap()]);
    assert_eq!(number(&run["load"], "nodes"), 3000.0);
    for key in ["links", "counts", "seconds", "bytes_per_edge"] {
        assert!(number(&run["load"], key) > 0.0, "{key}: {run:#}");
    }
    assert_eq!(number(&run, "errors"), 0.0);
    for name in [
        "ADD_LINK",
        "UPDATE_NODE",
        "GET_NODE",
        "COUNT_LINK",
        "GET_LINKS_LIST",
    ] {
        let op = &run["ops"][name];
        assert!(
            number(op, "count") > 0.0 && number(op, "ops_per_s") > 0.0,
            "{name}: {op:#}"
        );
        assert!(
            op["reads_per_op"].is_f64() && op["latency_us"]["p99"].is_f64(),
            "{op:#}"
        );
    }
    assert_eq!(run["ops"]["GET_LINKS_TIME_RANGE"], Value::Null);
    let csv = fs::read_to_string(csv).unwrap();
    assert!(csv.starts_with("op,count,p25_low"), "{csv}");
    assert!(csv.contains("\nGET_NODE,"), "{csv}");
}

#[test]
fn linkbench_runs_in_all_variants() {
    let place = Place::new("variants");
    let tao = linkbench(&place, &["--mix", "tao", "--range-limit", "4294967295"]);
    assert!(number(&tao["ops"]["GET_LINKS_TIME_RANGE"], "count") > 0.0);
    let by_id = linkbench(&place, &["--by-id", "--compat", "-D", "requests=50"]);
    // By id, each request looks up the name of its node first.
    assert!(
        number(&by_id["ops"]["COUNT_LINK"], "reads_per_op") > 1.9,
        "{by_id:#}"
    );
    let loaded = linkbench(&place, &["--load-only", "--seed", "4"]);
    assert_eq!(loaded["ops"], Value::Object(serde_json::Map::new()));
    // The same seed gives the same graph.
    let again = linkbench(&place, &["--load-only", "--seed", "4", "--workers", "2"]);
    let facts = |run: &Value| ["nodes", "links", "counts"].map(|key| number(&run["load"], key));
    assert_eq!(facts(&loaded), facts(&again));
}

#[test]
fn linkbench_reads_property_files() {
    let place = Place::new("own-files");
    let file = place.path("own.properties");
    fs::write(&file, "requesters = 4\nrequests = 20\n").unwrap();
    let run = linkbench(&place, &["-c", file.to_str().unwrap()]);
    assert!(
        run["degrees"].as_str().unwrap().ends_with("own.dat"),
        "{run:#}"
    );
    let count = run["ops"].as_object().unwrap().values();
    let count: f64 = count.map(|op| number(op, "count")).sum();
    assert!((1.0..=80.0).contains(&count), "{count}");
}

#[test]
fn linkbench_refuses_wrong_files_and_values() {
    let place = Place::new("wrong-links");
    let file = |name: &str, text: &[u8]| {
        let path = place.path(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let refused = |args: &[&str], words: &[&str]| {
        place.small("linkbench", args).end().failed(2, words);
    };
    let ycsb = file(
        "workloada",
        b"recordcount=1000\nworkload=site.ycsb.CoreWorkload\n",
    );
    refused(
        &["-c", &ycsb],
        &[
            "workloada",
            "no line of the file is a property of LinkBench",
        ],
    );
    let binary = file("binary", b"maxid1 = 10\n\xff\xfe\x00\n");
    refused(&["-c", &binary], &["binary:2: the file has a zero byte"]);
    refused(&["-c", "/no/such/file"], &["/no/such/file"]);
    let cut = file("cut.dat", b"nlinks\n0 50.0\n2 80.0\n");
    let cut_option = format!("data_file={cut}");
    refused(&["-D", &cut_option], &["cut.dat:3", "truncated"]);
    let other = file("other.dat", b"hello world\n");
    let other_option = format!("data_file={other}");
    refused(&["-D", &other_option], &["other.dat:1"]);
    refused(&["-D", "data_file="], &["data_file", "-D"]);
    refused(&["-D", "maxid1=0"], &["maxid1", "-D"]);
    // Refused at once: the links of so many nodes would be counted for hours.
    refused(&["-D", "maxid1=2000000000000"], &["maxid1", "memory"]);
    refused(&["--json", "x", "--csv", "x"], &["--json and --csv"]);
    refused(&["-D", "addlink=-5"], &["addlink", "-D"]);
    refused(&["-D", "requesters=100000000"], &["requesters"]);
    refused(&["--range-limit", "0"], &["--range-limit"]);
    refused(&["--range-limit", "4294967296"], &["--range-limit"]);
    refused(&["--mix", "other"], &["--mix", "linkbench, tao"]);
    refused(
        &["--beside", "mysql"],
        &["mysql", "sqlite, rocksdb, postgres"],
    );
    refused(
        &["--beside", "sqlite", "--beside-threads", "0"],
        &["--beside-threads"],
    );
    refused(&["--beside", "sqlite", "--load-only"], &["--load-only"]);
    // The tests run the program as it is built by default.
    refused(
        &["--beside", "sqlite"],
        &["built without the other engines", "./x engines"],
    );
    let unwritable = ["--csv", "/no/such/dir/x.csv", "-D", "maxid1=11"];
    let ended = place.small("linkbench", &unwritable).end();
    ended.failed(1, &["/no/such/dir/x.csv (--csv)"]);
}

#[test]
fn taobench_reports_its_requests_and_checks_the_graph() {
    let place = Place::new("edges");
    let report = taobench(&place, &[]);
    let run = only_run(&report);
    assert_eq!(
        (number(run, "errors"), number(&run["load"], "edges")),
        (0.0, 2000.0)
    );
    assert!(
        number(run, "ops_per_s") > 0.0 && run["audit"]["wrong"].is_null(),
        "{run:#}"
    );
    assert!(number(&run["audit"], "edges") >= 2000.0, "{run:#}");
    for name in [
        "obj_read",
        "edge_range_read",
        "edge_update",
        "read_txn",
        "write_txn",
    ] {
        let op = &run["ops"][name];
        // One request in 16 is timed, so that a busy host may time none of the few requests of a rare kind.
        let timed = number(op, "count") < 300.0 || op["latency_us"]["p50"].is_f64();
        assert!(number(op, "count") > 0.0 && timed, "{name}: {op:#}");
    }
    let overall = taobench(&place, &["--mix", "o", "--compat", "--seed", "7"]);
    let run = only_run(&overall);
    assert_eq!(
        (&run["mix"], &run["compat"]),
        (&Value::from("o"), &Value::from(true))
    );
    assert_eq!(run["ops"]["edge_range_read"], Value::Null);
}

#[test]
fn taobench_refuses_wrong_files_and_values() {
    let place = Place::new("wrong-edges");
    let file = |name: &str, text: &[u8]| {
        let path = place.path(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let refused = |args: &[&str], words: &[&str]| {
        place.small("taobench", args).end().failed(2, words);
    };
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let good = fs::read_to_string(root.join("config/taobench/a.json")).unwrap();
    let cut = file("cut.json", &good.as_bytes()[..400]);
    refused(&["-c", &cut], &["cut.json:2: "]);
    let binary = file("binary.json", b"\x00\xff\xfe");
    refused(&["-c", &binary], &["binary.json:1: ", "not text"]);
    let other = file("workloada", b"recordcount=1000\n");
    refused(
        &["-c", &other],
        &["workloada:1: ", "not a distribution of TAOBench"],
    );
    let first = good.lines().next().unwrap();
    let partial = file("partial.json", first.as_bytes());
    refused(&["-c", &partial], &["partial.json: ", "is missing"]);
    refused(&["-c", "/no/such/file"], &["/no/such/file"]);
    refused(&["--edges", "0"], &["--edges"]);
    refused(&["--mix", "c"], &["--mix", "a, o"]);
    refused(&["--mix", "a", "-c", &cut], &["--mix", "--workload"]);
}
