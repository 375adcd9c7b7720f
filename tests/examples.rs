//! The examples run as programs, and leave nothing behind.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const EXAMPLES: [&str; 7] = [
    "account",
    "continuations",
    "graph_search",
    "linked_list",
    "order_service",
    "secondary_index",
    "tokio",
];

/// Returns the program of an example, which cargo builds with the tests.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let target = test.parent().and_then(|deps| deps.parent()).unwrap();
    let program = target.join("examples").join(name);
    assert!(
        program.exists(),
        "build the examples first: `cargo build --examples`"
    );
    program
}

/// Returns the files of clusters of a process.
fn files_of(process: u32) -> Vec<String> {
    let names = std::fs::read_dir("/dev/shm").unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mark = format!("-{process}-");
    let end = format!("-{process}");
    names
        .filter(|name| name.contains(&mark) || name.ends_with(&end))
        .collect()
}

#[test]
fn every_example_runs() {
    let of_directory = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")).unwrap();
    // `join` has a test of its own.
    assert_eq!(of_directory.count(), EXAMPLES.len() + 1);
    for name in EXAMPLES {
        let child = Command::new(program(name))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let process = child.id();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {text}");
        assert_eq!(files_of(process), [""; 0], "{name}");
        if name == "account" {
            let expected = "90 left; Some(Account { balance: 90, opened: 2026 })\n";
            assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
        }
    }
}

/// A cluster of one machine, which the program joins.
#[test]
fn a_program_joins_the_cluster_of_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("farm.toml");
    let text = format!(
        "[cluster]\nname = \"join-{}\"\n[memory]\nregion_bytes = \"16MiB\"\n[durability]\nmode = \"none\"\n[[machine]]\nid = 1\n",
        std::process::id()
    );
    std::fs::write(&config, text).unwrap();
    let output = Command::new(program("join")).arg(&config).arg("1").output();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let expected = "pooled 1\nmemory 1\npooled 2\nreads 1\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    // Wrong arguments are a sentence, and status 1.
    for arguments in [&["x"][..], &["x", "y"], &["/nowhere.toml", "1"]] {
        let output = Command::new(program("join")).args(arguments).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            text.starts_with("Error: ") && text.lines().count() <= 3,
            "{text}"
        );
    }
}

/// A signal that ends the process removes its files first.
#[test]
fn an_interrupted_program_leaves_nothing_behind() {
    // A child process that waits: this test itself, with a variable that makes it run the other function.
    const VARIABLE: &str = "FARM_TEST_WAITS";
    if std::env::var_os(VARIABLE).is_some() {
        let cluster = farm::Cluster::local(2).start().unwrap();
        let _table: farm::Table<u64, u64> = cluster.create_table("t", 100).unwrap();
        println!("ready");
        loop {
            std::thread::park();
        }
    }
    for signal in ["INT", "TERM", "HUP"] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "an_interrupted_program_leaves_nothing_behind",
                "--exact",
                "--nocapture",
            ])
            .env(VARIABLE, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = std::io::BufReader::new(child.stdout.take().unwrap());
        let ready = std::io::BufRead::lines(out).any(|line| line.unwrap().contains("ready"));
        assert!(ready);
        assert_ne!(files_of(child.id()), [""; 0], "the files have other names");
        let sent = Command::new("kill")
            .args([format!("-{signal}"), child.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
        let late = Instant::now() + Duration::from_secs(30);
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < late, "{signal}");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(!status.success(), "{signal} ends the process");
        assert_eq!(files_of(child.id()), [""; 0], "{signal}");
    }
}
