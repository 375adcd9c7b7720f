//! How a run ended.

use std::fmt;

use farm_check::history::History;
use farm_core::marks::Reached;

use super::plan::Plan;

/// What found a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Judge {
    /// A checker of histories.
    History,
    /// The independent checker of list-append histories.
    Adya,
    /// The workload: a torn value, a broken invariant.
    Workload,
    /// What was taken was not given back, or the allocator and memory differ.
    Rest,
    /// The run stood still.
    Liveness,
    /// The cluster stopped although nothing was lost.
    Stopped,
    /// A panic: the platform's or the simulator's own. It finds a bug, but proves no checker.
    Panic,
}

impl fmt::Display for Judge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Judge::History => "history",
            Judge::Adya => "adya",
            Judge::Workload => "workload",
            Judge::Rest => "rest",
            Judge::Liveness => "liveness",
            Judge::Stopped => "stopped",
            Judge::Panic => "panic",
        })
    }
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Who found it.
    pub judge: Judge,
    /// What was found.
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

/// A run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What it was of.
    pub plan: Plan,
    /// Hash of everything that happened and everything that was answered.
    pub hash: u64,
    /// Virtual nanoseconds that it took.
    pub nanos: u64,
    /// Turns that workers took.
    pub turns: u64,
    /// Operations of the workload that ended, by their clients' knowledge.
    pub operations: u64,
    /// Rare branches that were taken.
    pub reached: Reached,
    /// What was wrong.
    pub failure: Option<Failure>,
    /// What happened, a line each, if it was asked for.
    pub trace: Vec<String>,
    /// What clients did and were answered, if the trace was asked for.
    pub history: Option<History>,
}

impl Outcome {
    /// The command that runs it again.
    pub fn command(&self) -> String {
        let Plan { seed, scenario, .. } = self.plan;
        format!("farm sim --seed {seed} --scenario {scenario}")
    }
}
