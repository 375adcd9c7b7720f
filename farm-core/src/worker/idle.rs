//! When a worker gives up its core: how long it goes on between two yields, and when it sleeps.
//!
//! A worker that keeps its core keeps it from the others. Where workers, or other programs, outnumber the cores,
//! the one that holds a lock then waits for the scheduler to take the core away from those that wait for the
//! lock. Whether another thread wants the core is measured: a yield that takes several times as long as the
//! shortest one let another thread run. After such a yield the worker holds the core for
//! [a microsecond](SHORTEST_HOLD) only, and twice as long after each yield that returned at once. Three workers
//! on two cores with ten hot accounts commit a hundred times as much that way as if they spin, and a worker with
//! a core of its own pays for a yield in 200 us.

use std::time::Duration;

use crate::time::Nanos;

/// Longest time between two yields of a worker whose yields return at once, so that messages to a worker that
/// comes to its core do not wait for the scheduler's whole slice.
const LONGEST_HOLD: u64 = 200_000;
/// Time between two yields of a worker whose core another thread uses, if it has [few](FEW_IN_FLIGHT) operations
/// in flight: they wait for others, who may wait for the core. About one turn.
const SHORTEST_HOLD: u64 = 1_000;
/// The same with many operations in flight: a few turns.
const SHORTEST_BUSY_HOLD: u64 = 20_000;
/// Fewer operations in flight are few.
const FEW_IN_FLIGHT: usize = 8;
/// A yield that takes this many times as long as the shortest one has let another thread run. Measured on a Sapphire
/// Rapids: 0.26 us alone, 1.4 to 2.3 us beside another thread that yields.
const LONG_YIELD: u64 = 3;
/// The shortest yield is taken for at least this long, in nanoseconds.
const LEAST_YIELD: u64 = 100;

/// How long a worker that finds nothing to do stays awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdlePolicy {
    /// Spins for ever: lowest latency, a core to itself, whoever else needs it.
    Spin,
    /// Spins while its core is to spare, and yields while it is shared. The default where there are cores for
    /// all workers.
    SpinOrYield,
    /// Spins while its core is to spare, then yields the core at every turn, then sleeps until it is notified. The
    /// default where workers outnumber cores.
    Park {
        /// Spins for at most this long.
        spin: Duration,
        /// After that yields for this long.
        yielding: Duration,
    },
}

/// What to do before the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Take the next turn.
    Turn,
    /// Take the next turn after the pause of a loop that spins.
    Spin,
    /// Give the core to another thread first, and report how long that took to [`Idler::yielded`].
    Yield,
    /// Arm, look once more, and sleep.
    Park,
}

/// When one worker gives up its core.
#[derive(Clone, Debug)]
pub struct Idler {
    policy: IdlePolicy,
    /// When the worker last found something.
    since: Option<Nanos>,
    /// When it last yielded or slept.
    held_since: Nanos,
    /// It yields when it has held the core for so long, in nanoseconds.
    hold: u64,
    /// The shortest yield so far, in nanoseconds.
    shortest: u64,
}

impl Idler {
    /// A worker that begins at `now`.
    pub fn new(policy: IdlePolicy, now: Nanos) -> Self {
        Self {
            policy,
            since: None,
            held_since: now,
            hold: LONGEST_HOLD,
            shortest: u64::MAX,
        }
    }

    /// What to do at `now`, after a turn that found something and left `in_flight` operations under way.
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

    /// What to do at `now`, after a turn that found nothing.
    pub fn idle(&mut self, now: Nanos) -> Idle {
        // Nothing is lost by a yield at once, if it lets another thread run.
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

    /// A yield lasted from `before` to `after`.
    pub fn yielded(&mut self, before: Nanos, after: Nanos) {
        let took = (after - before).max(LEAST_YIELD);
        self.shortest = self.shortest.min(took);
        self.hold = match took >= self.shortest * LONG_YIELD {
            true => SHORTEST_HOLD,
            false => (2 * self.hold).min(LONGEST_HOLD),
        };
        self.held_since = after;
    }

    /// The worker slept until `now`.
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

    /// A worker some of whose yields were short, the last of them at 1 us.
    fn alone(policy: IdlePolicy) -> Idler {
        let mut idler = Idler::new(policy, at(0));
        idler.yielded(Nanos(740), at(1));
        idler
    }

    #[test]
    fn first_spin_then_yield_then_sleep() {
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

    /// Workers that spun while others waited for their core held up the holder of a lock.
    #[test]
    fn a_worker_does_not_spin_on_a_core_that_others_use() {
        let mut idler = alone(PARK);
        assert_eq!(idler.idle(at(2)), Idle::Spin);
        idler.yielded(at(2), Nanos(3_400));
        assert_eq!(idler.idle(Nanos(3_401)), Idle::Yield);
        assert_eq!(idler.busy(1, Nanos(4_399)), Idle::Turn);
        assert_eq!(idler.busy(1, Nanos(4_400)), Idle::Yield);
        assert_eq!(idler.busy(FEW_IN_FLIGHT, Nanos(4_400)), Idle::Turn);
        assert_eq!(idler.busy(FEW_IN_FLIGHT, Nanos(23_400)), Idle::Yield);
    }

    /// One yield that an interrupt made long had workers yield at every turn for 10 ms, which brought the next one:
    /// a commit of one object of the own machine took 0.47 us where it had taken 0.22 us.
    #[test]
    fn one_long_yield_costs_few_yields_in_vain() {
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
        assert!(in_vain < 10, "{in_vain} more than by the longest hold");
    }

    #[test]
    fn a_worker_with_a_core_of_its_own_probes_whether_it_still_is() {
        let mut idler = alone(IdlePolicy::SpinOrYield);
        assert_eq!(idler.idle(at(200)), Idle::Spin);
        assert_eq!(idler.idle(at(201)), Idle::Yield);
        idler.yielded(at(201), at(203));
        assert_eq!(idler.idle(at(203)), Idle::Yield);
        assert_eq!(idler.idle(at(204)), Idle::Yield);
        idler.yielded(at(204), Nanos(204_260));
        assert_eq!(idler.idle(at(205)), Idle::Spin, "the other may have ended");
        idler.slept(at(300));
        assert_eq!(idler.idle(at(301)), Idle::Spin);
    }
}
