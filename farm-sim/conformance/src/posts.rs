//! Posts and completions: each signalled operation completes once, with its token and its slot.

use std::collections::BTreeMap;

use farm_core::fabric::{
    Atomic, Completion, Counters, Read, ReadKind, Rejected, Slot, Status, Write,
};
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::roles::{AREA, COUNTER};
use super::{Cluster, Location, Node, PEER, THIRD};

/// The kind of a posted operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Posted {
    Read,
    Write { slot: bool },
    Atomic,
}

/// Posts a random operation to the peer or the third machine. If it is accepted, records its token in `open`.
pub(super) fn post_any(
    node: &mut Node,
    rng: &mut Xoshiro256PlusPlus,
    open: &mut BTreeMap<u64, Posted>,
) {
    let machine = if rng.random() { PEER } else { THIRD };
    let peer = node.peer(machine);
    let fence = rng.random_range(0..4) == 0;
    match rng.random_range(0..5) {
        0 | 1 => {
            let bytes = 64 * rng.random_range(1..=8);
            let kind = if rng.random() {
                ReadKind::Raw
            } else {
                ReadKind::Objects { stride: 64 }
            };
            if let Ok(token) = node.try_read(peer.closed(0), bytes, kind, fence) {
                open.insert(token.0, Posted::Read);
            }
        }
        2 | 3 => {
            let words = vec![7; rng.random_range(1..=64)];
            let inline = words.len() * 8 <= node.endpoint.capabilities().max_inline_bytes;
            let signal = rng.random::<bool>().then(|| node.token());
            let write = Write {
                to: peer.open(AREA),
                fence,
                notify: None,
                signal,
            };
            let taken = node.try_write(write, &words).is_ok();
            if let (Some(token), true) = (signal, taken) {
                open.insert(token.0, Posted::Write { slot: !inline });
            }
        }
        _ => {
            let op = Atomic::FetchAdd { delta: 1 };
            if let Ok(token) = node.try_atomic(peer.open(COUNTER), op, fence) {
                open.insert(token.0, Posted::Atomic);
            }
        }
    }
}

/// Checks a completion against its post, returns its slot to the arena, and returns its status.
pub(super) fn check_completion(
    node: &mut Node,
    completion: Completion,
    open: &mut BTreeMap<u64, Posted>,
) -> Status {
    let Completion {
        token,
        status,
        slot,
        ..
    } = completion;
    let posted = open.remove(&token.0);
    let posted = posted.unwrap_or_else(|| panic!("{token:?} completed twice or was never posted"));
    let has_slot = matches!(posted, Posted::Read | Posted::Write { slot: true });
    assert_eq!(
        slot.is_some(),
        has_slot,
        "whether the completion of a {posted:?} has a slot"
    );
    slot.into_iter()
        .for_each(|slot| node.endpoint.arena().give(slot));
    status
}

/// In a random sequence of posts and polls, each signalled operation completes once, with its token and
/// its slot.
pub(super) fn every_signalled_operation_completes_once(cluster: &mut dyn Cluster) {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut open = BTreeMap::new();
    let mut polled = Vec::new();
    let deadline = cluster.deadline();
    let mut left = cluster.rounds(5_000);
    while left > 0 || !open.is_empty() {
        let node = cluster.node();
        for _ in 0..rng.random_range(0..8u64).min(left) {
            left -= 1;
            post_any(node, &mut rng, &mut open);
        }
        let most = rng.random_range(0..6);
        let count = node.endpoint.poll(most, &mut polled);
        assert!(
            count <= most && count == polled.len(),
            "a poll of at most {most} returned {count}: {polled:?}"
        );
        polled.append(&mut node.take_inbox());
        for completion in polled.drain(..) {
            let status = check_completion(node, completion, &mut open);
            assert_eq!(
                status,
                Status::Ok,
                "no connection is broken and no object is written"
            );
        }
        deadline.check("the completion of every operation");
        cluster.advance();
    }
    cluster.settle();
}

/// Unsignalled writes land, return their slots to the arena, and have no completion.
pub(super) fn unsignalled_writes_have_no_completion(cluster: &mut dyn Cluster) {
    let rounds = cluster.rounds(2_000);
    for round in 1..=rounds {
        let node = cluster.node();
        let to = node.peer(PEER).open(AREA);
        let write = Write {
            to,
            fence: round % 8 == 0,
            notify: None,
            signal: None,
        };
        let words = vec![round; 1 + round as usize % 40];
        if round % 2 == 0 {
            node.write_from_slot(write, &words)
                .expect("a valid write is accepted");
        } else {
            node.try_write(write, &words)
                .expect("a valid write is accepted");
        }
        assert_eq!(
            node.endpoint.outstanding(),
            0,
            "an unsignalled write counts as outstanding"
        );
    }
    cluster.settle();
    let node = cluster.node();
    let at = node.peer(PEER).open(AREA);
    assert_eq!(
        node.read(at, 1),
        [rounds],
        "the read sees all writes before it"
    );
    assert_eq!(node.take_inbox().len(), 0);
    cluster.settle();
}

/// Writes of all sizes up to the largest, inline and from a slot, land completely and do not change the
/// neighbouring words.
pub(super) fn writes_of_all_sizes_land_and_change_nothing_else(cluster: &mut dyn Cluster) {
    const AROUND: u64 = u64::MAX;
    let node = cluster.node();
    let inline = node.endpoint.capabilities().max_inline_bytes / 8;
    let largest = node.endpoint.arena().largest() / 8;
    let sizes = (1..=inline.min(48)).chain([inline, 63, 64, 65, 511, 512, 513, largest]);
    for (turn, words) in sizes.enumerate() {
        let bytes: Vec<u64> = (0..words as u64).map(|i| i << 32 | turn as u64).collect();
        let at = 64 + 8 * (turn % 9);
        cluster
            .owner(PEER)
            .store(Location::Open, at - 8, &vec![AROUND; words + 2]);
        let from_slot = [true, false]
            .into_iter()
            .filter(|slot| *slot || words <= inline);
        for slot in from_slot {
            let node = cluster.node();
            let token = node.token();
            let to = node.peer(PEER).open(at);
            let write = Write {
                to,
                fence: false,
                notify: None,
                signal: Some(token),
            };
            let posted = if slot {
                node.write_from_slot(write, &bytes)
            } else {
                node.try_write(write, &bytes)
            };
            posted.expect("a valid write is accepted");
            let completion = node.finish(token);
            assert_eq!(completion.slot.is_some(), slot);
            completion
                .slot
                .into_iter()
                .for_each(|slot| node.endpoint.arena().give(slot));
            let seen = cluster.owner(PEER).load(Location::Open, at - 8, words + 2);
            assert_eq!(seen[1..=words], bytes, "{words} words, slot: {slot}");
            assert_eq!(
                (seen[0], seen[words + 1]),
                (AROUND, AROUND),
                "a write of {words} words changed a neighbouring word"
            );
        }
    }
    cluster.settle();
}

/// Posts a signalled write while reads fill their queue. Writes have their own limit, because the write that
/// releases a lock must not wait for reads.
fn post_a_write(node: &mut Node, open: &mut BTreeMap<u64, Posted>) {
    assert!(node.endpoint.capabilities().max_outstanding_writes > 0);
    // The simulated fabric refuses some posts at random.
    for _ in 0..200 {
        let token = node.token();
        let write = Write {
            to: node.peer(PEER).open(AREA),
            fence: false,
            notify: None,
            signal: Some(token),
        };
        if node.try_write(write, &[7]).is_ok() {
            open.insert(token.0, Posted::Write { slot: false });
            return;
        }
    }
    panic!("200 posts of a write were refused while the queue of reads was full");
}

/// A full queue refuses a read with `Full`, returns its slot, and accepts reads again after polls.
pub(super) fn a_full_endpoint_accepts_posts_after_polls(cluster: &mut dyn Cluster) {
    let most = cluster.node().endpoint.capabilities().max_outstanding_reads;
    for _ in 0..cluster.rounds(60) {
        let node = cluster.node();
        let mut open = BTreeMap::new();
        loop {
            let read = read_of(node);
            let slot = node
                .endpoint
                .arena()
                .take(64)
                .expect("more slots than outstanding reads");
            match node.endpoint.post_read(read, slot) {
                Ok(()) => {
                    open.insert(read.token.0, Posted::Read);
                    assert!(
                        open.len() <= most,
                        "more than {most} outstanding reads were accepted"
                    );
                }
                Err(Rejected::Full(slot)) => {
                    give_back(node, slot);
                    break;
                }
                Err(other) => panic!("{other}"),
            }
        }
        post_a_write(node, &mut open);
        assert_eq!(node.endpoint.outstanding(), open.len());
        let mut polled = Vec::new();
        let deadline = cluster.deadline();
        while !open.is_empty() {
            let node = cluster.node();
            let before = node.endpoint.outstanding();
            let count = node.endpoint.poll(3, &mut polled);
            assert_eq!(
                node.endpoint.outstanding(),
                before - count,
                "a polled operation is no longer outstanding"
            );
            for completion in polled.drain(..) {
                check_completion(node, completion, &mut open);
            }
            deadline.check("the completions of all operations in a full queue");
            cluster.advance();
        }
        cluster.settle();
    }
}

/// A read completes although more writes have completed at any time than a poll returns. Regression test: shared memory returned
/// the completions of writes first. Under replicated updates, lookups took up to half a second.
pub(super) fn a_read_completes_among_endless_writes(cluster: &mut dyn Cluster) {
    const POLL: usize = 4;
    const MOST_WRITES: usize = 5_000;
    let capabilities = cluster.node().endpoint.capabilities();
    let ahead = (4 * POLL).min(capabilities.max_outstanding_writes);
    for _ in 0..cluster.rounds(20) {
        let mut open = BTreeMap::new();
        let node = cluster.node();
        let read = loop {
            let peer = node.peer(PEER);
            if let Ok(token) = node.try_read(peer.closed(0), 64, ReadKind::Raw, false) {
                break token;
            }
        };
        open.insert(read.0, Posted::Read);
        let (mut polled, mut completed) = (Vec::new(), 0);
        let deadline = cluster.deadline();
        while !open.is_empty() {
            let node = cluster.node();
            while open.contains_key(&read.0) && open.len() <= ahead {
                post_a_write(node, &mut open);
            }
            node.endpoint.poll(POLL, &mut polled);
            // What was polled to make room for a post.
            polled.append(&mut node.take_inbox());
            completed += polled.len();
            for completion in polled.drain(..) {
                check_completion(node, completion, &mut open);
            }
            assert!(
                completed < MOST_WRITES,
                "the read waits for {completed} writes"
            );
            deadline.check("the completion of the read");
            cluster.advance();
        }
        cluster.settle();
    }
}

fn read_of(node: &mut Node) -> Read {
    let from = node.peer(PEER).closed(0);
    Read {
        from,
        bytes: 64,
        kind: ReadKind::Raw,
        fence: false,
        token: node.token(),
    }
}

fn give_back(node: &mut Node, slot: Option<Slot>) {
    node.endpoint
        .arena()
        .give(slot.expect("a refused read returns its slot"));
}

/// Each accepted operation is counted once, with its bytes. Refused operations are not counted.
pub(super) fn counters_count_exactly(cluster: &mut dyn Cluster) {
    let node = cluster.node();
    let peer = node.peer(PEER);
    let mut expected = node.endpoint.counters();
    for round in 0..40usize {
        let words = 1 + round % 30;
        node.write(peer.open(AREA), &vec![1; words]);
        node.write_unsignalled(peer.open(AREA), &[2]);
        let bytes = 64 * (1 + round % 5);
        let kind = ReadKind::Objects { stride: 64 };
        let read = node
            .try_read(peer.closed(0), bytes, kind, false)
            .expect("a valid read is accepted");
        node.finish_read(read, bytes);
        node.atomic(peer.open(COUNTER), Atomic::FetchAdd { delta: 1 });
        expected = Counters {
            reads: expected.reads + 1,
            read_bytes: expected.read_bytes + bytes as u64,
            writes: expected.writes + 2,
            write_bytes: expected.write_bytes + 8 * (words as u64 + 1),
            atomics: expected.atomics + 1,
            ..expected
        };
        let refused = node.try_read(peer.closed(4), 8, ReadKind::Raw, false);
        assert!(refused.is_err());
        assert_eq!(node.endpoint.counters(), expected);
    }
    cluster.settle();
}
