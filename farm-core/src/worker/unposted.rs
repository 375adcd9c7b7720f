//! Reads for which the endpoint had no room: they are posted in order as soon as it has room.
//!
//! Header reads go first, because the commits that validate with them hold locks. Other reads keep their order per
//! machine, and the machines take turns, so that a machine whose queue pair is full does not delay waiting reads to
//! other machines. While many reads wait, no other read starts, to any machine.

use std::collections::VecDeque;

use super::Worker;
use super::request::UNCHECKED;
use crate::fabric::Slot;
use crate::ids::MachineId;

/// The reads of one worker that wait for room of its endpoint.
#[derive(Default)]
pub(super) struct Unposted {
    headers: VecDeque<Slot>,
    /// Reads by the index of the machine in [`Worker::machines`], oldest first.
    by_machine: Vec<VecDeque<Slot>>,
    /// Counter that rotates the machine that is served first.
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
        let place = place.expect("a region is stored by a machine of the cluster");
        let header = self.reads.request(&slot).lines() == UNCHECKED;
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

    /// Posts as many of the waiting reads as there is room for now.
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
            // Later reads may still have room: they may go to other machines.
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
