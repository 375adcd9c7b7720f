//! The scenarios, and the errors that the checker must find.

use std::collections::BTreeSet;

use stateright::{Checker, HasDiscoveries, Model};

use super::properties::*;
use super::{Commits, Fault, R, Scenario, W};
use crate::record::Kind;

const UNLOGGED: Scenario = Scenario {
    txs: &[],
    objects: &[&[1], &[2], &[3]],
    logged: false,
    one_worker: false,
    later: false,
    stalls: 1,
    may_lose: None,
};

/// Two transactions that write what the other reads; each has objects on three machines.
const SKEW: Scenario = Scenario {
    txs: &[(1, &[W, W, R]), (3, &[R, R, W])],
    ..UNLOGGED
};
/// Two that write the same two objects of other machines.
const SAME: Scenario = Scenario {
    txs: &[(1, &[None, W, W]), (1, &[None, W, W])],
    ..UNLOGGED
};
/// Two that overlap in one object that one of them only reads.
const CHAIN: Scenario = Scenario {
    txs: &[(1, &[W, R, None]), (3, &[None, W, W])],
    ..UNLOGGED
};

const LOGGED: Scenario = Scenario {
    logged: true,
    ..UNLOGGED
};

/// One object of another machine, with 0 to 2 backups.
const REMOTE: [Scenario; 3] = [
    one(&[(1, &[W])], &[&[2]]),
    one(&[(1, &[W])], &[&[2, 3]]),
    one(&[(1, &[W])], &[&[2, 3, 4]]),
];
/// Objects of two other machines, which have one backup.
const SHARED_BACKUP: Scenario = one(&[(1, &[W, W])], &[&[2, 4], &[3, 4]]);
/// An own object, and one of another machine.
const OWN_AND_REMOTE: Scenario = one(&[(1, &[W, W])], &[&[1, 3], &[2, 3]]);
/// Two own objects, with and without a backup.
const ALL_OWN: [Scenario; 2] = [
    one(&[(1, &[W, W])], &[&[1], &[1]]),
    one(&[(1, &[W, W])], &[&[1, 2], &[1, 2]]),
];
/// The coordinator's machine is the backup of one object, and the primary of another one.
const OWN_BACKUP: [Scenario; 2] = [
    one(&[(1, &[W])], &[&[2, 1]]),
    one(&[(1, &[W, W])], &[&[2, 1], &[1, 2]]),
];

const fn one(txs: &'static [super::Spec], objects: &'static [&'static [u16]]) -> Scenario {
    Scenario {
        txs,
        objects,
        ..LOGGED
    }
}

/// Two transactions on one object. The second one reads it at any time.
const fn two(txs: &'static [super::Spec], objects: &'static [&'static [u16]]) -> Scenario {
    Scenario {
        later: true,
        stalls: 0,
        ..one(txs, objects)
    }
}

const CONFLICT: Scenario = two(&[(1, &[W]), (4, &[W])], &[&[2, 3]]);
/// As [`CONFLICT`], and the coordinators' machines are the object's primary and its backup.
const CONFLICT_OF_REPLICAS: Scenario = two(&[(2, &[W]), (3, &[W])], &[&[2, 3]]);
/// As [`CONFLICT`], by two workers of the primary.
const CONFLICT_OF_WORKERS: Scenario = two(&[(2, &[W]), (2, &[W])], &[&[2, 3]]);
/// One transaction reads what the other writes.
const READS: Scenario = two(&[(1, &[W, R]), (4, &[None, W])], &[&[1, 3], &[2, 3]]);
/// Two that write the same two objects, which have one backup.
const CONFLICT_OF_TWO: Scenario = two(&[(1, &[W, W]), (5, &[W, W])], &[&[2, 4], &[3, 4]]);
/// Two on one object with two backups, the coordinators' machines.
const CONFLICT_OF_BACKUPS: Scenario = two(&[(1, &[W]), (3, &[W])], &[&[2, 1, 3]]);
/// Three machines, each the primary of one object and a backup of the others.
const CLUSTER: Scenario = two(
    &[(1, &[W, W, None]), (2, &[None, W, W])],
    &[&[1, 2, 3], &[2, 3, 1], &[3, 1, 2]],
);
/// Two of one worker on one object.
const CONFLICT_OF_ONE: Scenario = Scenario {
    one_worker: true,
    ..two(&[(1, &[W]), (1, &[W])], &[&[2, 1, 3]])
};
/// Two transactions of one worker.
const ONE_WORKER: Scenario = Scenario {
    one_worker: true,
    later: false,
    ..two(&[(1, &[W, None]), (1, &[None, W])], &[&[2, 4], &[3, 4]])
};

const fn loses(machine: u16, scenario: Scenario) -> Scenario {
    Scenario {
        may_lose: Some(machine),
        ..scenario
    }
}

const LOSES_BACKUP: Scenario = loses(4, REMOTE[2]);

/// Checks a scenario until all states are visited, or all of `until`, if it is not empty, are discovered. Returns what was
/// discovered: properties that fail, and what is reached.
fn check(scenario: Scenario, fault: Fault, until: &[&'static str]) -> Vec<&'static str> {
    let model = Commits { scenario, fault };
    let until = match until.is_empty() {
        true => HasDiscoveries::All,
        false => HasDiscoveries::AllOf(until.iter().copied().collect::<BTreeSet<_>>()),
    };
    let checker = model.checker().finish_when(until).spawn_bfs().join();
    println!(
        "{:?} of {:?}, {fault:?}: {} states",
        scenario.txs,
        scenario.objects,
        checker.unique_state_count()
    );
    let mut found: Vec<_> = checker.discoveries().into_keys().collect();
    found.sort_unstable();
    found
}

/// Asserts that all properties hold, and that exactly these are reached.
#[track_caller]
fn holds(scenario: Scenario, reaches: &[&'static str]) {
    let mut reaches = reaches.to_vec();
    reaches.sort_unstable();
    assert_eq!(check(scenario, Fault::None, &[]), reaches, "{scenario:?}");
}

#[test]
fn conflicting_commits_are_serializable_and_settle_in_every_order() {
    holds(SKEW, &[VALIDATION_FAILS]);
    holds(SAME, &[LOCK_FAILS]);
    holds(CHAIN, &[ALL_COMMIT, VALIDATION_FAILS]);
}

#[test]
fn commits_settle_when_a_participant_is_lost_at_any_time() {
    let fails = [LOCK_FAILS, RESERVATION_FAILS];
    holds(loses(2, SAME), &fails);
    holds(
        loses(2, CHAIN),
        &[
            ALL_COMMIT,
            LOCK_FAILS,
            VALIDATION_FAILS,
            RESERVATION_FAILS,
            IN_DOUBT,
        ],
    );
}

#[test]
fn commits_change_all_copies_in_every_order() {
    for scenario in REMOTE {
        holds(scenario, &[ALL_COMMIT]);
    }
    holds(SHARED_BACKUP, &[ALL_COMMIT]);
    holds(OWN_AND_REMOTE, &[ALL_COMMIT]);
    for scenario in OWN_BACKUP {
        holds(scenario, &[ALL_COMMIT]);
    }
    holds(ALL_OWN[0], &[ALL_COMMIT, TWO_RECORDS]);
    holds(ALL_OWN[1], &[ALL_COMMIT]);
}

#[test]
fn copies_of_conflicting_commits_are_equal_at_the_end() {
    holds(CONFLICT, &[ALL_COMMIT, LOCK_FAILS, OLDER]);
    holds(CONFLICT_OF_REPLICAS, &[ALL_COMMIT, LOCK_FAILS, OLDER]);
    holds(CONFLICT_OF_WORKERS, &[ALL_COMMIT, LOCK_FAILS, OLDER]);
    holds(CONFLICT_OF_TWO, &[ALL_COMMIT, LOCK_FAILS, OLDER]);
    holds(CONFLICT_OF_BACKUPS, &[ALL_COMMIT, LOCK_FAILS, OLDER]);
    holds(CLUSTER, &[ALL_COMMIT, LOCK_FAILS, OLDER]);
    holds(CONFLICT_OF_ONE, &[ALL_COMMIT, LOCK_FAILS]);
    holds(READS, &[ALL_COMMIT, VALIDATION_FAILS]);
}

#[test]
fn the_low_bound_stays_before_open_transactions() {
    holds(ONE_WORKER, &[ALL_COMMIT]);
}

#[test]
fn no_commit_aborts_after_its_first_copies_when_a_machine_is_lost() {
    let lost = [ALL_COMMIT, RESERVATION_FAILS, IN_DOUBT];
    holds(LOSES_BACKUP, &lost);
    holds(loses(2, ALL_OWN[1]), &lost);
    holds(loses(4, SHARED_BACKUP), &lost);
    let of_primary = [ALL_COMMIT, RESERVATION_FAILS, LOCK_FAILS, IN_DOUBT];
    holds(loses(2, REMOTE[1]), &of_primary);
    holds(loses(2, OWN_BACKUP[0]), &of_primary);
    // The own COMMIT-PRIMARY counts as the first acknowledgement.
    holds(loses(2, OWN_AND_REMOTE), &of_primary[..3]);
}

#[test]
fn the_model_finds_errors_of_each_kind() {
    for (fault, scenario, finds) in [
        (Fault::GrantsLocked, SAME, PROTOCOL),
        (Fault::StaleHeader, SKEW, SERIALIZABLE),
        (Fault::RepliesGranted, SAME, PROTOCOL),
        (Fault::KeepsLocks, SAME, SETTLES),
        (Fault::TruncatesEarly, SAME, LOW_BOUND),
        (Fault::Drops(Kind::CommitBackup), REMOTE[1], INSTALLS),
        (Fault::Drops(Kind::CommitPrimary), REMOTE[1], REPORTS),
        (Fault::OmitsOwn(Kind::Lock), ALL_OWN[0], OWN_LOCK),
        (Fault::OmitsOwn(Kind::CommitBackup), OWN_BACKUP[0], INSTALLS),
        (Fault::OmitsOwn(Kind::CommitPrimary), ALL_OWN[0], OWN_COMMIT),
        (Fault::OmitsOwn(Kind::Abort), READS, OWN_ABORT),
        (Fault::AbortsLate, LOSES_BACKUP, ABORTS),
        (Fault::AppliesByArrival, CONFLICT, COPIES),
        (Fault::SkipsCopies, REMOTE[1], FREES),
    ] {
        let found = check(scenario, fault, &[finds]);
        assert!(found.contains(&finds), "{fault:?}: {found:?}");
    }
}

/// Most of these bugs do no harm in a run of the simulator, because nothing is recovered there.
#[cfg(feature = "mutants")]
#[test]
fn deliberate_bugs_of_commits_are_found() {
    for (mutant, scenario, finds) in [
        (
            "install before all backups acknowledged",
            REMOTE[1],
            INSTALLS,
        ),
        ("a backup's acknowledgement missing", REMOTE[2], INSTALLS),
        ("own LOCK record after the locks", ALL_OWN[0], OWN_LOCK),
        (
            "backup's record freed before it is applied",
            REMOTE[1],
            FREES,
        ),
        ("backup applies by arrival", CONFLICT, COPIES),
        ("low bound early", ONE_WORKER, LOW_BOUND),
        ("abort after COMMIT-BACKUP", LOSES_BACKUP, ABORTS),
    ] {
        let found = check(scenario, Fault::Mutant(mutant), &[finds]);
        assert!(found.contains(&finds), "{mutant}: {found:?}");
    }
}
