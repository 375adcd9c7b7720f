//! Sleeping and waking: no wake-up is lost to any race, and none is made twice.

use std::sync::atomic::Ordering;
use std::time::Duration;

use farm_core::fabric::Wake;
use farm_core::ids::WorkerId;

use super::roles::{AREA, FLAG};
use super::{Cluster, PEER, Role};

/// Two machines throw a ball back and forth, each sleeping until it comes. A wake-up that is lost
/// would leave both asleep.
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
        "{rounds} turns, {} sleeps here, {} there",
        slept[0], peer_slept[0]
    );
    assert!(
        slept[0] + peer_slept[0] >= rounds / 20,
        "hardly anybody slept: nothing was tried"
    );
}

/// Many writes that notify one sleeper wake it once, at the flush; an awake worker is left alone.
pub(super) fn a_flush_notifies_each_sleeper_once(cluster: &mut dyn Cluster) {
    // Our own machine is a peer like any other, so that both sides are in our hands.
    for round in 1..=cluster.rounds(200) {
        let before = cluster.node().endpoint.counters().wakes;
        cluster.node().endpoint.arm();
        notify_ourselves(cluster, round);
        cluster.node().endpoint.flush();
        assert_eq!(cluster.sleep(Duration::from_secs(5)), Wake::Notified);
        // The wait may have ended before the notification came (nothing forbids it): let it land.
        let deadline = cluster.deadline();
        while cluster.node().open.load(FLAG, Ordering::Acquire) != round {
            cluster.node().poll();
            cluster.advance();
            deadline.check("the write that notifies");
        }
        cluster.settle();
        let woken = cluster.node().endpoint.counters().wakes - before;
        assert!(woken <= 1, "one sleeper was woken {woken} times");

        // Nobody sleeps now, so nobody is woken; nothing was posted since, so nothing is flushed.
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

/// A sleep that nobody ends ends by itself, and a notification that was taken back by `disarm` does
/// not end the next one.
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
        "nobody notified, and {timed_out} of 20 sleeps were quiet"
    );
}
