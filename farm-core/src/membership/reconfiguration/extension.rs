//! The configuration that follows when machines or replicas are added.

use crate::ids::{MachineId, RegionId};
use crate::limits::MAX_REPLICAS;
use crate::membership::configuration::{Configuration, Member, Replica, ReplicaState};

/// What is added to a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extension {
    /// Processes of machines that store regions. They are connected to all members that run.
    pub members: Vec<Member>,
    /// New replicas of regions, and their machines, which have memory for them. They are filled when the configuration is in effect.
    pub replicas: Vec<(RegionId, MachineId)>,
}

impl Extension {
    /// Returns whether nothing is added.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.replicas.is_empty()
    }
}

impl Configuration {
    /// Adds members and replicas, except those that do not fit: a machine that is a member already, and a replica of a region that does
    /// not exist, on a machine that has one or is no member.
    pub(super) fn extend(&mut self, extension: &Extension) {
        for member in &extension.members {
            if self.member(member.machine).is_none() {
                self.members.push(member.clone());
            }
        }
        self.members.sort_by_key(|one| one.machine);
        let since = self.version.id;
        for (region, machine) in &extension.replicas {
            let is_member = self.stores(*machine);
            let found = self
                .regions
                .binary_search_by_key(region, |one| one.region)
                .ok();
            let Some(region) = found.map(|at| &mut self.regions[at]) else {
                continue;
            };
            let has_one = region.machines().any(|one| one == *machine);
            if is_member && !has_one && region.replicas.len() < MAX_REPLICAS {
                region.replicas.push(Replica {
                    machine: *machine,
                    since,
                    state: ReplicaState::Filling,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::configuration::testing::{configuration, machine, region_of};

    #[test]
    fn members_and_replicas_are_added_where_they_fit() {
        let mut before = configuration("test", &[1, 3, 4]);
        before.members[2].stores = false;
        before.regions = vec![region_of(5), region_of(7)];
        let mut next = before.next(true);
        let new = |id: u16| Member {
            machine: machine(id),
            ..before.members[0].clone()
        };
        let [five, seven] = [5, 7].map(|number| region_of(number).region);
        next.extend(&Extension {
            members: vec![new(2), new(3)],
            replicas: vec![
                (five, machine(2)),
                (five, machine(3)),
                (five, machine(1)),
                (five, machine(2)),
                (seven, machine(4)),
                (seven, machine(9)),
                (region_of(6).region, machine(2)),
            ],
        });
        next.check().unwrap();
        let members: Vec<u16> = next.members.iter().map(|one| one.machine.get()).collect();
        assert_eq!(members, [1, 2, 3, 4]);
        assert_eq!(next.members[2], before.members[1], "it was one before");
        let [five, seven] = [0, 1].map(|at: usize| &next.regions[at].replicas);
        let added = five[1..]
            .iter()
            .map(|one| (one.machine.get(), one.state, one.since));
        let filling = ReplicaState::Filling;
        assert!(added.eq([(2, filling, 2), (3, filling, 2)]));
        assert_eq!(*seven, before.regions[1].replicas);
    }
}
