//! Clusters of three to seven machines in which random machines are killed or stopped, and connections are cut, at random moments.

mod cluster;

use cluster::Cluster;

use super::{Action, Blocked, Probed, Reconfiguration, Stored};
use crate::membership::configuration::testing::{configuration, machine};

/// Number of runs.
const SEEDS: u64 = 10_000;

fn run(seed: u64) {
    let mut cluster = Cluster::random(seed);
    cluster.run_with_faults();
    cluster.run_to_rest();
    cluster.judge();
}

fn run_all() -> Result<(), u64> {
    let fails = |seed: &u64| std::panic::catch_unwind(|| run(*seed)).is_err();
    (0..SEEDS).find(fails).map_or(Ok(()), Err)
}

#[test]
fn whatever_is_lost_and_whenever_the_others_agree_and_no_region_has_two_primaries() {
    crate::marks::take();
    assert_eq!(run_all(), Ok(()), "seed");
    let reached = crate::marks::take();
    for mark in [
        "membership: a configuration follows one that was not in effect",
        "membership: a configuration is replaced before it is in effect",
        "membership: a machine gives way to another manager",
        "membership: a machine that has left may not be gone",
        "membership: a lease expires",
        "membership: a configuration is stored by a machine that had given way",
        "membership: a lease is renewed after it had expired",
        "membership: a machine was evicted",
        "membership: a minority waits",
        "membership: a region waits for its last copy",
        "membership: an evicted process stays named",
        "membership: another change came first",
        "membership: another machine has made the configuration",
        "membership: machines or replicas are added",
        "membership: the cluster halts",
    ] {
        assert!(reached.contains_key(mark), "{mark}: not reached");
    }
}

/// Has machine 1 of five lose two machines, and then, before the next configuration is in effect, a third one. Returns what it does.
fn lose_three_of_five() -> Vec<Action> {
    let first = configuration("test", &[1, 2, 3, 4, 5]);
    let process = |id: u16| first.member(machine(id)).unwrap().process();
    let mut value = Reconfiguration::new(process(1), first.clone()).with_leases_by_time(true);
    let mut out = Vec::new();
    for lost in [4, 5] {
        value.suspect(process(lost), &mut out);
    }
    value.on_read(Ok(first.clone()), &mut out);
    let answer = |value: &mut Reconfiguration, id: u16, out: &mut Vec<Action>| {
        let boot = process(id).boot;
        value.on_probed(machine(id), Probed::Runs { boot }, out);
    };
    for id in [2, 3] {
        answer(&mut value, id, &mut out);
    }
    let stored = out.iter().find_map(|action| match action {
        Action::Store(next) => Some(next.clone()),
        _ => None,
    });
    let second = stored.expect("three of five go on");
    assert_eq!(second.quorums, [first.storing().collect::<Vec<_>>()]);
    value.on_stored(&second, Stored::Won, &mut out);
    out.clear();
    value.suspect(process(3), &mut out);
    answer(&mut value, 2, &mut out);
    out
}

/// Machine 3 has not applied the configuration of three, and may hold a lease of machines 4 and 5, which are cut off from the others: with
/// itself, that is a majority of those in effect. Two of three are not enough to go on without it.
#[test]
fn a_majority_of_the_configuration_in_effect_goes_on_not_only_of_the_newest() {
    let blocked = Action::Block(Blocked::Minority { reached: 2, of: 5 });
    let done = lose_three_of_five();
    assert!(done.contains(&blocked), "{done:?}");
}

#[cfg(feature = "mutants")]
#[test]
fn deliberate_bugs_of_majorities_are_found() {
    crate::mutants::switch(Some("majority of the newest configuration alone"));
    let done = lose_three_of_five();
    crate::mutants::switch(None);
    let stores = done.iter().any(|one| matches!(one, Action::Store(_)));
    assert!(stores, "{done:?}");
}

/// Bugs that only changes of the configuration can have.
#[cfg(feature = "mutants")]
#[test]
fn deliberate_bugs_of_reconfiguration_are_found() {
    for bug in [
        "blind store write",
        "evicted machine not awaited",
        "expiring forgotten",
        "filling promoted",
        "minority goes on",
    ] {
        crate::mutants::switch(Some(bug));
        let found = run_all();
        crate::mutants::switch(None);
        println!("{bug}: seed {found:?}");
        assert!(found.is_err(), "{bug}: not found");
    }
}
