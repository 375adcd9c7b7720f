//! Mutants: deliberate bugs, each of which a sweep must find. They prove that the checkers find bugs.
//!
//! Most bugs that do harm only in recovery are found by tests of their packages instead (docs/TESTING.md).
//!
//! The bugs are in the code of the platform, and one is in the simulated fabric, behind [`farm_core::mutants::is_on`].
//! Programs for production are built without mutants.

use std::ops::Range;

use super::{Failure, Judge, Outcome, Plan, RunOptions, Scenario, run};

/// A deliberate bug.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// Its name, as passed to [`farm_core::mutants::is_on`].
    pub name: &'static str,
    /// A scenario whose runs can find it.
    pub scenario: &'static str,
}

/// Number of seeds within which every mutant is found.
pub const MOST_SEEDS: u64 = 20_000;

const fn mutant(name: &'static str, scenario: &'static str) -> Mutant {
    Mutant { name, scenario }
}

/// All mutants.
pub const ALL: &[Mutant] = &[
    mutant("skip the line check", "append"),
    mutant("skip the header recheck", "append"),
    mutant("marks of lines not written", "append"),
    mutant("release fence missing before the line versions", "append"),
    mutant("version before data", "append"),
    mutant("unlock before install", "append"),
    mutant("install before all are exclusive", "append"),
    mutant("validate before all are exclusive", "append"),
    mutant("reader trusts an exclusive lock", "append"),
    mutant("lock at a newer version than read", "append"),
    mutant("validation skipped", "append"),
    mutant("refusal not validated", "bank"),
    mutant("forgotten object not validated", "bank"),
    mutant("abort keeps the lock", "append"),
    mutant("validate before all locks", "append"),
    mutant("validation accepts a readable lock", "append"),
    mutant("readable LOCK in a distributed commit", "append"),
    mutant("answer LOCK-REPLY before locking", "append"),
    mutant("commit with one reply missing", "append"),
    mutant("truncate before all primaries acknowledged", "append"),
    mutant("low bound early", "append"),
    mutant("log reservation not taken", "append"),
    mutant("commits do not queue for room", "append"),
    mutant("fence missing after the commit", "table"),
    mutant("allocation leaked on abort", "churn"),
    mutant("free takes effect on abort", "churn"),
    mutant("incarnation not bumped", "churn"),
    mutant("array given back with its first object", "churn"),
    mutant("block reused before the epoch ended", "churn"),
    mutant("a reused block's versions begin anew", "churn"),
    mutant("a read does not look at the class", "churn"),
    mutant("skip the re-poll after arm", "append"),
    mutant("wake not sent", "append"),
    mutant("backup applies by arrival", "append"),
    mutant("install before all backups acknowledged", "append-loss"),
    mutant("a backup's acknowledgement missing", "append-loss"),
    mutant("own LOCK record after the locks", "append-loss"),
    mutant("log head stored after its space is zeroed", "append-loss"),
    mutant("filler zeroed when it is read", "append-loss"),
    mutant("abort after COMMIT-BACKUP", "append-loss"),
    mutant("truncated transaction is unknown", "append-loss"),
    mutant("commit by locks alone", "append-loss"),
    mutant("low bound passes a lost participant", "append-loss"),
    mutant("recovery installs older values", "append-loss"),
    mutant("head of a new block missing", "append-loss"),
    mutant("head advanced before zeroing", "table"),
    mutant("record checksum not looked at", "append"),
    mutant("ring record taken twice", "append"),
    mutant("reply lost", "append"),
    mutant(
        "transaction that waits its turn not begun when another ends",
        "bank",
    ),
    mutant("reply credit not given back", "append"),
    mutant("a machine works before all are connected to it", "append"),
    mutant("still-born object not given back on abort", "table"),
    mutant("an edit writes before it has read everything", "table"),
    mutant("displacement leaves the pair in neither bucket", "table"),
    mutant("joint version not bumped", "table"),
    mutant("lookup ignores joint versions", "table"),
    mutant("chain block freed but still linked", "table"),
    mutant("chain block not renamed", "table"),
    mutant("lookup ignores incarnations", "table"),
    mutant("first leaf gets a new object on a split", "graph"),
    mutant("first record of an inner page keeps its key", "graph"),
    mutant("a split page does not show that others follow", "graph"),
    mutant("index of a list not updated", "graph"),
    mutant("count not changed by hiding", "graph"),
    mutant("inverse association not added", "graph"),
    mutant("inverse association not deleted", "graph"),
    mutant("incarnation of a cached first page not checked", "graph"),
    mutant("incarnation of cached data of a node not checked", "graph"),
    mutant("cached page of several reads not validated", "graph"),
    mutant(
        "several reads take a first page for the whole list",
        "graph",
    ),
    mutant("first page of an open transaction cached", "graph"),
    mutant("reserved node exists", "graph"),
    mutant("node that exists is restored", "graph"),
    mutant("restored node counts from 0", "graph"),
    mutant("restored node loses its lists", "graph"),
    mutant(
        "node that does not exist gets no inverse association",
        "graph",
    ),
    mutant("deleted node still read", "graph"),
    mutant("unique type not checked", "graph"),
    mutant("old data of a node not freed", "graph"),
    mutant("batch acknowledged before its commit", "graph"),
    mutant("logs not drained", "append-survived"),
    mutant("suspended commit aborted", "append-survived"),
    mutant("evicted machine reports", "append-survived"),
    mutant("commits begin before the locks", "append-survived"),
    mutant("evicted machine not awaited", "append-parted"),
    mutant("lease counted from its grant", "append-parted"),
    mutant("end of the lease not looked at", "append-parted"),
    mutant("region served before its locks", "append-survived"),
    mutant("pull over newer", "append-survived"),
    mutant("taken slot handed out", "churn-survived"),
    mutant("reservations of lost machines stay", "churn-survived"),
    mutant("log of an earlier process not read", "append-restarted"),
    mutant("what was drained is not kept", "append-restarted"),
    mutant("what was told is not kept", "append-restarted"),
    mutant("low bound of an earlier configuration", "append-restarted"),
    mutant(
        "logs of a process that has left are kept",
        "smallbank-restarted",
    ),
];

/// The result of a hunt for a mutant.
#[derive(Clone, Debug)]
pub struct HuntResult {
    /// The mutant.
    pub mutant: Mutant,
    /// Number of seeds that were run.
    pub seeds: u64,
    /// The seed of the run that found it, and the failure; `None` if no run did.
    pub killed_by: Option<(u64, Failure)>,
    /// Number of runs that ended with a panic. A panic is not counted as found: it proves no checker.
    pub panics: u64,
    /// Whether any run executed the mutant's code.
    pub met: bool,
}

impl Mutant {
    /// Runs seeds with this mutant switched on until a checker finds it.
    ///
    /// # Panics
    /// If the program was built without mutants.
    #[allow(clippy::assertions_on_constants)] // The value depends on the features of the build.
    pub fn hunt(self, seeds: Range<u64>, options: RunOptions) -> HuntResult {
        assert!(
            farm_core::mutants::BUILT_IN,
            "cannot switch on a mutant: this program was built without mutants; build it with the feature `mutants`"
        );
        let scenario: Scenario = self
            .scenario
            .parse()
            .expect("every mutant names an existing scenario");
        let mut result = HuntResult {
            mutant: self,
            seeds: 0,
            killed_by: None,
            panics: 0,
            met: false,
        };
        for seed in seeds {
            let plan = Plan::new(seed, scenario);
            let (outcome, met) = self.run(&plan, options);
            result.seeds += 1;
            result.met |= met;
            match outcome.failure {
                Some(failure) if failure.judge == Judge::Panic => result.panics += 1,
                // A seed that also fails without the mutant proves nothing about it.
                Some(failure) if run(&plan, options).failure.is_none() => {
                    result.killed_by = Some((seed, failure));
                    break;
                }
                Some(_) | None => {}
            }
        }
        result
    }

    /// Switches this mutant on for the calling thread, and any other off.
    ///
    /// # Panics
    /// If the program was built without mutants.
    #[allow(clippy::assertions_on_constants)] // The value depends on the features of the build.
    pub fn switch_on(self) {
        assert!(
            farm_core::mutants::BUILT_IN,
            "cannot switch on a mutant: this program was built without mutants; build it with the feature `mutants`"
        );
        #[cfg(feature = "mutants")]
        farm_core::mutants::switch(Some(self.name));
    }

    /// Runs a plan with this mutant switched on. Returns the outcome, and whether the mutant's code was executed.
    #[cfg(feature = "mutants")]
    pub fn run(self, plan: &Plan, options: RunOptions) -> (Outcome, bool) {
        farm_core::mutants::switch(Some(self.name));
        let outcome = run(plan, options);
        let met = farm_core::mutants::was_met();
        farm_core::mutants::switch(None);
        (outcome, met)
    }

    /// Runs a plan without the mutant: this program was built without mutants.
    #[cfg(not(feature = "mutants"))]
    pub fn run(self, plan: &Plan, options: RunOptions) -> (Outcome, bool) {
        (run(plan, options), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutant_names_are_unique_and_their_scenarios_exist() {
        let names: std::collections::BTreeSet<_> = ALL.iter().map(|mutant| mutant.name).collect();
        assert_eq!(names.len(), ALL.len());
        for mutant in ALL {
            mutant.scenario.parse::<Scenario>().unwrap();
        }
    }
}
