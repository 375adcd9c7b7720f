//! Runs the `farm` program as a user does. Each cluster has its own name and directories.
//!
//! A [`Place`] holds the name and the directories of one cluster. When it is dropped, it checks that the
//! cluster left nothing behind: no process, no shared memory, no lock or socket, no temporary file. It
//! removes what a failed test left. Every wait has a deadline.

// Each test program uses only a part of this module.
#![allow(dead_code)]

pub(crate) mod tmpfs;

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use farm_bench::linkbench::degree::SECTIONS;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

/// Environment variable by which the processes of a place are found. Its value is the cluster's name.
const MARK: &str = "FARM_TEST_PLACE";
/// Default directory of shared memory.
const MEMORY_DIR: &str = "/dev/shm";
/// Time limit of every command. A command that takes longer hangs.
pub(crate) const DEADLINE: Duration = Duration::from_secs(40);

/// Returns the path of the program under test.
pub(crate) fn farm() -> OsString {
    std::env::var_os("FARM_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_farm").into())
}

/// The name and the directories of one cluster.
pub(crate) struct Place {
    name: String,
    dir: tempfile::TempDir,
    /// The directory of shared memory, if it is not the default one.
    own_memory: Option<tempfile::TempDir>,
    runs: AtomicU32,
    /// Whether a cluster that has ended may have kept its data.
    keeps_data: AtomicBool,
}

impl Place {
    /// Creates a place with a unique name and new directories.
    pub(crate) fn new(test: &str) -> Self {
        static PLACES: AtomicU32 = AtomicU32::new(0);
        let number = PLACES.fetch_add(1, Ordering::Relaxed);
        let name = format!("{test}-{}-{number}-t", std::process::id());
        assert!(
            name.len() <= 40,
            "{name:?} is too long for the name of a cluster"
        );
        let dir = tempfile::Builder::new()
            .prefix("farm-e2e-")
            .tempdir()
            .unwrap();
        for inside in ["run", "tmp"] {
            fs::create_dir(dir.path().join(inside)).unwrap();
        }
        Self {
            name,
            dir,
            keeps_data: AtomicBool::new(false),
            own_memory: None,
            runs: AtomicU32::new(0),
        }
    }

    /// Gives the place a directory of shared memory that no other test uses. In the default one, any machine that
    /// starts removes the files of killed machines. Only [`Place::small`] and its variants use the directory.
    pub(crate) fn with_own_memory(mut self) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("farm-e2e-")
            .tempdir_in(MEMORY_DIR);
        self.own_memory = Some(dir.unwrap());
        self
    }

    /// Returns the cluster's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path of a file in the place's directory.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    /// Writes a file into the place's directory and returns its path.
    pub(crate) fn write(&self, file: &str, text: &str) -> PathBuf {
        let path = self.path(file);
        fs::write(&path, text).unwrap();
        path
    }

    /// Writes the configuration of machines 1 to `machines`, each with up to `memory`. `more` is the end of the last machine's
    /// section, or further sections. Returns its path.
    pub(crate) fn config(&self, file: &str, memory: &str, machines: u16, more: &str) -> String {
        let mut text = format!(
            "[cluster]\nname = \"{}\"\nrun_dir = \"{}\"\n\
             [memory]\nregion_bytes = \"16MiB\"\nper_machine_bytes = \"{memory}\"\n",
            self.name(),
            self.path("run").display()
        );
        if !more.contains("[durability]") {
            // Most clusters of tests leave nothing.
            text.push_str("[durability]\nmode = \"none\"\n");
        }
        for id in 1..=machines {
            text.push_str(&format!("[[machine]]\nid = {id}\n"));
        }
        text.push_str(more);
        self.write(file, &text).to_str().unwrap().to_owned()
    }

    /// Writes the configuration of a cluster of three small machines. Returns its path.
    pub(crate) fn three_machines(&self) -> String {
        self.config("farm.toml", "64MiB", 3, "")
    }

    /// Starts `farm` with these arguments and no others.
    pub(crate) fn farm<S: AsRef<str>>(&self, args: &[S]) -> Run {
        self.start(args, |command| command)
    }

    /// Starts `farm` with these arguments and with a file as its standard input.
    pub(crate) fn farm_reading<S: AsRef<str>>(&self, args: &[S], input: &Path) -> Run {
        let input = File::open(input).unwrap();
        self.start(args, |command| command.stdin(input))
    }

    /// Starts `farm node` for a machine of a configuration file.
    pub(crate) fn start_node(&self, config: &str, machine: u16) -> Run {
        let machine = machine.to_string();
        self.farm(&["node", "--config", config, "--machine", &machine])
    }

    /// Starts `farm COMMAND` with settings for a small cluster in this place.
    pub(crate) fn small<S: AsRef<str>>(&self, command: &str, args: &[S]) -> Run {
        self.farm(&self.small_args(command, args))
    }

    /// Like [`Place::small`], in a new process group, as a shell starts a command.
    pub(crate) fn small_in_group<S: AsRef<str>>(&self, command: &str, args: &[S]) -> Run {
        self.start(&self.small_args(command, args), |command| {
            command.process_group(0)
        })
    }

    /// Like [`Place::small`], with closed output: see [`Place::farm_with_closed_output`].
    pub(crate) fn small_with_closed_output<S: AsRef<str>>(&self, command: &str, args: &[S]) -> Run {
        self.farm_with_closed_output(&self.small_args(command, args))
    }

    /// Like [`Place::farm`], with standard output and standard error closed at the reading end.
    pub(crate) fn farm_with_closed_output<S: AsRef<str>>(&self, args: &[S]) -> Run {
        self.start(args, |command| {
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
        let memory = self.own_memory.iter();
        let memory = memory.map(|dir| format!("memory.dir={}", dir.path().display()));
        for setting in settings.into_iter().chain(memory) {
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

    /// Returns the running processes of this place.
    pub(crate) fn processes(&self) -> Vec<Process> {
        let mark = format!("{MARK}={}", self.name);
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter_map(|pid: i32| {
            // A process may end during these reads.
            let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
            let marked = environ
                .split(|byte| *byte == 0)
                .any(|one| one == mark.as_bytes());
            let argv = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let argv = argv
                .split(|byte| *byte == 0)
                .map(|arg| String::from_utf8_lossy(arg).into());
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // The fields after the name. The name may contain any characters; it ends at the last parenthesis.
            let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
            marked.then(|| Process {
                pid,
                parent,
                argv: argv.collect(),
            })
        })
        .collect()
    }

    /// Waits until a process runs the machine, and returns the process.
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
        wait_until(
            &format!("processes of {} still run", self.name),
            most,
            || self.processes().is_empty(),
        );
    }

    /// Returns the cluster's files of shared memory in a directory.
    pub(crate) fn memory_in(&self, dir: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).unwrap().flatten();
        entries
            .filter(|entry| entry.file_name().to_string_lossy().contains(&self.name))
            .map(|entry| entry.path())
            .collect()
    }

    /// Returns the cluster's files in its directory of shared memory.
    pub(crate) fn memory(&self) -> Vec<PathBuf> {
        let own = self.own_memory.as_ref();
        self.memory_in(own.map_or(Path::new(MEMORY_DIR), |dir| dir.path()))
    }

    /// Returns the cluster's files in the run directory: locks and sockets.
    pub(crate) fn names(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.path("run").join(&self.name)) else {
            return Vec::new();
        };
        entries.flatten().map(|entry| entry.path()).collect()
    }

    /// Returns the cluster's sockets in the run directory.
    pub(crate) fn sockets(&self) -> Vec<PathBuf> {
        let mut names = self.names();
        names.retain(|path| path.extension().is_some_and(|end| end == "sock"));
        names
    }

    /// The cluster has copies, so that what it keeps when it ends is not stale.
    pub(crate) fn keeps_data(&self) {
        self.keeps_data.store(true, Ordering::Relaxed);
    }

    /// Returns everything that exists of the cluster: processes, memory, locks, sockets and temporary files.
    pub(crate) fn stale_files(&self) -> Vec<String> {
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
        let keeps = self.keeps_data.load(Ordering::Relaxed);
        let is_kept = |name: &str| name.contains("/farmd-") || name.ends_with(".journal");
        let files = files.filter(|name| !(keeps && is_kept(name)));
        files
            .chain(
                self.processes()
                    .into_iter()
                    .map(|process| format!("{process:?}")),
            )
            .collect()
    }

    /// Removes the temporary files that a killed launcher could not remove.
    pub(crate) fn forget_temporary_files(&self) {
        fs::remove_dir_all(self.path("tmp")).unwrap();
        fs::create_dir(self.path("tmp")).unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let stale_files = self.stale_files();
        for process in self.processes() {
            process.signal(Signal::KILL);
        }
        for file in self.memory() {
            // A process that used the file may have removed it.
            let _ = fs::remove_file(file);
        }
        if !std::thread::panicking() {
            assert!(
                stale_files.is_empty(),
                "{} left behind: {stale_files:#?}",
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
        // The process may have ended.
        let _ = kill_process(Pid::from_raw(self.pid).unwrap(), signal);
    }
}

/// A started command. It is killed if it is dropped before it ends.
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

    /// Sends a signal to the command's process group, as a terminal does for Ctrl-C.
    pub(crate) fn signal_group(&self, signal: Signal) {
        kill_process_group(self.raw_pid(), signal).unwrap();
    }

    /// Returns what the command has written to standard error so far.
    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.stderr).unwrap()).into_owned()
    }

    /// Returns whether the command still runs.
    pub(crate) fn is_running(&mut self) -> bool {
        self.ended = self.ended.or(self.child.try_wait().unwrap());
        self.ended.is_none()
    }

    /// Waits until the command has written `text` to standard error.
    pub(crate) fn wait_for(&mut self, text: &str) {
        let deadline = Instant::now() + DEADLINE;
        while !self.stderr().contains(text) {
            let running = self.is_running();
            let late = Instant::now() > deadline;
            assert!(
                running && !late || self.stderr().contains(text),
                "farm {}: no {text:?} in standard error:\n{}",
                self.what,
                self.stderr()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until the command has written `text` to standard output this many times.
    pub(crate) fn wait_for_output(&mut self, text: &str, times: usize) {
        let written =
            |run: &Self| String::from_utf8_lossy(&fs::read(&run.stdout).unwrap()).into_owned();
        let deadline = Instant::now() + DEADLINE;
        while written(self).matches(text).count() < times {
            let late = !self.is_running() || Instant::now() > deadline;
            assert!(
                !late,
                "farm {}: no {text:?} in standard output:\n{}\n{}",
                self.what,
                written(self),
                self.stderr()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until the command ends.
    pub(crate) fn end(self) -> Ended {
        self.end_within(DEADLINE)
    }

    /// Waits until the command ends, for at most `most`. Panics if it does not end in time or has panicked.
    pub(crate) fn end_within(mut self, most: Duration) -> Ended {
        let began = Instant::now();
        while self.is_running() {
            assert!(
                began.elapsed() < most,
                "farm {} has not ended after {most:?}; standard error:\n{}",
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
        for (name, text) in [
            ("standard output", &ended.stdout),
            ("standard error", &ended.stderr),
        ] {
            assert!(
                !text.contains("panicked"),
                "farm {} panicked; {name}:\n{text}",
                ended.what
            );
        }
        ended
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.is_running() {
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
    /// Checks that the command succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(
            self.code,
            Some(0),
            "farm {} failed; standard error:\n{}",
            self.what,
            self.stderr
        );
        self
    }

    /// Checks that the command ended with this exit code, and that standard error contains all of `texts`.
    #[track_caller]
    pub(crate) fn failed(self, code: i32, texts: &[&str]) -> Self {
        assert_eq!(
            self.code,
            Some(code),
            "exit code of farm {}; standard error:\n{}",
            self.what,
            self.stderr
        );
        for text in texts {
            let stderr = &self.stderr;
            assert!(
                stderr.contains(text),
                "farm {}: no {text:?} in standard error:\n{stderr}",
                self.what
            );
        }
        self
    }
}

/// Runs `farm ycsb` in a place and returns the results from its JSON file.
pub(crate) fn measure<S: AsRef<str>>(place: &Place, args: &[S]) -> Value {
    let json = place.path("results.json");
    let mut all: Vec<String> = args.iter().map(|arg| arg.as_ref().to_owned()).collect();
    all.extend(["--json".to_owned(), json.display().to_string()]);
    place.small("ycsb", &all).end().ok();
    let results = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    fs::remove_file(json).unwrap();
    results
}

/// Returns the runs of a report.
pub(crate) fn runs(results: &Value) -> &[Value] {
    results["runs"].as_array().unwrap()
}

/// Returns the only run of a report.
pub(crate) fn only_run(results: &Value) -> &Value {
    let runs = runs(results);
    assert_eq!(runs.len(), 1);
    &runs[0]
}

/// Returns a number of a report.
#[track_caller]
pub(crate) fn number(object: &Value, key: &str) -> f64 {
    object[key]
        .as_f64()
        .unwrap_or_else(|| panic!("{key} is not a number in {object:#}"))
}

/// Waits until `condition` is true. `otherwise` describes the state until then, for the panic message.
#[track_caller]
pub(crate) fn wait_until(otherwise: &str, most: Duration, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < most, "after {most:?}: {otherwise}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Writes a distribution of out-degrees without very large ones, and returns the option that selects it.
pub(crate) fn degrees(place: &Place) -> String {
    let data = SECTIONS.map(|section| format!("{section}\n0 40.0\n2 90.0\n60 100.0\n"));
    let path = place.path("own.dat");
    fs::write(&path, data.concat()).unwrap();
    format!("data_file={}", path.display())
}
