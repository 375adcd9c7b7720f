//! A ping-pong player. It throws the ball back when it has it, and sleeps until then.

use std::sync::atomic::Ordering;
use std::time::Duration;

use farm_core::fabric::Wake;
use farm_core::ids::{MachineId, WorkerId};

use super::{Actor, Step};
use crate::{Node, OPEN_BYTES};

/// Offset of the ball in a player's open memory. The ball is the number of the turn.
const BALL: usize = OPEN_BYTES - 128;
/// Longest sleep. If a sleep lasts that long, a wake-up was lost.
const LONGEST_SLEEP: Duration = Duration::from_secs(8);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Look,
    /// The endpoint is armed: look once more, then sleep.
    LookAgain,
}

/// See [`Role::Play`](super::Role::Play).
pub(super) struct Player {
    with: MachineId,
    rounds: u64,
    /// Number of the turn that this player waits for.
    turn: u64,
    state: State,
    sleeps: u64,
}

impl Player {
    pub(super) fn new(with: MachineId, rounds: u64, first: bool) -> Self {
        // Memory starts as 0, so the first player, which waits for turn 0, has the ball at once.
        Self {
            with,
            rounds,
            turn: u64::from(!first),
            state: State::Look,
            sleeps: 0,
        }
    }

    /// Throws the ball to the other player.
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
        // `poll_once` does not yield. The race under test is between this look and the other player's throw.
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
            "the wake-up of turn {} was lost",
            self.turn
        );
    }
}
