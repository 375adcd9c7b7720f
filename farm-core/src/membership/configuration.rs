//! The configuration of the cluster as a record: what every machine must agree on (`FaRM'15 §3`). It names the members and
//! the replicas of each region. Consistent hashing only *proposes* the replicas of a new region; this record says where they
//! are.
//!
//! | part | why it is here |
//! |---|---|
//! | members, with their boots | only the processes that are named take part |
//! | manager | it makes the next configuration |
//! | regions with replicas | the one way to find the machines of a region |
//! | catalog | the object from which tables and graphs are found |
//! | `recovered` | all transactions of configurations below it are decided and applied on all replicas |
//! | `expiring` | processes that have left and may still serve |
//! | `quorums` | a process serves while a majority of each grants it a lease by time |
//!
//! A [`ConfigStore`](super::store::ConfigStore) holds the newest configuration. A change replaces it as a whole.

use std::collections::BTreeSet;

use crate::ids::{Address, MachineId, RegionId};

/// The identity of a configuration. Ordered: every change makes a greater one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Number of the configuration. It grows when machines or replicas leave or are added, or primaries change: machines must then stop
    /// what they began under the one before.
    pub id: u64,
    /// Number of the change within the configuration, for changes that concern no operation that has begun, such as new
    /// regions.
    pub minor: u64,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.id, self.minor)
    }
}

/// Where a machine stands. Replicas of a region are placed in different domains where there are enough.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Domain {
    /// The computer on which the process runs. At most 255 bytes.
    pub host: String,
    /// The rack of that computer. At most 255 bytes.
    pub rack: String,
}

/// A process of a machine: one start of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process {
    /// The machine.
    pub machine: MachineId,
    /// The number that the process chose when it started.
    pub boot: u64,
}

/// A machine of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The machine.
    pub machine: MachineId,
    /// The number that its process chose when it started. Another process of the machine is not this member. 0 if none runs, which
    /// is possible if it stores nothing.
    pub boot: u64,
    /// Number of its workers.
    pub workers: u16,
    /// Whether it stores regions. One that does not has no vote, and is never the manager.
    pub stores: bool,
    /// Where it stands.
    pub domain: Domain,
}

impl Member {
    /// Returns the process.
    pub fn process(&self) -> Process {
        Process {
            machine: self.machine,
            boot: self.boot,
        }
    }

    /// Returns whether a process of the machine takes part.
    pub fn runs(&self) -> bool {
        self.boot != 0
    }
}

/// Whether a replica has the whole region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaState {
    /// It has all that was committed, and can become the primary.
    Full,
    /// It receives changes, and copies the rest.
    Filling,
}

/// A copy of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// The machine that stores it.
    pub machine: MachineId,
    /// The configuration in which it was created, which distinguishes it from an earlier copy of the region on the same machine.
    pub since: u64,
    /// Whether it has the whole region.
    pub state: ReplicaState,
}

impl Replica {
    /// Returns whether it has the whole region.
    pub fn is_full(&self) -> bool {
        self.state == ReplicaState::Full
    }
}

/// The replicas of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionReplicas {
    /// The region.
    pub region: RegionId,
    /// The replicas, the primary first.
    pub replicas: Vec<Replica>,
    /// The configuration in which the primary changed last: reservations of room from before it are void.
    pub last_primary_change: u64,
}

impl RegionReplicas {
    /// Returns whether a machine has the whole region.
    pub fn is_full_on(&self, machine: MachineId) -> bool {
        let mut replicas = self.replicas.iter();
        replicas.any(|one| one.machine == machine && one.is_full())
    }

    /// Returns whether a machine has a replica that is not full.
    pub fn is_filled_by(&self, machine: MachineId) -> bool {
        let mut replicas = self.replicas.iter();
        replicas.any(|one| one.machine == machine && !one.is_full())
    }

    /// Returns the machine of the primary.
    pub fn primary(&self) -> MachineId {
        self.replicas[0].machine
    }

    /// Returns the machines of all replicas, the primary first.
    pub fn machines(&self) -> impl ExactSizeIterator<Item = MachineId> + '_ {
        self.replicas.iter().map(|replica| replica.machine)
    }

    /// Returns the machines of the backups.
    pub fn backups(&self) -> impl ExactSizeIterator<Item = MachineId> + '_ {
        self.replicas[1..].iter().map(|replica| replica.machine)
    }
}

/// A configuration of the cluster: see the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Name of the cluster. At most 255 bytes.
    pub cluster: String,
    /// Number of changes since the cluster was created, of both kinds. It names the place of this configuration in the
    /// store: two changes of one configuration have the same number, so that one of them fails.
    pub change: u64,
    /// Which configuration this is.
    pub version: Version,
    /// The bases of the blocks of every region are drawn from this number and the region's id, so that all of its replicas begin with
    /// the same, whenever they are made.
    pub seed: u64,
    /// The machines, ascending.
    pub members: Vec<Member>,
    /// The machine that manages changes: a member that stores regions.
    pub manager: MachineId,
    /// The object from which tables and graphs are found, if it was created.
    pub catalog: Option<Address>,
    /// All transactions of configurations below this number are decided and applied on all replicas.
    pub recovered: u64,
    /// Members that have left since the last configuration that is known to be in effect: they may still serve what they had,
    /// until they have ended or are [evicted](crate::fabric::Eviction).
    pub expiring: Vec<Process>,
    /// If leases end by time: the members that store regions, of the last configuration that was known to be in effect, and of each that
    /// followed, up to the one before this. A majority of each of them has made this configuration. Otherwise empty.
    pub quorums: Vec<Vec<Process>>,
    /// The regions, ascending.
    pub regions: Vec<RegionReplicas>,
}

/// What is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// There is no member that stores regions.
    #[error("no member stores regions")]
    NobodyStores,
    /// The members are not ascending, or one is there twice.
    #[error("machine {0} is listed twice, or out of order")]
    Members(MachineId),
    /// The manager is not a member, or stores nothing.
    #[error("the manager {0} is not a member that stores regions")]
    Manager(MachineId),
    /// A machine that has left is a member.
    #[error("machine {0} is a member, and is listed among those that have left")]
    Expiring(MachineId),
    /// The regions are not ascending, or one is there twice.
    #[error("region {0} is listed twice, or out of order")]
    Regions(RegionId),
    /// A region has no replica, or its primary does not have the whole region.
    #[error("region {0} has no full replica as its primary")]
    Primary(RegionId),
    /// A region names a machine twice.
    #[error("region {0} names machine {1} twice")]
    Twice(RegionId, MachineId),
    /// A replica is on a machine that is not a member, or stores nothing.
    #[error("region {0} has a replica on machine {1}, which is not a member that stores regions")]
    Replica(RegionId, MachineId),
    /// A number refers to a later configuration.
    #[error("{0} refers to configuration {1}, which is later than this one")]
    Later(&'static str, u64),
    /// Changes are counted from 1.
    #[error("the number of the change is 0, and the first one is 1")]
    Change,
    /// A name is too long.
    #[error("the {0} has {1} bytes, and may have at most {MOST_NAME_BYTES}")]
    Name(&'static str, usize),
}

/// Longest name, in bytes.
pub const MOST_NAME_BYTES: usize = 255;

impl Configuration {
    /// Returns the first configuration of a new cluster, without regions. The manager is the first machine that stores regions.
    ///
    /// # Errors
    /// [`Invalid`].
    pub fn first(cluster: &str, mut members: Vec<Member>) -> Result<Self, Invalid> {
        members.sort_by_key(|member| member.machine);
        let manager = members.iter().find(|member| member.stores);
        let manager = manager.ok_or(Invalid::NobodyStores)?;
        let first = Self {
            cluster: cluster.to_owned(),
            change: 1,
            version: Version { id: 1, minor: 0 },
            seed: manager.boot,
            manager: manager.machine,
            members,
            catalog: None,
            recovered: 1,
            expiring: Vec::new(),
            quorums: Vec::new(),
            regions: Vec::new(),
        };
        first.check().map(|()| first)
    }

    /// Returns a member.
    pub fn member(&self, machine: MachineId) -> Option<&Member> {
        let found = self
            .members
            .binary_search_by_key(&machine, |member| member.machine);
        found.ok().map(|at| &self.members[at])
    }

    /// Returns the members that run.
    pub fn running(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.runs())
    }

    /// Returns the member of a machine, if it runs.
    pub fn running_on(&self, machine: MachineId) -> Option<&Member> {
        self.member(machine).filter(|member| member.runs())
    }

    /// Returns the processes of the members that store regions.
    pub fn storing(&self) -> impl Iterator<Item = Process> {
        let storing = self.members.iter().filter(|member| member.stores);
        storing.map(Member::process)
    }

    /// Returns whether a process is a member.
    pub fn has(&self, process: Process) -> bool {
        let member = self.member(process.machine);
        member.is_some_and(|member| member.process() == process)
    }

    /// Returns the replicas of a region, if it exists.
    pub fn region(&self, region: RegionId) -> Option<&RegionReplicas> {
        let found = self.regions.binary_search_by_key(&region, |one| one.region);
        found.ok().map(|at| &self.regions[at])
    }

    /// Returns the next configuration, without any other difference: a change of the same configuration, or one with a new
    /// number.
    #[must_use]
    pub fn next(&self, new_id: bool) -> Self {
        let Version { id, minor } = self.version;
        Self {
            change: self.change + 1,
            version: match new_id {
                true => Version {
                    id: id + 1,
                    minor: 0,
                },
                false => Version {
                    id,
                    minor: minor + 1,
                },
            },
            ..self.clone()
        }
    }

    /// Returns the configuration that follows when all machines that store regions have started again, after all processes had ended.
    /// `boot` returns the number of the new start of a machine.
    ///
    /// # Errors
    /// A machine that stores regions and has no new start.
    pub fn resumed(&self, boot: impl Fn(MachineId) -> Option<u64>) -> Result<Self, MachineId> {
        let mut next = self.next(true);
        next.expiring.clear();
        next.quorums.clear();
        for member in &mut next.members {
            member.boot = match member.stores {
                true => boot(member.machine).ok_or(member.machine)?,
                false => 0,
            };
        }
        Ok(next)
    }

    /// Returns the regions that a machine has as a whole.
    pub fn full_on(&self, machine: MachineId) -> impl Iterator<Item = RegionId> + '_ {
        let full = self.regions.iter();
        let full = full.filter(move |region| region.is_full_on(machine));
        full.map(|region| region.region)
    }

    /// Returns whether each region has this number of replicas, all of them full.
    pub fn has_full_copies(&self, replicas: usize) -> bool {
        let mut regions = self.regions.iter().map(|region| &region.replicas);
        regions.all(|all| all.len() == replicas && all.iter().all(Replica::is_full))
    }

    /// Returns whether a machine is a member that stores regions.
    pub fn stores(&self, machine: MachineId) -> bool {
        self.member(machine).is_some_and(|member| member.stores)
    }

    /// Returns whether a later configuration has members with memory of this one, no others, and not all.
    pub fn has_lost_members_in(&self, later: &Self) -> bool {
        let [before, after] = [self, later].map(|one| one.storing().collect::<BTreeSet<Process>>());
        before != after && after.is_subset(&before)
    }

    /// Checks that the parts fit together.
    ///
    /// # Errors
    /// The first part that does not.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.change == 0 {
            return Err(Invalid::Change);
        }
        self.check_members()?;
        let id = self.version.id;
        let not_later = |what, number| match number <= id {
            true => Ok(()),
            false => Err(Invalid::Later(what, number)),
        };
        not_later("what is recovered", self.recovered)?;
        if let Some(two) = self
            .regions
            .windows(2)
            .find(|two| two[0].region >= two[1].region)
        {
            return Err(Invalid::Regions(two[1].region));
        }
        for region in &self.regions {
            self.check_region(region)?;
            not_later("the last change of a primary", region.last_primary_change)?;
            for replica in &region.replicas {
                not_later("a replica", replica.since)?;
            }
        }
        Ok(())
    }

    fn check_members(&self) -> Result<(), Invalid> {
        check_name("name of the cluster", &self.cluster)?;
        let mut before = None;
        for member in &self.members {
            if before.replace(member.machine) >= Some(member.machine) {
                return Err(Invalid::Members(member.machine));
            }
            check_name("host of a machine", &member.domain.host)?;
            check_name("rack of a machine", &member.domain.rack)?;
        }
        if !self.members.iter().any(|member| member.stores) {
            return Err(Invalid::NobodyStores);
        }
        if !self.stores(self.manager) {
            return Err(Invalid::Manager(self.manager));
        }
        match self.expiring.iter().find(|left| self.has(**left)) {
            Some(left) => Err(Invalid::Expiring(left.machine)),
            None => Ok(()),
        }
    }

    fn check_region(&self, region: &RegionReplicas) -> Result<(), Invalid> {
        let id = region.region;
        if !region.replicas.first().is_some_and(Replica::is_full) {
            return Err(Invalid::Primary(id));
        }
        for (at, replica) in region.replicas.iter().enumerate() {
            let machine = replica.machine;
            if region.replicas[..at]
                .iter()
                .any(|other| other.machine == machine)
            {
                return Err(Invalid::Twice(id, machine));
            }
            if !self.stores(machine) {
                return Err(Invalid::Replica(id, machine));
            }
        }
        Ok(())
    }
}

fn check_name(what: &'static str, name: &str) -> Result<(), Invalid> {
    match name.len() <= MOST_NAME_BYTES {
        true => Ok(()),
        false => Err(Invalid::Name(what, name.len())),
    }
}

/// Configurations for tests.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    pub(crate) fn machine(id: u16) -> MachineId {
        MachineId::new(id).unwrap()
    }

    /// Returns the first configuration of a cluster with these machines, all of which store regions.
    pub(crate) fn configuration(cluster: &str, machines: &[u16]) -> Configuration {
        let member = |id: &u16| Member {
            machine: machine(*id),
            boot: u64::from(*id) << 40,
            workers: 2,
            stores: true,
            domain: Domain {
                host: format!("host{id}"),
                rack: String::new(),
            },
        };
        Configuration {
            cluster: cluster.into(),
            change: 1,
            version: Version { id: 1, minor: 0 },
            seed: 77,
            members: machines.iter().map(member).collect(),
            manager: machine(machines[0]),
            catalog: None,
            recovered: 0,
            expiring: Vec::new(),
            quorums: Vec::new(),
            regions: Vec::new(),
        }
    }

    /// Returns a region with one replica, on machine 1.
    pub(crate) fn region_of(number: u32) -> RegionReplicas {
        RegionReplicas {
            region: RegionId::new(number % 100, number).unwrap(),
            replicas: vec![Replica {
                machine: machine(1),
                since: 1,
                state: ReplicaState::Full,
            }],
            last_primary_change: 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{configuration, machine, region_of};
    use super::*;

    #[test]
    fn parts_that_do_not_fit_are_named() {
        let valid = || {
            let mut valid = configuration("c", &[1, 2, 3]);
            valid.members[2].stores = false;
            valid.regions = vec![region_of(5)];
            valid
        };
        assert_eq!(valid().check(), Ok(()));
        let refused = |change: &dyn Fn(&mut Configuration), text: &str| {
            let mut changed = valid();
            change(&mut changed);
            assert_eq!(changed.check().unwrap_err().to_string(), text);
        };
        refused(
            &|c| c.change = 0,
            "the number of the change is 0, and the first one is 1",
        );
        refused(
            &|c| c.members.swap(0, 1),
            "machine m1 is listed twice, or out of order",
        );
        refused(
            &|c| c.members[1].machine = machine(1),
            "machine m1 is listed twice, or out of order",
        );
        refused(
            &|c| c.manager = machine(3),
            "the manager m3 is not a member that stores regions",
        );
        refused(
            &|c| c.manager = machine(4),
            "the manager m4 is not a member that stores regions",
        );
        refused(&|c| c.members.clear(), "no member stores regions");
        refused(
            &|c| c.expiring = vec![c.members[1].process()],
            "machine m2 is a member, and is listed among those that have left",
        );
        refused(
            &|c| c.recovered = 2,
            "what is recovered refers to configuration 2, which is later than this one",
        );
        refused(
            &|c| c.cluster = "x".repeat(256),
            "the name of the cluster has 256 bytes, and may have at most 255",
        );
        refused(
            &|c| c.members[1].domain.rack = "x".repeat(300),
            "the rack of a machine has 300 bytes, and may have at most 255",
        );
        refused(
            &|c| c.regions.push(region_of(5)),
            "region r5.5 is listed twice, or out of order",
        );
        refused(
            &|c| c.regions[0].replicas.clear(),
            "region r5.5 has no full replica as its primary",
        );
        let filling = ReplicaState::Filling;
        refused(
            &|c| c.regions[0].replicas[0].state = filling,
            "region r5.5 has no full replica as its primary",
        );
        refused(
            &|c| {
                let first = c.regions[0].replicas[0];
                c.regions[0].replicas.push(first);
            },
            "region r5.5 names machine m1 twice",
        );
        let stored_at = |id| {
            move |c: &mut Configuration| {
                let mut second = c.regions[0].replicas[0];
                second.machine = machine(id);
                c.regions[0].replicas.push(second);
            }
        };
        let text = |id| {
            format!(
                "region r5.5 has a replica on machine m{id}, which is not a member that stores regions"
            )
        };
        refused(&stored_at(3), &text(3));
        refused(&stored_at(9), &text(9));
        refused(
            &|c| c.regions[0].replicas[0].since = 7,
            "a replica refers to configuration 7, which is later than this one",
        );
        let mut two = valid();
        stored_at(2)(&mut two);
        assert_eq!(two.check(), Ok(()));
        assert_eq!(
            two.region(two.regions[0].region).unwrap().primary(),
            machine(1)
        );
        let backups: Vec<_> = two.regions[0].backups().collect();
        assert_eq!(backups, [machine(2)]);
    }

    #[test]
    fn changes_are_numbered() {
        let first = configuration("c", &[1]);
        let minor = first.next(false);
        assert_eq!(
            (minor.change, minor.version),
            (2, Version { id: 1, minor: 1 })
        );
        let new = minor.next(true);
        assert_eq!((new.change, new.version), (3, Version { id: 2, minor: 0 }));
        assert!(new.version > minor.version && minor.version > first.version);
    }
}
