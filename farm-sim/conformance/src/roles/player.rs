//! A player of ping-pong: it has the ball, or it sleeps until the other has thrown it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use farm_core::fabric::Wake;
use farm_core::ids::{MachineId, WorkerId};

use super::{Actor, Step};
use crate::{Node, OPEN_BYTES};

/// Where the ball lands in a player's open memory: the number of the turn.
const BALL: usize = OPEN_BYTES - 128;
/// Nobody sleeps this long unless a wake-up was lost.
const LONGEST_SLEEP: Duration = Duration::from_secs(8);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Look,
    /// Armed: look once more, then sleep.
    LookAgain,
}

/// See [`Role::Play`](super::Role::Play).
pub(super) struct Player {
    with: MachineId,
    rounds: u64,
    /// The turn that we wait for.
    turn: u64,
    state: State,
    sleeps: u64,
}

impl Player {
    pub(super) fn new(with: MachineId, rounds: u64, first: bool) -> Self {
        // Turn 0 is the empty memory: the first player finds the ball at once.
        Self {
            with,
            rounds,
            turn: u64::from(!first),
            state: State::Look,
            sleeps: 0,
        }
    }

    /// Throws the ball back, unless the game is over.
    fn throw(&mut self, node: &mut Node) -> Step {
        let to = node.peer(self.with).open(BALL);
        node.write_and_notify(to, &[self.turn + 1], WorkerId::FIRST);
        node.endpoint.flush();
        self.turn += 2;
        self.state = State::Look;
        Step::More
    }

    fn is_over(&self) -> bool {
        self.turn > self.rounds
    }
}

impl Actor for Player {
    fn step(&mut self, node: &mut Node) -> Step {
        // Without a pause in between: the race is between this look and the other's throw.
        node.poll_once();
        if self.is_over() {
            return Step::Done(vec![self.sleeps]);
        }
        let here = node.open.load(BALL, Ordering::Acquire) >= self.turn;
        match (self.state, here) {
            (State::Look, true) => self.throw(node),
            (State::LookAgain, true) => {
                node.endpoint.disarm();
                self.throw(node)
            }
            (State::Look, false) => {
                node.endpoint.arm();
                self.state = State::LookAgain;
                Step::More
            }
            (State::LookAgain, false) => {
                self.state = State::Look;
                self.sleeps += 1;
                Step::Sleep(LONGEST_SLEEP)
            }
        }
    }

    fn woken(&mut self, wake: Wake) {
        assert_eq!(
            wake,
            Wake::Notified,
            "a wake-up was lost at turn {}",
            self.turn
        );
    }
}
