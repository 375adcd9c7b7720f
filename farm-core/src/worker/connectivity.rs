//! Whether a process that joins is connected to all others.
//!
//! Members send each other messages of recovery, and wait for them. A process that joins connects to all others that it finds, but does not
//! wait for one that joins at the same time and does not answer. So it sends the manager a list of its connections. The manager lets it join
//! only if the list has all members, and all processes that are being added. Otherwise it begins again, and finds the others running.

use std::collections::{BTreeMap, BTreeSet};

use super::Worker;
use crate::ids::{MachineId, WorkerRef};
use crate::membership::configuration::Process;

/// To the manager, before JOIN: the number of the list, and the processes to which the sender is connected.
const LINKS: u16 = 11;

/// Which processes are connected to which.
#[derive(Default)]
pub(super) struct Connectivity {
    /// The last list of this machine's connections, and the manager to which it was sent.
    told: Option<(MachineId, BTreeSet<Process>)>,
    /// Its number.
    number: u64,
    /// The last lists of other machines, with their numbers.
    of: BTreeMap<MachineId, (u64, BTreeSet<Process>)>,
}

impl Connectivity {
    /// Handles that the connection to a machine has ended.
    pub(super) fn forget(&mut self, machine: MachineId) {
        self.of.remove(&machine);
    }
}

/// Whether a process is connected to all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connected {
    ToAll,
    /// Its list has not arrived.
    NotKnown,
    /// It is not connected to this one.
    NotTo(Process),
}

fn encode(number: u64, processes: &BTreeSet<Process>) -> Vec<u8> {
    let mut body = number.to_le_bytes().to_vec();
    for one in processes {
        body.extend_from_slice(&one.machine.get().to_le_bytes());
        body.extend_from_slice(&one.boot.to_le_bytes());
    }
    body
}

fn decode(body: &[u8]) -> Option<(u64, BTreeSet<Process>)> {
    let (number, rest) = body.split_first_chunk()?;
    let (entries, rest) = rest.as_chunks::<10>();
    let processes = entries.iter().map(|entry| {
        let (machine, boot) = entry.split_first_chunk()?;
        Some(Process {
            machine: MachineId::new(u16::from_le_bytes(*machine))?,
            boot: u64::from_le_bytes(boot.try_into().ok()?),
        })
    });
    let processes: Option<BTreeSet<Process>> = processes.collect();
    let processes = processes.filter(|_| rest.is_empty())?;
    Some((u64::from_le_bytes(*number), processes))
}

impl Worker {
    pub(super) fn register_connectivity_handlers(&mut self) {
        self.register_long(LINKS, Self::handle_links);
    }

    /// Sends the manager the list of this machine's connections, unless it has the newest one. Returns the number of the list.
    pub(super) fn tell_links(&mut self) -> u64 {
        let manager = self.membership.manager();
        let others = self.machines().iter().map(|machine| machine.0);
        let others = others.filter(|one| *one != self.me.machine && self.is_linked_to(*one));
        let linked = others.map(|one| self.connected_process(one)).collect();
        let told = Some((manager, linked));
        if self.connectivity.told != told
            && let Some((_, linked)) = &told
        {
            self.connectivity.number += 1;
            let body = encode(self.connectivity.number, linked);
            self.send_long(WorkerRef::first_of(manager), LINKS, body);
            self.connectivity.told = told;
        }
        self.connectivity.number
    }

    fn handle_links(&mut self, from: WorkerRef, body: &[u8]) {
        match decode(body) {
            Some(list) => _ = self.connectivity.of.insert(from.machine, list),
            None => {
                let why = format!("{from} sent a list of connections that is malformed");
                self.distrust(from.machine, why);
            }
        }
    }

    /// Returns whether a process, whose last list has this number, is connected to all that are members, or are being added.
    pub(super) fn connected(&self, joining: Process, number: u64) -> Connected {
        let list = self.connectivity.of.get(&joining.machine);
        if list.is_none_or(|list| list.0 != number) {
            return Connected::NotKnown;
        }
        match self.not_linked(joining, self.extending.processes()) {
            Some(other) => Connected::NotTo(other),
            None => Connected::ToAll,
        }
    }

    /// Returns one of the members and `further` processes to which a process that joins is not connected. Only those count to which the
    /// manager, on this worker, is connected: others are about to be lost.
    pub(super) fn not_linked(
        &self,
        joining: Process,
        further: impl Iterator<Item = Process>,
    ) -> Option<Process> {
        let list = self.connectivity.of.get(&joining.machine);
        let is_listed = |one: &Process| list.is_some_and(|list| list.1.contains(one));
        let manager = self.recorder.manager.as_ref();
        let members = manager.into_iter().flat_map(|manager| manager.starts());
        let mut others = members.chain(further).filter(|one| {
            let is_another = ![joining.machine, self.me.machine].contains(&one.machine);
            is_another && self.is_connected_to(*one)
        });
        others.find(|one| !is_listed(one))
    }

    /// Returns whether this machine is connected to this process.
    pub(super) fn is_connected_to(&self, process: Process) -> bool {
        self.is_linked_to(process.machine) && self.connected_process(process.machine) == process
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_decoded_as_encoded_and_others_are_rejected() {
        let process = |machine| Process {
            machine: MachineId::new(machine).unwrap(),
            boot: u64::from(machine) << 40,
        };
        for processes in [vec![], vec![process(3)], vec![process(1), process(1023)]] {
            let processes: BTreeSet<Process> = processes.into_iter().collect();
            let body = encode(7, &processes);
            assert_eq!(decode(&body), Some((7, processes)));
            assert_eq!(decode(&body[..body.len() - 1]), None);
            assert_eq!(decode(&[&body[..], &[0; 10]].concat()), None, "machine 0");
        }
    }
}
