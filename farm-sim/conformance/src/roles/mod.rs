//! The roles of machines in the suite's clusters. Each is a small actor that advances by steps, so that the
//! same actor runs in a process, in a thread, or interleaved in the simulator.

mod hammer;
mod player;
mod posters;

use std::time::Duration;

use farm_core::fabric::Wake;
use farm_core::ids::MachineId;
use serde::{Deserialize, Serialize};

use super::{Node, OPEN_BYTES};

pub use hammer::Hammered;
pub(super) use hammer::{content, is_whole_word};
pub(super) use posters::{AREA, COUNTER, FLAG};

/// Offset in the open memory of a word that stops [`Role::Hammer`] when it is not zero.
pub(super) const STOP: usize = OPEN_BYTES - 64;

/// How an actor continues after a step.
#[derive(Debug)]
pub enum Step {
    /// Call [`Actor::step`] again.
    More,
    /// Call [`Actor::step`] again after the other machines have run.
    Idle,
    /// Sleep for at most this time. The actor has called `arm` and polled once more.
    Sleep(Duration),
    /// The role has ended, with this outcome.
    Done(Vec<u64>),
}

/// A role that advances by steps.
pub trait Actor: Send {
    /// Performs one small step.
    ///
    /// # Panics
    /// If the fabric violates a guarantee.
    fn step(&mut self, node: &mut Node) -> Step;

    /// Called after a [`Step::Sleep`] with the way in which the sleep ended.
    fn woken(&mut self, _wake: Wake) {}
}

/// What a machine does during a property.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Role {
    /// Updates adjacent objects in its own closed memory, word by word and by the protocol of object writes,
    /// until the word at `STOP` is not zero. Outcome: the number of updates.
    Hammer(Hammered),
    /// In each round, writes `words` copies of the round's number to machine `to`, then a flag with the same
    /// number. Outcome: the number of rounds.
    WriteInOrder {
        /// Machine whose open memory is written.
        to: MachineId,
        /// Length of the first write, in words.
        words: usize,
        /// Number of rounds.
        rounds: u64,
    },
    /// Adds one to the counter of machine `to`, `count` times. Outcome: the old values.
    Add {
        /// Machine whose open memory has the counter.
        to: MachineId,
        /// Number of additions.
        count: u64,
    },
    /// Increments the counter of machine `to` by compare-and-swap, until `count` swaps have succeeded.
    /// Outcome: the values that the successful swaps replaced.
    Swap {
        /// Machine whose open memory has the counter.
        to: MachineId,
        /// Number of successful swaps.
        count: u64,
    },
    /// Passes a ball back and forth, and sleeps while the other player has it. Outcome: the number of sleeps.
    Play {
        /// The other player.
        with: MachineId,
        /// Number of the last turn.
        rounds: u64,
        /// Whether this player throws first.
        first: bool,
    },
}

impl Role {
    /// Creates the role's actor.
    pub fn actor(self) -> Box<dyn Actor> {
        match self {
            Role::Hammer(what) => Box::new(hammer::Hammer::new(what)),
            Role::WriteInOrder { to, words, rounds } => {
                Box::new(posters::OrderedWriter::new(to, words, rounds))
            }
            Role::Add { to, count } => Box::new(posters::Adder::new(to, count)),
            Role::Swap { to, count } => Box::new(posters::Swapper::new(to, count)),
            Role::Play {
                with,
                rounds,
                first,
            } => Box::new(player::Player::new(with, rounds, first)),
        }
    }
}

/// Runs a role in this thread until it ends, or until `stop` returns true. Returns the outcome, or `None` if
/// it was stopped.
pub fn run_to_end(role: Role, node: &mut Node, stop: &dyn Fn() -> bool) -> Option<Vec<u64>> {
    let mut actor = role.actor();
    while !stop() {
        match actor.step(node) {
            Step::More => {}
            Step::Idle => std::thread::yield_now(),
            Step::Sleep(most) => {
                let wake = node.endpoint.wait(most);
                actor.woken(wake);
            }
            Step::Done(outcome) => return Some(outcome),
        }
    }
    None
}
