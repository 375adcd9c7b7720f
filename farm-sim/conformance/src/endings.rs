//! How connections end: each outstanding operation completes once, the endpoint reports the end once,
//! and later posts are refused.

use std::collections::BTreeMap;
use std::time::Duration;

use farm_core::fabric::{Atomic, Departure, ImportError, ReadKind, Status, Wake, Write};
use farm_core::ids::MachineId;
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::posts::{Posted, check_completion, post_any};
use super::roles::{AREA, COUNTER};
use super::{Cluster, Node, PEER, Refusal, THIRD};

/// Kills the peer. Returns false if the backend cannot.
fn kill(cluster: &mut dyn Cluster) -> bool {
    let killed = cluster.kill(PEER);
    if !killed {
        println!("skipped: this backend's machines share a process, so none can be killed");
    }
    killed
}

/// A peer dies while operations are outstanding. Each operation completes once, with `Broken` if it had
/// not taken place. The endpoint reports the peer as lost once. Later posts return `Closed`.
/// Connections to other machines still work.
pub(super) fn a_killed_peer_breaks_outstanding_operations(cluster: &mut dyn Cluster) {
    let mut open = post_a_few(cluster.node(), PEER);
    if kill(cluster) {
        let broken = check_end(cluster, &mut open, Departure::Lost);
        assert!(broken > 0, "operations were outstanding when the peer died");
    } else {
        drain(cluster, &mut open);
    }
}

/// Posts reads, writes and an atomic. Returns the posts whose completions are outstanding, by token.
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
            .expect("a valid read is accepted");
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
        .expect("a valid write is accepted");
    open.insert(token.0, Posted::Write { slot: true });
    node.write_unsignalled(peer.open(AREA), &[1; 512]);
    let add = node.try_atomic(peer.open(COUNTER), Atomic::FetchAdd { delta: 1 }, false);
    open.insert(add.expect("a valid atomic is accepted").0, Posted::Atomic);
    let token = node
        .try_read(peer.closed(0), 64, ReadKind::Raw, true)
        .expect("a valid read is accepted");
    open.insert(token.0, Posted::Read);
    open
}

/// Waits until the endpoint reports the end of the connection to the peer, then checks everything that
/// must hold afterwards. Returns the number of operations that ended `Broken`.
fn check_end(cluster: &mut dyn Cluster, open: &mut BTreeMap<u64, Posted>, how: Departure) -> u64 {
    let deadline = cluster.deadline();
    let mut broken = 0;
    let ended = loop {
        // Takes no completions, so that the operations stay outstanding until the end is reported.
        cluster.node().endpoint.poll(0, &mut Vec::new());
        if let Some(ended) = cluster.node().endpoint.take_broken() {
            break ended;
        }
        cluster.advance();
        deadline.check("the report that the connection ended");
    };
    assert_eq!(ended, (PEER, how));
    while !open.is_empty() {
        cluster.node().poll();
        let node = cluster.node();
        for completion in node.take_inbox() {
            broken += u64::from(check_completion(node, completion, open) == Status::Broken);
        }
        cluster.advance();
        deadline.check("the completions after the connection ended");
    }
    cluster.settle();
    check_closed(cluster);
    check_other_connections(cluster);
    assert_eq!(
        cluster.node().endpoint.take_broken(),
        None,
        "the end is reported once"
    );
    broken
}

fn check_closed(cluster: &mut dyn Cluster) {
    let node = cluster.node();
    let peer = node.peer(PEER);
    let closed = Err(Refusal::Closed);
    let read = node.try_read(peer.closed(0), 64, ReadKind::Raw, false);
    assert_eq!(read.map(|_| ()), closed, "a read on a closed connection");
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
            "a write on a closed connection"
        );
        assert_eq!(
            node.write_from_slot(write, &[1]),
            closed,
            "a write from a slot on a closed connection"
        );
    }
    let add = node.try_atomic(peer.open(COUNTER), Atomic::FetchAdd { delta: 1 }, false);
    assert_eq!(add.map(|_| ()), closed, "an atomic on a closed connection");
    let import = node.endpoint.import(&peer.offer.closed);
    assert!(
        matches!(import, Err(ImportError::NotConnected(PEER))),
        "{import:?}"
    );
    node.endpoint.flush();
    cluster.settle();
}

fn check_other_connections(cluster: &mut dyn Cluster) {
    let node = cluster.node();
    for machine in [node.machine, THIRD] {
        let at = node.peer(machine).open(AREA);
        node.write(at, &[3; 40]);
        assert_eq!(node.read(at, 40), [3; 40]);
    }
    cluster.settle();
}

/// Waits for the outstanding operations of a connection that has not ended, and checks that they succeed.
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

/// A peer dies during heavy traffic with it and with another machine.
pub(super) fn a_peer_killed_under_load_completes_everything_once(cluster: &mut dyn Cluster) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(2);
    let (mut open, mut ended, mut rounds_after) = (BTreeMap::new(), None, 0);
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
                "an operation was broken before a machine was killed"
            );
        }
        if let Some(end) = node.endpoint.take_broken() {
            assert_eq!(ended.replace(end), None, "the end is reported once");
        }
        rounds_after += u64::from(ended.is_some());
        cluster.advance();
        deadline.check("the report that the connection ended");
    }
    assert_eq!(ended, Some((PEER, Departure::Lost)));
    let deadline = cluster.deadline();
    while !open.is_empty() {
        cluster.node().poll();
        let node = cluster.node();
        for completion in node.take_inbox() {
            check_completion(node, completion, &mut open);
        }
        cluster.advance();
        deadline.check("the completions after the connection ended");
    }
    cluster.settle();
    check_closed(cluster);
    check_other_connections(cluster);
}

/// The death of a peer wakes a sleeping worker at once.
pub(super) fn a_killed_peer_wakes_a_sleeper(cluster: &mut dyn Cluster) {
    cluster.node().endpoint.arm();
    if !kill(cluster) {
        cluster.node().endpoint.disarm();
        return;
    }
    let deadline = cluster.deadline();
    loop {
        cluster.node().endpoint.poll(0, &mut Vec::new());
        if let Some(ended) = cluster.node().endpoint.take_broken() {
            assert_eq!(ended, (PEER, Departure::Lost));
            break;
        }
        // Much longer than the wake-up takes: a lost wake-up shows as `TimedOut`.
        let wake = cluster.sleep(Duration::from_secs(8));
        assert_eq!(
            wake,
            Wake::Notified,
            "the death of the peer did not wake the sleeping worker"
        );
        cluster.node().endpoint.arm();
        deadline.check("the report that the connection ended");
    }
    cluster.node().endpoint.disarm();
    cluster.settle();
}

/// A peer that announces its leaving is reported as `Left`, not as `Lost`.
pub(super) fn a_peer_that_leaves_is_reported_as_left(cluster: &mut dyn Cluster) {
    let mut open = post_a_few(cluster.node(), PEER);
    cluster.leave(PEER);
    check_end(cluster, &mut open, Departure::Left);
}

/// A connection that our endpoint closes is reported as `Lost`.
pub(super) fn a_closed_connection_is_reported_as_lost(cluster: &mut dyn Cluster) {
    let mut open = post_a_few(cluster.node(), PEER);
    cluster.node().endpoint.close(PEER);
    let broken = check_end(cluster, &mut open, Departure::Lost);
    assert!(
        broken > 0,
        "operations were outstanding when the connection was closed"
    );
}
