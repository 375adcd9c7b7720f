//! Sleeping and waking: no race loses a wake-up, and a flush wakes a sleeper at most once.

use std::sync::atomic::Ordering;
use std::time::Duration;

use farm_core::fabric::Wake;
use farm_core::ids::WorkerId;

use super::roles::{AREA, FLAG};
use super::{Cluster, PEER, Role};

/// Two machines pass a ball back and forth, and each sleeps until the ball arrives. After a lost wake-up,
/// both would sleep.
pub(super) fn no_wake_up_is_lost_in_a_long_exchange(cluster: &mut dyn Cluster) {
    let rounds = cluster.rounds(20_000);
    let ours = cluster.node().machine;
    cluster.start(
        PEER,
        Role::Play {
            with: ours,
            rounds,
            first: false,
        },
    );
    let slept = cluster.drive(Role::Play {
        with: PEER,
        rounds,
        first: true,
    });
    let peer_slept = cluster.join(PEER);
    cluster.settle();
    println!(
        "{rounds} turns: {} sleeps of our machine, {} of the peer",
        slept[0], peer_slept[0]
    );
    assert!(
        slept[0] + peer_slept[0] >= rounds / 20,
        "fewer than one sleep in 20 turns: the run tests too little"
    );
}

/// Several writes that notify one sleeping worker wake it once, at the flush. A worker that is awake is not woken.
pub(super) fn a_flush_notifies_each_sleeper_once(cluster: &mut dyn Cluster) {
    // The writes go to our own machine, so that the property controls both sides.
    for round in 1..=cluster.rounds(200) {
        let before = cluster.node().endpoint.counters().wakes;
        cluster.node().endpoint.arm();
        notify_ourselves(cluster, round);
        cluster.node().endpoint.flush();
        assert_eq!(cluster.sleep(Duration::from_secs(5)), Wake::Notified);
        // The wait may have returned early, without the notification, which is allowed. Wait for the last write.
        let deadline = cluster.deadline();
        while cluster.node().open.load(FLAG, Ordering::Acquire) != round {
            cluster.node().poll();
            cluster.advance();
            deadline.check("the last write that notifies");
        }
        cluster.settle();
        let woken = cluster.node().endpoint.counters().wakes - before;
        assert!(woken <= 1, "one sleeper was woken {woken} times");

        // Now the worker does not sleep, so neither an empty flush nor a flush of writes wakes it.
        let before = cluster.node().endpoint.counters().wakes;
        cluster.node().endpoint.flush();
        notify_ourselves(cluster, round);
        cluster.node().endpoint.flush();
        cluster.settle();
        assert_eq!(
            cluster.node().endpoint.counters().wakes,
            before,
            "an awake worker was woken"
        );
    }
}

fn notify_ourselves(cluster: &mut dyn Cluster, round: u64) {
    let node = cluster.node();
    let ourselves = node.peer(node.machine);
    for write in 0..10 {
        node.write_and_notify(ourselves.open(AREA + write * 8), &[round], WorkerId::FIRST);
    }
    node.write_and_notify(ourselves.open(FLAG), &[round], WorkerId::FIRST);
}

/// A sleep without a notification times out, also after an earlier `arm` that was cancelled by `disarm`.
pub(super) fn a_quiet_sleep_times_out(cluster: &mut dyn Cluster) {
    let mut timed_out = 0;
    for _ in 0..20 {
        cluster.settle();
        cluster.node().endpoint.arm();
        cluster.node().endpoint.disarm();
        cluster.node().endpoint.arm();
        timed_out += u64::from(cluster.sleep(Duration::from_millis(2)) == Wake::TimedOut);
    }
    assert!(
        timed_out >= 10,
        "without a notification, only {timed_out} of 20 sleeps timed out"
    );
}
