//! The configuration store in files, with processes that are killed, stopped, and that write at the same time.
//!
//! A child process is this test program again, with the test [`child`], which does nothing without the environment variable
//! [`ROLE`].

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use farm_core::ids::{MachineId, RegionId};
use farm_core::membership::configuration::{
    Configuration, Domain, Member, RegionReplicas, Replica, ReplicaState, Version,
};
use farm_core::membership::directory::{Directory, OsDirectory, check_usable};
use farm_core::membership::files::{FileStore, KEPT};
use farm_core::membership::store::{ConfigStore, StoreError, Swap};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

/// The role of a child process: the directory, a colon and what the child does.
const ROLE: &str = "FARM_CONFIG_STORE_ROLE";

fn first() -> Configuration {
    let machine = MachineId::new(1).unwrap();
    let member = Member {
        machine,
        boot: 77,
        workers: 1,
        stores: true,
        domain: Domain::default(),
    };
    Configuration {
        cluster: "test".into(),
        change: 1,
        version: Version { id: 1, minor: 0 },
        seed: 77,
        members: vec![member],
        manager: machine,
        catalog: None,
        recovered: 0,
        expiring: Vec::new(),
        quorums: Vec::new(),
        regions: Vec::new(),
    }
}

fn region(number: u32) -> RegionId {
    RegionId::new(3, number).unwrap()
}

/// Returns the configuration after `before`, with one region more.
fn with_region(before: &Configuration, number: u32) -> Configuration {
    let mut next = before.next(number.is_multiple_of(2));
    let replica = Replica {
        machine: MachineId::new(1).unwrap(),
        since: 1,
        state: ReplicaState::Full,
    };
    let at = next
        .regions
        .partition_point(|one| one.region < region(number));
    next.regions.insert(
        at,
        RegionReplicas {
            region: region(number),
            replicas: vec![replica],
            last_primary_change: 1,
        },
    );
    next
}

fn store(dir: &Path) -> FileStore {
    FileStore::at(dir, "test")
}

/// A directory with the first configuration.
fn started() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(store(dir.path()).read(), Ok(None)));
    assert_eq!(
        store(dir.path()).compare_and_swap(&first()).unwrap(),
        Swap::Won
    );
    dir
}

fn newest(dir: &Path) -> Configuration {
    store(dir)
        .read()
        .unwrap()
        .expect("the store has a configuration")
}

/// Changes the configuration `times` times.
fn change(dir: &Path, first: u32, times: u32) {
    for number in first..first + times {
        let next = with_region(&newest(dir), number);
        assert_eq!(store(dir).compare_and_swap(&next).unwrap(), Swap::Won);
    }
}

fn files(dir: &Path) -> Vec<String> {
    OsDirectory::new(dir).list().unwrap()
}

/// A directory that does something before one of its operations.
struct Before<F> {
    dir: OsDirectory,
    operations: u32,
    act: F,
}

impl<F: FnMut(u32) -> io::Result<()> + Send> Before<F> {
    fn next(&mut self) -> io::Result<&mut OsDirectory> {
        self.operations += 1;
        (self.act)(self.operations - 1)?;
        Ok(&mut self.dir)
    }
}

impl<F: FnMut(u32) -> io::Result<()> + Send> Directory for Before<F> {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path(name)
    }
    fn make(&mut self) -> io::Result<()> {
        self.next()?.make()
    }
    fn mark(&mut self) -> io::Result<()> {
        self.next()?.mark()
    }
    fn unmake(&mut self) {
        self.dir.unmake();
    }
    fn list(&mut self) -> io::Result<Vec<String>> {
        self.next()?.list()
    }
    fn read(&mut self, name: &str) -> io::Result<Vec<u8>> {
        self.next()?.read(name)
    }
    fn create(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        self.next()?.create(name, content)
    }
    fn link(&mut self, name: &str, new: &str) -> io::Result<()> {
        self.next()?.link(name, new)
    }
    fn sync(&mut self) -> io::Result<()> {
        self.next()?.sync()
    }
    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.next()?.remove(name)
    }
    fn remove_abandoned(&mut self, name: &str) -> io::Result<()> {
        self.next()?.remove_abandoned(name)
    }
}

fn store_with<F: FnMut(u32) -> io::Result<()> + Send>(dir: &Path, act: F) -> FileStore<Before<F>> {
    let dir = OsDirectory::new(dir);
    let operations = 0;
    FileStore::new(
        Before {
            dir,
            operations,
            act,
        },
        "test",
    )
}

/// Another process.
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(dir: &Path, role: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(ROLE, format!("{}:{role}", dir.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            input,
            output,
        }
    }

    /// Returns the next line that the child says; empty if it has ended.
    fn says(&mut self) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if let Some(said) = line.trim_end().split("says ").nth(1) {
                return said.to_owned();
            }
            line.clear();
        }
        String::new()
    }

    fn wait_until_stopped(&self) {
        let pid = Pid::from_child(&self.child);
        let options = WaitOptions::UNTRACED;
        let (_, status) = waitpid(Some(pid), options).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    fn go_on(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::CONT).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(what: &str) {
    let mut out = io::stdout().lock();
    writeln!(out, "says {what}").unwrap();
    out.flush().unwrap();
}

fn wait_for_line() {
    let mut line = String::new();
    io::stdin().read_line(&mut line).unwrap();
}

/// Not a test by itself: the code of the child processes.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the test program has no configuration"
)]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let (dir, role) = role.split_once(':').unwrap();
    let dir = Path::new(dir);
    let (what, number) = role.split_once(' ').unwrap();
    let number: u32 = number.parse().unwrap();
    match what {
        "many" => many(dir, number),
        "killed" => change_under(dir, Signal::KILL, number),
        "stopped" => change_under(dir, Signal::STOP, number),
        other => panic!("{other}"),
    }
}

/// Makes one change, and sends itself a signal before an operation of it.
fn change_under(dir: &Path, signal: Signal, operation: u32) {
    let next = with_region(&newest(dir), 1);
    let mut store = store_with(dir, |at| {
        if at == operation {
            kill_process(getpid(), signal)?;
        }
        Ok(())
    });
    say(match store.compare_and_swap(&next) {
        Ok(Swap::Won) => "won",
        Ok(Swap::Lost) => "lost",
        Err(StoreError::Unknown(_)) => "unknown",
        Err(error) => panic!("{error}"),
    });
}

/// Makes 100 changes, against other processes.
fn many(dir: &Path, first: u32) {
    say("ready");
    wait_for_line();
    let mut lost = 0;
    let mut number = first;
    while number < first + 100 {
        match store(dir)
            .compare_and_swap(&with_region(&newest(dir), number))
            .unwrap()
        {
            Swap::Won => number += 1,
            Swap::Lost => lost += 1,
        }
    }
    say(&format!("{lost}"));
}

#[test]
fn processes_that_write_at_the_same_time_lose_no_change() {
    let dir = started();
    let mut processes: Vec<_> = (0..3)
        .map(|at| Process::start(dir.path(), &format!("many {}", at * 1000)))
        .collect();
    for process in &mut processes {
        assert_eq!(process.says(), "ready");
    }
    for process in &mut processes {
        process.input.write_all(b"\n").unwrap();
    }
    let lost: u32 = processes
        .iter_mut()
        .map(|process| process.says().parse::<u32>().unwrap())
        .sum();
    let last = newest(dir.path());
    assert_eq!((last.regions.len(), last.change), (300, 301));
    assert!(
        files(dir.path()).len() as u64 <= KEPT,
        "{:?}",
        files(dir.path())
    );
    // Otherwise the test shows nothing.
    assert!(lost > 0, "no process met another");
}

/// Returns the number of operations that a change makes on the directory.
fn operations_of_a_change() -> u32 {
    let dir = started();
    change(dir.path(), 100, KEPT as u32);
    let count = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let next = with_region(&newest(dir.path()), 1);
    let mut store = store_with(dir.path(), |_| {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    });
    assert_eq!(store.compare_and_swap(&next).unwrap(), Swap::Won);
    drop(store);
    count.load(std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn a_process_that_is_killed_at_any_step_leaves_one_configuration_and_no_file() {
    let operations = operations_of_a_change();
    assert!(operations >= 8, "{operations}");
    let mut took_effect = 0;
    for operation in 0..operations {
        let dir = started();
        change(dir.path(), 100, KEPT as u32);
        let before = newest(dir.path());
        let mut process = Process::start(dir.path(), &format!("killed {operation}"));
        let status = process.child.wait().unwrap();
        assert_eq!(
            status.signal(),
            Some(9),
            "operation {operation}: {}",
            process.says()
        );
        let after = newest(dir.path());
        let expected = with_region(&before, 1);
        match after == expected {
            true => took_effect += 1,
            false => assert_eq!(after, before, "operation {operation}"),
        }
        // The next change works, and removes what is left.
        change(dir.path(), 200, 1);
        let left = files(dir.path());
        assert_eq!(left.len() as u64, KEPT, "operation {operation}: {left:?}");
    }
    assert!(
        took_effect >= 2 && took_effect < operations - 2,
        "{took_effect} of {operations}"
    );
}

#[test]
fn a_process_that_is_stopped_at_any_step_blocks_nobody_and_reports_what_happened() {
    let mut outcomes = std::collections::BTreeMap::new();
    for operation in 0..operations_of_a_change() {
        // So few that the name of the change is free, or so many that it was used and removed.
        for meanwhile in [0, 2, 2 * KEPT as u32] {
            let dir = started();
            change(dir.path(), 100, KEPT as u32);
            let mut process = Process::start(dir.path(), &format!("stopped {operation}"));
            process.wait_until_stopped();
            change(dir.path(), 200, meanwhile);
            process.go_on();
            let said = process.says();
            let last = newest(dir.path());
            let present = last.region(region(1)).is_some();
            let before = 1 + KEPT;
            assert_eq!(
                last.change,
                before + u64::from(meanwhile) + u64::from(present)
            );
            match said.as_str() {
                "won" => assert!(
                    present,
                    "operation {operation}, {meanwhile} changes meanwhile"
                ),
                "lost" => assert!(
                    !present,
                    "operation {operation}, {meanwhile} changes meanwhile"
                ),
                "unknown" => assert!(u64::from(meanwhile) >= KEPT, "operation {operation}"),
                other => panic!("{other:?}"),
            }
            *outcomes.entry((said, present)).or_insert(0) += 1;
            drop(process);
            change(dir.path(), 300, 1);
            assert_eq!(
                files(dir.path()).len() as u64,
                KEPT,
                "{:?}",
                files(dir.path())
            );
        }
    }
    // Every outcome happened, the unknown one with and without effect.
    for outcome in [
        ("won", true),
        ("lost", false),
        ("unknown", true),
        ("unknown", false),
    ] {
        let key = (outcome.0.to_owned(), outcome.1);
        assert!(
            outcomes.contains_key(&key),
            "{outcome:?} is not in {outcomes:?}"
        );
    }
}

#[test]
fn a_full_directory_or_a_disk_that_fails_changes_nothing_and_is_reported() {
    for operation in 0..operations_of_a_change() {
        let dir = started();
        change(dir.path(), 100, KEPT as u32);
        let before = newest(dir.path());
        let next = with_region(&before, 1);
        let mut failing = store_with(dir.path(), |at| match at == operation {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        });
        let outcome = failing.compare_and_swap(&next);
        drop(failing);
        let after = newest(dir.path());
        match outcome {
            Ok(Swap::Won) | Err(StoreError::Unknown(_)) => assert_eq!(after, next),
            Ok(Swap::Lost) => panic!("nobody else wrote"),
            Err(error) => {
                assert_eq!(after, before, "operation {operation}");
                let text = error.to_string();
                assert!(text.contains("free some space"), "{text}");
            }
        }
        change(dir.path(), 200, 1);
        assert_eq!(
            files(dir.path()).len() as u64,
            KEPT,
            "operation {operation}"
        );
    }
}

#[test]
fn a_directory_that_goes_away_is_reported() {
    let dir = started();
    let mut open = store(dir.path());
    let first = open.read().unwrap().unwrap();
    let next = with_region(&first, 1);
    std::fs::remove_dir_all(dir.path()).unwrap();
    let gone = |error: StoreError| {
        let error = error.to_string();
        assert!(error.contains("is gone: restore it"), "{error}");
    };
    gone(open.read().unwrap_err());
    gone(open.compare_and_swap(&next).unwrap_err());
    // Another directory in its place does not have the configuration.
    std::fs::create_dir(dir.path()).unwrap();
    gone(open.compare_and_swap(&next).unwrap_err());
    assert_eq!(files(dir.path()), Vec::<String>::new());
}

/// Regression test: the directory was created before the cluster existed, readable for other users, and stayed if the start failed.
#[test]
fn the_first_configuration_creates_the_directory_for_this_user_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("a/b");
    assert_eq!(store(&dir).read().unwrap(), None);
    assert!(!place.path().join("a").exists());
    // Operation 0 lists the directory, 1 creates it, and 2 writes the file.
    for operation in [1, 2, 3] {
        let mut failing = store_with(&dir, |at| match at == operation {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        });
        let failed = failing.compare_and_swap(&first()).unwrap_err();
        assert!(failed.to_string().contains("free some space"), "{failed}");
        assert!(!place.path().join("a").exists(), "operation {operation}");
    }
    assert_eq!(store(&dir).compare_and_swap(&first()).unwrap(), Swap::Won);
    for made in ["a", "a/b"] {
        let mode = place
            .path()
            .join(made)
            .metadata()
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o700, "{made}");
    }
}

#[test]
fn a_directory_that_cannot_be_created_is_reported_with_advice() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    std::fs::write(&file, "").unwrap();
    let link = place.path().join("link");
    std::os::unix::fs::symlink(place.path().join("nowhere"), &link).unwrap();
    for (dir, texts) in [
        (
            file.clone(),
            ["list the directory", "a file has this name: remove it"],
        ),
        (
            file.join("store"),
            ["list the directory", "a file has this name: remove it"],
        ),
        (
            link,
            ["create the directory", "a file has this name: remove it"],
        ),
        (
            PathBuf::from("/proc/nowhere"),
            ["create the directory", "set durability.dir"],
        ),
    ] {
        let error = store(&dir)
            .compare_and_swap(&first())
            .unwrap_err()
            .to_string();
        for text in texts {
            assert!(error.contains(text), "{error}");
        }
        assert!(!error.contains("is gone"), "{error}");
        if dir.starts_with("/proc") {
            // Its mode allows it to some users, and the file system does not.
            continue;
        }
        let (at, source) = check_usable(&dir).unwrap_err();
        assert!(dir.starts_with(&at), "{at:?}: {source}");
    }
    assert!(check_usable(place.path()).is_ok());
    assert!(check_usable(&place.path().join("a/b")).is_ok());
}
