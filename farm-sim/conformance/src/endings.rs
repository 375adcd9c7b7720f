//! How connections end: everything outstanding completes once, the loss is told once, and what is
//! posted later is refused.

use std::collections::BTreeMap;
use std::time::Duration;

use farm_core::fabric::{Atomic, Departure, ImportError, ReadKind, Status, Wake, Write};
use farm_core::ids::MachineId;
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::posts::{Posted, check_completion, post_any};
use super::roles::{AREA, COUNTER};
use super::{Cluster, Node, PEER, Refusal, THIRD};

/// Kills the peer, where the backend can.
fn kill(cluster: &mut dyn Cluster) -> bool {
    let killed = cluster.kill(PEER);
    if !killed {
        println!("skipped: machines of this backend share a process, and none can be killed");
    }
    killed
}

/// A peer dies with operations outstanding: each completes once, what had not taken place is
/// `Broken`, the loss is told once, later posts are `Closed`, and others are not concerned.
pub(super) fn a_killed_peer_breaks_what_is_outstanding(cluster: &mut dyn Cluster) {
    let mut open = post_a_few(cluster.node(), PEER);
    if kill(cluster) {
        let broken = ends_well(cluster, &mut open, Departure::Lost);
        assert!(broken > 0, "operations were outstanding when the peer died");
    } else {
        drain(cluster, &mut open);
    }
}

/// Reads, a signalled write and an atomic, outstanding together.
fn post_a_few(node: &mut Node, to: MachineId) -> BTreeMap<u64, Posted> {
    let mut open = BTreeMap::new();
    let peer = node.peer(to);
    for kind in [
        ReadKind::Raw,
        ReadKind::Objects { stride: 256 },
        ReadKind::Raw,
    ] {
        let token = node
            .try_read(peer.closed(0), 512, kind, false)
            .expect("a good read is taken");
        open.insert(token.0, Posted::Read);
    }
    let token = node.token();
    let write = Write {
        to: peer.open(AREA),
        fence: false,
        notify: None,
        signal: Some(token),
    };
    node.write_from_slot(write, &[1; 64])
        .expect("a good write is taken");
    open.insert(token.0, Posted::Write { slot: true });
    node.write_silently(peer.open(AREA), &[1; 512]);
    let add = node.try_atomic(peer.open(COUNTER), Atomic::FetchAdd { delta: 1 }, false);
    open.insert(add.expect("a good atomic is taken").0, Posted::Atomic);
    let token = node
        .try_read(peer.closed(0), 64, ReadKind::Raw, true)
        .expect("a good read is taken");
    open.insert(token.0, Posted::Read);
    open
}

/// Waits until the end of the peer is told, then checks all that must hold after it. How many
/// operations ended `Broken`.
fn ends_well(cluster: &mut dyn Cluster, open: &mut BTreeMap<u64, Posted>, how: Departure) -> u64 {
    let deadline = cluster.deadline();
    let mut broken = 0;
    let told = loop {
        // Polls for nothing, so that what is outstanding stays so until the end is noticed.
        cluster.node().endpoint.poll(0, &mut Vec::new());
        if let Some(told) = cluster.node().endpoint.take_broken() {
            break told;
        }
        cluster.advance();
        deadline.check("word of the peer's end");
    };
    assert_eq!(told, (PEER, how));
    while !open.is_empty() {
        cluster.node().poll();
        let node = cluster.node();
        for completion in node.take_inbox() {
            broken += u64::from(check_completion(node, completion, open) == Status::Broken);
        }
        cluster.advance();
        deadline.check("completions after the peer's end");
    }
    cluster.settle();
    is_closed(cluster);
    others_go_on(cluster);
    assert_eq!(
        cluster.node().endpoint.take_broken(),
        None,
        "the end is told once"
    );
    broken
}

fn is_closed(cluster: &mut dyn Cluster) {
    let node = cluster.node();
    let peer = node.peer(PEER);
    let closed = Err(Refusal::Closed);
    let read = node.try_read(peer.closed(0), 64, ReadKind::Raw, false);
    assert_eq!(read.map(|_| ()), closed, "a read of a machine that is gone");
    for signal in [None, Some(node.token())] {
        let write = Write {
            to: peer.open(0),
            fence: false,
            notify: None,
            signal,
        };
        assert_eq!(
            node.try_write(write, &[1]),
            closed,
            "a write to a machine that is gone"
        );
        assert_eq!(
            node.write_from_slot(write, &[1]),
            closed,
            "a write from a slot"
        );
    }
    let add = node.try_atomic(peer.open(COUNTER), Atomic::FetchAdd { delta: 1 }, false);
    assert_eq!(
        add.map(|_| ()),
        closed,
        "an atomic at a machine that is gone"
    );
    let import = node.endpoint.import(&peer.offer.closed);
    assert!(
        matches!(import, Err(ImportError::NotConnected(PEER))),
        "{import:?}"
    );
    node.endpoint.flush();
    cluster.settle();
}

fn others_go_on(cluster: &mut dyn Cluster) {
    let node = cluster.node();
    for machine in [node.machine, THIRD] {
        let at = node.peer(machine).open(AREA);
        node.write(at, &[3; 40]);
        assert_eq!(node.read(at, 40), [3; 40]);
    }
    cluster.settle();
}

/// Completes what is outstanding on a connection that holds.
fn drain(cluster: &mut dyn Cluster, open: &mut BTreeMap<u64, Posted>) {
    let deadline = cluster.deadline();
    while !open.is_empty() {
        cluster.node().poll();
        let node = cluster.node();
        for completion in node.take_inbox() {
            assert_eq!(check_completion(node, completion, open), Status::Ok);
        }
        cluster.advance();
        deadline.check("the completion of every operation");
    }
}

/// A peer dies in the middle of heavy traffic with it and with others.
pub(super) fn a_peer_killed_under_load_completes_everything_once(cluster: &mut dyn Cluster) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(2);
    let (mut open, mut told, mut rounds_after) = (BTreeMap::new(), None, 0);
    let deadline = cluster.deadline();
    let warm = cluster.rounds(1_000);
    let mut round = 0;
    while rounds_after < 50 {
        round += 1;
        if round == warm && !kill(cluster) {
            return drain(cluster, &mut open);
        }
        let node = cluster.node();
        post_any(node, &mut rng, &mut open);
        if round % 3 == 0 {
            node.poll();
        }
        for completion in node.take_inbox() {
            let status = check_completion(node, completion, &mut open);
            assert!(
                status != Status::Broken || round >= warm,
                "everybody was alive"
            );
        }
        if let Some(end) = node.endpoint.take_broken() {
            assert_eq!(told.replace(end), None, "the end is told once");
        }
        rounds_after += u64::from(told.is_some());
        cluster.advance();
        deadline.check("word of the peer's end");
    }
    assert_eq!(told, Some((PEER, Departure::Lost)));
    let deadline = cluster.deadline();
    while !open.is_empty() {
        cluster.node().poll();
        let node = cluster.node();
        for completion in node.take_inbox() {
            check_completion(node, completion, &mut open);
        }
        cluster.advance();
        deadline.check("completions after the peer's end");
    }
    cluster.settle();
    is_closed(cluster);
    others_go_on(cluster);
}

/// A worker that sleeps learns at once that a peer has died.
pub(super) fn a_killed_peer_wakes_a_sleeper(cluster: &mut dyn Cluster) {
    cluster.node().endpoint.arm();
    if !kill(cluster) {
        cluster.node().endpoint.disarm();
        return;
    }
    let deadline = cluster.deadline();
    loop {
        cluster.node().endpoint.poll(0, &mut Vec::new());
        if let Some(told) = cluster.node().endpoint.take_broken() {
            assert_eq!(told, (PEER, Departure::Lost));
            break;
        }
        // Long enough to show that the sleeper was woken and did not merely wake up.
        let wake = cluster.sleep(Duration::from_secs(8));
        assert_eq!(wake, Wake::Notified, "the peer's end woke nobody");
        cluster.node().endpoint.arm();
        deadline.check("word of the peer's end");
    }
    cluster.node().endpoint.disarm();
    cluster.settle();
}

/// A peer that says goodbye has left, and is not lost.
pub(super) fn a_peer_that_leaves_says_so(cluster: &mut dyn Cluster) {
    let mut open = post_a_few(cluster.node(), PEER);
    cluster.leave(PEER);
    ends_well(cluster, &mut open, Departure::Left);
}

/// A connection that we close ourselves is lost to us.
pub(super) fn a_closed_connection_is_lost(cluster: &mut dyn Cluster) {
    let mut open = post_a_few(cluster.node(), PEER);
    cluster.node().endpoint.close(PEER);
    let broken = ends_well(cluster, &mut open, Departure::Lost);
    assert!(
        broken > 0,
        "operations were outstanding when the connection was closed"
    );
}
