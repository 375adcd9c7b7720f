//! Reads that the endpoint had no room for: posted in order as soon as it has.
//!
//! Headers that a commit validates go first, for the commit holds locks. Other reads keep their order for each
//! machine, and the machines take turns, so that one whose queue pair is full holds up none of the
//! reads to others that wait; while many wait, no others begin, to whichever machine.

use std::collections::VecDeque;

use super::Worker;
use super::request::HEADER_ONLY;
use crate::fabric::Slot;
use crate::ids::MachineId;

/// The reads of one worker that wait for room of its endpoint.
#[derive(Default)]
pub(super) struct Unposted {
    headers: VecDeque<Slot>,
    /// By the place of the machine.
    by_machine: Vec<VecDeque<Slot>>,
    /// The machine whose turn is next.
    next: usize,
    count: usize,
}

impl Unposted {
    pub(super) fn len(&self) -> usize {
        self.count
    }
}

impl Worker {
    /// Queues a read to a machine until the endpoint has room for it.
    #[cold]
    pub(super) fn post_later(&mut self, machine: MachineId, slot: Slot) {
        let place = self.machines().iter().position(|known| known.0 == machine);
        let place = place.expect("a region lies on a machine of the cluster");
        let header = self.reads.request(&slot).lines == HEADER_ONLY;
        let unposted = &mut self.unposted;
        unposted.count += 1;
        if header {
            return unposted.headers.push_back(slot);
        }
        if unposted.by_machine.len() <= place {
            unposted.by_machine.resize_with(place + 1, VecDeque::new);
        }
        unposted.by_machine[place].push_back(slot);
        self.close_slots();
    }

    /// Posts reads that waited, as many as there is room for now.
    #[inline]
    pub(super) fn post_unposted(&mut self) -> bool {
        self.unposted.count > 0 && self.post_some()
    }

    #[cold]
    fn post_some(&mut self) -> bool {
        let before = self.unposted.count;
        for _ in 0..self.unposted.headers.len() {
            let Some(slot) = self.unposted.headers.pop_front() else {
                break;
            };
            // Others may have room: they are of other machines.
            if let Err(slot) = self.post_waiting(slot) {
                self.unposted.headers.push_back(slot);
            }
        }
        let machines = self.unposted.by_machine.len();
        self.unposted.next += 1;
        let mut posted = true;
        while std::mem::take(&mut posted) {
            for turn in 0..machines {
                let place = (self.unposted.next + turn) % machines;
                let Some(slot) = self.unposted.by_machine[place].pop_front() else {
                    continue;
                };
                match self.post_waiting(slot) {
                    Ok(()) => posted = true,
                    Err(slot) => self.unposted.by_machine[place].push_front(slot),
                }
            }
        }
        self.close_slots();
        self.unposted.count < before
    }

    fn post_waiting(&mut self, slot: Slot) -> Result<(), Slot> {
        self.post_remote(slot)?;
        self.unposted.count -= 1;
        Ok(())
    }
}
