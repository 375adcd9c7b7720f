//! What happens to leases by time: threads send and receive, and the network is cut.

use farm_core::fabric::{Departure, Eviction, LeaseBook, LeaseTerms, Start};
use farm_core::ids::MachineId;
use farm_core::time::{Clock, Nanos};
use rand::Rng;

use super::lease_net::{Agent, Datagram, Due, Leases, MOST_DRIFT};
use super::state::State;
use super::trace::Event;

/// A datagram takes at most the time of a lease, divided by this number.
const DELAY_SHARE: u64 = 8;

impl State {
    /// Begins to ask for leases for a new start of a machine, if leases end by time. Returns what its workers look at.
    pub(super) fn begin_leases(&mut self, id: MachineId, boot: u64) -> Eviction {
        let clock = Clock::Virtual(self.clock.clone());
        let Some(leases) = &mut self.leases else {
            return Eviction::never();
        };
        let eviction = Eviction::by_time(clock);
        let agent = Agent {
            boot,
            book: LeaseBook::new((id, boot), leases.lease),
            eviction: eviction.clone(),
            next: self.now,
            drift: self.rng.random_range(-MOST_DRIFT..=MOST_DRIFT),
            stopped: false,
        };
        leases.agents.insert(id, agent);
        eviction
    }

    /// Returns the next moment at which something happens to leases by time.
    pub(super) fn next_lease(&self) -> Nanos {
        let leases = self.leases.as_ref();
        leases.map_or(Nanos(u64::MAX), Leases::next)
    }

    /// Has all happen to leases by time that is due.
    pub(super) fn run_leases(&mut self) {
        while self.next_lease() <= self.now {
            let now = self.now;
            let Some(leases) = &mut self.leases else {
                return;
            };
            let first = leases.due.first_entry();
            if let Some(first) = first.filter(|first| first.key().0 <= now) {
                match first.remove() {
                    Due::Arrives(datagram) => self.arrive(datagram),
                    Due::Breaks(one, other) => self.break_if_cut(one, other),
                }
                continue;
            }
            let agents = leases.agents.iter();
            let mut due = agents.filter(|(_, agent)| !agent.stopped && agent.next <= now);
            if let Some(id) = due.next().map(|(id, _)| *id) {
                self.send_requests(id);
            }
        }
    }

    fn send_requests(&mut self, id: MachineId) {
        let now = self.now;
        let is_gone = !self.runs(id);
        let Some(leases) = &mut self.leases else {
            return;
        };
        let Some(agent) = leases.agents.get_mut(&id).filter(|_| !is_gone) else {
            leases.agents.remove(&id);
            return;
        };
        // It wakes up late now and then.
        let period = agent.book.period().as_nanos() as u64;
        agent.next = now + self.rng.random_range(period..=period + period / 4);
        let (local, from) = (agent.local(now), (id, agent.boot));
        let changes = agent.book.look(local);
        let (message, peers) = agent.book.requests(local);
        for to in peers {
            let datagram = Datagram { from, to, message };
            self.send(datagram);
        }
        for change in changes {
            self.tell_lease(id, change);
        }
        self.renew(id);
    }

    fn send(&mut self, datagram: Datagram) {
        let now = self.now;
        let Some(leases) = &mut self.leases else {
            return;
        };
        let most = leases.lease.as_nanos() as u64 / DELAY_SHARE;
        let delay = self.rng.random_range(1..=most);
        leases.add(now + delay, Due::Arrives(datagram));
    }

    fn arrive(&mut self, datagram: Datagram) {
        let Datagram { from, to, message } = datagram;
        let runs = self.runs(to.0);
        let now = self.now;
        let Some(leases) = &mut self.leases else {
            return;
        };
        let is_cut = leases.is_cut(from.0, to.0, now);
        let agent = leases.agents.get_mut(&to.0);
        let agent = agent.filter(|agent| runs && agent.boot == to.1 && !agent.stopped);
        let Some(agent) = agent.filter(|_| !is_cut) else {
            return;
        };
        let local = agent.local(now);
        let answer = agent.book.on_message(from, message, local);
        if let Some(message) = answer {
            let (from, to) = (to, from);
            self.send(Datagram { from, to, message });
        }
        self.renew(to.0);
    }

    /// Tells the workers of a machine until when its lease lasts.
    fn renew(&mut self, id: MachineId) {
        let agent = self.leases.as_ref().and_then(|all| all.agents.get(&id));
        let Some(agent) = agent else {
            return;
        };
        let end = agent.moment(agent.book.end());
        let is_evicted = agent.book.evicted_by().is_some();
        if agent.eviction.renew(end, is_evicted) {
            self.note(Event::Lease {
                machine: id,
                has_expired: is_evicted,
            });
            self.notify_all(id);
        }
    }

    /// Sets who takes part in leases by time, as a machine knows it.
    pub(super) fn set_lease_terms(&mut self, id: MachineId, terms: LeaseTerms) {
        let now = self.now;
        let agent = self.leases.as_mut().and_then(|all| all.agents.get_mut(&id));
        if let Some(agent) = agent {
            agent.book.set_terms(terms);
            agent.next = now;
            self.renew(id);
        }
    }

    /// Returns whether a start of a machine may hold a lease by time that another machine has granted.
    pub(super) fn may_hold_a_lease(&self, granter: MachineId, process: Start) -> bool {
        let leases = self.leases.as_ref();
        let agent = leases.and_then(|all| all.agents.get(&granter));
        agent.is_some_and(|agent| agent.book.may_hold(process, agent.local(self.now)))
    }

    /// Stops the thread of a machine, or lets it go on.
    pub(super) fn stop_leases(&mut self, id: MachineId, stops: bool) {
        let agent = self.leases.as_mut().and_then(|all| all.agents.get_mut(&id));
        if let Some(agent) = agent {
            agent.stopped = stops;
        }
    }

    /// Cuts the network for a time: between some machines and all others, in both directions. Connections between them stand still, and
    /// break if that takes too long for them.
    pub(super) fn part(&mut self, some: &[MachineId], nanos: u64) {
        let (now, all) = (self.now, self.ids());
        let others: Vec<MachineId> = all.into_iter().filter(|one| !some.contains(one)).collect();
        // All connections give up after the same time.
        let most = self
            .leases
            .as_ref()
            .map_or(1, |all| 4 * all.lease.as_nanos() as u64);
        let breaks = now + self.rng.random_range(1..=most);
        for (one, other) in pairs(some, &others) {
            self.cut((one, other), nanos);
            self.cut((other, one), nanos);
            let starts = [one, other].map(|id| (id, self.boot(id)));
            let Some(leases) = &mut self.leases else {
                continue;
            };
            leases.add(breaks, Due::Breaks(starts[0], starts[1]));
        }
        self.stall_cut_connections();
    }

    /// Has no lease reach a machine from any other one for a time. What it sends arrives.
    pub(super) fn make_deaf(&mut self, id: MachineId, nanos: u64) {
        let others = self.ids().into_iter().filter(|one| *one != id);
        for other in others.collect::<Vec<_>>() {
            self.cut((other, id), nanos);
        }
    }

    fn cut(&mut self, pair: (MachineId, MachineId), nanos: u64) {
        let until = self.now + nanos;
        if let Some(leases) = &mut self.leases {
            leases.cut.insert(pair, until);
        }
    }

    fn break_if_cut(&mut self, one: Start, other: Start) {
        let is_cut = self.still_until(one.0, other.0) > self.now;
        let same = |of: Start| self.boot(of.0) == of.1;
        if is_cut && same(one) && same(other) {
            self.disconnect(one.0, other.0, Departure::Lost);
        }
    }

    /// Returns until when a connection between two machines stands still, because the network between them is cut in both directions.
    pub(super) fn still_until(&self, one: MachineId, other: MachineId) -> Nanos {
        match &self.leases {
            Some(leases)
                if leases.is_cut(one, other, self.now) && leases.is_cut(other, one, self.now) =>
            {
                leases.cut_until(one, other)
            }
            _ => Nanos(0),
        }
    }
}

fn pairs<'a>(
    some: &'a [MachineId],
    others: &'a [MachineId],
) -> impl Iterator<Item = (MachineId, MachineId)> + 'a {
    some.iter()
        .flat_map(|one| others.iter().map(move |other| (*one, *other)))
}
