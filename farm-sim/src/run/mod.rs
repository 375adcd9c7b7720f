//! Runs: a cluster, a workload and faults, all drawn from one seed, and a verdict.
//!
//! Read in this order: `scenario` (workload and faults of a run) → `plan` (the choices that the seed makes) → [`run`] →
//! `sweep` (many seeds) → `mutants` (bugs that a sweep must find) → `marks` (branches that a sweep must reach). `pauses` measures how long
//! clusters give no service when a machine is killed.

mod absences;
mod drive;
mod kept;
pub mod marks;
pub mod mutants;
pub mod pauses;
mod plan;
mod scenario;
mod spec;
pub mod sweep;
mod trace;
mod verdict;

use std::panic::{AssertUnwindSafe, catch_unwind};

use farm_core::marks::Reached;

pub use absences::Absences;
pub use plan::{Loss, Plan};
pub use scenario::{NoScenario, Scenario, Trouble};
pub use verdict::{Failure, Judge, Outcome};

/// Options of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// Whether to keep the events and operations of the run, as lines of text.
    pub trace: bool,
    /// Whether to skip `adya`, the second, independent checker.
    pub without_adya: bool,
}

/// Runs the plan of one seed. A panic during the run is a failure of the run.
pub fn run(plan: &Plan, options: RunOptions) -> Outcome {
    #[cfg(feature = "mutants")]
    farm_core::mutants::set_version_step(plan.version_step);
    farm_core::marks::take();
    let ran = catch_unwind(AssertUnwindSafe(|| drive::drive(plan, options)));
    let mut outcome = ran.unwrap_or_else(|panic| Outcome {
        plan: plan.clone(),
        hash: 0,
        nanos: 0,
        turns: 0,
        operations: 0,
        reached: Reached::new(),
        failure: Some(Failure::new(Judge::Panic, text_of(&*panic))),
        trace: Vec::new(),
        history: None,
    });
    outcome.reached = farm_core::marks::take();
    outcome
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic whose payload is not a text")
        .to_owned()
}
