//! Leases by time: they pass between machines that reach each other, and nothing proves the end of a process.

use rand::Rng;

use super::{Cluster, End, LEASE};
use crate::fabric::Lease;
use crate::ids::MachineId;
use crate::membership::configuration::{Configuration, Process};

impl Cluster {
    /// Lets time pass. Machines ask for leases, and look at those of others.
    pub(super) fn pass_time(&mut self) {
        self.now = self.now + 1;
        let asks = match self.is_calm {
            true => self.now.0.is_multiple_of(LEASE / 8),
            false => self.rng.random_ratio(1, LEASE as u32 / 6),
        };
        if !self.by_time || !asks {
            return;
        }
        self.deliver_answers();
        let acting: Vec<MachineId> = self.acting().collect();
        for me in &acting {
            let sent = self.now;
            let node = &self.nodes[me];
            let (from, (request, peers)) = ((*me, node.boot), node.leases.requests(sent));
            for peer in peers {
                let runs = acting.contains(&peer.0) && self.nodes[&peer.0].boot == peer.1;
                let is_lost = !self.is_calm && self.rng.random_ratio(1, 8);
                if !runs || !self.reaches(*me, peer.0) || is_lost {
                    continue;
                }
                let other = self.nodes.get_mut(&peer.0).unwrap();
                if let Some(answer) = other.leases.on_message(from, request, self.now) {
                    self.answers.push((peer, from, answer));
                }
            }
        }
        for me in acting {
            let now = self.now;
            let changes = self.nodes.get_mut(&me).unwrap().leases.look(now);
            for Lease {
                machine,
                boot,
                has_expired,
            } in changes
            {
                let process = Process { machine, boot };
                self.act(me, |value, out| value.on_lease(process, has_expired, out));
            }
            if self.nodes[&me].leases.evicted_by().is_some() && self.nodes[&me].acts() {
                self.end(me, End::Evicted);
            }
        }
    }

    /// Cuts the network between two parts of the machines, in their order. The rest reaches both, and does not reach the first one any more
    /// when this is called again.
    pub(super) fn part(&mut self, machines: &[MachineId]) {
        let (one, other) = match self.between.take() {
            Some([between, one]) => (one, between),
            None => {
                // The first part is often the greatest minority.
                let most = ((machines.len() - 1) / 2).max(1);
                let least = if self.rng.random() { most } else { 1 };
                let (one, rest) = machines.split_at(self.rng.random_range(least..=most));
                let between = self.rng.random_range(0..=rest.len().min(1));
                let (between, other) = rest.split_at(between);
                self.between = Some([between.to_vec(), one.to_vec()]);
                (one.to_vec(), other.to_vec())
            }
        };
        for (one, other) in one
            .iter()
            .flat_map(|one| other.iter().map(move |to| (one, to)))
        {
            self.cut_off(*one, *other);
        }
    }

    /// Delivers some of the answers. The others take longer.
    fn deliver_answers(&mut self) {
        for (from, to, answer) in std::mem::take(&mut self.answers) {
            if !self.is_calm && self.rng.random_ratio(1, 2) {
                self.answers.push((from, to, answer));
                continue;
            }
            let reaches = self.reaches(from.0, to.0);
            let node = self.nodes.get_mut(&to.0).unwrap();
            if node.boot == to.1 && node.acts() && reaches {
                node.leases.on_message(from, answer, self.now);
            }
        }
    }

    fn acting(&self) -> impl Iterator<Item = MachineId> + '_ {
        let acting = self.nodes.iter().filter(|(_, node)| node.acts());
        acting.map(|(machine, _)| *machine)
    }

    /// Has a machine find out that what it has granted to one that has left has ended. Returns whether there was one.
    pub(super) fn end_granted(&mut self) -> bool {
        let now = self.now;
        let ended = self.nodes.iter().find_map(|(me, node)| {
            let has_ended = |one: &Process| {
                let is_known = node.value.evicted.contains(one) || node.value.gone.contains(one);
                !is_known && !node.leases.may_hold((one.machine, one.boot), now)
            };
            let mut expiring = node.value.expiring().filter(|_| node.acts());
            Some((*me, expiring.find(has_ended)?))
        });
        if let Some((me, left)) = ended {
            self.act(me, |value, out| value.evicted(left, out));
        }
        ended.is_some()
    }

    /// Returns whether a majority of all that count lives, and a full copy of each region. Nothing proves the end of the others.
    pub(super) fn can_go_on(&self, newest: &Configuration) -> bool {
        let storing: Vec<Process> = newest.storing().collect();
        let lives = |one: &&Process| {
            self.nodes[&one.machine].end.is_none() && self.process(one.machine) == **one
        };
        let mut quorums = newest.quorums.iter().chain([&storing]);
        let mut regions = newest.regions.iter();
        let has_majority =
            |quorum: &Vec<Process>| 2 * quorum.iter().filter(lives).count() > quorum.len();
        quorums.all(has_majority)
            && regions.all(|region| {
                let full = region.replicas.iter().filter(|one| one.is_full());
                let mut full = full.map(|one| one.machine);
                full.any(|machine| self.lives(newest, machine))
            })
    }
}
