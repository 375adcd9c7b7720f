//! Sleeping and waking: one flag and one event descriptor per worker.
//!
//! A sleeper raises its flag, looks once more, and waits for its descriptor and for the channel of its
//! completions. Whoever has something for it on this machine lowers the flag and writes the descriptor;
//! a peer's notification arrives as a completion, and so ends the wait by itself.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::ids::WorkerId;

/// The longest single sleep: what is longer is no different to anybody.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

struct Place {
    parked: AtomicBool,
    event: OwnedFd,
}

/// Where the workers of a machine sleep.
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

    /// Wakes the worker if it sleeps or is about to; whether it did. The caller has fenced after what it
    /// has for it. Does nothing if there is no such worker: a peer named it.
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
            self.ring(WorkerId::new(worker as u16).expect("workers are within the limit"));
        }
    }

    /// Waits for a ring, or for `channel` to become readable. Whether one of them came.
    pub(super) fn wait(&self, worker: WorkerId, channel: BorrowedFd<'_>, most: Duration) -> bool {
        let place = &self.0[worker.index()];
        let most = Timespec::try_from(most.min(LONGEST_WAIT)).expect("an hour can be counted");
        let mut fds = [
            PollFd::from_borrowed_fd(place.event.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(channel, PollFlags::IN),
        ];
        // An interrupted wait is a reason to go and look, as all others are.
        let ready = poll(&mut fds, Some(&most)).map_or(true, |ready| ready > 0);
        // Lowered by whoever wrote the descriptor, perhaps after the wait has ended: then what it wrote
        // ends the next one.
        let rung = !place.parked.swap(false, Ordering::SeqCst);
        if rung {
            // Empty if it is yet to be written.
            let _ = rustix::io::read(&place.event, &mut [0; 8]);
        }
        ready || rung
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_ends_by_a_ring_before_it_or_by_time() {
        let parking = Parking::new(2).unwrap();
        let silent = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let worker = WorkerId::new(1).unwrap();
        let short = Duration::from_millis(1);
        parking.arm(worker);
        assert!(parking.ring(worker) && !parking.ring(worker), "rung once");
        assert!(parking.wait(worker, silent.as_fd(), Duration::from_secs(60)));
        parking.arm(worker);
        assert!(
            !parking.wait(worker, silent.as_fd(), short),
            "a ring ends one sleep"
        );
        assert!(
            !parking.ring(WorkerId::new(2).unwrap()),
            "there is no such worker"
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
