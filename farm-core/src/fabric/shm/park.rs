//! Sleeping and waking: one parked flag per worker, in a page that peers map, and a shared futex.
//!
//! The sleeper stores the flag, fences, looks for work once more, and waits. The waker stores its
//! data, fences, and loads the flag. Because both fences are sequentially consistent, at least one
//! of the two observes the other's store (Dekker), so no wake-up is lost.

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use super::signs::SIGNS_BYTES;
use crate::fabric::Wake;
use crate::ids::WorkerId;
use crate::mem::{LINE_BYTES, Memory};
use crate::time::Clock;

const AWAKE: u64 = 0;
const PARKED: u64 = 1;
/// The longest single sleep. The system rejects a timeout whose seconds it cannot represent, and a
/// caller whose sleeps are rejected would spin. A year is long enough for any caller.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// The flags of one machine's workers: one cache line each.
#[derive(Clone, Debug)]
pub(super) struct Doorbells(Memory);

impl Doorbells {
    /// Bytes of the first file of a start.
    pub(super) const fn bytes_of_first_file(workers: usize) -> usize {
        SIGNS_BYTES + workers * LINE_BYTES
    }

    /// Returns the flags in the first file of a start: they follow its [signs of life](super::signs::Signs).
    pub(super) fn in_first_file(memory: &Memory) -> Self {
        let bytes = memory.len() - SIGNS_BYTES;
        Self(memory.window(SIGNS_BYTES, bytes))
    }

    fn at(worker: WorkerId) -> usize {
        worker.index() * LINE_BYTES
    }

    /// Returns whether the machine has this worker, that is, whether the page has its flag.
    #[inline]
    pub(super) fn has(&self, worker: WorkerId) -> bool {
        worker.index() < self.0.len() / LINE_BYTES
    }

    pub(super) fn arm(&self, worker: WorkerId) {
        self.0.store(Self::at(worker), PARKED, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Returns whether the worker sleeps, or is about to.
    pub(super) fn is_parked(&self, worker: WorkerId) -> bool {
        self.0.load(Self::at(worker), Ordering::Relaxed) == PARKED
    }

    pub(super) fn disarm(&self, worker: WorkerId) {
        self.0.store(Self::at(worker), AWAKE, Ordering::SeqCst);
    }

    pub(super) fn wait(&self, worker: WorkerId, most: Duration) -> Wake {
        let most = most.min(LONGEST_WAIT);
        let began = Clock::Host.now();
        let mut left = most;
        // A waker that was stopped between its two steps for an earlier sleep wakes this one, whose flag it has not changed. So does a
        // signal. Neither is a notification, and the time is not over.
        let woken = loop {
            self.wait_once(worker, left);
            let woken = self.0.load(Self::at(worker), Ordering::SeqCst) == AWAKE;
            left = most.saturating_sub(Clock::Host.now().since(began));
            if woken || left.is_zero() {
                break woken;
            }
        };
        self.disarm(worker);
        if woken {
            Wake::Notified
        } else {
            Wake::TimedOut
        }
    }

    fn wait_once(&self, worker: WorkerId, most: Duration) {
        let timeout = libc::timespec {
            tv_sec: most.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(most.subsec_nanos()),
        };
        // SAFETY: the word stays mapped for the call, and the timeout outlives it. After any outcome
        // (value already changed, interrupted, woken) the caller looks at the word, so none is an
        // error.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.0.futex_word(Self::at(worker)),
                libc::FUTEX_WAIT,
                PARKED as u32,
                &timeout,
                std::ptr::null::<u32>(),
                0,
            );
        }
    }

    /// Wakes the worker if it sleeps or is about to sleep. Returns whether it did. The caller must
    /// have fenced after its data.
    pub(super) fn ring(&self, worker: WorkerId) -> bool {
        let at = Self::at(worker);
        if self.0.load(at, Ordering::SeqCst) != PARKED
            || self.0.compare_exchange(at, PARKED, AWAKE).is_err()
        {
            return false;
        }
        self.wake(worker);
        true
    }

    /// Wakes the thread that sleeps on the worker's flag. Returns the number of threads that it has woken.
    fn wake(&self, worker: WorkerId) -> libc::c_long {
        let word = self.0.futex_word(Self::at(worker));
        // SAFETY: the word stays mapped for the call; a wake without a waiter is harmless.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bells(workers: usize) -> Doorbells {
        Doorbells::in_first_file(&Memory::anonymous(Doorbells::bytes_of_first_file(workers)))
    }

    fn worker(number: u16) -> WorkerId {
        WorkerId::new(number).unwrap()
    }

    /// A wake-up between the last look for work and the wait is not lost: the futex observes the
    /// changed flag.
    #[test]
    fn a_ring_before_the_wait_ends_it_at_once() {
        let bells = bells(2);
        let worker = worker(1);
        bells.arm(worker);
        assert!(bells.ring(worker));
        assert_eq!(bells.wait(worker, Duration::from_secs(60)), Wake::Notified);
        assert!(!bells.ring(worker), "an awake worker is not rung");
    }

    #[test]
    fn a_quiet_wait_times_out() {
        let bells = bells(1);
        bells.arm(worker(0));
        assert_eq!(
            bells.wait(worker(0), Duration::from_millis(1)),
            Wake::TimedOut
        );
    }

    /// A timeout that the system cannot represent is a long sleep, not an immediate return.
    #[test]
    fn a_wait_without_end_sleeps_until_rung() {
        let bells = bells(1);
        bells.arm(worker(0));
        let before = Clock::Host.now();
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let bells = &bells;
            scope.spawn(move || {
                // Times out unless the wait has returned early.
                let _ = is_done.recv_timeout(Duration::from_millis(100));
                bells.ring(worker(0));
            });
            assert_eq!(bells.wait(worker(0), Duration::MAX), Wake::Notified);
            // The ringing thread may have ended already, after its timeout.
            let _ = done.send(());
        });
        assert!(Clock::Host.now().since(before) >= Duration::from_millis(100));
    }

    /// A waker is stopped when it has cleared the flag, and wakes the worker in its next sleep: that goes on. It once ended as if its time
    /// were over.
    #[test]
    fn a_late_wake_does_not_end_the_next_sleep() {
        let bells = bells(1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while bells.wake(worker(0)) == 0 {
                    std::thread::yield_now();
                }
                while !bells.ring(worker(0)) {
                    std::thread::yield_now();
                }
            });
            bells.arm(worker(0));
            let wake = bells.wait(worker(0), Duration::from_secs(30));
            assert_eq!(wake, Wake::Notified);
        });
    }

    /// Two threads hand a counter back and forth, each sleeping until rung: no wake-up is lost.
    #[test]
    fn no_wake_up_is_lost_in_a_long_exchange() {
        const ROUNDS: u64 = 20_000;
        let bells = bells(2);
        let ball = Memory::anonymous(64);
        std::thread::scope(|scope| {
            for player in 0..2u64 {
                let (bells, ball) = (&bells, &ball);
                scope.spawn(move || {
                    let (me, other) = (worker(player as u16), worker(1 - player as u16));
                    loop {
                        let mut turn = ball.load(0, Ordering::Acquire);
                        while turn % 2 != player && turn < ROUNDS {
                            bells.arm(me);
                            turn = ball.load(0, Ordering::Acquire);
                            if turn % 2 != player && turn < ROUNDS {
                                let wake = bells.wait(me, Duration::from_secs(30));
                                assert_eq!(wake, Wake::Notified, "a wake-up was lost at {turn}");
                            } else {
                                bells.disarm(me);
                            }
                            turn = ball.load(0, Ordering::Acquire);
                        }
                        if turn >= ROUNDS {
                            return;
                        }
                        ball.store(0, turn + 1, Ordering::Release);
                        fence(Ordering::SeqCst);
                        bells.ring(other);
                    }
                });
            }
        });
    }
}
