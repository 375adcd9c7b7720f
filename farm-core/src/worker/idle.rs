//! What a worker does when a turn found nothing: spin, then yield, then sleep.
//!
//! A worker that spins keeps its core from the others. Where workers, or other programs, outnumber the cores,
//! the one that holds a lock then waits for the scheduler to take the core away from those that wait for the
//! lock. Spinning therefore is for cores that are to spare, which is measured: a yield that takes several times as
//! long as the shortest one let another thread run. Three workers on two cores with ten hot accounts commit
//! a hundred times as much when they yield instead of spinning.

use std::time::Duration;

use crate::time::Nanos;

/// How long a core counts as shared after a yield that let another thread run.
const SHARED_FOR: u64 = 10_000_000;
/// How often a worker that spins yields, to find out whether its core is shared.
const PROBE_AFTER: u64 = 100_000;
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
    Spin,
    /// Give the core to another thread first, and report how long that took to [`Idler::yielded`].
    Yield,
    /// Arm, look once more, and sleep.
    Park,
}

/// The idle state of one worker.
#[derive(Clone, Debug)]
pub struct Idler {
    policy: IdlePolicy,
    /// When the worker last found something.
    since: Option<Nanos>,
    /// The core counts as shared until then.
    shared_until: Nanos,
    /// When a spinning worker yields next.
    probe: Nanos,
    /// The shortest yield so far, in nanoseconds.
    shortest: u64,
}

impl Idler {
    /// An idle state by a policy.
    pub fn new(policy: IdlePolicy) -> Self {
        Self {
            policy,
            since: None,
            shared_until: Nanos::default(),
            probe: Nanos::default(),
            shortest: u64::MAX,
        }
    }

    /// Whether the core is shared with a thread that has run there recently.
    pub fn core_is_shared(&self, now: Nanos) -> bool {
        now < self.shared_until
    }

    /// The turn before `now` found something.
    #[inline]
    pub fn busy(&mut self) {
        self.since = None;
    }

    /// What to do at `now`, when a turn found nothing.
    pub fn idle(&mut self, now: Nanos) -> Idle {
        let since = *self.since.get_or_insert(now);
        let shared = self.core_is_shared(now);
        match self.policy {
            IdlePolicy::Spin => Idle::Spin,
            IdlePolicy::SpinOrYield if shared => Idle::Yield,
            IdlePolicy::SpinOrYield if now < self.probe => Idle::Spin,
            IdlePolicy::SpinOrYield => {
                self.probe = now + PROBE_AFTER;
                Idle::Yield
            }
            IdlePolicy::Park { spin, yielding } => {
                let spin = if shared { Duration::ZERO } else { spin };
                let idle = now.since(since);
                if idle < spin {
                    Idle::Spin
                } else if idle < spin + yielding {
                    Idle::Yield
                } else {
                    Idle::Park
                }
            }
        }
    }

    /// A yield lasted from `before` to `after`.
    pub fn yielded(&mut self, before: Nanos, after: Nanos) {
        let took = (after - before).max(LEAST_YIELD);
        self.shortest = self.shortest.min(took);
        if took >= self.shortest * LONG_YIELD {
            self.shared_until = after + SHARED_FOR;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    fn at(micros: u64) -> Nanos {
        Nanos(micros * 1000)
    }

    #[test]
    fn first_spin_then_yield_then_sleep() {
        let mut idler = Idler::new(IdlePolicy::Park {
            spin: us(5),
            yielding: us(50),
        });
        assert_eq!(
            [0, 4, 6, 54, 56].map(|micros| idler.idle(at(micros))),
            [Idle::Spin, Idle::Spin, Idle::Yield, Idle::Yield, Idle::Park]
        );
        idler.busy();
        assert_eq!(idler.idle(at(60)), Idle::Spin);
        let mut spins = Idler::new(IdlePolicy::Spin);
        spins.yielded(at(1), at(2));
        spins.yielded(at(2), at(500));
        assert_eq!(spins.idle(Nanos(1 << 40)), Idle::Spin);
    }

    /// Workers that spun while others waited for their core held up the holder of a lock.
    #[test]
    fn a_worker_does_not_spin_on_a_core_that_others_use() {
        let mut idler = Idler::new(IdlePolicy::Park {
            spin: us(20),
            yielding: us(50),
        });
        idler.yielded(Nanos(0), Nanos(260));
        assert_eq!(
            idler.idle(at(1)),
            Idle::Spin,
            "yields are short: nothing else runs"
        );
        idler.yielded(at(2), Nanos(2_000 + 1_400));
        idler.busy();
        assert_eq!(idler.idle(at(5)), Idle::Yield);
        assert_eq!(idler.idle(at(56)), Idle::Park);
        idler.busy();
        let later = at(4) + SHARED_FOR;
        assert_eq!(idler.idle(later), Idle::Spin, "the others may have ended");
    }

    #[test]
    fn a_worker_with_a_core_of_its_own_probes_whether_it_still_is() {
        let mut idler = Idler::new(IdlePolicy::SpinOrYield);
        assert_eq!(idler.idle(at(0)), Idle::Yield);
        idler.yielded(Nanos(0), Nanos(300));
        assert_eq!(idler.idle(at(1)), Idle::Spin);
        assert_eq!(idler.idle(at(101)), Idle::Yield);
        idler.yielded(at(101), at(103));
        assert_eq!(idler.idle(at(104)), Idle::Yield);
        assert_eq!(idler.idle(at(105)), Idle::Yield);
        assert_eq!(idler.idle(at(103) + SHARED_FOR), Idle::Yield, "a probe");
    }
}
