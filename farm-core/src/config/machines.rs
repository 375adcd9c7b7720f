//! What a configuration says of machines: their number, their memory, where they stand, and what survives the loss of one.

use std::time::Duration;

use super::{Config, Durability, Fabric, MachineConfig, keys, origin};
use crate::ids::MachineId;
use crate::membership::configuration::Domain;

/// Number of copies of a region where the configuration names none.
const USUAL_REPLICAS: usize = 3;

impl Config {
    /// Sets the number of machines: removes the last ones, or adds machines with the ids after the
    /// greatest id (then the lowest free ids) and with the last machine's number of workers.
    ///
    /// # Panics
    ///
    /// If `machines` exceeds [`MAX_MACHINES`](crate::limits::MAX_MACHINES).
    pub fn resize_machines(&mut self, machines: u16) {
        let workers = self.machines.last().map_or(1, |machine| machine.workers);
        for gone in self
            .machines
            .drain(usize::from(machines).min(self.machines.len())..)
        {
            for key in keys::MACHINE_KEYS {
                self.origins.remove(&origin::origin_of(gone.id, key.name()));
            }
        }
        while self.machines.len() < usize::from(machines) {
            let taken = |id: &MachineId| self.machines.iter().any(|machine| machine.id == *id);
            let greatest = self
                .machines
                .iter()
                .map(|machine| machine.id.get())
                .max()
                .unwrap_or(0);
            let id = MachineId::new(greatest + 1)
                .or_else(|| {
                    (1..greatest)
                        .filter_map(MachineId::new)
                        .find(|id| !taken(id))
                })
                .expect("a configuration has at most MAX_MACHINES machines");
            self.machines.push(MachineConfig::new(id, workers));
        }
        self.machines.sort_by_key(|machine| machine.id);
    }

    /// Sets the number of workers of every machine.
    pub fn set_workers(&mut self, workers: u16) {
        for machine in &mut self.machines {
            machine.workers = workers;
        }
    }

    /// Returns the machine with this id.
    pub fn machine(&self, id: MachineId) -> Option<&MachineConfig> {
        self.machines.iter().find(|machine| machine.id == id)
    }

    /// Returns the maximum number of bytes of regions on machine `id`; 0 for a machine that stores nothing, or that is not in
    /// the configuration.
    pub fn memory_of(&self, id: MachineId) -> u64 {
        let default = self.memory.per_machine_bytes;
        let own = self.machine(id);
        own.map_or(0, |own| own.memory_bytes.unwrap_or(default))
    }

    /// Returns the machines that store regions: all except those with 0 bytes of memory.
    pub fn storing_machines(&self) -> impl Iterator<Item = &MachineConfig> {
        let machines = self.machines.iter();
        machines.filter(|machine| self.memory_of(machine.id) > 0)
    }

    /// Returns where copies of data are: `durability.mode`. By default they are in memory, unless nothing would survive by them, as on RDMA
    /// devices.
    pub fn durability(&self) -> Durability {
        self.durability.mode.unwrap_or(match self.cluster.fabric {
            Fabric::Shm => Durability::Memory,
            Fabric::Verbs => Durability::None,
        })
    }

    /// Returns the number of copies of every region, its primary included: `durability.replicas`. By default it is 3, or the
    /// number of machines that store regions if that is less, and 1 without durability.
    pub fn replicas(&self) -> usize {
        match (self.durability(), self.durability.replicas) {
            (_, Some(replicas)) => replicas.into(),
            (Durability::None, None) => 1,
            (Durability::Memory, None) => self.storing_machines().count().min(USUAL_REPLICAS),
        }
    }

    /// Returns whether commits write records of all that they change, from which it can be recovered.
    pub fn is_logged(&self) -> bool {
        self.durability() != Durability::None
    }

    /// Returns whether the machines go on in another configuration when one of them is lost, if other machines have copies of what it
    /// stores, and otherwise when all have started again, if they [keep their memory](Config::keeps_memory): if commits are logged.
    pub fn survives_losses(&self) -> bool {
        self.is_logged()
    }

    /// Returns whether the memory of machines outlives their processes: if commits are logged, on shared memory.
    pub fn keeps_memory(&self) -> bool {
        self.is_logged() && self.cluster.fabric == Fabric::Shm
    }

    /// Returns the time of a lease: `durability.lease_ms`.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.durability.lease_ms.into())
    }

    /// Returns the number of workers of the machines that store regions.
    pub fn storing_workers(&self) -> u64 {
        let machines = self.storing_machines();
        machines.map(|machine| u64::from(machine.workers)).sum()
    }

    /// Returns the maximum number of bytes of regions on all machines together.
    pub fn total_memory(&self) -> u64 {
        let machines = self.machines.iter();
        let memory = machines.map(|machine| self.memory_of(machine.id));
        memory.fold(0, u64::saturating_add)
    }

    /// Returns the number of workers of all machines.
    pub fn total_workers(&self) -> usize {
        self.machines
            .iter()
            .map(|machine| usize::from(machine.workers))
            .sum()
    }

    /// Returns the machines on the host of machine `id`, including itself. Over shared memory these
    /// are all machines; over RDMA devices, the machines whose addresses have the same host.
    pub fn machines_beside(&self, id: MachineId) -> impl Iterator<Item = &MachineConfig> {
        let own = self.machine(id).map(|own| self.host_of(own));
        let machines = self.machines.iter();
        machines.filter(move |machine| Some(self.host_of(machine)) == own)
    }

    /// Returns the host of a machine: the host of its address; over shared memory, one name for all machines.
    fn host_of(&self, machine: &MachineConfig) -> String {
        match self.cluster.fabric {
            Fabric::Shm => "localhost".to_owned(),
            Fabric::Verbs => {
                let address = machine.rdma.address_of(machine.id);
                let host = address.rsplit_once(':').map(|(host, _)| host.to_owned());
                host.unwrap_or(address)
            }
        }
    }

    /// Returns where a machine stands.
    pub fn domain_of(&self, machine: &MachineConfig) -> Domain {
        Domain {
            host: self.host_of(machine),
            rack: machine.rack.clone().unwrap_or_default(),
        }
    }
}
