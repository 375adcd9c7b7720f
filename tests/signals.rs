//! A signal ends a program in the middle of its operations: its machines stop, its files are removed, and the process ends by
//! the signal, whatever its code does with the errors of its operations.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};

use farm::prelude::*;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The variable that makes a test a program that works until a signal ends it.
const CHILD: &str = "FARM_TEST_SIGNALS_CHILD";

/// Starts this test program as the program of [`a_program_that_works`], and waits until it works.
fn start(how: &str, before: &[&str]) -> Child {
    let program = std::env::current_exe().unwrap();
    let words = before.iter().map(|word| (*word).to_owned());
    let words = words.chain([program.to_str().unwrap().to_owned()]);
    let words: Vec<String> = words
        .chain(["--exact", "a_program_that_works", "--nocapture"].map(str::to_owned))
        .collect();
    let mut child = Command::new(&words[0])
        .args(&words[1..])
        .env(CHILD, how)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    assert!(lines.any(|line| line.contains("the program works")));
    child
}

fn signal(child: &Child, signal: i32) {
    let pid = rustix::process::Pid::from_child(child);
    let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Returns the files in memory of the clusters of a process.
fn files_of(pid: u32) -> Vec<String> {
    let of_process = format!("local-{pid}-");
    let files = std::fs::read_dir("/dev/shm").unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.contains(&of_process)).collect()
}

/// Not a test, unless it is started as a program by the tests below.
#[test]
fn a_program_that_works() {
    let Ok(how) = std::env::var(CHILD) else {
        return;
    };
    let run = || -> farm::Result<()> {
        let cluster = Cluster::local(3).start()?;
        let table: Table<u64, u64> = cluster.create_table("t", 100)?;
        println!("the program works");
        cluster.block_on(async |farm| {
            loop {
                for key in 0..100 {
                    table.put(&farm, key, key).await?;
                    farm.transact(async |tx| table.put(tx, key, key).await)
                        .await?;
                }
            }
        })
    };
    let ended = run();
    match how.as_str() {
        // As `main` does that returns the error.
        "return" => std::process::exit(i32::from(ended.is_err())),
        how => panic!("{how}: {ended:?}"),
    }
}

#[test]
fn a_signal_removes_the_files_of_a_program_that_works_and_then_ends_it() {
    for round in 0..4 {
        for ended_by in [SIGINT, SIGTERM, SIGHUP] {
            let mut child = start("return", &[]);
            let pid = child.id();
            assert!(!files_of(pid).is_empty());
            signal(&child, ended_by);
            let status = child.wait().unwrap();
            assert_eq!(files_of(pid), Vec::<String>::new(), "round {round}");
            assert_eq!(status.signal(), Some(ended_by), "{status:?}");
        }
    }
}

#[test]
fn a_signal_that_the_process_ignores_stays_ignored() {
    let mut child = start("return", &["nohup"]);
    let pid = child.id();
    signal(&child, SIGHUP);
    // The program goes on: a later signal ends it, and not the first one.
    signal(&child, SIGTERM);
    assert_eq!(child.wait().unwrap().signal(), Some(SIGTERM));
    assert_eq!(files_of(pid), Vec::<String>::new());
}
