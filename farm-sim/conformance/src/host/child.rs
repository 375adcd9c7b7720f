//! Child processes of the suite. A child is the test binary itself, started again to run a single test
//! that acts as a machine. Parent and child exchange lines of JSON over the child's standard input and
//! output.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use farm_core::fabric::shm::ShmMachine;
use farm_core::ids::MachineId;
use serde::{Deserialize, Serialize};

use super::{Place, SHM_PATIENCE, Site, join};
use crate::{Location, Node, Owner, Role, run_to_end};

/// Environment variable with the child's [`ChildTask`], as JSON.
const TASK: &str = "FARM_CONFORMANCE_CHILD";
/// Name of the test that a child process runs; see [`be_child_if_asked`].
const CHILD_TEST: &str = "conformance_child";
/// Prefix of every reply line, because the test runner also writes to standard output.
const MARK: &str = "farm-conformance: ";
/// A child ends itself after this many times [`ChildTask::patience`].
const LONGEST_LIFE: u32 = 3;

/// The task of a child process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ChildTask {
    /// Be one of the three machines of a cluster.
    Member(Site, MachineId),
    /// Start a machine and export memory, connect to no machine, and run until killed.
    Alone(Place, MachineId),
}

impl ChildTask {
    /// Returns the time limit of a reply.
    fn patience(&self) -> Duration {
        match self {
            Self::Member(site, _) => site.patience(),
            Self::Alone(..) => SHM_PATIENCE,
        }
    }
}

/// A command from the parent to a [`ChildTask::Member`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Load this many words of the child's memory from this byte offset on.
    Load(Location, usize, usize),
    /// Store words into the child's memory from this byte offset on.
    Store(Location, usize, Vec<u64>),
    /// Run a role to its end.
    Run(Role),
    /// Announce the leaving to the peers, and exit.
    Leave,
}

/// A reply of a child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The child has started and, if it is a member, has connected to its peers.
    Ready,
    /// The loaded words.
    Words(Vec<u64>),
    /// The command was carried out.
    Done,
    /// The outcome of the role.
    Outcome(Vec<u64>),
}

/// A running child.
pub struct Child {
    process: std::process::Child,
    commands: ChildStdin,
    replies: Receiver<Reply>,
    patience: Duration,
}

impl Child {
    /// Starts this binary again as a child process.
    ///
    /// # Panics
    /// If the process does not start.
    pub fn start(task: &ChildTask) -> Self {
        let binary = std::env::current_exe().expect("the path of this test");
        let mut process = std::process::Command::new(binary)
            .args(["--exact", CHILD_TEST, "--nocapture", "--test-threads=1"])
            .env(TASK, serde_json::to_string(task).expect("a task is JSON"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child process starts");
        let commands = process.stdin.take().expect("piped");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let (send, replies) = channel();
        // The thread ends when the child ends, because that closes the pipe.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let Some((_, reply)) = line.split_once(MARK) else {
                    continue;
                };
                let reply = serde_json::from_str(reply).expect("a child's reply is JSON");
                if send.send(reply).is_err() {
                    return;
                }
            }
        });
        Self {
            process,
            commands,
            replies,
            patience: task.patience(),
        }
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a command.
    ///
    /// # Panics
    /// If the child has ended.
    pub fn send(&mut self, command: &Command) {
        let mut line = serde_json::to_vec(command).expect("a command is JSON");
        line.push(b'\n');
        self.commands
            .write_all(&line)
            .expect("the child reads its standard input");
    }

    /// Waits for the child's next reply and returns it.
    ///
    /// # Panics
    /// If no reply arrives in time, or the child has ended.
    pub fn reply(&mut self) -> Reply {
        self.replies
            .recv_timeout(self.patience)
            .expect("the child replies in time")
    }

    /// Returns the child's next reply, if it has arrived.
    ///
    /// # Panics
    /// If the child has ended.
    pub fn try_reply(&mut self) -> Option<Reply> {
        match self.replies.try_recv() {
            Ok(reply) => Some(reply),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                panic!("the child process has ended: see its own message above")
            }
        }
    }

    /// Kills the child with SIGKILL.
    pub fn kill(&mut self) {
        // Fails if the child has already ended, which is fine.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Owner for Child {
    fn load(&mut self, location: Location, offset: usize, words: usize) -> Vec<u64> {
        self.send(&Command::Load(location, offset, words));
        match self.reply() {
            Reply::Words(words) => words,
            other => panic!("{other:?} instead of words"),
        }
    }

    fn store(&mut self, location: Location, offset: usize, words: &[u64]) {
        self.send(&Command::Store(location, offset, words.to_vec()));
        assert_eq!(self.reply(), Reply::Done);
    }
}

/// Runs the child's task if this process was started as a child; otherwise does nothing. A test binary
/// that uses [`Processes`](super::Processes) must have this test at its root:
///
/// ```ignore
/// #[test]
/// fn conformance_child() {
///     farm_conformance::host::be_child_if_asked();
/// }
/// ```
pub fn be_child_if_asked() {
    let Ok(task) = std::env::var(TASK) else {
        return;
    };
    let task: ChildTask = serde_json::from_str(&task).expect("a task is JSON");
    let life = task.patience() * LONGEST_LIFE;
    std::thread::spawn(move || {
        std::thread::sleep(life);
        eprintln!("this conformance child process was not stopped within {life:?}; exiting");
        std::process::exit(3);
    });
    match task {
        ChildTask::Member(site, machine) => be_member(&site, machine),
        ChildTask::Alone(place, machine) => be_alone(&place, machine),
    }
}

fn send_reply(reply: &Reply) {
    let line = serde_json::to_string(reply).expect("a reply is JSON");
    let mut out = std::io::stdout().lock();
    // The test runner may have written part of a line, so the reply starts a new line. A failed write is
    // ignored: the parent has ended, and the end of standard input will end this process.
    let _ = writeln!(out, "\n{MARK}{line}").and_then(|()| out.flush());
}

/// Receives the parent's commands. When standard input ends, the parent has ended, and this process exits.
fn commands() -> Receiver<Command> {
    let (send, commands) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let command = serde_json::from_str(&line).expect("a parent's command is JSON");
            if send.send(command).is_err() {
                return;
            }
        }
        std::process::exit(4);
    });
    commands
}

fn be_member(site: &Site, machine: MachineId) {
    let commands = commands();
    let (fabric, mut node) = join(site, machine);
    send_reply(&Reply::Ready);
    for command in commands {
        match command {
            Command::Load(location, offset, words) => {
                send_reply(&Reply::Words(node.load(location, offset, words)))
            }
            Command::Store(location, offset, words) => {
                node.store(location, offset, &words);
                send_reply(&Reply::Done);
            }
            Command::Run(role) => send_reply(&Reply::Outcome(run_role(role, &mut node))),
            Command::Leave => {
                drop(fabric);
                send_reply(&Reply::Done);
                std::process::exit(0);
            }
        }
    }
}

fn run_role(role: Role, node: &mut Node) -> Vec<u64> {
    run_to_end(role, node, &|| false).expect("the role was not stopped")
}

fn be_alone(place: &Place, machine: MachineId) {
    let commands = commands();
    let fabric = ShmMachine::start(place.config(machine)).expect("the machine starts");
    let exported = fabric
        .export(1 << 20, true)
        .expect("room for shared memory");
    send_reply(&Reply::Ready);
    // This child gets no commands. It runs until it is killed or its parent ends.
    commands.into_iter().for_each(drop);
    drop((fabric, exported));
}
