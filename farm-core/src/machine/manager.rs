//! The manager of the configuration, as the machine that is the manager makes it at its start.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::kept::{KeptFiles, check_own, gone_in, kept_starts, memory_gone};
use super::meet::Met;
use super::{MachineError, fabric_config};
use crate::config::host::store_dir;
use crate::config::{Config, MachineConfig};
use crate::fabric::shm::is_alive;
use crate::fabric::shm::kept::KeptStart;
use crate::fabric::verbs::is_running;
use crate::fabric::{Departed, Exporter, FabricConfig, Patience};
use crate::ids::MachineId;
use crate::membership::Membership;
use crate::membership::configuration::{Configuration, Domain, Member, Process};
use crate::membership::directory::check_usable;
use crate::membership::earlier::{Found, find};
use crate::membership::files::FileStore;
use crate::membership::manager::Manager;
use crate::membership::store::{ConfigStore, StoreError, Swap};
use crate::membership::writer::{AccessThread, InProcess, StoreThread};
use crate::messaging::LinkPeer;
use crate::time::Clock;
use crate::worker::MembersParts;

/// What a machine reports to the others if its start fails, and it tries again.
pub(super) const STARTS_AGAIN: &str = "it starts again, because the cluster has changed";
/// Time between two looks at the store, in which another machine is to store the next configuration.
const STORE_LOOK: Duration = Duration::from_millis(1);

/// Returns the machine that manages the configuration.
fn manager_of(config: &Config) -> MachineId {
    Membership::fixed(config.storing_machines().map(|machine| machine.id)).manager()
}

/// Finds the store of the configuration, if this machine manages it and it outlives the process. Nothing is created yet, because
/// the cluster may not come to run.
pub(super) fn config_store(
    config: &Config,
    id: MachineId,
) -> Result<Option<FileStore>, MachineError> {
    if !config.is_logged() || manager_of(config) != id {
        return Ok(None);
    }
    let (dir, cluster) = (store_dir(config), &config.cluster.name);
    match find(&dir, cluster)? {
        Found::Nothing => {}
        Found::InUse => return Err(MachineError::StoreInUse(dir)),
        Found::Earlier(before) => {
            return Err(MachineError::StoreFromBefore {
                change: before.change(),
                cluster: cluster.clone(),
                dir,
            });
        }
    }
    check_usable(&dir).map_err(|(path, source)| StoreError::Io {
        what: "create or use the directory of the configuration in",
        path,
        source,
    })?;
    Ok(Some(FileStore::at(&dir, cluster)))
}

/// The store of a machine that notes which changes it has seen there.
struct SeenStore {
    store: FileStore,
    files: Option<Arc<KeptFiles>>,
}

impl SeenStore {
    fn note(&self, change: u64) {
        if let Some(files) = &self.files {
            files.on_seen(change);
        }
    }
}

impl ConfigStore for SeenStore {
    fn read(&mut self) -> Result<Option<Configuration>, StoreError> {
        let newest = self.store.read()?;
        if let Some(newest) = &newest {
            self.note(newest.change);
        }
        Ok(newest)
    }

    fn compare_and_swap(&mut self, next: &Configuration) -> Result<Swap, StoreError> {
        let swap = self.store.compare_and_swap(next)?;
        if swap == Swap::Won {
            self.note(next.change);
        }
        Ok(swap)
    }
}

/// Returns what the first worker of a machine needs to take part in changes of the configuration.
pub(super) fn make_members(
    config: &Config,
    id: MachineId,
    (exporter, files): (&Exporter, Option<&Arc<KeptFiles>>),
    configuration: &Configuration,
) -> Result<Option<MembersParts>, MachineError> {
    if !config.survives_losses() {
        return Ok(None);
    }
    let (dir, cluster) = (store_dir(config), config.cluster.name.clone());
    let files = files.cloned();
    let open = move || {
        let store = FileStore::at(&dir, &cluster);
        let files = files.clone();
        Box::new(SeenStore { store, files }) as Box<dyn ConfigStore>
    };
    let store = AccessThread::start(format!("{id}.change"), Arc::new(open));
    Ok(Some(MembersParts {
        me: Process {
            machine: id,
            boot: exporter.boot(),
        },
        configuration: configuration.clone(),
        store: Box::new(store.map_err(MachineError::Thread)?),
    }))
}

/// Returns whether a machine joins others, which go on in another configuration when one of them is lost: always if it stores nothing,
/// and else if they run.
pub(super) fn joins_survivors(
    config: &Config,
    id: MachineId,
    newest: Option<&Configuration>,
) -> Result<bool, MachineError> {
    if config.memory_of(id) == 0 {
        return Ok(true);
    }
    let members = newest.into_iter().flat_map(|newest| &newest.members);
    let others = members.filter(|member| member.stores && member.machine != id);
    Ok(any_alive(config, id, others.map(Member::process))?.is_some())
}

/// Returns the machine of a process that runs and may still write to the logs of a configuration whose members with memory have ended. That is
/// a program without memory that is a member, or a process that was removed from the cluster while it was stopped.
pub(super) fn may_write(
    config: &Config,
    id: MachineId,
    newest: &Configuration,
) -> Result<Option<MachineId>, MachineError> {
    let programs = newest.running().filter(|member| !member.stores);
    let left = newest.expiring.iter().copied();
    any_alive(config, id, programs.map(Member::process).chain(left))
}

/// Checks that the store has all changes of the configuration that processes of this host have seen there, before a machine decides anything.
///
/// # Errors
/// [`MachineError::OutOfDate`].
fn check_seen(
    config: &Config,
    newest: &Configuration,
    starts: &[KeptStart],
) -> Result<(), MachineError> {
    let store = store_dir(config);
    let is_named = |start: &KeptStart| newest.storing().any(|member| member.boot == start.boot);
    let ours = starts
        .iter()
        .filter(|start| start.is_of(&store) || is_named(start));
    let Some(last) = ours.max_by_key(|start| start.seen()) else {
        return Ok(());
    };
    let has_seen = |newest: &Configuration| newest.change >= last.seen();
    // Others may change it meanwhile.
    if has_seen(newest) || newest_configuration(config)?.as_ref().is_none_or(has_seen) {
        return Ok(());
    }
    Err(MachineError::OutOfDate {
        machine: last.files[0].machine,
        seen: last.seen(),
        change: newest.change,
        dir: store,
    })
}

/// Returns a configuration whose members with memory have ended, if all of them still have their memory. If some have not, and the others have
/// copies, this stores a configuration without those, and returns `None`: the caller looks again.
pub(super) fn to_resume(
    config: &Config,
    id: MachineId,
    newest: Configuration,
) -> Result<Option<Configuration>, MachineError> {
    let starts = kept_starts(config)?;
    check_seen(config, &newest, &starts)?;
    check_own(config, id, &newest, &starts)?;
    let gone = gone_in(config, &newest, &starts);
    if gone.is_empty() {
        return Ok(Some(newest));
    }
    let all = newest.running().map(Member::process);
    let mut store = FileStore::at(&store_dir(config), &config.cluster.name);
    if any_alive(config, id, all)?.is_some() || store.read()?.as_ref() != Some(&newest) {
        // They go on by themselves, or the next processes have taken over the memory meanwhile.
        return Ok(None);
    }
    if gone_in(config, &newest, &kept_starts(config)?) != gone {
        // A process was removing files of its own when they were listed.
        return Ok(None);
    }
    let next = newest.without_memory_of(&gone);
    let next = next.map_err(|_| memory_gone(config, gone.clone(), &newest))?;
    if store.compare_and_swap(&next)? == Swap::Won {
        tracing::warn!(
            machines = ?gone,
            "memory is gone: the cluster continues without these machines, because others have copies; they join again when they are started"
        );
    }
    Ok(None)
}

/// Returns the machine of a process that runs, of those that are asked for. On RDMA devices that is any process of the machine that
/// answers, and has met the others.
fn any_alive(
    config: &Config,
    id: MachineId,
    mut asked: impl Iterator<Item = Process>,
) -> Result<Option<MachineId>, MachineError> {
    let alive = match fabric_config(config, id)? {
        FabricConfig::Shm(own) => asked.find(|one| is_alive(&own, one.machine, one.boot)),
        FabricConfig::Verbs(own) => asked.find(|one| is_running(&own, one.machine)),
    };
    Ok(alive.map(|process| process.machine))
}

/// Reads the newest configuration of the cluster from its store on this computer; `None` if there is none yet.
///
/// # Errors
/// [`StoreError`] if the store cannot be read.
pub fn newest_configuration(config: &Config) -> Result<Option<Configuration>, StoreError> {
    FileStore::at(&store_dir(config), &config.cluster.name).read()
}

/// Returns the configuration with which a machine begins that has met others. If it `joins` them, that is the newest one, which may have
/// changed meanwhile.
pub(super) fn begin_with(
    config: &Config,
    (id, joins): (MachineId, bool),
    exporter: &Exporter,
    met: &Met,
) -> Result<Configuration, MachineError> {
    if !joins && !met.running.is_empty() && joins_running(config, id) {
        return Err(MachineError::RunsAlready(id));
    }
    let newest = match joins {
        true => newest_configuration(config)?,
        false => None,
    };
    let own = Process {
        machine: id,
        boot: exporter.boot(),
    };
    match newest {
        // The others have begun with it after all had ended, and it was to begin with them.
        Some(newest) if newest.has(own) => Err(MachineError::Changed(newest.version)),
        Some(newest) => check_met(&newest, &met.peers).map(|()| newest),
        None => {
            let first = first(config, id, exporter, &met.peers);
            if first.manager == id {
                warn_of_shared_domains(config, &first);
            }
            Ok(first)
        }
    }
}

/// Returns the configuration with which machines go on that had all ended, and its store. The manager stores it.
pub(super) fn resume_with(
    config: &Config,
    (id, newest): (MachineId, &Configuration),
    met: &Met,
    (patience, departed): (Patience<'_>, &dyn Fn() -> Option<Departed>),
) -> Result<(Configuration, FileStore), MachineError> {
    if !met.running.is_empty() {
        return Err(MachineError::RunsAlready(id));
    }
    let boot = |machine: MachineId| {
        let peer = met.peers.iter().find(|peer| peer.machine == machine);
        peer.map(|peer| peer.theirs.boot)
    };
    let next = newest.resumed(boot);
    let next = next.map_err(|machine| MachineError::NotMet(machine, newest.version))?;
    let store = begin_stored(config, (id, &next), (patience, departed))?;
    Ok((next, store))
}

/// Waits until the store has the configuration with which this machine begins, and returns the store. The manager stores it.
///
/// # Errors
/// The error of the store, [`MachineError::Changed`] if it has another configuration or a machine has ended, [`MachineError::Failed`] if one
/// has reported a failure, and [`MachineError::NotMet`] if the manager does not store it in time.
pub(super) fn begin_stored(
    config: &Config,
    (id, next): (MachineId, &Configuration),
    (patience, departed): (Patience<'_>, &dyn Fn() -> Option<Departed>),
) -> Result<FileStore, MachineError> {
    let open = || FileStore::at(&store_dir(config), &config.cluster.name);
    let mut store = open();
    let mut stored = match next.manager == id {
        true => store.compare_and_swap(next).map(drop),
        false => Ok(()),
    };
    let since = Clock::Host.now();
    loop {
        let found = store.read();
        // If the manager could not store it, that is the reason why it cannot be read.
        let found = match found {
            Ok(found) => found,
            // The manager has created the directory, and removed it because it could not store anything there. It says so.
            Err(StoreError::Gone(_)) if next.manager != id => {
                store = open();
                None
            }
            Err(error) => return Err(stored.err().unwrap_or(error).into()),
        };
        if found.as_ref() == Some(next) {
            return Ok(store);
        }
        let is_later = |found: &Configuration| found.change >= next.change;
        if let Some(found) = found.filter(is_later) {
            return Err(MachineError::Changed(found.version));
        }
        if let Some(departed) = departed() {
            let fails = departed.why.as_ref().is_some_and(|why| why != STARTS_AGAIN);
            return Err(match fails {
                true => MachineError::Failed(departed.to_string()),
                false => MachineError::Changed(next.version),
            });
        }
        std::mem::replace(&mut stored, Ok(()))?;
        if patience.is_cancelled() || Clock::Host.now().since(since) >= patience.most {
            return Err(MachineError::NotMet(next.manager, next.version));
        }
        std::thread::park_timeout(STORE_LOOK);
    }
}

/// Returns whether a machine that stores memory can join others that run.
fn joins_running(config: &Config, id: MachineId) -> bool {
    config.survives_losses() && config.memory_of(id) > 0
}

/// Checks that a machine which joins has met all members that store regions.
fn check_met(configuration: &Configuration, peers: &[LinkPeer]) -> Result<(), MachineError> {
    let is_met = |member: &&Member| {
        let mut peers = peers.iter();
        peers.any(|peer| (peer.machine, peer.theirs.boot) == (member.machine, member.boot))
    };
    let mut storing = configuration.members.iter().filter(|member| member.stores);
    match storing.find(|member| !is_met(member)) {
        Some(member) => Err(MachineError::NotMet(member.machine, configuration.version)),
        None => Ok(()),
    }
}

/// Returns the first configuration of the cluster, which all machines know when they have met.
fn first(config: &Config, id: MachineId, exporter: &Exporter, peers: &[LinkPeer]) -> Configuration {
    let member = |machine: &MachineConfig| {
        let peer = peers.iter().find(|peer| peer.machine == machine.id);
        Member {
            machine: machine.id,
            boot: match machine.id == id {
                true => exporter.boot(),
                // Recorded when the machine joins.
                false => peer.map_or(0, |peer| peer.theirs.boot),
            },
            workers: machine.workers,
            stores: config.memory_of(machine.id) > 0,
            domain: config.domain_of(machine),
        }
    };
    let members = config.machines.iter().map(member).collect();
    Configuration::first(&config.cluster.name, members)
        .expect("a configuration that was validated has members that can form a cluster")
}

/// Returns the manager of a configuration with which machines begin together, if it is this machine. If there is a store, it has the
/// configuration, unless losses are not survived: then it gets it now.
pub(super) fn make_manager(
    config: &Config,
    id: MachineId,
    first: &Configuration,
    (store, files): (Option<FileStore>, Option<&Arc<KeptFiles>>),
) -> Result<Option<Box<Manager>>, MachineError> {
    if first.manager != id {
        return Ok(None);
    }
    let survives = config.survives_losses();
    let manager = match store {
        None => Manager::new(first.clone(), InProcess::default()),
        Some(mut store) => {
            if !survives && store.compare_and_swap(first)? == Swap::Lost {
                return Err(MachineError::StoreInUse(store_dir(config)));
            }
            let files = files.cloned();
            let thread = StoreThread::start(format!("{id}.store"), SeenStore { store, files });
            Manager::new(first.clone(), thread.map_err(MachineError::Thread)?)
        }
    };
    Ok(Some(Box::new(match survives {
        true => manager.among_others(),
        false => manager,
    })))
}

/// Warns if copies of a region must share a host.
fn warn_of_shared_domains(config: &Config, first: &Configuration) {
    let storing = first.members.iter().filter(|member| member.stores);
    let hosts: BTreeSet<&Domain> = storing.map(|member| &member.domain).collect();
    if config.replicas() > hosts.len() {
        tracing::warn!(
            replicas = config.replicas(),
            hosts = hosts.len(),
            "there are fewer hosts than copies of a region: the loss of one host can lose several copies at once"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Durability;
    use crate::fabric::FabricMachine;

    /// Machine 3 was stopped, the others went on without it, and then ended. When it wakes up it may still write to their logs, although no
    /// configuration has it as a member: they wait for its end.
    #[test]
    fn a_start_waits_for_a_process_that_was_removed_and_runs() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::tiny_for(3, 1);
        config.cluster.name = "removed".into();
        config.cluster.run_dir = dir.path().to_path_buf().into();
        config.memory.dir = dir.path().to_path_buf();
        config.durability.mode = Some(Durability::Memory);
        let [first, _, third] = [1, 2, 3].map(|id| MachineId::new(id).unwrap());
        let stopped = FabricMachine::start(fabric_config(&config, third).unwrap()).unwrap();
        let process = Process {
            machine: third,
            boot: stopped.exporter().boot(),
        };
        let member = |machine: &MachineConfig| Member {
            machine: machine.id,
            boot: 7,
            workers: 1,
            stores: true,
            domain: config.domain_of(machine),
        };
        let members = config.machines.iter().take(2).map(member).collect();
        let mut newest = Configuration::first("removed", members).unwrap();
        assert_eq!(may_write(&config, first, &newest).unwrap(), None);
        newest.expiring = vec![process];
        assert_eq!(may_write(&config, first, &newest).unwrap(), Some(third));
        drop(stopped);
        assert_eq!(may_write(&config, first, &newest).unwrap(), None);
    }
}
