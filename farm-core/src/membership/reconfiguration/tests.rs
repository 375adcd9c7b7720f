//! Clusters of three to seven machines in which random machines are killed or stopped, and connections are cut, at random moments.

mod cluster;

use cluster::Cluster;

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

/// Bugs that only changes of the configuration can have.
#[cfg(feature = "mutants")]
#[test]
fn deliberate_bugs_of_reconfiguration_are_found() {
    for bug in [
        "majority of the newest configuration alone",
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
