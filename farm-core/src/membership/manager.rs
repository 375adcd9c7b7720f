//! The manager of the configuration as a value: it gathers changes, stores one new configuration for all of them, and has every
//! machine told before it confirms them (`FaRM'15 §3`). The worker that runs it sends the messages
//! ([`crate::worker`]).
//!
//! | state | event | next |
//! |---|---|---|
//! | nothing under way | a region, the catalog, or the new start of a member is to be recorded | a configuration with all of them is being stored |
//! | storing | the store has it | all machines are being told of its regions and catalog, if it has new ones |
//! | storing | the store refuses it | nothing under way; all of them are refused |
//! | telling | all machines have answered | all of them are recorded; the next ones are stored |

use std::collections::{BTreeMap, BTreeSet};

use super::configuration::{Configuration, Process, RegionReplicas, Replica, ReplicaState};
use super::writer::{ConfigWriter, WriteError};
use crate::ids::{Address, MachineId, RegionId};
use crate::mutants;
use crate::region::map::Replicas;

/// How far a region or the catalog is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// All machines know it.
    Yes,
    /// Ask again.
    NotYet,
    /// It is not recorded, for this reason.
    No(String),
}

/// What the worker has to do for the manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Duty {
    /// Tell all machines of these changes, and report the end by [`Manager::on_told`].
    Tell(Changes),
    /// Stop the machine: another process manages this cluster, too.
    Stop(String),
}

/// What a configuration has that the one before has not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// New regions.
    pub(crate) regions: Vec<(RegionId, Replicas)>,
    /// The catalog, if it is new.
    pub(crate) catalog: Option<Address>,
}

impl Changes {
    fn is_empty(&self) -> bool {
        self.regions.is_empty() && self.catalog.is_none()
    }
}

/// The manager of the configuration. See the [module](self).
pub struct Manager {
    configuration: Configuration,
    writer: Box<dyn ConfigWriter>,
    /// Regions to be recorded, in order of their ids.
    queued: BTreeMap<RegionId, Replicas>,
    /// Numbers of members' new starts, to be recorded.
    started: BTreeMap<MachineId, u64>,
    /// Those that are being stored.
    starting: BTreeMap<MachineId, u64>,
    /// Those that could not be stored, with the reasons, until their machines ask again.
    refused_starts: BTreeMap<MachineId, (u64, String)>,
    /// Whether starts were stored since [`Manager::take_recorded_starts`].
    has_recorded_starts: bool,
    /// Processes that have left in order, and are members, or may be recorded as such.
    left: BTreeSet<Process>,
    /// The catalog to be recorded.
    queued_catalog: Option<Address>,
    /// The configuration that is being stored.
    storing: Option<Configuration>,
    /// Changes that are being stored, or sent to all machines.
    under_way: Changes,
    refused: BTreeMap<RegionId, String>,
    refused_catalog: Option<String>,
    /// Largest number of regions in one message.
    most_told: usize,
    /// Replicas that have the whole region, to be recorded.
    filled: BTreeSet<(RegionId, MachineId)>,
    /// The configuration in which all machines have recovered, to be recorded.
    queued_recovered: Option<u64>,
    /// As before, after it could not be stored. It is tried again when a machine waits for it.
    unrecorded_recovered: Option<u64>,
    /// Whether other machines may make the next configuration.
    may_be_behind: bool,
    /// Whether another machine has changed the configuration: nothing is stored until [`Manager::rebase`].
    is_behind: bool,
}

impl Manager {
    /// Creates the manager of a configuration that the store has.
    pub fn new(configuration: Configuration, writer: impl ConfigWriter + 'static) -> Self {
        Self {
            configuration,
            writer: Box::new(writer),
            queued: BTreeMap::new(),
            started: BTreeMap::new(),
            starting: BTreeMap::new(),
            refused_starts: BTreeMap::new(),
            has_recorded_starts: false,
            left: BTreeSet::new(),
            queued_catalog: None,
            storing: None,
            under_way: Changes::default(),
            refused: BTreeMap::new(),
            refused_catalog: None,
            most_told: usize::MAX,
            filled: BTreeSet::new(),
            queued_recovered: None,
            unrecorded_recovered: None,
            may_be_behind: false,
            is_behind: false,
        }
    }

    /// Sets that other machines may make the next configuration. By default, a change by another process stops the machine.
    #[must_use]
    pub fn among_others(mut self) -> Self {
        self.may_be_behind = true;
        self
    }

    /// Goes on from another configuration, which the store has. What was to be recorded is forgotten: those who asked ask again.
    pub(crate) fn rebase(&mut self, configuration: Configuration) {
        self.configuration = configuration;
        self.is_behind = false;
        self.queued.clear();
        self.started.clear();
        self.starting.clear();
        self.queued_catalog = None;
        self.filled.clear();
        self.queued_recovered = None;
        self.unrecorded_recovered = None;
        // If a change is being stored, its outcome is that of a change of the configuration before.
        self.under_way = Changes::default();
        self.refused.clear();
        self.refused_catalog = None;
    }

    /// Another configuration is being applied: nothing is stored, nor told, until [`Manager::rebase`].
    pub(crate) fn fall_behind(&mut self) {
        self.is_behind = true;
    }

    /// Has recorded that all transactions of earlier configurations than this one are decided and applied on all replicas.
    pub(crate) fn record_recovered(&mut self, configuration: u64) {
        if self.configuration.version.id == configuration
            && self.configuration.recovered < configuration
        {
            self.queued_recovered = Some(configuration);
        }
    }

    /// Returns whether all machines have recovered in the newest configuration, and no other one is being applied.
    pub(crate) fn has_recovered(&self) -> bool {
        self.configuration.recovered == self.configuration.version.id && !self.is_behind
    }

    /// Stores the end of the recovery again, if that has failed: something waits for it.
    pub(crate) fn record_recovered_again(&mut self) {
        if self.unrecorded_recovered == Some(self.configuration.version.id)
            && !self.has_recovered()
            && self.storing.is_none()
        {
            self.queued_recovered = self.unrecorded_recovered.take();
        }
    }

    /// Handles that a replica has the whole region. The caller repeats it until the answer is final; a failure to store it is not.
    /// It has to wait until all machines have recovered: a replica without the low bounds of earlier configurations would take
    /// transactions for unknown that were truncated.
    pub(crate) fn record_full(&mut self, region: RegionId, machine: MachineId) -> Recorded {
        let replicas = self.configuration.region(region);
        let mut replicas = replicas.into_iter().flat_map(|region| &region.replicas);
        let recovered = self.has_recovered() || mutants::is_on("full before it has recovered");
        match replicas.find(|replica| replica.machine == machine) {
            None => Recorded::No(format!(
                "machine {machine} has no replica of region {region}"
            )),
            Some(replica) if replica.is_full() => Recorded::Yes,
            Some(_) => {
                match recovered {
                    true => _ = self.filled.insert((region, machine)),
                    false => self.record_recovered_again(),
                }
                Recorded::NotYet
            }
        }
    }

    /// Sets the largest number of regions in one [`Duty::Tell`].
    pub(crate) fn set_most_told(&mut self, most: usize) {
        self.most_told = most.max(1);
    }

    /// Returns the newest configuration that the store has.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Handles the request to record a region. The caller repeats it until the answer is final.
    pub(crate) fn record(&mut self, region: RegionId, replicas: Replicas) -> Recorded {
        if let Some(why) = self.refused.remove(&region) {
            return Recorded::No(why);
        }
        let mut under_way = self.under_way.regions.iter();
        let is_under_way = under_way.any(|one| one.0 == region);
        match self.configuration.region(region) {
            _ if is_under_way || self.queued.contains_key(&region) => Recorded::NotYet,
            Some(known) if known.machines().eq(replicas.all().iter().copied()) => Recorded::Yes,
            Some(_) => Recorded::No(format!("another region has the id {region}")),
            None => {
                self.queued.insert(region, replicas);
                Recorded::NotYet
            }
        }
    }

    /// Handles that a process without memory has left in order. Another one of its machine can join.
    pub(crate) fn on_left(&mut self, process: Process) {
        self.left.insert(process);
    }

    /// Returns the process of a member that runs, and has not left.
    pub(crate) fn running(&self, machine: MachineId) -> Option<Process> {
        let member = self.configuration.running_on(machine)?;
        Some(member.process()).filter(|process| !self.left.contains(process))
    }

    /// Returns the processes of all members that run and have not left, and those that are being recorded.
    pub(crate) fn starts(&self) -> impl Iterator<Item = Process> {
        let running = self.configuration.running().map(|one| one.machine);
        let running = running.filter_map(|machine| self.running(machine));
        let started = self.started.iter().chain(&self.starting);
        let started = started.map(|(machine, boot)| Process {
            machine: *machine,
            boot: *boot,
        });
        running.chain(started)
    }

    /// Returns whether starts were stored since the last call.
    pub(crate) fn take_recorded_starts(&mut self) -> bool {
        std::mem::take(&mut self.has_recorded_starts)
    }

    /// Handles that a member has been started again. The caller repeats it until the answer is final. It has to wait until the process
    /// before has left, or is no member any more, and until what that one began is recovered.
    pub(crate) fn record_start(&mut self, process: Process) -> Recorded {
        let Process { machine, boot } = process;
        let Configuration {
            version, recovered, ..
        } = self.configuration;
        match self.configuration.member(machine) {
            None => Recorded::No(format!("machine {machine} is not a member")),
            Some(member) if member.stores => Recorded::No(format!(
                "machine {machine} stores memory: it is added with the next configuration"
            )),
            Some(member) if member.boot == boot => Recorded::Yes,
            Some(member) if member.runs() && !self.left.contains(&member.process()) => {
                Recorded::NotYet
            }
            Some(_) if recovered < version.id => {
                self.record_recovered_again();
                Recorded::NotYet
            }
            Some(_) => {
                let refused = self.refused_starts.remove(&machine);
                if let Some((_, why)) = refused.filter(|refused| refused.0 == boot) {
                    return Recorded::No(why);
                }
                let storing = self.storing.as_ref().and_then(|next| next.member(machine));
                if storing.is_none_or(|member| member.boot != boot) {
                    self.started.insert(machine, boot);
                }
                Recorded::NotYet
            }
        }
    }

    /// Handles the request to record the catalog, which is done once. The caller repeats it until the answer is final. If the
    /// answer is `Yes`, a catalog is recorded, perhaps another one: the caller looks it up.
    pub(crate) fn record_catalog(&mut self, catalog: Address) -> Recorded {
        if let Some(why) = self.refused_catalog.take() {
            return Recorded::No(why);
        }
        if self.under_way.catalog.is_some() || self.queued_catalog.is_some() {
            return Recorded::NotYet;
        }
        if self.configuration.catalog.is_some() {
            return Recorded::Yes;
        }
        self.queued_catalog = Some(catalog);
        Recorded::NotYet
    }

    /// Does what can be done now. Returns what the worker has to do.
    pub(crate) fn step(&mut self) -> Option<Duty> {
        let is_queued = !self.queued.is_empty()
            || !self.started.is_empty()
            || !self.filled.is_empty()
            || self.queued_catalog.is_some()
            || self.queued_recovered.is_some();
        let is_queued = is_queued && !self.is_behind;
        if self.storing.is_none() && self.under_way.is_empty() && is_queued {
            self.store_queued();
        }
        let stored = self.storing.as_ref().and_then(|_| self.writer.poll())?;
        let next = self.storing.take()?;
        if self.is_behind || next.change <= self.configuration.change {
            // A new configuration was made meanwhile. It has this change, if the store took it.
            return None;
        }
        match stored {
            Ok(()) => {
                self.configuration = next;
                for (machine, boot) in std::mem::take(&mut self.starting) {
                    self.has_recorded_starts = true;
                    let queued = self.started.get(&machine).copied();
                    let counts = |one: &Process| [Some(boot), queued].contains(&Some(one.boot));
                    self.left
                        .retain(|one| one.machine != machine || counts(one));
                }
                let told = !self.under_way.is_empty();
                told.then(|| Duty::Tell(self.under_way.clone()))
            }
            Err(WriteError::Lost) if self.may_be_behind => {
                self.is_behind = true;
                None
            }
            Err(WriteError::Lost) => Some(Duty::Stop(
                "another process has changed the configuration of this cluster".into(),
            )),
            Err(WriteError::Failed(why)) => {
                self.refuse(&why);
                None
            }
        }
    }

    /// Refuses what is under way.
    fn refuse(&mut self, why: &str) {
        let Changes { regions, catalog } = std::mem::take(&mut self.under_way);
        let refused = regions.iter().map(|one| (one.0, why.to_owned()));
        self.refused.extend(refused);
        if catalog.is_some() {
            self.refused_catalog = Some(why.to_owned());
        }
        let starting = std::mem::take(&mut self.starting).into_iter();
        let refused = starting.map(|(machine, boot)| (machine, (boot, why.to_owned())));
        self.refused_starts.extend(refused);
    }

    /// Returns whether something is to be stored, or is being stored.
    pub(crate) fn has_queued(&self) -> bool {
        let to_store = self.queued_recovered.is_some() && !self.is_behind;
        self.storing.is_some() || to_store
    }

    /// Handles that all machines know the changes of the last [`Duty::Tell`].
    pub(crate) fn on_told(&mut self) {
        self.under_way = Changes::default();
    }

    /// Returns the number of regions and catalogs whose recording has not ended.
    pub(crate) fn unfinished(&self) -> usize {
        let catalogs = [self.queued_catalog, self.under_way.catalog];
        self.queued.len() + self.under_way.regions.len() + catalogs.iter().flatten().count()
    }

    fn store_queued(&mut self) {
        let mut next = self.configuration.next(false);
        let since = next.version.id;
        let started = std::mem::take(&mut self.started);
        for member in &mut next.members {
            member.boot = started.get(&member.machine).copied().unwrap_or(member.boot);
        }
        self.starting = started;
        self.under_way.catalog = self.queued_catalog.take();
        next.catalog = next.catalog.or(self.under_way.catalog);
        if let Some(recovered) = self.queued_recovered.take() {
            next.recovered = recovered;
            self.unrecorded_recovered = Some(recovered);
        }
        let filled = std::mem::take(&mut self.filled);
        for region in &mut next.regions {
            let replicas = region.replicas.iter_mut();
            for replica in replicas.filter(|one| filled.contains(&(region.region, one.machine))) {
                replica.state = ReplicaState::Full;
            }
        }
        while self.under_way.regions.len() < self.most_told
            && let Some((region, replicas)) = self.queued.pop_first()
        {
            self.under_way.regions.push((region, replicas));
            let replica = |machine: &_| Replica {
                machine: *machine,
                since,
                state: ReplicaState::Full,
            };
            next.regions.push(RegionReplicas {
                region,
                replicas: replicas.all().iter().map(replica).collect(),
                last_primary_change: since,
            });
        }
        next.regions.sort_by_key(|region| region.region);
        match next.check() {
            Ok(()) => {
                self.writer.begin(next.clone());
                self.storing = Some(next);
            }
            Err(invalid) => self.refuse(&invalid.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::membership::configuration::testing::{configuration, machine, region_of};

    /// What was stored, and the answers that follow.
    type Script = (Vec<Configuration>, VecDeque<Result<(), WriteError>>);

    /// A store whose answers the test decides.
    #[derive(Clone, Default)]
    struct Scripted(Arc<Mutex<Script>>);

    impl ConfigWriter for Scripted {
        fn begin(&mut self, next: Configuration) {
            self.0.lock().unwrap().0.push(next);
        }
        fn poll(&mut self) -> Option<Result<(), WriteError>> {
            self.0.lock().unwrap().1.pop_front()
        }
    }

    fn region(position: u32) -> RegionId {
        RegionId::new(3, 1000 + position).unwrap()
    }

    fn tell(regions: Vec<(RegionId, Replicas)>) -> Option<Duty> {
        let catalog = None;
        Some(Duty::Tell(Changes { regions, catalog }))
    }

    fn manager() -> (Manager, Scripted) {
        let store = Scripted::default();
        let mut first = configuration("test", &[1, 2, 3]);
        first.regions.clear();
        (Manager::new(first, store.clone()), store)
    }

    #[test]
    fn regions_are_confirmed_when_they_are_stored_and_all_machines_know_them() {
        let (mut manager, store) = manager();
        let replicas = Replicas::new([machine(2), machine(1)]).unwrap();
        assert_eq!(manager.record(region(1), replicas), Recorded::NotYet);
        assert_eq!(manager.record(region(1), replicas), Recorded::NotYet);
        assert_eq!(manager.step(), None);
        // A region that comes while another is being stored waits for the next configuration.
        assert_eq!(manager.record(region(2), replicas), Recorded::NotYet);
        assert_eq!(manager.step(), None);
        let answer = |answer| store.0.lock().unwrap().1.push_back(answer);
        answer(Ok(()));
        assert_eq!(manager.step(), tell(vec![(region(1), replicas)]));
        assert_eq!(
            manager.record(region(1), replicas),
            Recorded::NotYet,
            "not told"
        );
        assert_eq!(manager.step(), None, "one change at a time");
        manager.on_told();
        assert_eq!(manager.record(region(1), replicas), Recorded::Yes);
        let other = Replicas::one(machine(3));
        assert!(matches!(manager.record(region(1), other), Recorded::No(_)));
        answer(Ok(()));
        assert_eq!(manager.step(), tell(vec![(region(2), replicas)]));
        manager.on_told();
        assert_eq!(manager.unfinished(), 0);
        let stored = store.0.lock().unwrap();
        let changes: Vec<u64> = stored.0.iter().map(|one| one.change).collect();
        assert_eq!(changes, [2, 3]);
        assert_eq!(stored.0[1].regions.len(), 2);
        assert_eq!(stored.0[1].check(), Ok(()));
    }

    #[test]
    fn a_region_that_cannot_be_stored_is_refused_once_and_can_be_asked_again() {
        let (mut manager, store) = manager();
        let replicas = Replicas::one(machine(2));
        let fails = || Some(Err(WriteError::Failed("disk full".into())));
        manager.record(region(1), replicas);
        store.0.lock().unwrap().1.extend(fails());
        assert_eq!(manager.step(), None);
        let no = Recorded::No("disk full".into());
        assert_eq!(manager.record(region(1), replicas), no);
        assert_eq!(manager.record(region(1), replicas), Recorded::NotYet);
        store.0.lock().unwrap().1.push_back(Ok(()));
        assert!(matches!(manager.step(), Some(Duty::Tell(_))));
        // A replica that is not a member makes the configuration invalid.
        manager.on_told();
        let stranger = Replicas::one(machine(9));
        manager.record(region(2), stranger);
        assert_eq!(manager.step(), None);
        let no = manager.record(region(2), stranger);
        assert!(
            matches!(&no, Recorded::No(why) if why.contains("not a member")),
            "{no:?}"
        );
        manager.record(region(3), replicas);
        store.0.lock().unwrap().1.push_back(Err(WriteError::Lost));
        assert!(matches!(manager.step(), Some(Duty::Stop(_))));
    }

    #[test]
    fn a_new_start_of_a_member_without_memory_is_recorded_without_telling_anyone() {
        let (mut manager, store) = manager();
        manager.configuration.members[2].stores = false;
        let refused = |recorded: Recorded| matches!(recorded, Recorded::No(_));
        let start = |machine_id, boot| Process {
            machine: machine(machine_id),
            boot,
        };
        assert!(refused(manager.record_start(start(9, 5))));
        assert!(
            refused(manager.record_start(start(2, 5))),
            "it stores memory"
        );
        manager.configuration.recovered = 0;
        assert_eq!(manager.record_start(start(3, 5)), Recorded::NotYet);
        manager.configuration.recovered = 1;
        assert_eq!(manager.step(), None, "the process before runs");
        assert_eq!(manager.record_start(start(3, 5)), Recorded::NotYet);
        assert!(store.0.lock().unwrap().0.is_empty());
        manager.on_left(manager.configuration.members[2].process());
        assert_eq!(manager.record_start(start(3, 5)), Recorded::NotYet);
        assert_eq!(manager.step(), None);
        assert_eq!(manager.record_start(start(3, 5)), Recorded::NotYet);
        store.0.lock().unwrap().1.extend([Ok(()), Ok(())]);
        assert_eq!(manager.step(), None);
        assert!(manager.take_recorded_starts() && !manager.take_recorded_starts());
        assert_eq!(manager.record_start(start(3, 5)), Recorded::Yes);
        manager.on_left(start(3, 5));
        // It is recorded together with regions.
        let replicas = Replicas::one(machine(2));
        manager.record_start(start(3, 6));
        manager.record(region(1), replicas);
        assert_eq!(manager.step(), tell(vec![(region(1), replicas)]));
        assert_eq!(manager.record_start(start(3, 6)), Recorded::Yes);
        assert_eq!(store.0.lock().unwrap().0.len(), 2);
    }

    #[test]
    fn a_replica_is_full_when_it_is_filled_and_all_machines_have_recovered() {
        let (mut manager, store) = manager();
        let mut region = region_of(5);
        let filling = Replica {
            machine: machine(2),
            state: ReplicaState::Filling,
            ..region.replicas[0]
        };
        region.replicas.push(filling);
        let id = region.region;
        manager.configuration.regions = vec![region];
        let refused = manager.record_full(id, machine(3));
        assert!(matches!(refused, Recorded::No(_)), "it has no replica");
        assert_eq!(manager.record_full(id, machine(2)), Recorded::NotYet);
        assert_eq!(manager.step(), None);
        assert!(store.0.lock().unwrap().0.is_empty(), "not recovered");
        manager.configuration.recovered = 1;
        let full = Err(WriteError::Failed("full".into()));
        store.0.lock().unwrap().1.extend([full, Ok(())]);
        for recorded in [Recorded::NotYet, Recorded::NotYet, Recorded::Yes] {
            assert_eq!(manager.record_full(id, machine(2)), recorded);
            assert_eq!(manager.step(), None);
        }
        let region = manager.configuration.region(id).unwrap();
        assert_eq!(region.replicas[1].state, ReplicaState::Full);
        assert_eq!(region.last_primary_change, 1);
    }

    /// Regression test: the reason was dropped, and the machine asked for ever.
    #[test]
    fn a_start_that_cannot_be_recorded_is_refused_once() {
        let (mut manager, store) = manager();
        manager.configuration.members[2].stores = false;
        manager.configuration.recovered = 1;
        manager.configuration.members[2].boot = 0;
        let start = |boot| Process {
            machine: machine(3),
            boot,
        };
        let full = || Err(WriteError::Failed("full".into()));
        store.0.lock().unwrap().1.extend([full(), full(), Ok(())]);
        let refused = Recorded::No("full".into());
        for _ in 0..2 {
            assert_eq!(manager.record_start(start(5)), Recorded::NotYet);
            assert_eq!(manager.step(), None);
            assert_eq!(manager.record_start(start(5)), refused);
        }
        // The next start is another one.
        assert_eq!(manager.record_start(start(6)), Recorded::NotYet);
        assert_eq!(manager.step(), None);
        assert_eq!(manager.record_start(start(6)), Recorded::Yes);
    }

    /// Regression test: the end of a recovery that could not be stored was forgotten, and nothing could join from then on.
    #[test]
    fn the_end_of_a_recovery_is_stored_when_a_machine_waits_for_it() {
        let (mut manager, store) = manager();
        manager.configuration.members[2].stores = false;
        manager.configuration.members[2].boot = 0;
        let start = Process {
            machine: machine(3),
            boot: 5,
        };
        let full = Err(WriteError::Failed("full".into()));
        store.0.lock().unwrap().1.extend([full, Ok(()), Ok(())]);
        manager.record_recovered(1);
        assert_eq!(manager.step(), None);
        assert_eq!(manager.configuration.recovered, 0);
        for recorded in [Recorded::NotYet, Recorded::NotYet, Recorded::Yes] {
            assert_eq!(manager.record_start(start), recorded);
            assert_eq!(manager.step(), None);
        }
        assert_eq!(manager.configuration.recovered, 1);
    }

    #[test]
    fn the_catalog_is_recorded_once() {
        let (mut manager, store) = manager();
        let answer = |answer| store.0.lock().unwrap().1.push_back(answer);
        let [first, second] = [64, 128].map(|offset| Address::new(region(1), offset));
        assert_eq!(manager.record_catalog(first), Recorded::NotYet);
        answer(Err(WriteError::Failed("disk full".into())));
        assert_eq!(manager.step(), None);
        let no = Recorded::No("disk full".into());
        assert_eq!(manager.record_catalog(first), no);
        assert_eq!(manager.record_catalog(first), Recorded::NotYet);
        assert_eq!(manager.record_catalog(second), Recorded::NotYet);
        assert_eq!(manager.unfinished(), 1);
        answer(Ok(()));
        let changes = Changes {
            regions: Vec::new(),
            catalog: Some(first),
        };
        assert_eq!(manager.step(), Some(Duty::Tell(changes)));
        assert_eq!(manager.record_catalog(first), Recorded::NotYet, "not told");
        manager.on_told();
        for catalog in [first, second] {
            assert_eq!(manager.record_catalog(catalog), Recorded::Yes);
        }
        assert_eq!((manager.step(), manager.unfinished()), (None, 0));
        assert_eq!(manager.configuration().catalog, Some(first));
        // Later configurations keep it.
        manager.record(region(1), Replicas::one(machine(2)));
        answer(Ok(()));
        let told = tell(vec![(region(1), Replicas::one(machine(2)))]);
        assert_eq!(manager.step(), told);
        assert_eq!(manager.configuration().catalog, Some(first));
    }

    #[test]
    fn one_message_names_a_bounded_number_of_regions() {
        let (mut manager, store) = manager();
        manager.set_most_told(2);
        let replicas = Replicas::one(machine(2));
        for position in 0..5 {
            manager.record(region(position), replicas);
        }
        store.0.lock().unwrap().1.extend([Ok(()), Ok(()), Ok(())]);
        let mut told = Vec::new();
        while let Some(Duty::Tell(changes)) = manager.step() {
            told.push(changes.regions.len());
            manager.on_told();
        }
        assert_eq!(told, [2, 2, 1]);
    }
}
