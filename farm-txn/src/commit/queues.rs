//! The order in which the commits of one worker reserve room in logs.
//!
//! If the logs of a commit's machines have no room for it, the commit takes a ticket and enters the queues of all of
//! its machines at one time. From then on, no commit that requests room later reserves room at any of these machines
//! before it. Two tickets that share several machines have the same order in all of the shared queues, so no two
//! commits wait for each other. Only a ticket that is first in all of its queues retries. The others are woken when the
//! tickets before them leave, so `n` waiting commits cost `n` wakes, and not `n` tries per turn.

use std::collections::VecDeque;

use farm_core::ids::MachineId;
use farm_core::mutants;
use slab::Slab;
use smallvec::SmallVec;

use super::id::CommitId;

/// Identifies a waiting commit in [`Queues`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TicketId(usize);

/// Commits to resume.
pub(crate) type Woken = SmallVec<[CommitId; 4]>;

/// A waiting commit.
#[derive(Debug)]
struct Ticket {
    commit: CommitId,
    machines: SmallVec<[MachineId; 4]>,
    /// Number of its queues in which it is not the first.
    behind: usize,
}

/// A ticket's position in the queue of one machine.
#[derive(Debug)]
struct Place {
    ticket: TicketId,
    /// Number of commits that reserved room at the machine while this ticket waited, although they came later or had no
    /// ticket.
    overtaken: u64,
}

/// The queues of one worker: see the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Queues {
    tickets: Slab<Ticket>,
    /// Queues by machine index, oldest place first.
    by_machine: Vec<VecDeque<Place>>,
    most_overtaken: u64,
}

impl Queues {
    /// Returns whether a commit may reserve room at its machines. A commit with a ticket may if it is the first in all
    /// of its queues. A commit without a ticket may if the queues of its machines are empty.
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

    /// Adds a commit to the queues of all of its machines.
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

    /// Removes a ticket from all of its queues. Returns the commits that are now the first in all of their queues.
    pub(crate) fn leave(&mut self, ticket: TicketId) -> Woken {
        let mut woken = Woken::new();
        for machine in self.tickets.remove(ticket.0).machines {
            let queue = &mut self.by_machine[machine.index()];
            let place = queue.iter().position(|place| place.ticket == ticket);
            let place = place.expect("a ticket has a place in the queue of each of its machines");
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

    /// Records that a commit reserved room at its machines, and counts it for each waiting commit that it has
    /// overtaken.
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

    /// Returns the maximum number of commits that overtook one waiting commit at one machine.
    pub(crate) fn most_overtaken(&self) -> u64 {
        self.most_overtaken
    }

    /// Returns the number of waiting commits.
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
    fn tickets_that_share_a_machine_keep_their_order() {
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
    fn leaving_from_the_middle_wakes_no_ticket() {
        let mut queues = Queues::default();
        let one = queues.enter(CommitId(10), machines(&[1]));
        let two = queues.enter(CommitId(20), machines(&[1, 2]));
        let _three = queues.enter(CommitId(30), machines(&[1, 2]));
        // This ticket was the first at one machine and not at the other.
        assert_eq!(queues.leave(two)[..], []);
        assert_eq!(queues.leave(one)[..], [CommitId(30)]);
    }

    #[test]
    fn a_reservation_counts_for_all_tickets_that_it_overtakes() {
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
