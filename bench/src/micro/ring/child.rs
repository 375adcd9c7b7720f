//! The other process of a bench: the running program, started again with a task in its environment.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{self, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use farm_core::config::Config;
use serde::{Deserialize, Serialize};

use super::calls;
use super::raw;
use super::sockets;
use crate::micro::host::Pin;

/// Environment variable of a child process: its task, as JSON. See [`child_main`].
pub const CHILD_VARIABLE: &str = "FARM_BENCH_CHILD";

/// Maximum time that a child may take to end after its peer has left.
const FAREWELL: Duration = Duration::from_secs(5);

/// The program that child processes run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// Path of the program.
    pub program: PathBuf,
    /// Arguments of the program.
    pub arguments: Vec<OsString>,
}

impl Launcher {
    /// Returns the running program, without arguments. If [`CHILD_VARIABLE`] is set, its `main` must call
    /// [`child_main`] before anything else.
    ///
    /// # Errors
    /// If the path of the running program cannot be determined.
    pub fn this_program() -> Result<Self> {
        Ok(Self {
            program: std::env::current_exe()
                .context("cannot determine the path of this program's executable")?,
            arguments: Vec::new(),
        })
    }

    /// Starts a child with a task and a standard input.
    pub(in crate::micro) fn start(&self, task: &Task, input: Stdio) -> Result<Child> {
        let child = Command::new(&self.program)
            .args(&self.arguments)
            .env(CHILD_VARIABLE, serde_json::to_string(task)?)
            .stdin(input)
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the other process of the bench")?;
        Ok(Child(child))
    }
}

/// A child process, which is killed when this value is dropped.
pub(in crate::micro) struct Child(process::Child);

impl Child {
    /// Waits until the child ends. The caller must have closed its connection to the child, which ends the child.
    pub(in crate::micro) fn join(mut self) -> Result<()> {
        let until = Instant::now() + FAREWELL;
        while Instant::now() < until {
            if let Some(status) = self.0.try_wait()? {
                ensure!(
                    status.success(),
                    "the other process of the bench ended with {status}"
                );
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        bail!("the other process of the bench did not end within {FAREWELL:?}")
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Usually the child has ended already. Otherwise the bench has failed, and the status of the child is
        // irrelevant.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The task of a child.
#[derive(Serialize, Deserialize)]
pub(in crate::micro) enum Task {
    /// Answers requests over a ring, as the second machine of a configuration.
    Ring { config: String, core: Option<u32> },
    /// Runs the second machine of a configuration, whose worker answers calls.
    Calls { config: String },
    /// Echoes messages of this many bytes from the socket that is the standard input of the child.
    Echo { bytes: usize, core: Option<u32> },
}

/// Performs the task in [`CHILD_VARIABLE`], until the process that started this one leaves. If this variable is set,
/// `main` must call this function before anything else.
pub fn child_main() -> ExitCode {
    match run_task() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the other process of the bench failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_task() -> Result<()> {
    let task = std::env::var(CHILD_VARIABLE).context(CHILD_VARIABLE)?;
    let config = |text: &str| Config::from_str(text, CHILD_VARIABLE);
    match serde_json::from_str(&task).context(CHILD_VARIABLE)? {
        Task::Ring { config: text, core } => {
            let _pin = Pin::to_any(core)?;
            raw::serve(&config(&text)?)
        }
        Task::Calls { config: text } => calls::serve(&config(&text)?),
        Task::Echo { bytes, core } => {
            let _pin = Pin::to_any(core)?;
            sockets::serve(bytes)
        }
    }
}
