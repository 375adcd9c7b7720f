//! Who is in the cluster.
//!
//! For now membership is the configuration file's list, fixed for the life of the cluster, and the
//! loss of a machine ends it. What asks stays the same when leases and a coordination service
//! decide: [`Membership::configuration`], and [`Membership::departed`], which says what becomes of
//! the cluster when a connection ends.

use crate::fabric::Departure;
use crate::ids::MachineId;

/// A configuration of the cluster (`FaRM'15 §5`): every machine acts under one, and all of them
/// agree on its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Its number; grows with every change.
    pub id: u64,
    /// The machines, ascending.
    pub machines: Vec<MachineId>,
    /// The machine that manages changes.
    pub manager: MachineId,
}

/// What becomes of the cluster when a machine departs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// A machine said that it is leaving: the cluster is being stopped.
    #[error("machine {0} left: the cluster is stopping")]
    Left(MachineId),
    /// A machine failed, or is gone without a word.
    #[error(
        "machine {0} is lost (it failed, was killed, or its connection broke): the cluster stops, \
         because its memory is not replicated; start the cluster again"
    )]
    Lost(MachineId),
    /// A machine sent what no correct machine sends.
    #[error("machine {machine} was cut off, because {why}: the cluster stops")]
    Misbehaved {
        /// The machine.
        machine: MachineId,
        /// What it did.
        why: String,
    },
}

/// Membership fixed by the configuration file.
#[derive(Clone, Debug)]
pub struct Membership {
    configuration: Configuration,
}

impl Membership {
    /// The one configuration of these machines.
    ///
    /// # Panics
    /// If there are none.
    pub fn fixed(machines: &[MachineId]) -> Self {
        let mut machines = machines.to_vec();
        machines.sort_unstable();
        machines.dedup();
        let manager = *machines.first().expect("a cluster has a machine");
        Self {
            configuration: Configuration {
                id: 1,
                machines,
                manager,
            },
        }
    }

    /// The configuration in force.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// A machine's connection ended.
    pub fn departed(&mut self, machine: MachineId, how: Departure) -> Stop {
        match how {
            Departure::Left => Stop::Left(machine),
            Departure::Lost => Stop::Lost(machine),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_machine_stops_the_cluster_and_is_named() {
        let id = |n| MachineId::new(n).unwrap();
        let mut membership = Membership::fixed(&[id(2), id(1), id(2)]);
        assert_eq!(membership.configuration().machines, [id(1), id(2)]);
        let stop = membership.departed(id(2), Departure::Lost);
        assert!(stop.to_string().contains("m2 is lost"), "{stop}");
        assert_eq!(
            membership.departed(id(1), Departure::Left),
            Stop::Left(id(1))
        );
    }
}
