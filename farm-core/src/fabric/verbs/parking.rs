//! Sleeping and waking: one flag and one event descriptor per worker.
//!
//! A sleeper sets its flag, looks for work once more, and waits for its event descriptor and for
//! the channel of its completions. A thread of this machine that has work for the sleeper clears
//! the flag and writes to the descriptor. A peer's notification arrives as a completion, which ends
//! the wait without the descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::ids::WorkerId;

/// The longest single sleep. Callers do not depend on longer sleeps.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

struct Place {
    parked: AtomicBool,
    event: OwnedFd,
}

/// The flags and event descriptors of a machine's workers.
pub(super) struct Parking(Vec<Place>);

impl Parking {
    pub(super) fn new(workers: usize) -> std::io::Result<Self> {
        let place = || {
            let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
            let parked = AtomicBool::new(false);
            Ok(Place { parked, event })
        };
        (0..workers)
            .map(|_| place())
            .collect::<Result<_, _>>()
            .map(Self)
    }

    pub(super) fn arm(&self, worker: WorkerId) {
        self.0[worker.index()].parked.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    pub(super) fn disarm(&self, worker: WorkerId) {
        self.0[worker.index()].parked.store(false, Ordering::SeqCst);
    }

    /// Returns whether the worker sleeps, or is about to.
    pub(super) fn is_parked(&self, worker: WorkerId) -> bool {
        self.0[worker.index()].parked.load(Ordering::SeqCst)
    }

    /// Wakes the worker if it sleeps or is about to sleep. Returns whether it did. The caller must
    /// have fenced after storing the worker's data. No-op if the machine has no such worker,
    /// because the number may come from a peer.
    pub(super) fn ring(&self, worker: WorkerId) -> bool {
        let Some(place) = self.0.get(worker.index()) else {
            return false;
        };
        if !place.parked.swap(false, Ordering::SeqCst) {
            return false;
        }
        // The counter cannot overflow: it is written once per sleep.
        let _ = rustix::io::write(&place.event, &1u64.to_ne_bytes());
        true
    }

    pub(super) fn ring_all(&self) {
        fence(Ordering::SeqCst);
        for worker in 0..self.0.len() {
            self.ring(
                WorkerId::new(worker as u16).expect("every worker of a machine has a valid id"),
            );
        }
    }

    /// Waits for a ring, or until `channel` is readable. Returns false only if the wait timed out.
    pub(super) fn wait(&self, worker: WorkerId, channel: BorrowedFd<'_>, most: Duration) -> bool {
        let place = &self.0[worker.index()];
        let most = Timespec::try_from(most.min(LONGEST_WAIT))
            .expect("the longest wait fits into a timespec");
        let mut fds = [
            PollFd::from_borrowed_fd(place.event.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(channel, PollFlags::IN),
        ];
        // An interrupted wait counts as a wake-up, so that the caller looks for work.
        let ready = poll(&mut fds, Some(&most)).map_or(true, |ready| ready > 0);
        // The ringing thread clears the flag before it writes the descriptor. If it writes after
        // this wait has ended, the write ends the next wait.
        let rung = !place.parked.swap(false, Ordering::SeqCst);
        if rung {
            // The descriptor is empty if the ringing thread has not written yet.
            let _ = rustix::io::read(&place.event, &mut [0; 8]);
        }
        ready || rung
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_ends_by_an_earlier_ring_or_by_timeout() {
        let parking = Parking::new(2).unwrap();
        let silent = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let worker = WorkerId::new(1).unwrap();
        let short = Duration::from_millis(1);
        parking.arm(worker);
        assert!(
            parking.ring(worker) && !parking.ring(worker),
            "an armed worker is rung once"
        );
        assert!(parking.wait(worker, silent.as_fd(), Duration::from_secs(60)));
        parking.arm(worker);
        assert!(
            !parking.wait(worker, silent.as_fd(), short),
            "a ring ends only one sleep"
        );
        assert!(
            !parking.ring(WorkerId::new(2).unwrap()),
            "a worker that does not exist is not rung"
        );
    }

    #[test]
    fn a_channel_ends_a_sleep() {
        let parking = Parking::new(1).unwrap();
        let channel = eventfd(1, EventfdFlags::NONBLOCK).unwrap();
        parking.arm(WorkerId::FIRST);
        assert!(parking.wait(WorkerId::FIRST, channel.as_fd(), Duration::from_secs(60)));
    }
}
