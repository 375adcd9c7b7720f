//! The scheduler: which worker runs next, and when time passes.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;

use farm_core::membership::configuration::Process;
use farm_core::time::Nanos;
use farm_core::worker::Worker;

use super::{Cluster, Machine, Parts, lock};
use crate::fabric::Event;

/// Longest sleep of a worker without a notification. Longer than the time after which a run counts as standing still: a
/// lost notification then appears as a run that stands still, not as a delay.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// As [`LONGEST_SLEEP`], if leases end by time: then something happens all the time, and time does not pass quickly.
const LONGEST_SLEEP_WITH_LEASES: Duration = Duration::from_millis(5);
/// Maximum number of nested interruptions at which other workers run.
const DEEPEST: u32 = 3;
/// Steps, and nanoseconds, after which a machine that is stopped goes on although the others have not gone on without it.
const MOST_STALLED_STEPS: u64 = 100_000;
const MOST_STALLED_NANOS: u64 = 5_000_000_000;
/// After its eviction it is stopped for fewer steps than two to the power of this number.
const DOUBLINGS_AFTER_EVICTION: u64 = 15;
/// Maximum number of doublings of a pause.
const PAUSE_DOUBLINGS: u32 = 10;
/// Virtual nanoseconds that pass at a time while awake workers find no work.
const AWAKE_NANOS: u64 = 500;
/// When the workers have found no work for this many turns each, on average, time passes.
const IDLE_TURNS: u32 = 4;
/// Shares are out of this number.
const WHOLE: u64 = 1024;

/// The kind of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stepped {
    /// A worker took a turn, or the fabric took a step.
    Ran,
    /// No work was found: time passed until the next sleep or pause ended.
    Waited,
    /// Every machine has stopped.
    Stopped,
}

/// Returns the earlier of `one` and `other`. Ignores `other` if it is not in the future or is the end of time.
fn sooner(one: Option<Nanos>, other: Nanos, now: Nanos) -> Option<Nanos> {
    if other <= now || other.0 == u64::MAX {
        return one;
    }
    Some(one.map_or(other, |one| one.min(other)))
}

/// The payload of the unwinding that ends a turn whose processor stops for good.
struct Stopped;

impl Cluster {
    /// Takes one step: a worker's turn, a step of the fabric, or the passing of time.
    pub fn step(&self) -> Stepped {
        self.parts.leave_stopped();
        self.parts.submit_due_links();
        if self.has_stopped() {
            return Stepped::Stopped;
        }
        self.parts.step()
    }
}

impl Parts {
    /// Lets machines that have stopped announce their departure to the fabric, as a process that ends does.
    pub(super) fn leave_stopped(&self) {
        for machine in &self.machines {
            let process = machine.process.borrow();
            let is_gone = machine.gone.load(Ordering::Relaxed);
            if process.control.was_evicted() && !is_gone {
                // Its end is that of a process that is killed.
                machine.ends.store(true, Ordering::Relaxed);
                self.end_processors(machine);
            }
            if process.control.is_stopping() && !machine.gone.swap(true, Ordering::Relaxed) {
                let fails = process.control.failure().is_some();
                let is_joined = process.store.map().is_complete();
                match fails && !(process.store.is_used() && is_joined) {
                    // The others would continue after it has left.
                    true => self.fabric.kill(machine.id),
                    false => self.fabric.leave(machine.id),
                }
            }
        }
    }

    fn step(&self) -> Stepped {
        let pace = &self.pace;
        if pace.pauses > 0 && self.fabric.draw(WHOLE * 16) < u64::from(pace.pauses) {
            self.pause_a_machine();
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

    /// Handles a step without work: the fabric takes a step. If nothing is in flight, time passes.
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
        if let Some(due) = self.next_link() {
            next = sooner(next, due, now);
        }
        if self.choose().is_some() {
            // An awake worker may wait for a time that the scheduler does not know.
            next = sooner(next, now + AWAKE_NANOS, now);
        }
        self.fabric
            .advance_to(next.filter(|next| *next > now).unwrap_or(now + 1));
        Stepped::Waited
    }

    /// Draws a worker that may take a turn: it is awake, its machine runs and is not paused, and its turn is not
    /// running already.
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
        // An interrupted worker that allocates holds a lock that other workers of its machine may need.
        let interrupted = self.depth.load(Ordering::Relaxed) > 0;
        machine.is_running()
            && machine.paused_until.load(Ordering::Relaxed) <= now.0
            && !seat.in_turn.load(Ordering::Relaxed)
            && !(interrupted && machine.process.borrow().store.is_locked())
            && self.fabric.is_awake(seat.me)
    }

    /// Runs a turn of a worker. If the turn finds no work, the worker may go to sleep, as its thread would.
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
                self.end_processors(&self.machines[seat.machine]);
                true
            }
            Err(panic) => resume_unwind(panic),
        };
        self.fabric.note(Event::Turned {
            worker: seat.me,
            busy,
        });
        seat.put(worker);
        let machine = &self.machines[seat.machine];
        let is_interrupted = self.limits.lease_nanos.is_none() || busy || depth > 0;
        if !is_interrupted && machine.stalls.swap(false, Ordering::Relaxed) {
            // Its workers have nothing to do that could be interrupted.
            self.depth.fetch_add(1, Ordering::Relaxed);
            self.stall(machine);
            self.depth.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Ends the processors of a machine for good, and its process, if it was killed.
    fn end_processors(&self, machine: &Machine) {
        machine.paused_until.store(u64::MAX, Ordering::Relaxed);
        if machine.ends.load(Ordering::Relaxed) {
            // What a processor has stored becomes visible, although its process is killed.
            self.fabric.drain_machine(machine.id);
            machine.killed.store(true, Ordering::Relaxed);
            machine.gone.store(true, Ordering::Relaxed);
            self.fabric.kill(machine.id);
        }
    }

    fn run_turn(&self, worker: &mut Worker) -> bool {
        let now = self.fabric.now() + 1;
        self.fabric.advance_to(now);
        let me = worker.me().machine;
        let mut machines = self.machines.iter();
        let is_stopping = machines.any(|one| one.id == me && one.stopping.load(Ordering::Relaxed));
        let leaves = worker.control().is_leaving();
        if leaves {
            worker.leave();
        }
        let busy = worker.turn(now);
        match busy {
            true => self.idle_turns.store(0, Ordering::Relaxed),
            false => _ = self.idle_turns.fetch_add(1, Ordering::Relaxed),
        }
        let may_sleep = !busy && !leaves && !is_stopping && !worker.must_poll();
        if may_sleep && self.fabric.draw(WHOLE) < u64::from(self.pace.sleeps) {
            worker.sleep(match self.limits.lease_nanos {
                Some(_) => LONGEST_SLEEP_WITH_LEASES,
                None => LONGEST_SLEEP,
            });
        }
        busy
    }

    /// Runs the fabric and other workers at an interruption: between two accesses of the running turn.
    pub(super) fn run_others(&self) {
        let innermost = lock(&self.under_way).last().copied();
        // What else is interrupted would stand still, too.
        let is_only = self.depth.load(Ordering::Relaxed) == 0;
        let machine = innermost.map(|index| &self.machines[self.seats[index].machine]);
        if let Some(machine) = machine
            && is_only
            && machine.stalls.swap(false, Ordering::Relaxed)
        {
            self.depth.fetch_add(1, Ordering::Relaxed);
            self.stall(machine);
            self.depth.fetch_sub(1, Ordering::Relaxed);
        }
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

    /// Stops the processors of a machine until the others have gone on without it, in the middle of a turn of one of its workers.
    fn stall(&self, machine: &Machine) {
        let until = self.fabric.now() + MOST_STALLED_NANOS;
        // If nothing else happens, time passes until then.
        machine.paused_until.store(until.0, Ordering::Relaxed);
        self.fabric.change_lease(machine.id, true);
        let (mut left, mut is_evicted) = (MOST_STALLED_STEPS, false);
        while left > 0 && self.fabric.now() < until {
            if !is_evicted && self.has_evicted(machine) {
                // The others go on for some time before it does.
                is_evicted = true;
                left = 1 << self.fabric.draw(DOUBLINGS_AFTER_EVICTION);
            }
            self.step();
            left -= 1;
        }
        machine.paused_until.store(0, Ordering::Relaxed);
        self.fabric.change_lease(machine.id, false);
        if !is_evicted {
            machine.ends.store(true, Ordering::Relaxed);
            machine.stopping.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether the others have gone on without a machine that is stopped.
    fn has_evicted(&self, machine: &Machine) -> bool {
        match self.fabric.has_leases_by_time() {
            false => self.fabric.is_evicted(machine.id),
            true => !self.changes.newest().has(self.process_of(machine)),
        }
    }

    /// Returns the last start of a machine.
    pub(super) fn process_of(&self, machine: &Machine) -> Process {
        Process {
            machine: machine.id,
            boot: self.fabric.boot(machine.id),
        }
    }

    fn pause_a_machine(&self) {
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
