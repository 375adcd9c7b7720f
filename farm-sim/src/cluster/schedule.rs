//! Who runs next.

use std::sync::atomic::Ordering;
use std::time::Duration;

use farm_core::time::Nanos;

use super::{Cluster, Parts, lock};
use crate::fabric::Event;

/// Longest sleep of a worker that nobody notifies. Longer than any run is patient: a notification that
/// is lost is then seen as a run that stands still, not as a late one.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// Turns that stand inside of one another at most.
const DEEPEST: u32 = 3;
/// A pause is doubled at most so often.
const PAUSE_DOUBLINGS: u32 = 10;
/// Out of so many, shares are.
const WHOLE: u64 = 1024;

/// What a step was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stepped {
    /// Something ran.
    Ran,
    /// Nobody had anything to do: time passed until the next sleep or pause ended.
    Waited,
    /// Every machine has stopped.
    Stopped,
}

impl Cluster {
    /// Lets one worker take a turn, or the fabric a step, or time pass.
    pub fn step(&self) -> Stepped {
        self.parts.bury();
        if self.has_stopped() {
            return Stepped::Stopped;
        }
        self.parts.step()
    }
}

impl Parts {
    /// Machines that stopped by themselves say so to the others, as a process does that ends.
    fn bury(&self) {
        for machine in &self.machines {
            if machine.control.is_stopping() && !machine.gone.swap(true, Ordering::Relaxed) {
                self.fabric.leave(machine.id);
            }
        }
    }

    fn step(&self) -> Stepped {
        let pace = &self.pace;
        if pace.pauses > 0 && self.fabric.draw(WHOLE * 16) < u64::from(pace.pauses) {
            self.pause_somebody();
        }
        if self.fabric.draw(WHOLE) < u64::from(pace.turns) {
            if let Some(seat) = self.choose() {
                self.turn(seat);
                return Stepped::Ran;
            }
            return self.idle();
        }
        match self.fabric.step() {
            true => Stepped::Ran,
            false => match self.choose() {
                Some(seat) => {
                    self.turn(seat);
                    Stepped::Ran
                }
                None => self.idle(),
            },
        }
    }

    /// Nobody is awake: the fabric goes on, or else time.
    fn idle(&self) -> Stepped {
        if self.fabric.step() {
            return Stepped::Ran;
        }
        let now = self.fabric.now();
        let pauses = self.machines.iter().filter(|machine| machine.is_running());
        let pauses = pauses.map(|machine| Nanos(machine.paused_until.load(Ordering::Relaxed)));
        let next = pauses.filter(|until| *until > now).min();
        let next = match (next, self.fabric.next_wake()) {
            (Some(pause), Some(wake)) => pause.min(wake),
            (one, other) => one.or(other).unwrap_or(now + 1),
        };
        self.fabric.advance_to(next.max(now + 1));
        Stepped::Waited
    }

    /// A worker that may take a turn: awake, of a machine that runs, and not in a turn already.
    fn choose(&self) -> Option<usize> {
        let now = self.fabric.now();
        let mut ready = smallvec::SmallVec::<[usize; 16]>::new();
        for (index, seat) in self.seats.iter().enumerate() {
            let machine = &self.machines[seat.machine];
            if !machine.is_running()
                || machine.paused_until.load(Ordering::Relaxed) > now.0
                || lock(&seat.worker).is_none()
            {
                continue;
            }
            // A worker that allocates holds a lock that the others of its machine may want.
            if self.depth.load(Ordering::Relaxed) > 0 && machine.store.is_locked() {
                continue;
            }
            match self.fabric.parked(seat.me.machine, seat.me.worker) {
                Some(until) if until > now => continue,
                Some(_) => self.fabric.unpark(seat.me.machine, seat.me.worker),
                None => {}
            }
            ready.push(index);
        }
        if ready.is_empty() {
            return None;
        }
        let chosen = ready[self.fabric.draw(ready.len() as u64) as usize];
        let slow = chosen == self.pace.slow_worker % self.seats.len();
        if slow && ready.len() > 1 && self.fabric.draw(WHOLE) < u64::from(self.pace.slow) {
            return ready.into_iter().find(|other| *other != chosen);
        }
        Some(chosen)
    }

    /// A worker takes a turn; where that finds nothing to do, it may go to sleep, as its thread would.
    fn turn(&self, index: usize) {
        let seat = &self.seats[index];
        let Some(mut worker) = lock(&seat.worker).take() else {
            return;
        };
        self.turns.fetch_add(1, Ordering::Relaxed);
        let turn = self.fabric.begin_turn(seat.me);
        let now = self.fabric.now() + 1;
        self.fabric.advance_to(now);
        let busy = worker.turn(now);
        let tired = !busy && !worker.must_poll();
        if tired && self.fabric.draw(WHOLE) < u64::from(self.pace.sleeps) {
            worker.sleep(LONGEST_SLEEP);
        }
        self.fabric.end_turn(turn);
        self.fabric.note(Event::Turned {
            worker: seat.me,
            busy,
        });
        *lock(&seat.worker) = Some(worker);
    }

    /// Lets others run while a worker stands between two accesses of its turn.
    pub(super) fn run_others(&self) {
        if self.depth.fetch_add(1, Ordering::Relaxed) < DEEPEST {
            let most = u64::from(self.pace.nested_steps);
            for _ in 0..=self.fabric.draw(most) {
                match self.choose() {
                    Some(seat) if self.fabric.draw(2) == 0 => self.turn(seat),
                    _ => {
                        self.fabric.step();
                    }
                }
            }
        }
        self.depth.fetch_sub(1, Ordering::Relaxed);
    }

    fn pause_somebody(&self) {
        let machine = &self.machines[self.fabric.draw(self.machines.len() as u64) as usize];
        let doublings = (self.fabric.draw(1 << 20) + 1)
            .trailing_zeros()
            .min(PAUSE_DOUBLINGS);
        let until = self.fabric.now() + (self.pace.pause_nanos << doublings);
        machine.paused_until.fetch_max(until.0, Ordering::Relaxed);
        let machine = machine.id;
        self.fabric.note(Event::Paused { machine, until });
    }
}
