//! Decides when a worker gives up its core: how long it runs between two yields, and when it sleeps.
//!
//! A worker that keeps its core keeps it from other threads. If workers or other programs outnumber the cores, a worker
//! that holds a lock then waits until the scheduler takes the core away from workers that wait for that lock. Whether
//! another thread needs the core is measured: a yield that takes several times as long as the shortest yield let
//! another thread run. After such a yield the worker holds the core for [a microsecond](SHORTEST_HOLD) only, and twice
//! as long after each yield that returned at once. Three workers on two cores with ten hot accounts commit a hundred
//! times as many transactions that way as with spinning, and a worker with a core of its own pays for one yield in 200
//! us.

use std::time::Duration;

use crate::time::Nanos;

/// Longest time between two yields of a worker whose yields return at once, in nanoseconds. It bounds how long messages
/// wait for a worker that shares its core: otherwise they wait for a whole time slice of the scheduler.
const LONGEST_HOLD: u64 = 200_000;
/// Time between two yields, in nanoseconds, of a worker that shares its core and has [few](FEW_IN_FLIGHT) operations in
/// flight: these depend on other workers, which may wait for the core. About one turn.
const SHORTEST_HOLD: u64 = 1_000;
/// Time between two yields, in nanoseconds, of a worker that shares its core and has many operations in flight: a few
/// turns.
const SHORTEST_BUSY_HOLD: u64 = 20_000;
/// Fewer operations in flight than this count as few.
const FEW_IN_FLIGHT: usize = 8;
/// A yield that takes at least this many times as long as the shortest yield let another thread run. Measured on a
/// Sapphire Rapids: 0.26 us alone, 1.4 to 2.3 us if another thread on the core yields.
const LONG_YIELD_FACTOR: u64 = 3;
/// Lower bound of the shortest yield, in nanoseconds: shorter yields count as this long.
const MIN_YIELD_NANOS: u64 = 100;

/// What a worker that finds no work does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdlePolicy {
    /// Spins for ever: lowest latency, but it never gives the core to another thread.
    Spin,
    /// Spins while no other thread needs the core, and yields while the core is shared. The default if there are cores
    /// for all workers.
    SpinOrYield,
    /// Spins while no other thread needs the core, then yields the core at every turn, then sleeps until it is
    /// notified. The default if workers outnumber cores.
    Park {
        /// Longest time to spin.
        spin: Duration,
        /// Longest time to yield after that.
        yielding: Duration,
    },
}

/// What a worker does before its next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Takes the next turn at once.
    Turn,
    /// Executes the pause instruction of a spin loop, then takes the next turn.
    Spin,
    /// Yields the core first, and reports the duration of the yield to [`Idler::yielded`].
    Yield,
    /// Arms the notification, polls once more, and sleeps.
    Park,
}

/// Decides when one worker gives up its core.
#[derive(Clone, Debug)]
pub struct Idler {
    policy: IdlePolicy,
    /// Time of the first turn since the worker last found work.
    since: Option<Nanos>,
    /// Time at which the worker last yielded or slept.
    held_since: Nanos,
    /// Time after which the worker yields its core, in nanoseconds.
    hold: u64,
    /// Duration of the shortest yield so far, in nanoseconds.
    shortest: u64,
}

impl Idler {
    /// Creates the state of a worker that starts at `now`.
    pub fn new(policy: IdlePolicy, now: Nanos) -> Self {
        Self {
            policy,
            since: None,
            held_since: now,
            hold: LONGEST_HOLD,
            shortest: u64::MAX,
        }
    }

    /// Returns what to do at `now`, after a turn that found work and left `in_flight` operations in flight.
    #[inline]
    pub fn busy(&mut self, in_flight: usize, now: Nanos) -> Idle {
        self.since = None;
        let least = match in_flight < FEW_IN_FLIGHT {
            true => SHORTEST_HOLD,
            false => SHORTEST_BUSY_HOLD,
        };
        match self.policy {
            IdlePolicy::Spin => Idle::Turn,
            _ if self.has_held(self.hold.max(least), now) => Idle::Yield,
            _ => Idle::Turn,
        }
    }

    /// Returns what to do at `now`, after a turn that found no work.
    pub fn idle(&mut self, now: Nanos) -> Idle {
        // While the core is shared, an idle worker yields at once: it has no work that the yield could delay.
        let hold = match self.hold {
            SHORTEST_HOLD => 0,
            hold => hold,
        };
        let idle = now.since(*self.since.get_or_insert(now));
        match self.policy {
            IdlePolicy::Spin => Idle::Spin,
            IdlePolicy::Park { spin, yielding } if idle >= spin + yielding => Idle::Park,
            IdlePolicy::Park { spin, .. } if idle >= spin => Idle::Yield,
            _ if self.has_held(hold, now) => Idle::Yield,
            _ => Idle::Spin,
        }
    }

    fn has_held(&self, hold: u64, now: Nanos) -> bool {
        now - self.held_since >= hold
    }

    /// Records a yield that lasted from `before` to `after`.
    pub fn yielded(&mut self, before: Nanos, after: Nanos) {
        let took = (after - before).max(MIN_YIELD_NANOS);
        self.shortest = self.shortest.min(took);
        self.hold = match took >= self.shortest * LONG_YIELD_FACTOR {
            true => SHORTEST_HOLD,
            false => (2 * self.hold).min(LONGEST_HOLD),
        };
        self.held_since = after;
    }

    /// Records that the worker slept until `now`.
    pub fn slept(&mut self, now: Nanos) {
        self.held_since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Nanos {
        Nanos(micros * 1000)
    }

    const PARK: IdlePolicy = IdlePolicy::Park {
        spin: Duration::from_micros(20),
        yielding: Duration::from_micros(50),
    };

    /// An idler with a short yield that ended at 1 us.
    fn alone(policy: IdlePolicy) -> Idler {
        let mut idler = Idler::new(policy, at(0));
        idler.yielded(Nanos(740), at(1));
        idler
    }

    #[test]
    fn an_idle_worker_spins_then_yields_then_sleeps() {
        let mut idler = alone(PARK);
        assert_eq!(
            [2, 21, 23, 71, 73].map(|micros| idler.idle(at(micros))),
            [Idle::Spin, Idle::Spin, Idle::Yield, Idle::Yield, Idle::Park]
        );
        idler.busy(0, at(74));
        assert_eq!(idler.idle(at(75)), Idle::Spin);
        let mut spins = alone(IdlePolicy::Spin);
        spins.yielded(at(2), at(500));
        assert_eq!(spins.idle(Nanos(1 << 40)), Idle::Spin);
        assert_eq!(spins.busy(1, Nanos(1 << 40)), Idle::Turn);
    }

    /// Regression test: workers that spun while other threads waited for their core delayed the worker that held a
    /// lock.
    #[test]
    fn a_worker_does_not_spin_on_a_shared_core() {
        let mut idler = alone(PARK);
        assert_eq!(idler.idle(at(2)), Idle::Spin);
        idler.yielded(at(2), Nanos(3_400));
        assert_eq!(idler.idle(Nanos(3_401)), Idle::Yield);
        assert_eq!(idler.busy(1, Nanos(4_399)), Idle::Turn);
        assert_eq!(idler.busy(1, Nanos(4_400)), Idle::Yield);
        assert_eq!(idler.busy(FEW_IN_FLIGHT, Nanos(4_400)), Idle::Turn);
        assert_eq!(idler.busy(FEW_IN_FLIGHT, Nanos(23_400)), Idle::Yield);
    }

    /// Regression test: one yield that an interrupt made long caused a yield at every turn for 10 ms, which caused the
    /// next interrupt. The commit of one object of the worker's own machine took 0.47 us instead of 0.22 us.
    #[test]
    fn one_long_yield_causes_few_unneeded_yields() {
        let mut idler = alone(IdlePolicy::SpinOrYield);
        idler.yielded(at(2), at(10));
        let (mut now, mut yields) = (at(10), 0);
        while now < at(10_010) {
            if idler.busy(1, now) == Idle::Yield {
                idler.yielded(now, now + 260);
                now = now + 260;
                yields += 1;
            }
            now = now + 200;
        }
        let in_vain = yields - 10_000_000 / LONGEST_HOLD;
        assert!(in_vain < 10, "{in_vain} yields beyond one per LONGEST_HOLD");
    }

    #[test]
    fn a_worker_alone_on_its_core_probes_for_other_threads() {
        let mut idler = alone(IdlePolicy::SpinOrYield);
        assert_eq!(idler.idle(at(200)), Idle::Spin);
        assert_eq!(idler.idle(at(201)), Idle::Yield);
        idler.yielded(at(201), at(203));
        assert_eq!(idler.idle(at(203)), Idle::Yield);
        assert_eq!(idler.idle(at(204)), Idle::Yield);
        idler.yielded(at(204), Nanos(204_260));
        assert_eq!(
            idler.idle(at(205)),
            Idle::Spin,
            "the other thread may have ended"
        );
        idler.slept(at(300));
        assert_eq!(idler.idle(at(301)), Idle::Spin);
    }
}
