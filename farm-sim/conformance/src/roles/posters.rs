//! Actors that post one-sided operations to another machine's open memory.

use std::collections::BTreeSet;

use farm_core::fabric::{Atomic, Status, Token, Write};
use farm_core::ids::MachineId;

use super::{Actor, Step};
use crate::{Node, OPEN_BYTES};

/// Offset of the ordered writes in the open memory.
pub(crate) const AREA: usize = 0;
/// Offset of the flag that is written after each ordered write.
pub(crate) const FLAG: usize = OPEN_BYTES - 192;
/// Offset of the counter for atomics.
pub(crate) const COUNTER: usize = OPEN_BYTES - 256;

/// Limit of atomics in flight of one actor.
const ATOMICS_IN_FLIGHT: usize = 4;
/// Limit of signalled writes in flight: fewer than there are slots.
const SIGNALLED_IN_FLIGHT: usize = 4;
/// Every 64th ordered write is signalled.
const SIGNALLED_ONE_IN: u64 = 64;

/// See [`Role::WriteInOrder`](super::Role::WriteInOrder).
pub(super) struct OrderedWriter {
    to: MachineId,
    words: Vec<u64>,
    rounds: u64,
    round: u64,
    signalled: usize,
}

impl OrderedWriter {
    pub(super) fn new(to: MachineId, words: usize, rounds: u64) -> Self {
        Self {
            to,
            words: vec![0; words],
            rounds,
            round: 0,
            signalled: 0,
        }
    }
}

impl Actor for OrderedWriter {
    fn step(&mut self, node: &mut Node) -> Step {
        for completion in node.take_inbox() {
            assert_eq!(completion.status, Status::Ok, "a write to a living machine");
            completion
                .slot
                .into_iter()
                .for_each(|slot| node.endpoint.arena().give(slot));
            self.signalled -= 1;
        }
        if self.signalled >= SIGNALLED_IN_FLIGHT {
            node.poll();
            return Step::Idle;
        }
        let peer = node.peer(self.to);
        if self.round < self.rounds {
            self.round += 1;
            self.words.fill(self.round);
            let signal = self
                .round
                .is_multiple_of(SIGNALLED_ONE_IN)
                .then(|| node.token());
            self.signalled += usize::from(signal.is_some());
            let write = Write {
                to: peer.open(AREA),
                fence: false,
                notify: None,
                signal,
            };
            node.try_write(write, &self.words)
                .expect("a valid write is accepted");
            node.write_unsignalled(peer.open(FLAG), &[self.round]);
            return Step::More;
        }
        // Starts the last writes; no later post does.
        node.endpoint.flush();
        if node.is_at_rest() {
            return Step::Done(vec![self.round]);
        }
        node.poll();
        Step::Idle
    }
}

/// See [`Role::Add`](super::Role::Add).
pub(super) struct Adder {
    to: MachineId,
    left: u64,
    in_flight: BTreeSet<u64>,
    old_values: Vec<u64>,
}

impl Adder {
    pub(super) fn new(to: MachineId, count: u64) -> Self {
        Self {
            to,
            left: count,
            in_flight: BTreeSet::new(),
            old_values: Vec::new(),
        }
    }
}

impl Actor for Adder {
    fn step(&mut self, node: &mut Node) -> Step {
        if self.left > 0 && self.in_flight.len() < ATOMICS_IN_FLIGHT {
            let at = node.peer(self.to).open(COUNTER);
            let token = node.try_atomic(at, Atomic::FetchAdd { delta: 1 }, false);
            self.in_flight
                .insert(token.expect("a valid atomic is accepted").0);
            self.left -= 1;
            return Step::More;
        }
        if self.in_flight.is_empty() {
            return Step::Done(std::mem::take(&mut self.old_values));
        }
        if node.poll() == 0 {
            return Step::Idle;
        }
        for completion in node.take_inbox() {
            assert_eq!(
                completion.status,
                Status::Ok,
                "an atomic on a living machine"
            );
            assert!(
                self.in_flight.remove(&completion.token.0),
                "{completion:?} completed twice or was never posted"
            );
            self.old_values.push(completion.value);
        }
        Step::More
    }
}

/// See [`Role::Swap`](super::Role::Swap).
pub(super) struct Swapper {
    to: MachineId,
    left: u64,
    in_flight: Option<(Token, u64)>,
    /// Last known value of the counter.
    seen: u64,
    won: Vec<u64>,
}

impl Swapper {
    pub(super) fn new(to: MachineId, count: u64) -> Self {
        Self {
            to,
            left: count,
            in_flight: None,
            seen: 0,
            won: Vec::new(),
        }
    }
}

impl Actor for Swapper {
    fn step(&mut self, node: &mut Node) -> Step {
        if self.left == 0 {
            return Step::Done(std::mem::take(&mut self.won));
        }
        let Some((token, expected)) = self.in_flight else {
            let op = Atomic::CompareSwap {
                expected: self.seen,
                new: self.seen + 1,
            };
            let at = node.peer(self.to).open(COUNTER);
            let token = node
                .try_atomic(at, op, false)
                .expect("a valid atomic is accepted");
            self.in_flight = Some((token, self.seen));
            return Step::More;
        };
        if node.poll() == 0 {
            return Step::Idle;
        }
        for completion in node.take_inbox() {
            assert_eq!((completion.token, completion.status), (token, Status::Ok));
            self.in_flight = None;
            self.seen = completion.value;
            if completion.value == expected {
                self.won.push(expected);
                self.left -= 1;
                self.seen += 1;
            }
        }
        Step::More
    }
}
