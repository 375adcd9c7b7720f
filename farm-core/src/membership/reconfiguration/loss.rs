//! The configuration that follows the loss of machines.

use std::collections::BTreeSet;

use crate::ids::{MachineId, RegionId};
use crate::membership::configuration::{
    Configuration, Member, Process, RegionReplicas, Replica, ReplicaState,
};
use crate::mutants;

/// Regions that have lost all their full replicas, and the machines that had these.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.sentence())]
pub struct Halted {
    /// The regions, ascending. There is at least one.
    pub regions: Vec<(RegionId, Vec<MachineId>)>,
}

impl Halted {
    fn sentence(&self) -> String {
        let machines: BTreeSet<MachineId> = self
            .regions
            .iter()
            .flat_map(|one| one.1.iter().copied())
            .collect();
        let machines: Vec<String> = machines.iter().map(ToString::to_string).collect();
        let first = self.regions.first().map(|one| one.0.to_string());
        format!(
            "the last complete copies of {} region(s), for example {}, are on machines that are lost: {}; start all machines again, with \
             the memory of one of these for each region",
            self.regions.len(),
            first.unwrap_or_default(),
            machines.join(", ")
        )
    }
}

impl Configuration {
    /// Returns the configuration that follows this one when all processes have ended and the memory of some machines is gone: the others have
    /// copies of all regions, and go on without these.
    ///
    /// # Errors
    /// [`Halted`] if a region has no full replica on the others.
    pub fn without_memory_of(&self, gone: &BTreeSet<MachineId>) -> Result<Self, Halted> {
        let mut storing = self.members.iter().filter(|member| member.stores);
        let manager = storing.find(|member| !gone.contains(&member.machine));
        let manager = manager.map_or(self.manager, |member| member.machine);
        self.without(gone, manager, [])
    }

    /// Returns the configuration that follows this one without the processes of some machines, made by `manager`, which is one of the
    /// others. `expiring` are processes that have left before and may not be gone.
    ///
    /// # Errors
    /// [`Halted`] if a region would have no full replica.
    pub(super) fn without(
        &self,
        lost: &BTreeSet<MachineId>,
        manager: MachineId,
        expiring: impl IntoIterator<Item = Process>,
    ) -> Result<Self, Halted> {
        let mut next = self.next(true);
        next.manager = manager;
        let is_lost = |member: &Member| lost.contains(&member.machine);
        next.members
            .retain(|member| !member.stores || !is_lost(member));
        // Another process of the machine may join.
        let without_memory = next.members.iter_mut().filter(|member| is_lost(member));
        without_memory.for_each(|member| member.boot = 0);
        let left = self.running().map(Member::process);
        let left = left.filter(|process| lost.contains(&process.machine));
        let all: BTreeSet<Process> = expiring.into_iter().chain(left).collect();
        next.expiring = all.into_iter().collect();
        let mut halted = Vec::new();
        for region in &mut next.regions {
            let full = region.replicas.iter().filter(|one| one.is_full());
            let machines = full.map(|one| one.machine).collect();
            if !remove_replicas(region, lost, next.version.id) {
                halted.push((region.region, machines));
            }
        }
        match halted.is_empty() {
            true => Ok(next),
            false => Err(Halted { regions: halted }),
        }
    }
}

/// Removes the replicas of a region that are lost. If the primary is lost, the first full backup takes its place. Returns false if
/// there is no full replica.
fn remove_replicas(region: &mut RegionReplicas, lost: &BTreeSet<MachineId>, id: u64) -> bool {
    let before = region.primary();
    region.replicas.retain(|one| !lost.contains(&one.machine));
    let Some(first) = region.replicas.iter().position(Replica::is_full) else {
        return false;
    };
    if mutants::is_on("filling promoted") && first > 0 {
        region.replicas[0].state = ReplicaState::Full;
    } else {
        region.replicas[..=first].rotate_right(1);
    }
    if region.primary() != before {
        region.last_primary_change = id;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::configuration::testing::{configuration, machine, region_of};

    fn replica(id: u16, state: ReplicaState) -> Replica {
        Replica {
            machine: machine(id),
            since: 1,
            state,
        }
    }

    #[test]
    fn full_backups_become_primaries_and_filling_ones_never() {
        use ReplicaState::{Filling, Full};
        let mut before = configuration("test", &[1, 2, 3, 4, 5]);
        before.members[4].stores = false;
        let mut add = |number, replicas: &[(u16, ReplicaState)]| {
            let mut region = region_of(number);
            region.replicas = replicas.iter().map(|one| replica(one.0, one.1)).collect();
            before.regions.push(region);
        };
        add(1, &[(1, Full), (2, Filling), (3, Full)]);
        add(2, &[(2, Full), (1, Full)]);
        add(3, &[(4, Full)]);
        before.check().unwrap();
        let lost = BTreeSet::from([machine(1), machine(5)]);
        let left_before = Process {
            machine: machine(9),
            boot: 1,
        };
        let next = before.without(&lost, machine(3), [left_before]).unwrap();
        next.check().unwrap();
        assert_eq!((next.version.id, next.version.minor), (2, 0));
        assert_eq!((next.change, next.manager), (2, machine(3)));
        let [one, five] = [0, 4].map(|at: usize| before.members[at].process());
        assert_eq!(next.expiring, [one, five, left_before]);
        let region = |at: usize| {
            let region = &next.regions[at];
            let machines: Vec<u16> = region.machines().map(MachineId::get).collect();
            (machines, region.last_primary_change)
        };
        assert_eq!(region(0), (vec![3, 2], 2));
        assert_eq!(region(1), (vec![2], 1));
        assert_eq!(region(2), (vec![4], 1));
        assert!(next.member(machine(1)).is_none());
        let five = next.member(machine(5)).unwrap();
        assert!(!five.runs(), "another process of it may join");

        let lost = BTreeSet::from([machine(1), machine(3), machine(4)]);
        let halted = before.without(&lost, machine(2), []).unwrap_err();
        let regions: Vec<_> = halted.regions.iter().map(|one| one.1.len()).collect();
        assert_eq!(regions, [2, 1]);
        let sentence = halted.to_string();
        assert!(sentence.contains("2 region(s)"), "{sentence}");
        assert!(
            sentence.contains("are lost: m1, m3, m4; start all"),
            "{sentence}"
        );
    }
}
