//! The membership of the cluster.
//!
//! The machines are at first those of the configuration file. When one is lost, the others go on without it if the cluster
//! [survives](Membership::survives) that; otherwise [`Membership::departed`] returns how the cluster stops.
//!
//! What the machines agree on is the [`configuration`], which records the replicas of each region. One machine, the
//! [`manager`], changes it. Its [`writer`] keeps it in the process, or in a [`store`] that decides between changes of several
//! processes, as [`files`] in a [`directory`]; its [`encoding`] is that of these files. Tools find and remove what an [`earlier`]
//! cluster left there. [`reconfiguration`] is the change to the next configuration when machines are lost.

pub mod configuration;
pub mod directory;
pub mod earlier;
pub mod encoding;
pub mod files;
pub mod manager;
pub mod reconfiguration;
pub mod store;
pub mod writer;

use configuration::Configuration;

use crate::fabric::Departure;
use crate::ids::MachineId;

/// Why the cluster stops when a machine departs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// The machine announced that it leaves: the cluster is being stopped.
    #[error("machine {0} left: the cluster is stopping")]
    Left(MachineId),
    /// The machine failed, or its connection ended without an announcement.
    #[error(
        "machine {0} is lost (it failed, was killed, or its connection broke): the cluster stops, \
         because there is no copy of the data in its memory, or none that can be used yet; start the cluster again, with durability.mode = \"memory\" after \
         `farm destroy`"
    )]
    Lost(MachineId),
    /// As [`Stop::Lost`], of a machine that stored nothing.
    #[error(
        "machine {0} is lost (it failed, was killed, or its connection broke): the cluster stops, \
         because objects that it had locked stay locked; start the cluster again, with durability.mode = \"memory\" after `farm destroy`"
    )]
    LostWithoutMemory(MachineId),
    /// The machine sent data that no correct machine sends.
    #[error("machine {machine} was cut off because {why}: the cluster stops")]
    Misbehaved {
        /// The machine.
        machine: MachineId,
        /// What the machine did.
        why: String,
    },
}

/// The machines of the cluster, as a worker sees them.
#[derive(Clone, Debug)]
pub struct Membership {
    /// Those that store regions: without them the cluster stops, unless it survives losses.
    storing: Vec<MachineId>,
    manager: MachineId,
    /// Number of the configuration.
    configuration: u64,
    survives: bool,
}

impl Membership {
    /// Creates the membership of a cluster in which the machines `storing` store regions. The first of them is the manager.
    ///
    /// # Panics
    /// If no machine stores regions.
    pub fn fixed(storing: impl IntoIterator<Item = MachineId>) -> Self {
        let storing: Vec<MachineId> = storing.into_iter().collect();
        let manager = storing.iter().min().copied();
        let manager = manager.expect("a cluster has a machine that stores regions");
        Self {
            storing,
            manager,
            configuration: 1,
            survives: false,
        }
    }

    /// Creates the membership of a configuration.
    pub fn of(configuration: &Configuration) -> Self {
        let mut membership = Self {
            storing: Vec::new(),
            manager: configuration.manager,
            configuration: 0,
            survives: false,
        };
        membership.apply(configuration);
        membership
    }

    /// Returns the number of the configuration.
    pub fn configuration(&self) -> u64 {
        self.configuration
    }

    /// Returns the machine that changes the configuration.
    pub fn manager(&self) -> MachineId {
        self.manager
    }

    /// Sets that the machines go on in another configuration when one of them is lost.
    #[must_use]
    pub fn that_survives(mut self) -> Self {
        self.survives = true;
        self
    }

    /// Returns whether the machines go on in another configuration when one of them is lost.
    pub fn survives(&self) -> bool {
        self.survives
    }

    /// Returns the machines that store regions, ascending.
    pub fn storing(&self) -> impl ExactSizeIterator<Item = MachineId> + '_ {
        self.storing.iter().copied()
    }

    /// Returns whether a machine stores regions.
    pub fn stores(&self, machine: MachineId) -> bool {
        self.storing.contains(&machine)
    }

    /// Changes to another configuration.
    pub(crate) fn apply(&mut self, configuration: &Configuration) {
        let storing = configuration.members.iter().filter(|member| member.stores);
        self.storing = storing.map(|member| member.machine).collect();
        self.manager = configuration.manager;
        self.configuration = configuration.version.id;
    }

    /// Handles the end of the connection to a machine. Returns the reason to stop, or `None` if the cluster continues: in the same
    /// configuration if the machine stored nothing and left in order, and in the next one if the cluster survives the loss of a machine.
    pub fn departed(&mut self, machine: MachineId, how: Departure) -> Option<Stop> {
        match (how, self.stores(machine)) {
            (Departure::Lost, _) if self.survives => None,
            (Departure::Left, false) => None,
            (Departure::Left, true) => Some(Stop::Left(machine)),
            (Departure::Lost, false) => Some(Stop::LostWithoutMemory(machine)),
            (Departure::Lost, true) => Some(Stop::Lost(machine)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_machine_stops_the_cluster_and_is_named() {
        let id = |n| MachineId::new(n).unwrap();
        let mut membership = Membership::fixed([id(1)]);
        assert_eq!(membership.departed(id(2), Departure::Left), None);
        let stop = membership.departed(id(2), Departure::Lost).unwrap();
        assert!(stop.to_string().contains("m2 is lost"), "{stop}");
        assert!(stop.to_string().contains("stay locked"), "{stop}");
        assert_eq!(
            membership.departed(id(1), Departure::Left),
            Some(Stop::Left(id(1)))
        );
    }
}
