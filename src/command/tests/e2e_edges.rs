//! `farm edges`, run as a user runs it: imports of text and of compressed files, searches, and the lines and files that it
//! refuses.

mod common;

use std::fs;
use std::path::Path;

use common::{Ended, Place, number, only_run, runs};
use serde_json::Value;

/// A triangle and a path of two edges, with comments, a duplicate, a line in both directions, and a self loop.
const LIST: &str = "# Nodes: 6 Edges: 8\n1\t2\n2\t3\n3\t1\n10 11\r\n\n11 12\n1\t2\n2\t1\n12\t12\n";

/// Options of a small cluster.
const SMALL: [&str; 4] = [
    "--machines",
    "2",
    "--set",
    "memory.per_machine_bytes=128MiB",
];

/// Runs `farm edges` with a report. Returns the report and what the command printed.
fn edges(place: &Place, code: i32, args: &[&str]) -> (Value, Ended) {
    let json = place.path("edges.json");
    let all = [args, &SMALL, &["--json", json.to_str().unwrap()]].concat();
    let ended = place.small("edges", &all).end().failed(code, &[]);
    let report = fs::read(&json).unwrap_or_else(|error| panic!("{error}: {}", ended.stderr));
    fs::remove_file(&json).unwrap();
    (serde_json::from_slice(&report).unwrap(), ended)
}

fn counts(run: &Value) -> [f64; 5] {
    ["nodes", "edges", "duplicates", "self_loops", "bad_lines"]
        .map(|key| number(&run["import"], key))
}

fn write_gz(path: &Path, text: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    writer.write_all(text).unwrap();
    let bytes = writer.finish().unwrap();
    fs::write(path, &bytes).unwrap();
    bytes
}

#[test]
fn a_text_is_imported_and_searched() {
    let place = Place::new("edges-text");
    let file = place.write("list.txt", LIST);
    let file = file.to_str().unwrap();
    let (report, ended) = edges(&place, 0, &[file, "--bfs", "10"]);
    let run = only_run(&report);
    assert_eq!(counts(run), [6.0, 7.0, 1.0, 1.0, 0.0], "{run:#}");
    assert_eq!(run["bfs"]["levels"], serde_json::json!([1, 1, 1]));
    assert_eq!(
        (&run["bfs"]["reached"], &run["bfs"]["edges"]),
        (&3.into(), &3.into())
    );
    assert_eq!(
        (&run["two_hop"], &run["list"]),
        (&Value::Null, &Value::from(file))
    );
    assert!(number(&run["import"], "bytes_per_edge") > 0.0, "{run:#}");
    assert!(
        ended.stdout.contains("graph              6 nodes, 7 edges"),
        "{}",
        ended.stdout
    );
    // Undirected, both directions are one edge.
    let (report, _) = edges(&place, 0, &[file, "--undirected", "--bfs", "12"]);
    let run = only_run(&report);
    assert_eq!(counts(run), [6.0, 6.0, 2.0, 1.0, 0.0], "{run:#}");
    assert_eq!(run["bfs"]["levels"], serde_json::json!([1, 1, 1]));
}

#[test]
fn a_compressed_file_is_the_same_list() {
    let place = Place::new("edges-gz");
    let (plain, packed) = (place.path("list"), place.path("list.gz"));
    let text: String = (0..40_000u64)
        .map(|line| format!("{} {}\n", line / 8, line * line % 5003))
        .collect();
    fs::write(&plain, &text).unwrap();
    let bytes = write_gz(&packed, text.as_bytes());
    let of = |path: &Path| edges(&place, 0, &[path.to_str().unwrap(), "--bfs", "0"]).0;
    let facts = |report: &Value| {
        let run = only_run(report);
        (counts(run), run["bfs"]["levels"].clone())
    };
    let expected = facts(&of(&plain));
    assert_eq!(facts(&of(&packed)), expected);
    assert!(expected.0[1] > 30_000.0, "{expected:?}");
    // A file that ends in the middle is no list: nothing is searched.
    fs::write(&packed, &bytes[..bytes.len() / 2]).unwrap();
    let args = [packed.to_str().unwrap(), "--bfs", "0"];
    let cut = place.small("edges", &[&args[..], &SMALL].concat()).end();
    let cut = cut.failed(2, &["list.gz:", "the file cannot be read further"]);
    assert!(!cut.stderr.contains("searching"), "{}", cut.stderr);
}

#[test]
fn two_hop_queries_are_measured() {
    let place = Place::new("edges-two-hop");
    let args = [
        "--nodes",
        "2000",
        "--degree",
        "4",
        "--two-hop",
        "--duration",
        "0.4",
        "--warmup",
        "0.1",
    ];
    let (report, ended) = edges(&place, 0, &[&args[..], &["--repeat", "2"]].concat());
    assert_eq!(
        report["repeated"][0]["figures"][0]["name"],
        "vertex reads/s"
    );
    for run in runs(&report) {
        let two_hop = &run["two_hop"];
        assert_eq!(number(two_hop, "errors"), 0.0, "{run:#}");
        assert!(
            number(two_hop, "queries") > 0.0 && two_hop["latency_us"]["p99"].is_f64(),
            "{run:#}"
        );
        // About one start and four neighbours of a query; one read of an object or two of each.
        let per_query = number(two_hop, "vertices") / number(two_hop, "queries");
        assert!((3.0..7.0).contains(&per_query), "{run:#}");
        let reads = number(two_hop, "reads_per_vertex");
        assert!((1.0..1.2).contains(&reads), "{run:#}");
        assert!(number(two_hop, "found_per_query") > 8.0, "{run:#}");
    }
    assert!(ended.stdout.contains("vertex reads/s"), "{}", ended.stdout);
    // The same seed gives the same graph.
    let [first, second] = [0, 1].map(|at| counts(&runs(&report)[at]));
    assert_eq!((first, first[0] > 1900.0), (second, true));
}

#[test]
fn bad_lines_are_reported_and_skipped() {
    let place = Place::new("edges-bad");
    let lines = [
        "1 2",
        "x y",
        "-1 2",
        "18446744073709551616 3",
        "9223372036854775808 3",
        "1 2 3",
        "4",
        "2 3",
    ];
    let file = place.write("bad.txt", &lines.join("\n"));
    let file = file.to_str().unwrap();
    let (report, ended) = edges(&place, 1, &[file, "--bfs", "1"]);
    let run = only_run(&report);
    assert_eq!(counts(run), [3.0, 2.0, 0.0, 0.0, 6.0], "{run:#}");
    assert_eq!(number(&run["bfs"], "reached"), 3.0);
    for (line, text) in (1..).zip(lines) {
        let message = format!("farm: error: {file}:{line}: {text:?} is not an edge");
        assert_eq!(
            ended.stderr.contains(&message),
            (2..8).contains(&line),
            "{}",
            ended.stderr
        );
    }
    assert!(
        ended
            .stderr
            .contains("were skipped: 6; printed: the first 6"),
        "{}",
        ended.stderr
    );
    assert!(
        ended.stdout.contains("6 not edges (skipped)"),
        "{}",
        ended.stdout
    );
    let strict = place
        .small("edges", &[file, "--strict", "--bfs", "1"])
        .end();
    let strict = strict.failed(2, &["bad.txt:2: \"x y\" is not an edge"]);
    assert!(!strict.stderr.contains("bad.txt:3"), "{}", strict.stderr);
}

#[test]
fn many_bad_lines_are_counted() {
    let place = Place::new("edges-many-bad");
    let text: String = (0..100)
        .map(|line| format!("{line} {}\nbad\n", line + 1))
        .collect();
    let file = place.write("bad.txt", &text);
    let (report, ended) = edges(&place, 1, &[file.to_str().unwrap()]);
    assert_eq!(counts(only_run(&report)), [101.0, 100.0, 0.0, 0.0, 100.0]);
    assert_eq!(ended.stderr.matches("\"bad\" is not an edge").count(), 20);
    assert!(
        ended
            .stderr
            .contains("were skipped: 100; printed: the first 20"),
        "{}",
        ended.stderr
    );
}

#[test]
fn files_without_edges_are_refused() {
    let place = Place::new("edges-none");
    let refused = |name: &str, content: &[u8], texts: &[&str]| {
        let path = place.path(name);
        fs::write(&path, content).unwrap();
        place
            .small("edges", &[path.to_str().unwrap()])
            .end()
            .failed(2, texts);
        assert_eq!(place.stale_files(), Vec::<String>::new());
    };
    refused("empty", b"", &["empty: the file has no edges"]);
    refused(
        "comments",
        b"# Nodes: 0 Edges: 0\n\n",
        &["comments: the file has no edges"],
    );
    refused(
        "text",
        b"hello\nworld\n",
        &[
            "text: the file is not an edge list",
            "text:1: \"hello\" is not an edge",
        ],
    );
    refused(
        "binary",
        &[0x7f, b'E', b'L', b'F', 0, 1, 0xff, b'\n', 0],
        &["binary:1: ", "is not an edge"],
    );
    refused(
        "long",
        &[0; 10_000],
        &["long:1: the line is longer than 4096 bytes"],
    );
    refused(
        "damaged.gz",
        &[0x1f, 0x8b, 1, 2, 3],
        &["damaged.gz:1: the file cannot be read further"],
    );
    let dir = place.path("run");
    let ended = place.small("edges", &[dir.to_str().unwrap()]).end();
    ended.failed(2, &["run: it is not a regular file"]);
    let ended = place.small("edges", &["/no/such/list"]).end();
    ended.failed(2, &["cannot read /no/such/list", "No such file"]);
}

#[test]
fn wrong_options_are_refused() {
    let place = Place::new("edges-options");
    let file = place.write("list.txt", LIST);
    let file = file.to_str().unwrap();
    for (args, texts) in [
        (&[file, "--nodes", "5"][..], &["--nodes", "FILE"][..]),
        (&[file, "--degree", "5"], &["--degree", "FILE"]),
        (&["--strict"], &["FILE"]),
        (&["--nodes", "0"], &["--nodes", "at least 1"]),
        (&["--degree", "0"], &["--degree"]),
        (&[file, "--bfs", "-1"], &["--bfs"]),
        (&[file, "--bfs", "18446744073709551616"], &["--bfs"]),
        (&[file, "--duration", "0"], &["--duration"]),
    ] {
        place.small("edges", args).end().failed(2, texts);
    }
    // The graph is reported, although the search has no start.
    let (report, ended) = edges(&place, 1, &[file, "--bfs", "77"]);
    assert_eq!(only_run(&report)["bfs"], Value::Null);
    let why = "cannot search from 77 (--bfs): no node of";
    assert!(ended.stderr.contains(why), "{}", ended.stderr);
    let ended = place
        .small("edges", &[file, "--json", "/no/such/dir/x.json"])
        .end();
    ended.failed(1, &["/no/such/dir/x.json (--json)"]);
}

/// A list whose nodes do not fit: the error names the edge and what to change.
#[test]
fn a_graph_that_does_not_fit_is_an_error() {
    let place = Place::new("edges-memory");
    let args = [
        "--nodes",
        "300000",
        "--degree",
        "10",
        "--machines",
        "1",
        "--set",
        "memory.per_machine_bytes=96MiB",
    ];
    let ended = place.small("edges", &args).end();
    ended.failed(1, &["cannot import the edges", "memory.per_machine_bytes"]);
}

/// Every command of the README that begins with `farm edges` runs, with files of these names.
#[test]
fn the_commands_of_the_readme_run() {
    let place = Place::new("edges-readme");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let commands = readme
        .lines()
        .filter_map(|line| line.strip_prefix("farm edges "));
    let commands: Vec<&str> = commands
        .map(|line| line.split(" #").next().unwrap())
        .collect();
    assert!(commands.len() >= 3, "{commands:?}");
    for command in commands {
        let words = shlex::split(command).unwrap().into_iter().map(|word| {
            let is_file = [".txt", ".txt.gz", ".json"]
                .iter()
                .any(|end| word.ends_with(end));
            match is_file {
                true => {
                    let path = place.path(&word);
                    match word.ends_with(".gz") {
                        true => _ = write_gz(&path, LIST.as_bytes()),
                        false if word.ends_with(".txt") => fs::write(&path, LIST).unwrap(),
                        false => {}
                    }
                    path.to_str().unwrap().to_owned()
                }
                false => word,
            }
        });
        let words: Vec<String> = words.collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let short = ["--set", "memory.per_machine_bytes=256MiB"];
        place
            .small("edges", &[&words[..], &short].concat())
            .end()
            .ok();
    }
    assert!(place.path("edges.json").exists());
}
