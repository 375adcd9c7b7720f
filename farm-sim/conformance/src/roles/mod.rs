//! What a machine of the suite's clusters can be set to do: small actors that are stepped, so that
//! the same one runs in a process, in a thread, or interleaved in the simulator.

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

/// Where in a machine's open memory a role is told to stop.
pub(super) const STOP: usize = OPEN_BYTES - 64;

/// What an actor wants after a step.
#[derive(Debug)]
pub enum Step {
    /// To be stepped again.
    More,
    /// To be stepped again, once others have had their turn.
    Idle,
    /// To sleep; it has armed and looked around.
    Sleep(Duration),
    /// Nothing: this is what it came to.
    Done(Vec<u64>),
}

/// Work that is done in steps.
pub trait Actor: Send {
    /// Does a little.
    ///
    /// # Panics
    /// When the fabric does not keep a promise.
    fn step(&mut self, node: &mut Node) -> Step;

    /// Tells how a sleep ended.
    fn woken(&mut self, _wake: Wake) {}
}

/// Which actor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Role {
    /// Rewrites two adjacent objects in its own closed memory, word by word and under their
    /// discipline, until told to stop. Comes to the number of updates.
    Hammer(Hammered),
    /// Writes `words` words of the round's number to `to`, then a flag with the same number, for
    /// `rounds` rounds.
    WriteInOrder {
        /// Whose open memory.
        to: MachineId,
        /// Words of the long write.
        words: usize,
        /// How often.
        rounds: u64,
    },
    /// Adds one to the counter of `to`. Comes to the old values.
    Add {
        /// Whose open memory.
        to: MachineId,
        /// How often.
        count: u64,
    },
    /// Takes the counter of `to` one up by compare-and-swap. Comes to the values it replaced.
    Swap {
        /// Whose open memory.
        to: MachineId,
        /// How often it must win.
        count: u64,
    },
    /// Plays ball, sleeping while the other has it. Comes to the number of sleeps.
    Play {
        /// The other player.
        with: MachineId,
        /// The turn that ends the game.
        rounds: u64,
        /// Whether it throws first.
        first: bool,
    },
}

impl Role {
    /// The actor that plays it.
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

/// Runs a role in this thread until it is done or `stop` says so.
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
