//! What a machine reports about the configuration of its cluster.

use std::sync::Arc;

use super::super::Worker;
use crate::ids::MachineId;
use crate::membership::configuration::{Configuration, Version};

/// What the first worker of a machine knows of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembersStatus {
    /// The newest configuration that is in effect.
    pub configuration: Version,
    /// The machine that manages it.
    pub manager: MachineId,
    /// Whether another configuration is made or applied.
    pub is_changing: bool,
    /// Why that waits.
    pub waits: Option<String>,
    /// Members whose leases have expired, as this machine finds.
    pub expired: Vec<MachineId>,
    /// On the manager, the machines that have not recovered transactions of earlier configurations.
    pub recovering: Vec<MachineId>,
}

impl Worker {
    /// Returns what this machine knows of the configuration; `None` on another worker than the first, and if the loss of a machine is not
    /// survived.
    pub fn members_status(&self) -> Option<MembersStatus> {
        let driver = self.members.driver.as_ref()?;
        let current = driver.value.current();
        let is_changing = driver.value.is_changing();
        let waits = Some(&driver.said).filter(|said| is_changing && !said.is_empty());
        Some(MembersStatus {
            configuration: current.version,
            manager: current.manager,
            is_changing,
            waits: waits.cloned(),
            expired: driver.value.expired().collect(),
            recovering: self.recovering(current),
        })
    }

    /// Returns the configuration that is in effect, as far as this machine knows, if its process is a member; `None` on another worker than the
    /// first, and if the loss of a machine is not survived.
    pub fn in_effect(&self) -> Option<Arc<Configuration>> {
        let value = &self.members.driver.as_ref()?.value;
        let current = value.current();
        current.has(value.me()).then(|| Arc::clone(current))
    }

    fn recovering(&self, current: &Configuration) -> Vec<MachineId> {
        let (id, driver) = (current.version.id, self.members.driver.as_ref());
        let Some(driver) = driver.filter(|_| current.manager == self.me.machine) else {
            return Vec::new();
        };
        if driver.all_recovered.max(current.recovered) >= id {
            return Vec::new();
        }
        let (of, recovered) = &driver.recovered;
        let has_not = |machine: &MachineId| *of != id || !recovered.contains(machine);
        let members = current.running().map(|member| member.machine);
        members.filter(has_not).collect()
    }
}
