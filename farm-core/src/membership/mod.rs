//! The membership of the cluster.
//!
//! For now the membership is the configuration file's list, fixed for the life of the cluster, and the loss of a
//! machine stops the cluster. When leases and a coordination service determine the membership, callers will use the
//! same interface: [`Membership::configuration`], and [`Membership::departed`], which returns how the cluster stops
//! when a connection ends.

use crate::fabric::Departure;
use crate::ids::MachineId;

/// A configuration of the cluster (`FaRM'15 §5`): every machine acts under one configuration, and all machines agree on
/// its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Number of the configuration; grows with every change.
    pub id: u64,
    /// The machines, ascending.
    pub machines: Vec<MachineId>,
    /// The machine that manages changes.
    pub manager: MachineId,
}

/// Why the cluster stops when a machine departs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// The machine announced that it leaves: the cluster is being stopped.
    #[error("machine {0} left: the cluster is stopping")]
    Left(MachineId),
    /// The machine failed, or its connection ended without an announcement.
    #[error(
        "machine {0} is lost (it failed, was killed, or its connection broke): the cluster stops, \
         because its memory is not replicated; start the cluster again"
    )]
    Lost(MachineId),
    /// As [`Stop::Lost`], of a machine that stored nothing.
    #[error(
        "machine {0} is lost (it failed, was killed, or its connection broke): the cluster stops, \
         because objects that it had locked stay locked; start the cluster again"
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

/// Membership fixed by the configuration file.
#[derive(Clone, Debug)]
pub struct Membership {
    configuration: Configuration,
    /// The machines without which the cluster stops: those that store regions.
    storing: Vec<MachineId>,
}

impl Membership {
    /// Creates the membership with one configuration of these machines, of which `storing` store regions.
    ///
    /// # Panics
    /// If `machines` is empty.
    pub fn fixed(machines: &[MachineId], storing: impl IntoIterator<Item = MachineId>) -> Self {
        let mut machines = machines.to_vec();
        machines.sort_unstable();
        machines.dedup();
        let manager = *machines
            .first()
            .expect("a cluster has at least one machine");
        Self {
            configuration: Configuration {
                id: 1,
                machines,
                manager,
            },
            storing: storing.into_iter().collect(),
        }
    }

    /// Returns the current configuration.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Handles the end of the connection to a machine, and returns the reason to stop. If the machine stored nothing and left
    /// in order, there is none: the cluster continues without it, in the same configuration.
    pub fn departed(&mut self, machine: MachineId, how: Departure) -> Option<Stop> {
        match (how, self.storing.contains(&machine)) {
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
        let mut membership = Membership::fixed(&[id(2), id(1), id(2)], [id(1)]);
        assert_eq!(membership.configuration().machines, [id(1), id(2)]);
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
