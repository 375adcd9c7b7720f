//! What a worker does when a turn found nothing: spin, then yield, then sleep.

use std::time::Duration;

use crate::time::Nanos;

/// How long a worker that finds nothing to do stays awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdlePolicy {
    /// For ever: lowest latency, a core to itself.
    Spin,
    /// Spins, then yields the core at every turn, then sleeps until it is notified. The default
    /// where workers outnumber cores: a same-core round trip is milliseconds among spinners and a
    /// microsecond among those who yield.
    Park {
        /// Spin for this long.
        spin: Duration,
        /// After that yield for this long.
        yielding: Duration,
    },
}

/// What to do before the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Take the next turn.
    Spin,
    /// Give the core to another thread first.
    Yield,
    /// Arm, look once more, and sleep.
    Park,
}

impl IdlePolicy {
    /// What to do at `now` when nothing was found since `idle_since`.
    pub fn after(&self, idle_since: Nanos, now: Nanos) -> Idle {
        match self {
            IdlePolicy::Spin => Idle::Spin,
            IdlePolicy::Park { spin, yielding } => {
                let idle = now.since(idle_since);
                if idle < *spin {
                    Idle::Spin
                } else if idle < *spin + *yielding {
                    Idle::Yield
                } else {
                    Idle::Park
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_spin_then_yield_then_sleep() {
        let us = Duration::from_micros;
        let policy = IdlePolicy::Park {
            spin: us(5),
            yielding: us(50),
        };
        let at = |micros: u64| policy.after(Nanos(0), Nanos(micros * 1000));
        assert_eq!(
            (at(0), at(6), at(54), at(56)),
            (Idle::Spin, Idle::Yield, Idle::Yield, Idle::Park)
        );
        assert_eq!(IdlePolicy::Spin.after(Nanos(0), Nanos(1 << 40)), Idle::Spin);
    }
}
