//! The verdict of a run.

use std::fmt;

use farm_check::history::History;
use farm_core::marks::Reached;

use super::plan::Plan;

/// The judge that found a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Judge {
    /// The checkers of histories of this project.
    History,
    /// The independent checker of list-append histories.
    Adya,
    /// The workload itself: a torn value or a broken invariant.
    Workload,
    /// The checks at rest: a resource was not returned, or the allocator and memory differ.
    Rest,
    /// The checks of memory that survives processes: something from which recovery decides is missing.
    Kept,
    /// Two machines may serve one region as its primary at the same time.
    Primaries,
    /// The checks of progress: operations no longer ended, or none took effect.
    Liveness,
    /// The cluster stopped although nothing was lost.
    Stopped,
    /// A panic, of the platform or of the simulator. It shows a bug, but proves no checker.
    Panic,
}

impl fmt::Display for Judge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Judge::History => "history",
            Judge::Adya => "adya",
            Judge::Workload => "workload",
            Judge::Rest => "rest",
            Judge::Kept => "kept",
            Judge::Primaries => "primaries",
            Judge::Liveness => "liveness",
            Judge::Stopped => "stopped",
            Judge::Panic => "panic",
        })
    }
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The judge that found the failure.
    pub judge: Judge,
    /// The description of the failure.
    pub text: String,
}

impl Failure {
    pub(super) fn new(judge: Judge, text: impl Into<String>) -> Self {
        Self {
            judge,
            text: text.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.judge, self.text)
    }
}

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The plan of the run.
    pub plan: Plan,
    /// Hash of all events and of everything that clients received.
    pub hash: u64,
    /// Virtual duration of the run, in nanoseconds.
    pub nanos: u64,
    /// Number of turns that workers took.
    pub turns: u64,
    /// Number of operations of the workload that ended, as known to their clients.
    pub operations: u64,
    /// The marks that the run reached, with counts.
    pub reached: Reached,
    /// The failure, if the run failed.
    pub failure: Option<Failure>,
    /// The events and operations as lines of text, if requested.
    pub trace: Vec<String>,
    /// The operations of all clients and their results, if the trace was requested.
    pub history: Option<History>,
}

impl Outcome {
    /// Returns the command that repeats the run.
    pub fn command(&self) -> String {
        let Plan { seed, scenario, .. } = self.plan;
        format!("farm sim --seed {seed} --scenario {scenario}")
    }
}
