//! The order in which commits of one worker get room in logs.
//!
//! A commit that did not get room at all of its machines takes a ticket and enters the queues of all of
//! them at one time. From then on nobody who came later reserves room at any of them before it did. Two
//! tickets that share machines stand in the same order at each, so no two commits wait for each other.
//! The ticket that is first everywhere is the only one that tries again; the others are woken when those
//! before them leave, so that `n` commits that wait cost `n` wakes and not `n` tries a turn.

use std::collections::VecDeque;

use farm_core::ids::MachineId;
use farm_core::mutants;
use slab::Slab;
use smallvec::SmallVec;

use super::coordinator::CommitId;

/// Names a commit that waits in [`Queues`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TicketId(usize);

/// Commits that are to be resumed.
pub(crate) type Woken = SmallVec<[CommitId; 4]>;

/// A commit that waits.
#[derive(Debug)]
struct Ticket {
    commit: CommitId,
    machines: SmallVec<[MachineId; 4]>,
    /// Queues in which it is not the first.
    behind: usize,
}

/// A ticket's place in the queue of one machine.
#[derive(Debug)]
struct Place {
    ticket: TicketId,
    /// Commits behind this place, or without a ticket, that reserved at the machine.
    overtaken: u64,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Queues {
    tickets: Slab<Ticket>,
    /// By the machine's index, oldest first.
    by_machine: Vec<VecDeque<Place>>,
    most_overtaken: u64,
}

impl Queues {
    /// Whether a commit may reserve at its machines: with a ticket if it is the first at all of them, and
    /// without one if nobody waits at any of them.
    pub(crate) fn may_reserve(
        &self,
        ticket: Option<TicketId>,
        mut machines: impl Iterator<Item = MachineId>,
    ) -> bool {
        match ticket {
            Some(ticket) => self.tickets[ticket.0].behind == 0,
            None => {
                machines.all(|machine| self.queue(machine).is_none_or(VecDeque::is_empty))
                    || mutants::is_on("commits do not queue for room")
            }
        }
    }

    /// A commit enters the queues of all of its machines.
    pub(crate) fn enter(
        &mut self,
        commit: CommitId,
        machines: impl Iterator<Item = MachineId>,
    ) -> TicketId {
        let machines: SmallVec<[MachineId; 4]> = machines.collect();
        let entry = self.tickets.vacant_entry();
        let ticket = TicketId(entry.key());
        let mut behind = 0;
        for machine in &machines {
            let index = machine.index();
            if self.by_machine.len() <= index {
                self.by_machine.resize_with(index + 1, VecDeque::new);
            }
            let queue = &mut self.by_machine[index];
            behind += usize::from(!queue.is_empty());
            queue.push_back(Place {
                ticket,
                overtaken: 0,
            });
        }
        entry.insert(Ticket {
            commit,
            machines,
            behind,
        });
        ticket
    }

    /// A commit leaves all of its queues. Returns who has become the first everywhere by that.
    pub(crate) fn leave(&mut self, ticket: TicketId) -> Woken {
        let mut woken = Woken::new();
        for machine in self.tickets.remove(ticket.0).machines {
            let queue = &mut self.by_machine[machine.index()];
            let place = queue.iter().position(|place| place.ticket == ticket);
            let place = place.expect("a ticket is in the queues of all of its machines");
            queue.remove(place);
            if place > 0 {
                continue;
            }
            let Some(first) = queue.front() else { continue };
            let first = &mut self.tickets[first.ticket.0];
            first.behind -= 1;
            if first.behind == 0 {
                woken.push(first.commit);
            }
        }
        woken
    }

    /// A commit has reserved at its machines: counts whom it has overtaken.
    pub(crate) fn reserved(
        &mut self,
        ticket: Option<TicketId>,
        machines: impl Iterator<Item = MachineId>,
    ) {
        for machine in machines {
            let Some(queue) = self.by_machine.get_mut(machine.index()) else {
                continue;
            };
            let before = queue.iter_mut();
            for place in before.take_while(|place| Some(place.ticket) != ticket) {
                place.overtaken += 1;
                self.most_overtaken = self.most_overtaken.max(place.overtaken);
            }
        }
    }

    /// Most commits that reserved at a machine while one that had come before them waited there.
    pub(crate) fn most_overtaken(&self) -> u64 {
        self.most_overtaken
    }

    /// Commits that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.tickets.len()
    }

    fn queue(&self, machine: MachineId) -> Option<&VecDeque<Place>> {
        self.by_machine.get(machine.index())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machines(ids: &[u16]) -> impl Iterator<Item = MachineId> + '_ {
        ids.iter().map(|id| MachineId::new(*id).unwrap())
    }

    #[test]
    fn who_shares_a_machine_keeps_the_order_of_tickets() {
        let mut queues = Queues::default();
        assert!(queues.may_reserve(None, machines(&[1, 2, 3])));
        let one = queues.enter(CommitId(10), machines(&[1, 2]));
        let two = queues.enter(CommitId(20), machines(&[2, 3]));
        let three = queues.enter(CommitId(30), machines(&[1, 3]));
        let four = queues.enter(CommitId(40), machines(&[4]));
        let may = |queues: &Queues, ticket| queues.may_reserve(Some(ticket), machines(&[]));
        assert!(may(&queues, one) && may(&queues, four));
        assert!(!may(&queues, two) && !may(&queues, three));
        assert!(!queues.may_reserve(None, machines(&[5, 4])));
        assert!(queues.may_reserve(None, machines(&[5])));
        assert_eq!(queues.leave(one)[..], [CommitId(20)]);
        assert!(may(&queues, two) && !may(&queues, three));
        assert_eq!(queues.leave(two)[..], [CommitId(30)]);
        assert_eq!(queues.leave(three)[..], []);
        assert_eq!(queues.leave(four)[..], []);
        assert_eq!((queues.waiting(), queues.most_overtaken()), (0, 0));
        assert!(queues.may_reserve(None, machines(&[1, 2, 3, 4])));
    }

    #[test]
    fn who_leaves_from_the_middle_wakes_nobody() {
        let mut queues = Queues::default();
        let one = queues.enter(CommitId(10), machines(&[1]));
        let two = queues.enter(CommitId(20), machines(&[1, 2]));
        let _three = queues.enter(CommitId(30), machines(&[1, 2]));
        // It was the first at one machine and not at the other.
        assert_eq!(queues.leave(two)[..], []);
        assert_eq!(queues.leave(one)[..], [CommitId(30)]);
    }

    #[test]
    fn who_overtakes_is_counted_for_all_whom_it_overtakes() {
        let mut queues = Queues::default();
        let one = queues.enter(CommitId(10), machines(&[1, 2]));
        let two = queues.enter(CommitId(20), machines(&[1]));
        queues.reserved(Some(one), machines(&[1, 2]));
        assert_eq!(queues.most_overtaken(), 0);
        queues.reserved(Some(two), machines(&[1]));
        assert_eq!(queues.most_overtaken(), 1);
        queues.reserved(None, machines(&[2]));
        assert_eq!(queues.most_overtaken(), 1);
        queues.reserved(None, machines(&[1]));
        assert_eq!(queues.most_overtaken(), 2);
    }
}
