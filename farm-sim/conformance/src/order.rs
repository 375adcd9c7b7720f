//! Order: which operations may pass earlier ones on a connection, and in which order words become visible.

use std::sync::atomic::Ordering;

use farm_core::fabric::{Atomic, ReadKind, Status, Write};

use super::roles::{AREA, COUNTER, FLAG};
use super::{Cluster, Location, PEER, Role, THIRD};

/// Lengths of the ordered writes, in words: one line, inline on most fabrics, from a slot, a whole page.
const WIDTHS: [usize; 4] = [8, 16, 60, 512];
/// Rounds of ordered writes, before [`Cluster::rounds`] scales them.
const ROUNDS: u64 = 6_000;

/// A read sees every write that was posted before it on its connection, and may see later writes.
pub(super) fn a_read_sees_the_writes_posted_before_it(cluster: &mut dyn Cluster) {
    let rounds = cluster.rounds(1_000);
    let (mut posted, mut passed) = (0, 0);
    for words in WIDTHS {
        for round in 0..rounds / WIDTHS.len() as u64 {
            let mut reads = Vec::new();
            for _ in 0..1 + round % 4 {
                posted += 1;
                let node = cluster.node();
                let at = node.peer(PEER).open(AREA);
                node.write_unsignalled(at, &vec![posted; words]);
                let kind = if posted % 2 == 0 {
                    ReadKind::Raw
                } else {
                    ReadKind::Objects { stride: 64 }
                };
                let bytes = (words * 8).next_multiple_of(64);
                let token = node
                    .try_read(at, bytes, kind, false)
                    .expect("a valid read is accepted");
                reads.push((token, bytes, posted));
            }
            for (token, bytes, least) in reads {
                let (status, seen) = cluster.node().finish_read(token, bytes);
                if status == Status::Torn {
                    continue; // A later write may have changed the words that the fabric checks as headers.
                }
                let seen = &seen[..words];
                assert!(
                    seen.iter().all(|word| *word >= least),
                    "write {least} is not in {seen:?}"
                );
                passed += u64::from(seen.iter().any(|word| *word > least));
            }
        }
    }
    cluster.settle();
    println!("{passed} of {posted} reads saw a write that was posted after them");
}

/// If the second of two writes is visible, so is the first.
pub(super) fn writes_become_visible_in_the_order_posted(cluster: &mut dyn Cluster) {
    let rounds = cluster.rounds(ROUNDS);
    for words in WIDTHS {
        let halfway = watch(cluster, words, rounds, &mut |cluster| {
            let flag = cluster.node().open.load(FLAG, Ordering::Acquire);
            cluster.advance();
            for word in [0, words / 2, words - 1] {
                let seen = cluster.node().open.load(AREA + word * 8, Ordering::Acquire);
                assert!(
                    seen >= flag,
                    "the flag of round {flag} is visible, but word {word} of the earlier write is {seen}"
                );
            }
            cluster.node().open.load(AREA, Ordering::Acquire) > flag
        });
        println!("{words} words: the next write was already visible {halfway} times");
    }
}

/// If a word of a write is visible, so is every word before it.
pub(super) fn words_of_a_write_become_visible_in_increasing_order(cluster: &mut dyn Cluster) {
    let rounds = cluster.rounds(ROUNDS);
    for words in WIDTHS {
        let stride = words.div_ceil(16);
        let halfway = watch(cluster, words, rounds, &mut |cluster| {
            let last = cluster
                .node()
                .open
                .load(AREA + (words - 1) * 8, Ordering::Acquire);
            let mut later = last;
            for word in (0..words).rev().step_by(stride) {
                let seen = cluster.node().open.load(AREA + word * 8, Ordering::Acquire);
                assert!(
                    seen >= later,
                    "word {word} is {seen}, but a later word was already {later}"
                );
                later = seen;
            }
            cluster.advance();
            later > last
        });
        println!("{words} words: a half-landed write was visible {halfway} times");
    }
}

/// Calls `look` repeatedly while the peer writes to our memory by [`Role::WriteInOrder`]. Returns how
/// often `look` saw a write in progress.
fn watch(
    cluster: &mut dyn Cluster,
    words: usize,
    rounds: u64,
    look: &mut dyn FnMut(&mut dyn Cluster) -> bool,
) -> u64 {
    cluster.node().open.zero(AREA, words * 8);
    cluster.node().open.zero(FLAG, 8);
    let to = cluster.node().machine;
    cluster.start(PEER, Role::WriteInOrder { to, words, rounds });
    let deadline = cluster.deadline();
    let mut halfway = 0;
    while cluster.node().open.load(FLAG, Ordering::Acquire) < rounds {
        halfway += u64::from(look(cluster));
        deadline.check("the last ordered write");
        cluster.advance();
    }
    assert_eq!(cluster.join(PEER), [rounds]);
    let mut seen = vec![0; words];
    cluster.node().open.read_words(AREA, &mut seen);
    assert_eq!(seen, vec![rounds; words], "the last write landed whole");
    halfway
}

/// An operation posted with a fence does not pass outstanding reads and atomics.
pub(super) fn a_fenced_operation_waits_for_reads_and_atomics(cluster: &mut dyn Cluster) {
    let rounds = cluster.rounds(600);
    let mut passed = 0;
    for round in 1..=rounds {
        a_fenced_write_after_a_read(cluster, round);
        passed += u64::from(an_unfenced_write_after_a_read(cluster, round));
        a_fenced_write_after_an_atomic(cluster, round);
        a_fenced_atomic_after_a_read(cluster, round);
        a_fenced_read_after_an_atomic(cluster, round);
    }
    cluster.settle();
    println!("{passed} of {rounds} unfenced writes passed a read");
}

const READ_WORDS: usize = 64;
const OLD: u64 = 1 << 40;

fn a_fenced_write_after_a_read(cluster: &mut dyn Cluster, round: u64) {
    let node = cluster.node();
    let at = node.peer(PEER).open(AREA);
    node.write(at, &[OLD + round; READ_WORDS]);
    let kinds = [
        ReadKind::Raw,
        ReadKind::Objects {
            stride: READ_WORDS as u32 * 8,
        },
    ];
    let kind = kinds[round as usize % 2];
    let read = node
        .try_read(at, READ_WORDS * 8, kind, false)
        .expect("a valid read is accepted");
    let write = Write {
        to: at,
        fence: true,
        notify: None,
        signal: None,
    };
    node.try_write(write, &[round; READ_WORDS])
        .expect("a valid write is accepted");
    let (status, seen) = node.finish_read(read, READ_WORDS * 8);
    assert_eq!(status, Status::Ok, "no other machine writes there");
    assert_eq!(
        seen,
        [OLD + round; READ_WORDS],
        "the fenced write passed the read before it"
    );
    assert_eq!(node.read(at, READ_WORDS), [round; READ_WORDS]);
}

/// Returns whether the write passed the read, which is allowed.
fn an_unfenced_write_after_a_read(cluster: &mut dyn Cluster, round: u64) -> bool {
    let node = cluster.node();
    let at = node.peer(PEER).open(AREA);
    node.write(at, &[OLD + round; 8]);
    let read = node
        .try_read(at, 64, ReadKind::Raw, false)
        .expect("a valid read is accepted");
    node.write_unsignalled(at, &[round; 8]);
    let (_, seen) = node.finish_read(read, 64);
    let known = |word: &u64| [OLD + round, round].contains(word);
    assert!(
        seen.iter().all(known),
        "the read saw a word that was never written: {seen:?}"
    );
    seen.contains(&round)
}

fn a_fenced_write_after_an_atomic(cluster: &mut dyn Cluster, round: u64) {
    let node = cluster.node();
    let at = node.peer(PEER).open(COUNTER);
    node.write(at, &[OLD + round]);
    let add = node.try_atomic(at, Atomic::FetchAdd { delta: 1 }, false);
    let write = Write {
        to: at,
        fence: true,
        notify: None,
        signal: None,
    };
    node.try_write(write, &[round])
        .expect("a valid write is accepted");
    let old = node.finish(add.expect("a valid atomic is accepted")).value;
    assert_eq!(
        old,
        OLD + round,
        "the fenced write passed the atomic before it"
    );
    assert_eq!(node.read(at, 1), [round]);
}

fn a_fenced_atomic_after_a_read(cluster: &mut dyn Cluster, round: u64) {
    let node = cluster.node();
    let at = node.peer(PEER).open(COUNTER);
    node.write(at, &[round]);
    let read = node
        .try_read(at, 8, ReadKind::Raw, false)
        .expect("a valid read is accepted");
    let add = node.try_atomic(at, Atomic::FetchAdd { delta: OLD }, true);
    let (_, seen) = node.finish_read(read, 8);
    assert_eq!(seen, [round], "the fenced atomic passed the read before it");
    assert_eq!(
        node.finish(add.expect("a valid atomic is accepted")).value,
        round
    );
}

fn a_fenced_read_after_an_atomic(cluster: &mut dyn Cluster, round: u64) {
    let node = cluster.node();
    let at = node.peer(PEER).open(COUNTER);
    node.write(at, &[round]);
    let add = node.try_atomic(at, Atomic::FetchAdd { delta: OLD }, false);
    let read = node
        .try_read(at, 8, ReadKind::Raw, true)
        .expect("a valid read is accepted");
    let (_, seen) = node.finish_read(read, 8);
    assert_eq!(
        seen,
        [OLD + round],
        "the fenced read passed the atomic before it"
    );
    assert_eq!(
        node.finish(add.expect("a valid atomic is accepted")).value,
        round
    );
}

/// Operations on several connections, including the one to our own machine, do not affect each other.
pub(super) fn connections_are_independent(cluster: &mut dyn Cluster) {
    let ours = cluster.node().machine;
    let rounds = cluster.rounds(400);
    for round in 1..=rounds {
        let mut reads = Vec::new();
        for machine in [ours, PEER, THIRD] {
            let value = round << 16 | u64::from(machine.get());
            let node = cluster.node();
            let at = node.peer(machine).open(AREA);
            node.write_unsignalled(at, &[value; 32]);
            let read = node.try_read(at, 256, ReadKind::Raw, round % 2 == 0);
            reads.push((read.expect("a valid read is accepted"), value));
        }
        for (token, value) in reads {
            let (status, seen) = cluster.node().finish_read(token, 256);
            assert_eq!((status, seen), (Status::Ok, vec![value; 32]));
        }
    }
    cluster.settle();
    for machine in [PEER, THIRD] {
        let value = rounds << 16 | u64::from(machine.get());
        assert_eq!(
            cluster.owner(machine).load(Location::Open, AREA, 32),
            [value; 32]
        );
    }
}
