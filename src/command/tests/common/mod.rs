//! Runs the `farm` program as a user does, each cluster with a name and directories of its own.
//!
//! A [`Place`] is where one cluster lives. When it is dropped it makes sure that nothing of the
//! cluster is left: no process, no shared memory, no lock or socket, no temporary file. Whatever a failed
//! test leaves is removed. Every wait has a deadline.

// Each test program uses a part of this.
#![allow(dead_code)]

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

/// By this variable of their environment the processes of a place are found.
const MARK: &str = "FARM_TEST_PLACE";
/// Where shared memory is unless a test says otherwise.
const MEMORY_DIR: &str = "/dev/shm";
/// No command of these tests takes so long, unless it hangs.
pub(crate) const DEADLINE: Duration = Duration::from_secs(40);

/// The program under test.
pub(crate) fn farm() -> OsString {
    std::env::var_os("FARM_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_farm").into())
}

/// Where one cluster lives.
pub(crate) struct Place {
    name: String,
    dir: tempfile::TempDir,
    runs: AtomicU32,
}

impl Place {
    /// A place of its own for a test.
    pub(crate) fn new(test: &str) -> Self {
        static PLACES: AtomicU32 = AtomicU32::new(0);
        let number = PLACES.fetch_add(1, Ordering::Relaxed);
        let name = format!("{test}-{}-{number}-t", std::process::id());
        assert!(name.len() <= 40, "{name} is too long for a cluster");
        let dir = tempfile::Builder::new()
            .prefix("farm-e2e-")
            .tempdir()
            .unwrap();
        for inside in ["run", "tmp"] {
            fs::create_dir(dir.path().join(inside)).unwrap();
        }
        let runs = AtomicU32::new(0);
        Self { name, dir, runs }
    }

    /// The cluster's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A path in the place's directory.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    /// Writes a file into the place's directory.
    pub(crate) fn write(&self, file: &str, text: &str) -> PathBuf {
        let path = self.path(file);
        fs::write(&path, text).unwrap();
        path
    }

    /// `farm` with these arguments and nothing else.
    pub(crate) fn farm<S: AsRef<str>>(&self, args: &[S]) -> Run {
        self.start(args, |command| command)
    }

    /// `farm` with these arguments, and with a file as its standard input.
    pub(crate) fn farm_reading<S: AsRef<str>>(&self, args: &[S], input: &Path) -> Run {
        let input = File::open(input).unwrap();
        self.start(args, |command| command.stdin(input))
    }

    /// `farm node` for a machine of a configuration.
    pub(crate) fn start_node(&self, config: &str, machine: u16) -> Run {
        let machine = machine.to_string();
        self.farm(&["node", "--config", config, "--machine", &machine])
    }

    /// `farm COMMAND` with the settings that keep the cluster in this place, and small.
    pub(crate) fn small<S: AsRef<str>>(&self, command: &str, args: &[S]) -> Run {
        self.farm(&self.small_args(command, args))
    }

    /// The same in a process group of its own, as a shell starts it.
    pub(crate) fn small_in_group<S: AsRef<str>>(&self, command: &str, args: &[S]) -> Run {
        self.start(&self.small_args(command, args), |command| {
            command.process_group(0)
        })
    }

    /// The same with nobody who reads what it writes.
    pub(crate) fn small_unheard<S: AsRef<str>>(&self, command: &str, args: &[S]) -> Run {
        self.start(&self.small_args(command, args), |command| {
            let (_, closed) = std::io::pipe().unwrap();
            let (_, also_closed) = std::io::pipe().unwrap();
            command.stdout(closed).stderr(also_closed)
        })
    }

    fn small_args<S: AsRef<str>>(&self, command: &str, args: &[S]) -> Vec<String> {
        let mut all = vec![command.to_owned()];
        let run_dir = self.path("run");
        let settings = [
            format!("cluster.name={}", self.name),
            format!("cluster.run_dir={}", run_dir.display()),
            "memory.region_bytes=16MiB".to_owned(),
            "memory.per_machine_bytes=64MiB".to_owned(),
        ];
        for setting in settings {
            all.extend(["--set".to_owned(), setting]);
        }
        all.extend(args.iter().map(|arg| arg.as_ref().to_owned()));
        all
    }

    fn start<S: AsRef<str>>(
        &self,
        args: &[S],
        adjust: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Run {
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        let stdout = self.path(&format!("stdout-{number}"));
        let stderr = self.path(&format!("stderr-{number}"));
        let args: Vec<&str> = args.iter().map(AsRef::as_ref).collect();
        let mut command = Command::new(farm());
        command
            .args(&args)
            .env(MARK, &self.name)
            .env("TMPDIR", self.path("tmp"))
            .env_remove("RUST_LOG")
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::null())
            .stdout(File::create(&stdout).unwrap())
            .stderr(File::create(&stderr).unwrap());
        adjust(&mut command);
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{:?}: {error}", farm()));
        let started = Instant::now();
        Run {
            what: args.join(" "),
            child,
            ended: None,
            stdout,
            stderr,
            started,
        }
    }

    /// The processes of this place.
    pub(crate) fn processes(&self) -> Vec<Process> {
        let mark = format!("{MARK}={}", self.name);
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter_map(|pid: i32| {
            // A process may end while it is looked at.
            let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let marked = environ
                .split(|byte| *byte == 0)
                .any(|one| one == mark.as_bytes());
            let argv = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let argv = argv
                .split(|byte| *byte == 0)
                .map(|arg| String::from_utf8_lossy(arg).into());
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // After the name, which may hold anything but ends at the last parenthesis.
            let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
            marked.then(|| Process {
                pid,
                parent,
                argv: argv.collect(),
            })
        })
        .collect()
    }

    /// The process that runs a machine; waits until there is one.
    pub(crate) fn node(&self, machine: u16) -> Process {
        let mut found = None;
        wait_until(
            &format!("machine {machine} has no process"),
            DEADLINE,
            || {
                found = self
                    .processes()
                    .into_iter()
                    .find(|process| process.runs(machine));
                found.is_some()
            },
        );
        found.unwrap()
    }

    /// Waits until no process of the place is left.
    pub(crate) fn wait_gone(&self, most: Duration) {
        wait_until(&format!("processes of {} go on", self.name), most, || {
            self.processes().is_empty()
        });
    }

    /// Shared memory of the cluster in a directory.
    pub(crate) fn memory_in(&self, dir: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).unwrap().flatten();
        entries
            .filter(|entry| entry.file_name().to_string_lossy().contains(&self.name))
            .map(|entry| entry.path())
            .collect()
    }

    /// Shared memory of the cluster in the usual directory.
    pub(crate) fn memory(&self) -> Vec<PathBuf> {
        self.memory_in(Path::new(MEMORY_DIR))
    }

    /// Files of the cluster in the run directory: locks and sockets.
    pub(crate) fn names(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.path("run").join(&self.name)) else {
            return Vec::new();
        };
        entries.flatten().map(|entry| entry.path()).collect()
    }

    /// The sockets among them.
    pub(crate) fn sockets(&self) -> Vec<PathBuf> {
        let mut names = self.names();
        names.retain(|path| path.extension().is_some_and(|end| end == "sock"));
        names
    }

    /// Everything of the cluster that is there: processes, memory, locks and sockets, temporary files.
    pub(crate) fn leavings(&self) -> Vec<String> {
        let temporary = fs::read_dir(self.path("tmp"))
            .unwrap()
            .flatten()
            .map(|entry| entry.path());
        let files = self
            .memory()
            .into_iter()
            .chain(self.names())
            .chain(temporary);
        let files = files.map(|path| path.display().to_string());
        files
            .chain(
                self.processes()
                    .into_iter()
                    .map(|process| format!("{process:?}")),
            )
            .collect()
    }

    /// Removes what a launcher that was killed could not remove.
    pub(crate) fn forget_temporary_files(&self) {
        fs::remove_dir_all(self.path("tmp")).unwrap();
        fs::create_dir(self.path("tmp")).unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let leavings = self.leavings();
        for process in self.processes() {
            process.signal(Signal::KILL);
        }
        for file in self.memory() {
            // Whoever held it may have removed it just now.
            let _ = fs::remove_file(file);
        }
        if !std::thread::panicking() {
            assert!(
                leavings.is_empty(),
                "{} left behind: {leavings:#?}",
                self.name
            );
        }
    }
}

/// A process of a place.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) argv: Vec<String>,
}

impl Process {
    fn runs(&self, machine: u16) -> bool {
        let number = machine.to_string();
        let option = self
            .argv
            .windows(2)
            .any(|pair| pair[0] == "--machine" && pair[1] == number);
        option && self.argv.iter().any(|arg| arg == "node")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // It may have ended by itself.
        let _ = kill_process(Pid::from_raw(self.pid).unwrap(), signal);
    }
}

/// A command that was started. Dropped before it has ended, it is killed.
pub(crate) struct Run {
    what: String,
    child: Child,
    ended: Option<ExitStatus>,
    stdout: PathBuf,
    stderr: PathBuf,
    started: Instant,
}

impl Run {
    pub(crate) fn pid(&self) -> i32 {
        self.child.id().try_into().unwrap()
    }

    fn raw_pid(&self) -> Pid {
        Pid::from_raw(self.pid()).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.raw_pid(), signal).unwrap();
    }

    /// As a terminal does with what was typed into it.
    pub(crate) fn signal_group(&self, signal: Signal) {
        kill_process_group(self.raw_pid(), signal).unwrap();
    }

    /// What it wrote to standard error so far.
    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.stderr).unwrap()).into_owned()
    }

    /// Whether it still runs.
    pub(crate) fn goes_on(&mut self) -> bool {
        self.ended = self.ended.or(self.child.try_wait().unwrap());
        self.ended.is_none()
    }

    /// Waits until it has written `text` to standard error.
    pub(crate) fn wait_for(&mut self, text: &str) {
        let deadline = Instant::now() + DEADLINE;
        while !self.stderr().contains(text) {
            let going = self.goes_on();
            let late = Instant::now() > deadline;
            assert!(
                going && !late || self.stderr().contains(text),
                "farm {}: no {text:?} in\n{}",
                self.what,
                self.stderr()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for its end.
    pub(crate) fn end(self) -> Ended {
        self.end_within(DEADLINE)
    }

    /// Waits for its end, which must come soon.
    pub(crate) fn end_within(mut self, most: Duration) -> Ended {
        let began = Instant::now();
        while self.goes_on() {
            assert!(
                began.elapsed() < most,
                "farm {} has not ended after {most:?}; it said\n{}",
                self.what,
                self.stderr()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        let status = self.ended.unwrap();
        let stdout = String::from_utf8_lossy(&fs::read(&self.stdout).unwrap()).into_owned();
        let ended = Ended {
            what: self.what.clone(),
            code: status.code(),
            signal: status.signal(),
            stdout,
            stderr: self.stderr(),
            took: self.started.elapsed(),
        };
        for (name, text) in [("output", &ended.stdout), ("errors", &ended.stderr)] {
            assert!(
                !text.contains("panicked"),
                "farm {} panicked; its {name}:\n{text}",
                ended.what
            );
        }
        ended
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.goes_on() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) what: String,
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
}

impl Ended {
    /// It went well.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(
            self.code,
            Some(0),
            "farm {} failed:\n{}",
            self.what,
            self.stderr
        );
        self
    }

    /// It failed with this code, and standard error has all of `texts`.
    #[track_caller]
    pub(crate) fn failed(self, code: i32, texts: &[&str]) -> Self {
        assert_eq!(
            self.code,
            Some(code),
            "farm {} said:\n{}",
            self.what,
            self.stderr
        );
        for text in texts {
            let said = &self.stderr;
            assert!(
                said.contains(text),
                "farm {}: no {text:?} in\n{said}",
                self.what
            );
        }
        self
    }
}

/// Runs `farm ycsb` in a place and reads the results that it wrote.
pub(crate) fn measure<S: AsRef<str>>(place: &Place, args: &[S]) -> Value {
    let json = place.path("results.json");
    let mut all: Vec<String> = args.iter().map(|arg| arg.as_ref().to_owned()).collect();
    all.extend(["--json".to_owned(), json.display().to_string()]);
    place.small("ycsb", &all).end().ok();
    let results = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    fs::remove_file(json).unwrap();
    results
}

/// The runs of some results.
pub(crate) fn runs(results: &Value) -> &[Value] {
    results["runs"].as_array().unwrap()
}

/// The only run of some results.
pub(crate) fn only_run(results: &Value) -> &Value {
    let runs = runs(results);
    assert_eq!(runs.len(), 1);
    &runs[0]
}

/// A number in some results.
#[track_caller]
pub(crate) fn number(object: &Value, key: &str) -> f64 {
    object[key]
        .as_f64()
        .unwrap_or_else(|| panic!("{key} is no number in {object:#}"))
}

/// Waits until `is_so`.
#[track_caller]
pub(crate) fn wait_until(otherwise: &str, most: Duration, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < most, "after {most:?} {otherwise}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
