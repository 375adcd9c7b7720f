//! Processes that the suite starts: the test binary itself, run again for one test that plays a
//! machine. Parent and child talk in lines of JSON over the child's standard input and output.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use farm_core::fabric::shm::ShmMachine;
use farm_core::ids::MachineId;
use serde::{Deserialize, Serialize};

use super::{Place, SHM_PATIENCE, Site, join};
use crate::{Location, Node, Owner, Role, run_to_end};

/// Tells the child what it is.
const TASK: &str = "FARM_CONFORMANCE_CHILD";
/// The test by which a test binary lends itself as a child; see [`be_child_if_asked`].
const CHILD_TEST: &str = "conformance_child";
/// Begins every line that is meant for the parent: the test runner writes lines of its own.
const MARK: &str = "farm-conformance: ";
/// A child that nobody has ended by then, in times of the patience with it, ends itself.
const LONGEST_LIFE: u32 = 3;

/// What a child does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ChildTask {
    /// Is one of the three machines of a cluster.
    Member(Site, MachineId),
    /// Starts a machine and exports memory, connects to nobody, and stays until it is killed.
    Alone(Place, MachineId),
}

impl ChildTask {
    /// How long a reply may take.
    fn patience(&self) -> Duration {
        match self {
            Self::Member(site, _) => site.patience(),
            Self::Alone(..) => SHM_PATIENCE,
        }
    }
}

/// What a parent asks of a member.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Load words of its own memory.
    Load(Location, usize, usize),
    /// Store words there.
    Store(Location, usize, Vec<u64>),
    /// Play a role.
    Run(Role),
    /// Say goodbye to the peers and end.
    Leave,
}

/// What it answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// It has started, and met its peers if it has any.
    Ready,
    /// The words it loaded.
    Words(Vec<u64>),
    /// It has done so.
    Done,
    /// The role is played.
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
    /// Starts this binary again as a child.
    ///
    /// # Panics
    /// If it does not start.
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
        // Ends with the child, whose death closes the pipe.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let Some((_, reply)) = line.split_once(MARK) else {
                    continue;
                };
                let reply = serde_json::from_str(reply).expect("a child speaks JSON");
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

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a command.
    ///
    /// # Panics
    /// If the child is gone.
    pub fn tell(&mut self, command: &Command) {
        let mut line = serde_json::to_vec(command).expect("a command is JSON");
        line.push(b'\n');
        self.commands.write_all(&line).expect("the child listens");
    }

    /// Waits for its next reply.
    ///
    /// # Panics
    /// If none comes in time, or the child is gone.
    pub fn reply(&mut self) -> Reply {
        self.replies
            .recv_timeout(self.patience)
            .expect("the child answers in time")
    }

    /// Its next reply, if there is one.
    ///
    /// # Panics
    /// If the child is gone.
    pub fn try_reply(&mut self) -> Option<Reply> {
        match self.replies.try_recv() {
            Ok(reply) => Some(reply),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                panic!("the child failed: see its own message above")
            }
        }
    }

    /// Kills it without warning.
    pub fn kill(&mut self) {
        // A child that has ended already is as dead.
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
        self.tell(&Command::Load(location, offset, words));
        match self.reply() {
            Reply::Words(words) => words,
            other => panic!("{other:?} instead of words"),
        }
    }

    fn store(&mut self, location: Location, offset: usize, words: &[u64]) {
        self.tell(&Command::Store(location, offset, words.to_vec()));
        assert_eq!(self.reply(), Reply::Done);
    }
}

/// Plays the child if this process was started as one, else does nothing. A test binary that uses
/// [`Processes`](super::Processes) has, at its root,
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
        eprintln!("a conformance child was forgotten and ends itself");
        std::process::exit(3);
    });
    match task {
        ChildTask::Member(site, machine) => be_member(&site, machine),
        ChildTask::Alone(place, machine) => be_alone(&place, machine),
    }
}

fn say(reply: &Reply) {
    let line = serde_json::to_string(reply).expect("a reply is JSON");
    let mut out = std::io::stdout().lock();
    // The runner may have written part of a line: begin a new one. A parent that is gone hears
    // nothing, and ends us by the end of our standard input.
    let _ = writeln!(out, "\n{MARK}{line}").and_then(|()| out.flush());
}

/// Commands as they come in. Their end is our parent's, and ours.
fn commands() -> Receiver<Command> {
    let (send, commands) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let command = serde_json::from_str(&line).expect("a parent speaks JSON");
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
    say(&Reply::Ready);
    for command in commands {
        match command {
            Command::Load(location, offset, words) => {
                say(&Reply::Words(node.load(location, offset, words)))
            }
            Command::Store(location, offset, words) => {
                node.store(location, offset, &words);
                say(&Reply::Done);
            }
            Command::Run(role) => say(&Reply::Outcome(play(role, &mut node))),
            Command::Leave => {
                drop(fabric);
                say(&Reply::Done);
                std::process::exit(0);
            }
        }
    }
}

fn play(role: Role, node: &mut Node) -> Vec<u64> {
    run_to_end(role, node, &|| false).expect("a role that nobody stops ends")
}

fn be_alone(place: &Place, machine: MachineId) {
    let commands = commands();
    let fabric = ShmMachine::start(place.config(machine)).expect("the machine starts");
    let exported = fabric
        .export(1 << 20, true)
        .expect("room for shared memory");
    say(&Reply::Ready);
    // Nothing is asked of it; it ends with its parent.
    commands.into_iter().for_each(drop);
    drop((fabric, exported));
}
