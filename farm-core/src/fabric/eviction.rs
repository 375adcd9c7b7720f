//! Whether a process may report what it finds out, or the others go on without it.
//!
//! A machine that does not answer may be stopped, or slow, and go on at any later instruction. Before the others serve what it has
//! served, they make sure that it reports nothing any more. It looks after each one-sided operation, and before it reports what follows from
//! the operation:
//!
//! - On shared memory, at a *word* in its memory that the others set. If the word is not set by then, the operation took place before the
//!   others went on. So no clock has to be trusted.
//! - On fabrics on which a machine may not be reached, at a clock, too: its *lease* ([`LeaseBook`](super::LeaseBook)) must last, and the
//!   others wait until it has ended (`FaRM'15 §5.1`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::mem::{LINE_BYTES, Memory};
use crate::time::{Clock, Nanos};

/// Whether a process may report what it finds out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It may.
    Good,
    /// Its lease has ended, and may be renewed: what it has found out waits until then.
    Waits,
    /// It never may again: the others go on without it.
    Evicted,
}

/// Whether a process may report what it finds out, as a handle. Clones share it.
#[derive(Clone, Debug)]
pub struct Eviction {
    word: Memory,
    /// When the lease ends, by this clock, if leases end by time.
    lease: Option<(Arc<AtomicU64>, Clock)>,
}

impl Eviction {
    /// Creates the value for the first word of `memory`, which is 0 until the process is evicted.
    pub fn new(memory: Memory) -> Self {
        Self {
            word: memory,
            lease: None,
        }
    }

    /// Creates the value of a process that no other one can evict.
    pub fn never() -> Self {
        Self::new(Memory::anonymous(LINE_BYTES))
    }

    /// Creates the value of a process whose leases end by time. It holds none yet.
    pub fn by_time(clock: Clock) -> Self {
        Self {
            lease: Some((Arc::default(), clock)),
            ..Self::never()
        }
    }

    /// Sets when the lease ends, if leases end by time, and evicts the process if it `is_evicted`. Returns whether its workers are to be
    /// woken, because they can report again, or have to stop.
    pub fn renew(&self, end: Nanos, is_evicted: bool) -> bool {
        let before = self.standing();
        if let Some((lease, _)) = &self.lease {
            lease.store(end.0, Ordering::Release);
        }
        if is_evicted {
            self.set();
        }
        let now = self.standing();
        before != now && now != Standing::Waits
    }

    /// Returns whether the process may report. If it may, all that this thread has loaded before was so before any machine went on without
    /// this one.
    #[inline]
    pub fn standing(&self) -> Standing {
        // Loads before this one are not moved behind it.
        fence(Ordering::Acquire);
        match self.word.load(0, Ordering::Acquire) {
            0 => self.lease_lasts(),
            _ => Standing::Evicted,
        }
    }

    /// As [`Eviction::standing`], also for what this thread has stored: it was visible before.
    #[inline]
    pub fn standing_after_stores(&self) -> Standing {
        fence(Ordering::SeqCst);
        match self.word.load(0, Ordering::SeqCst) {
            0 => self.lease_lasts(),
            _ => Standing::Evicted,
        }
    }

    #[inline]
    fn lease_lasts(&self) -> Standing {
        match &self.lease {
            None => Standing::Good,
            Some((end, clock)) => match clock.now().0 < end.load(Ordering::Acquire) {
                true => Standing::Good,
                false => Standing::Waits,
            },
        }
    }

    /// Evicts the process. When this returns, it reports nothing any more of what it finds out from then on.
    pub fn set(&self) {
        self.word.store(0, 1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::VirtualTime;

    #[test]
    fn clones_share_the_word() {
        let one = Eviction::never();
        let other = one.clone();
        let both = |one: &Eviction| [one.standing(), one.standing_after_stores()];
        assert_eq!(both(&other), [Standing::Good; 2]);
        one.set();
        assert_eq!(both(&other), [Standing::Evicted; 2]);
    }

    #[test]
    fn a_lease_by_time_ends_and_is_renewed_until_the_process_is_evicted() {
        let time = Arc::<VirtualTime>::default();
        let one = Eviction::by_time(Clock::Virtual(Arc::clone(&time)));
        let other = one.clone();
        assert_eq!(other.standing(), Standing::Waits, "none was granted yet");
        assert!(one.renew(Nanos(10), false));
        time.set(Nanos(9));
        assert_eq!(other.standing(), Standing::Good);
        time.set(Nanos(10));
        assert_eq!(other.standing_after_stores(), Standing::Waits);
        assert!(one.renew(Nanos(11), false));
        assert_eq!(other.standing(), Standing::Good);
        assert!(!one.renew(Nanos(12), false), "they report already");
        assert!(one.renew(Nanos(12), true));
        assert_eq!(other.standing(), Standing::Evicted);
    }
}
