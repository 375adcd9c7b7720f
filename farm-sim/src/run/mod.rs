//! Runs: a cluster, a workload and trouble, all drawn from one seed, and judged.
//!
//! Read in this order: `scenario` (what a run is of) → `plan` (what its seed decides) → [`run`] → `sweep`
//! (many seeds) → `mutants` (bugs that a sweep must find) → `marks` (branches that it must reach).

mod drive;
pub mod marks;
pub mod mutants;
mod plan;
mod scenario;
mod spec;
pub mod sweep;
mod trace;
mod verdict;

use std::panic::{AssertUnwindSafe, catch_unwind};

use farm_core::marks::Reached;

pub use plan::{Loss, Plan};
pub use scenario::{NoScenario, Scenario, Trouble};
pub use verdict::{Failure, Judge, Outcome};

/// What a run does besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// Keeps what happened, a line each.
    pub trace: bool,
    /// Leaves out the second, independent checker.
    pub without_adya: bool,
}

/// Runs one seed. A panic of the platform is a failure of the run.
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
    text.unwrap_or("a panic without words").to_owned()
}
