//! Processes that start while the others run: those without memory, and those of machines whose earlier process was lost.

use rand::Rng;
use rand::seq::IteratorRandom;

use super::super::super::{Extension, Reconfiguration};
use super::{Begun, Cluster, End, Node};
use crate::ids::MachineId;
use crate::membership::configuration::{Process, ReplicaState};

/// The greatest number of replicas that regions get.
const REPLICAS: usize = 3;

impl Cluster {
    /// Returns whether a machine has memory.
    fn stores(&self, machine: MachineId) -> bool {
        self.store[0].stores(machine)
    }

    /// Starts another process of a machine with memory that has ended, has one added to the configuration, or ends a filling.
    pub(super) fn rejoin(&mut self) {
        match self.rng.random_range(0..3) {
            0 => self.add(),
            1 => self.end_filling(),
            _ => {
                let ended = |end| matches!(end, Some(End::Killed | End::Evicted | End::Absent));
                let nodes = self.nodes.iter().filter(|(_, node)| ended(node.end));
                let machines = nodes.map(|(machine, _)| *machine);
                let storing = machines.filter(|machine| self.stores(*machine));
                let storing: Vec<MachineId> = storing.collect();
                if let Some(machine) = storing.into_iter().choose(&mut self.rng) {
                    self.start(machine);
                }
            }
        }
    }

    /// Has the manager add a process with memory, if one joins, and replicas where they are missing.
    pub(super) fn add(&mut self) {
        let newest = self.newest().clone();
        let mut extension = Extension::default();
        let joining: Vec<MachineId> = self
            .nodes
            .iter()
            .filter(|(machine, node)| node.joins && self.stores(**machine))
            .map(|(machine, _)| *machine)
            .collect();
        for machine in joining {
            let process = self.process(machine);
            let node = self.nodes.get_mut(&machine).unwrap();
            if newest.has(process) {
                node.joins = false;
            } else if node.value.current().version.id != newest.version.id {
                // It starts again.
                self.end(machine, End::Absent);
            } else if newest.member(machine).is_none() {
                let mut member = self.store[0].member(machine).unwrap().clone();
                member.boot = process.boot;
                extension.members.push(member);
            }
        }
        let node = &self.nodes[&newest.manager];
        let is_in_effect = node.value.current().version.id == newest.version.id;
        if !node.acts() || !is_in_effect || node.value.is_changing() {
            return;
        }
        let members = newest.members.iter().chain(&extension.members);
        let storing = members.filter(|member| member.stores);
        let storing: Vec<MachineId> = storing.map(|member| member.machine).collect();
        for region in &newest.regions {
            let has_one = |machine: &&MachineId| region.machines().any(|one| one == **machine);
            let without = storing.iter().filter(|machine| !has_one(machine));
            let missing = REPLICAS.saturating_sub(region.replicas.len());
            let chosen = without.take(missing).map(|one| (region.region, *one));
            extension.replicas.extend(chosen);
        }
        if !extension.is_empty() {
            self.act(newest.manager, |value, out| {
                value.extend(extension, out);
            });
        }
    }

    /// Ends the filling of the replicas of one machine, as a change of the same configuration.
    pub(super) fn end_filling(&mut self) {
        let newest = self.newest().clone();
        let manager = newest.manager;
        let node = &self.nodes[&manager];
        let is_in_effect = |value: &Reconfiguration| {
            value.current().version.id == newest.version.id && !value.is_changing()
        };
        if !node.acts() || !is_in_effect(&node.value) {
            return;
        }
        let storing = newest.members.iter().filter(|member| member.stores);
        let live = storing.map(|member| member.machine);
        let live: Vec<MachineId> = live
            .filter(|machine| self.lives(&newest, *machine))
            .collect();
        let Some(machine) = live.into_iter().choose(&mut self.rng) else {
            return;
        };
        let mut next = newest.next(false);
        let mut changed = false;
        for region in &mut next.regions {
            for replica in &mut region.replicas {
                if replica.machine == machine && !replica.is_full() {
                    replica.state = ReplicaState::Full;
                    self.full.entry(region.region).or_default().insert(machine);
                    changed = true;
                }
            }
        }
        if changed {
            next.check().unwrap();
            self.store.push(next.clone());
            self.act(manager, |value, out| {
                value.on_minor_change(&next.into(), out)
            });
        }
    }

    /// Starts the program of a machine without memory, lets it join or leave.
    pub(super) fn program(&mut self) {
        let program = self.store[0].members.iter().find(|member| !member.stores);
        let Some(machine) = program.map(|member| member.machine) else {
            return;
        };
        match self.nodes[&machine].end {
            None if self.nodes[&machine].joins => self.record_start(),
            None => {
                if self.nodes[&machine].acts() && self.rng.random_ratio(1, 4) {
                    self.end(machine, End::Left);
                }
            }
            Some(End::Halted) => {}
            Some(_) if self.rng.random_ratio(1, 2) => self.start(machine),
            Some(_) => {}
        }
    }

    /// Starts another process of a machine, if it can connect to all machines that store regions.
    fn start(&mut self, machine: MachineId) {
        let newest = self.newest().clone();
        let storing = newest.members.iter().filter(|member| member.stores);
        let mut storing = storing.map(|member| member.machine);
        let reached =
            |one: &MachineId| self.nodes[one].end.is_none() && self.reaches(machine, *one);
        if !storing.all(|one| reached(&one)) {
            return;
        }
        let boot = (u64::from(machine.get()) << 40).max(self.nodes[&machine].boot) + 1;
        let mut node = Node::new(Process { machine, boot }, newest);
        node.value = node.value.with_leases_by_time(self.by_time);
        node.leases.set_terms(node.value.lease_terms());
        node.joins = true;
        self.nodes.insert(machine, node);
        // Its memory is that of the process before no more.
        let of_regions = self.full.values_mut();
        of_regions.for_each(|machines| _ = machines.remove(&machine));
        self.flying
            .retain(|(from, to), _| *from != machine && *to != machine);
    }

    /// Records the start of a process that joins, if the manager can.
    pub(super) fn record_start(&mut self) {
        let mut joining = self.nodes.iter().filter(|(_, node)| node.joins);
        let joining = joining.find(|(machine, _)| !self.stores(**machine));
        let Some((machine, boot, knows)) =
            joining.map(|one| (*one.0, one.1.boot, one.1.value.current().version.id))
        else {
            return;
        };
        let newest = self.newest();
        let manager = newest.manager;
        let node = &self.nodes[&manager];
        let member = newest.member(machine).unwrap();
        let has_left = node.value.gone.contains(&member.process());
        if knows != newest.version.id {
            // It starts again.
            return self.end(machine, End::Absent);
        }
        let is_in_effect = node.value.current().version.id == newest.version.id;
        if !node.acts() || !is_in_effect || node.value.is_changing() || member.runs() && !has_left {
            return;
        }
        let mut next = newest.next(false);
        let member = next.members.iter_mut().find(|one| one.machine == machine);
        member.unwrap().boot = boot;
        next.check().unwrap();
        self.store.push(next.clone());
        let node = self.nodes.get_mut(&machine).unwrap();
        node.joins = false;
        if node.end.is_none() {
            // It looks at what it has become.
            node.begun.push(Begun::Read);
        }
        if self.rng.random_ratio(1, 10) {
            return self.end(manager, End::Killed);
        }
        self.act(manager, |value, out| {
            value.on_minor_change(&next.into(), out)
        });
    }
}
