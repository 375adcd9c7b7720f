//! The other process of a pair: the running program, started again with a task in its environment.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::host::Pin;
use super::ring::{calls, raw, sockets};
use super::{MicroError, Place, os};

/// Set in the environment of a child: the task it has, as JSON. See [`child_main`].
pub const CHILD_VARIABLE: &str = "FARM_BENCH_CHILD";

/// How long a child may take to end once its peer has gone.
const FAREWELL: Duration = Duration::from_secs(5);

/// The program that children run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// Its file.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

impl Launcher {
    /// The running program without arguments. Its `main` must begin by calling [`child_main`] where
    /// [`CHILD_VARIABLE`] is set.
    ///
    /// # Errors
    /// [`MicroError::Os`] if the system does not tell which program is running.
    pub fn this_program() -> Result<Self, MicroError> {
        let program = std::env::current_exe().map_err(os("find the running program"))?;
        Ok(Self {
            program,
            arguments: Vec::new(),
        })
    }

    /// Starts a child with a task.
    pub(super) fn start(&self, task: &Task) -> Result<Helper, MicroError> {
        let text = serde_json::to_string(task).map_err(MicroError::broken)?;
        let child = Command::new(&self.program)
            .args(&self.arguments)
            .env(CHILD_VARIABLE, text)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(os("start the other process of the bench"))?;
        Ok(Helper(child))
    }
}

/// A child, which does not outlive this.
pub(super) struct Helper(pub(super) Child);

impl Helper {
    /// Waits for its end, which the end of the connection to it brings about.
    pub(super) fn join(mut self) -> Result<(), MicroError> {
        let patient_until = Instant::now() + FAREWELL;
        while Instant::now() < patient_until {
            match self
                .0
                .try_wait()
                .map_err(os("wait for the other process of the bench"))?
            {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    return Err(MicroError::broken(format!("its peer ended with {status}")));
                }
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        Err(MicroError::broken("its peer did not end"))
    }

    /// Whether it is over already: then nobody need wait for it to connect.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // It has ended as a rule; where something failed before, nobody waits for it any more.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a child does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Task {
    /// Answers requests over a ring.
    Ring {
        place: Place,
        ring_bytes: u64,
        core: Option<u32>,
    },
    /// Runs a machine whose worker answers calls.
    Calls {
        place: Place,
        ring_bytes: u64,
        cores: Option<[u32; 2]>,
    },
    /// Sends back what comes through a Unix socket.
    Unix { path: PathBuf, core: Option<u32> },
    /// The same through TCP, on the loopback device.
    Tcp { port: u16, core: Option<u32> },
}

/// What `main` does in a process that finds [`CHILD_VARIABLE`] in its environment, before anything
/// else: the task, until the process that started it leaves.
pub fn child_main() -> ExitCode {
    match child_task() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the other process of the bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn child_task() -> Result<(), MicroError> {
    let text = std::env::var(CHILD_VARIABLE)
        .map_err(|error| MicroError::bad(CHILD_VARIABLE, error.to_string()))?;
    let task = serde_json::from_str(&text)
        .map_err(|error| MicroError::bad(CHILD_VARIABLE, error.to_string()))?;
    let pin = |core: Option<u32>| core.map(Pin::to).transpose();
    match task {
        Task::Ring {
            place,
            ring_bytes,
            core,
        } => {
            let _pin = pin(core)?;
            raw::serve(&place, ring_bytes)
        }
        Task::Calls {
            place,
            ring_bytes,
            cores,
        } => calls::serve(&place, ring_bytes, cores),
        Task::Unix { path, core } => {
            let _pin = pin(core)?;
            sockets::serve_unix(&path)
        }
        Task::Tcp { port, core } => {
            let _pin = pin(core)?;
            sockets::serve_tcp(port)
        }
    }
}
