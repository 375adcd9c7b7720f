//! Who runs next.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;

use farm_core::time::Nanos;
use farm_core::worker::Worker;

use super::{Cluster, Parts, lock};
use crate::fabric::Event;

/// Longest sleep of a worker that nobody notifies. Longer than any run is patient: a notification that
/// is lost is then seen as a run that stands still, not as a late one.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// Turns that stand inside of one another at most.
const DEEPEST: u32 = 3;
/// A pause is doubled at most so often.
const PAUSE_DOUBLINGS: u32 = 10;
/// Nanoseconds that pass at a time while workers that are awake find nothing.
const AWAKE_NANOS: u64 = 500;
/// When every worker has found nothing so often, on average, time passes until something is due.
const IDLE_TURNS: u32 = 4;
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

/// The earlier of two moments to come; there is none at the end of time.
fn sooner(one: Option<Nanos>, other: Nanos, now: Nanos) -> Option<Nanos> {
    if other <= now || other.0 == u64::MAX {
        return one;
    }
    Some(one.map_or(other, |one| one.min(other)))
}

/// Unwinds a turn in the middle of which its processor stopped for good.
struct Stopped;

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
        let fabric_first = self.fabric.draw(WHOLE) >= u64::from(pace.turns);
        if fabric_first && self.fabric.step() {
            return Stepped::Ran;
        }
        let idle_turns = self.idle_turns.load(Ordering::Relaxed);
        if idle_turns > IDLE_TURNS * self.seats.len() as u32 {
            return self.idle();
        }
        match self.choose() {
            Some(seat) => {
                self.turn(seat);
                Stepped::Ran
            }
            None => self.idle(),
        }
    }

    /// Nobody is awake or has anything to do: the fabric goes on, or else time.
    fn idle(&self) -> Stepped {
        self.idle_turns.store(0, Ordering::Relaxed);
        if self.fabric.step() {
            return Stepped::Ran;
        }
        let now = self.fabric.now();
        let mut next = self.fabric.next_wake();
        for machine in self.machines.iter().filter(|machine| machine.is_running()) {
            let paused = machine.paused_until.load(Ordering::Relaxed);
            next = sooner(next, Nanos(paused), now);
        }
        if self.choose().is_some() {
            // Who is awake has patience of its own, of which nobody else knows the end.
            next = sooner(next, now + AWAKE_NANOS, now);
        }
        self.fabric
            .advance_to(next.filter(|next| *next > now).unwrap_or(now + 1));
        Stepped::Waited
    }

    /// A worker that may take a turn: awake, of a machine that runs, and not in a turn already.
    fn choose(&self) -> Option<usize> {
        let now = self.fabric.now();
        let (first, seats) = (
            self.fabric.draw(self.seats.len() as u64) as usize,
            self.seats.len(),
        );
        let mut ready = (first..first + seats).map(|index| index % seats);
        let chosen = ready.find(|index| self.is_ready(*index, now))?;
        let slow = chosen == self.pace.slow_worker % seats;
        if slow && self.fabric.draw(WHOLE) < u64::from(self.pace.slow) {
            return ready
                .find(|index| self.is_ready(*index, now))
                .or(Some(chosen));
        }
        Some(chosen)
    }

    fn is_ready(&self, index: usize, now: Nanos) -> bool {
        let seat = &self.seats[index];
        let machine = &self.machines[seat.machine];
        // A worker that allocates holds a lock that the others of its machine may want.
        let interrupted = self.depth.load(Ordering::Relaxed) > 0;
        machine.is_running()
            && machine.paused_until.load(Ordering::Relaxed) <= now.0
            && !seat.in_turn.load(Ordering::Relaxed)
            && !(interrupted && machine.store.is_locked())
            && self.fabric.is_awake(seat.me)
    }

    /// A worker takes a turn; where that finds nothing to do, it may go to sleep, as its thread would.
    fn turn(&self, index: usize) {
        let seat = &self.seats[index];
        let Some(mut worker) = seat.take() else {
            return;
        };
        self.turns.fetch_add(1, Ordering::Relaxed);
        let turn = self.fabric.begin_turn(seat.me);
        let depth = self.depth.load(Ordering::Relaxed);
        lock(&self.under_way).push(index);
        let ran = catch_unwind(AssertUnwindSafe(|| self.run_turn(&mut worker)));
        lock(&self.under_way).pop();
        self.fabric.end_turn(turn);
        let busy = match ran {
            Ok(busy) => busy,
            Err(stopped) if stopped.is::<Stopped>() => {
                self.depth.store(depth, Ordering::Relaxed);
                let machine = &self.machines[seat.machine];
                machine.paused_until.store(u64::MAX, Ordering::Relaxed);
                true
            }
            Err(panic) => resume_unwind(panic),
        };
        self.fabric.note(Event::Turned {
            worker: seat.me,
            busy,
        });
        seat.put(worker);
    }

    fn run_turn(&self, worker: &mut Worker) -> bool {
        let now = self.fabric.now() + 1;
        self.fabric.advance_to(now);
        let busy = worker.turn(now);
        match busy {
            true => self.idle_turns.store(0, Ordering::Relaxed),
            false => _ = self.idle_turns.fetch_add(1, Ordering::Relaxed),
        }
        let tired = !busy && !worker.must_poll();
        if tired && self.fabric.draw(WHOLE) < u64::from(self.pace.sleeps) {
            worker.sleep(LONGEST_SLEEP);
        }
        busy
    }

    /// Lets others run while a worker stands between two accesses of its turn.
    pub(super) fn run_others(&self) {
        let innermost = lock(&self.under_way).last().copied();
        let machine = innermost.map(|index| &self.machines[self.seats[index].machine]);
        if machine.is_some_and(|machine| machine.stopping.swap(false, Ordering::Relaxed)) {
            resume_unwind(Box::new(Stopped));
        }
        if self.depth.fetch_add(1, Ordering::Relaxed) < DEEPEST {
            let most = u64::from(self.pace.nested_steps);
            for _ in 0..=self.fabric.draw(most) {
                if self.fabric.draw(2) == 0 {
                    self.fabric.step();
                } else if let Some(seat) = self.choose() {
                    self.turn(seat);
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
        let now = self.fabric.now();
        if machine.paused_until.load(Ordering::Relaxed) > now.0 {
            return;
        }
        let until = now + (self.pace.pause_nanos << doublings);
        machine.paused_until.fetch_max(until.0, Ordering::Relaxed);
        let machine = machine.id;
        self.fabric.note(Event::Paused { machine, until });
    }
}
