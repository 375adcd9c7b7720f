//! What a machine on shared memory keeps beyond its process, in files ([`crate::kept`]).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::MachineError;
use super::parts::ring_format;
use crate::config::Config;
use crate::config::host::{run_dir, store_dir};
use crate::fabric::shm::Exporter as ShmExporter;
use crate::fabric::shm::kept::{
    KeptFile, KeptName, KeptStart, LogsName, journal_of, map, of_cluster,
};
use crate::fabric::{Capability, Exporter};
use crate::ids::{MachineId, RegionId};
use crate::kept::{GIVE_UP, Journal, JournalError, Kept, KeptError, Segments};
use crate::mem::Memory;
use crate::membership::configuration::{Configuration, Process};
use crate::membership::files::FileStore;
use crate::membership::store::ConfigStore as _;
use crate::messaging::{RingFormat, SegmentLayout};
use crate::ring::KeptLog;

/// The memory and the capability of a region.
type Exported = (Memory, Capability);

/// The files that a process keeps.
pub(super) struct KeptFiles {
    exporter: ShmExporter,
    me: MachineId,
    /// The directory of the store of the configuration.
    store: PathBuf,
    format: RingFormat,
    workers: BTreeMap<MachineId, usize>,
    region_bytes: usize,
    journal: Mutex<Journal>,
    segments: Mutex<Segments>,
    /// The start whose files were taken over.
    before: Option<u64>,
    /// The last change of the configuration that this process has seen.
    seen: Mutex<u64>,
}

impl KeptFiles {
    /// Returns the files of a new process; `None` if a machine of this configuration keeps nothing.
    ///
    /// # Errors
    /// [`MachineError::Kept`].
    pub(super) fn begin(
        config: &Config,
        me: MachineId,
        exporter: &Exporter,
    ) -> Result<Option<Arc<Self>>, MachineError> {
        let Some(exporter) = keeps(config, me, exporter) else {
            return Ok(None);
        };
        Self::begin_with(config, me, exporter).map(Some)
    }

    fn begin_with(
        config: &Config,
        me: MachineId,
        exporter: ShmExporter,
    ) -> Result<Arc<Self>, MachineError> {
        keep_place(config, &exporter)?;
        let path = exporter.journal(exporter.boot());
        let journal = Journal::create(&path, &config.canonical()).map_err(failed)?;
        Ok(Self::new(config, me, exporter, (journal, None)))
    }

    /// Checks that a new cluster, whose store has no configuration, takes the place of no other one: that no process of this machine has
    /// kept memory that is named by a configuration which this start does not find.
    ///
    /// # Errors
    /// [`MachineError::ConfigurationGone`], and [`MachineError::KeptElsewhere`].
    pub(super) fn check_new(&self, config: &Config) -> Result<(), MachineError> {
        let cluster = &config.cluster.name;
        let kept = self.exporter.kept().map_err(not_listed(config))?;
        for start in kept.into_iter().filter(KeptStart::is_member) {
            let Some(place) = start.place() else { continue };
            if start.is_of(&self.store) {
                return Err(MachineError::ConfigurationGone {
                    machine: self.me,
                    cluster: cluster.clone(),
                    dir: place,
                    memory: config.memory.dir.clone(),
                });
            }
            // One that cannot be read, or is gone, may name it, but that start will say so. Nothing is removed.
            let theirs = FileStore::at(&place, cluster).read().ok().flatten();
            let process = Process {
                machine: self.me,
                boot: start.boot,
            };
            if theirs.is_some_and(|theirs| theirs.has(process)) {
                return Err(MachineError::KeptElsewhere {
                    machine: self.me,
                    cluster: cluster.clone(),
                    dir: self.store.clone(),
                    theirs: place,
                });
            }
        }
        Ok(())
    }

    /// Takes over what the process of this machine has kept that a configuration names.
    ///
    /// # Errors
    /// [`MachineError::Kept`], and [`MachineError::MemoryGone`].
    pub(super) fn take_over(
        config: &Config,
        me: MachineId,
        exporter: &Exporter,
        newest: &Configuration,
    ) -> Result<Option<Arc<Self>>, MachineError> {
        let Some(exporter) = keeps(config, me, exporter) else {
            return Ok(None);
        };
        let before = newest.member(me).map_or(0, |member| member.boot);
        let starts = kept_starts(config)?;
        let gone = gone_in(config, newest, &starts);
        if gone.contains(&me) {
            return Err(memory_gone(config, gone, newest));
        }
        let path = exporter.journal(before);
        if !exists(&path)? {
            // A process that ended while it joined had nothing that is needed.
            return Self::begin_with(config, me, exporter).map(Some);
        }
        let own: Vec<RegionId> = newest.full_on(me).collect();
        let is_needed = |file: &&KeptFile| match file.what {
            KeptName::Region(region) => own.contains(&region),
            KeptName::Logs(_) | KeptName::Noted(_) => true,
            KeptName::Place | KeptName::Member | KeptName::Seen(_) => false,
        };
        keep_place(config, &exporter)?;
        let start = starts.iter().filter(|start| start.boot == before);
        let files = start.flat_map(|start| &start.files);
        for file in files.filter(is_needed) {
            let taken = exporter.take_over(file);
            taken.map_err(|error| KeptError::of("take over", file.path.display(), error))?;
        }
        let own_path = exporter.journal(exporter.boot());
        let taken = std::fs::hard_link(&path, &own_path);
        taken.map_err(|error| KeptError::of("take over", path.display(), error))?;
        let journal = open_journal(config, &own_path)?;
        let before = (journal, Some(before));
        Ok(Some(Self::new(config, me, exporter, before)))
    }

    fn new(
        config: &Config,
        me: MachineId,
        exporter: ShmExporter,
        (journal, before): (Journal, Option<u64>),
    ) -> Arc<Self> {
        let machines = config.machines.iter();
        let workers = machines.map(|machine| (machine.id, usize::from(machine.workers)));
        Arc::new(Self {
            exporter,
            me,
            store: store_dir(config),
            format: ring_format(config),
            workers: workers.collect(),
            region_bytes: config.memory.region_bytes as usize,
            journal: Mutex::new(journal),
            segments: Mutex::default(),
            before,
            seen: Mutex::new(0),
        })
    }

    /// Exports the memory of regions that was taken over.
    ///
    /// # Errors
    /// [`MachineError::Kept`].
    pub(super) fn export_regions(&self) -> Result<Vec<(RegionId, Exported)>, MachineError> {
        let mut exported = Vec::new();
        for file in self.own()? {
            if let KeptName::Region(region) = file.what {
                let memory = self.exporter.export_kept(file.what, self.region_bytes);
                exported.push((region, memory.map_err(failed)?));
            }
        }
        Ok(exported)
    }

    /// Handles that this process is a member of the newest configuration, which is stored: removes what other processes of this machine have
    /// kept for that store.
    pub(super) fn on_member(&self) {
        match self.exporter.keep_member() {
            Ok(()) => self.forget_others(),
            Err(error) => {
                tracing::warn!(%error, "cannot note that this process is a member; what earlier ones have kept stays")
            }
        }
    }

    /// Notes that the store has had this change of the configuration. A start refuses a store whose changes have been lost.
    pub(super) fn on_seen(&self, change: u64) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if change <= *seen {
            return;
        }
        match self.exporter.keep_seen(*seen, change) {
            Ok(()) => *seen = change,
            Err(error) => tracing::warn!(%error, "cannot note the change of the configuration"),
        }
    }

    /// Handles that no process of this machine is a member of the newest configuration: removes what other processes have kept for its
    /// store. They have ended. One that was killed while it joined may still be recorded, but its copies are not full.
    pub(super) fn on_no_member(&self) {
        self.forget_others();
    }

    /// Handles that this process ends at its start. Removes what it has kept, unless it has been a member. If it has `taken_over` what another
    /// process has kept, the manager may name it all the same: then only its own logs are removed. They are empty, because no
    /// region is served before its recovery, and that waits for each machine.
    pub(super) fn on_failed_start(&self, taken_over: bool) {
        let boot = self.exporter.boot();
        let kept = self.exporter.kept().unwrap_or_default();
        let mut kept = kept.iter();
        let Some(own) = kept.find(|start| start.boot == boot && !start.is_member()) else {
            return;
        };
        match taken_over {
            true => self.forget_own_logs(),
            false => self.forget(own),
        }
    }

    /// Removes the logs that this process has made itself. They must be empty.
    pub(super) fn forget_own_logs(&self) {
        let own = self.exporter.boot();
        for file in self.own().unwrap_or_default() {
            if let KeptName::Logs(logs) = file.what
                && logs.boot == own
            {
                note(self.exporter.forget_logs(logs));
            }
        }
    }

    /// Removes what the other starts of this machine have kept about which this store decides.
    fn forget_others(&self) {
        let starts = self.exporter.kept().unwrap_or_default();
        let is_other = |start: &&KeptStart| start.boot != self.exporter.boot();
        let others = starts.iter().filter(is_other);
        // The link of the earlier start may be gone, or name the store by another path.
        let is_ours =
            |start: &&KeptStart| start.is_of(&self.store) || self.before == Some(start.boot);
        let others = others.filter(is_ours);
        others.for_each(|start| self.forget(start));
    }

    /// Removes what a start of this machine has kept.
    fn forget(&self, start: &KeptStart) {
        tracing::debug!(
            start.boot,
            "removing kept memory that is not needed any more"
        );
        let removed = start.remove(&self.exporter.journal(start.boot));
        note(removed.map_err(|(_, error)| error));
    }

    /// Returns what this process keeps.
    fn own(&self) -> Result<Vec<KeptFile>, KeptError> {
        let boot = self.exporter.boot();
        let kept = self.exporter.kept().map_err(kept_error)?.into_iter();
        let own = kept.filter(|start| start.boot == boot);
        Ok(own.flat_map(|start| start.files).collect())
    }

    /// Returns what was taken over of logs, with their files.
    fn earlier(&self) -> Result<Vec<(KeptFile, LogsName)>, KeptError> {
        let own = self.exporter.boot();
        let logs = self.own()?.into_iter().filter_map(|file| match file.what {
            KeptName::Logs(logs) if logs.boot != own => Some((file, logs)),
            _ => None,
        });
        Ok(logs.collect())
    }

    fn logs(&self, peer: MachineId, key: u64) -> LogsName {
        let boot = self.exporter.boot();
        LogsName { peer, boot, key }
    }

    fn forget_logs(&self, (peer, key): (MachineId, u64)) {
        note(self.exporter.forget_logs(self.logs(peer, key)));
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn segments(&self) -> MutexGuard<'_, Segments> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn workers(&self, machine: MachineId) -> usize {
        self.workers.get(&machine).copied().unwrap_or(0)
    }
}

impl Kept for KeptFiles {
    fn keep_region(&self, region: RegionId, memory: &Capability) -> Result<(), KeptError> {
        let kept = self.exporter.keep(memory, KeptName::Region(region));
        kept.map_err(|error| KeptError::of("keep the memory of region", region, error))
    }

    fn keep_logs(&self, peer: MachineId, memory: &Capability) -> Result<(), KeptError> {
        let kept = self.exporter.keep_logs(memory, self.logs(peer, memory.key));
        kept.map_err(|error| KeptError::of("keep the logs of machine", peer, error))?;
        if let Some(unused) = self.segments().add(peer, memory.key) {
            self.forget_logs(unused);
        }
        Ok(())
    }

    fn connected(&self, process: Process, memory: &Capability) {
        self.segments().connected(process, memory.key);
    }

    fn left(&self, process: Process) {
        let keys = self.segments().left(process);
        for key in keys {
            self.forget_logs((process.machine, key));
        }
    }

    fn earlier_logs(&self) -> Result<Vec<KeptLog>, KeptError> {
        let mut logs = Vec::new();
        for (file, LogsName { peer, boot, .. }) in self.earlier()? {
            let of = |machine| (machine, self.workers(machine));
            let layout = SegmentLayout::of(self.format, of(self.me), of(peer));
            let memory = map(&file.path, layout.bytes()).map_err(kept_error)?;
            logs.extend(layout.kept_logs(&memory, peer, boot));
        }
        Ok(logs)
    }

    fn forget_earlier_logs(&self) {
        for (_, logs) in self.earlier().unwrap_or_default() {
            note(self.exporter.forget_logs(logs));
        }
    }

    fn append(&self, configuration: u64, entry: &[u8]) -> Result<(), KeptError> {
        let appended = self.journal().append(configuration, entry);
        appended.map_err(kept_error)
    }

    fn entries(&self) -> Result<Vec<Vec<u8>>, KeptError> {
        let entries = self.journal().entries();
        entries.map_err(kept_error)
    }

    fn clear_before(&self, configuration: &Configuration) -> Result<(), KeptError> {
        for drained in self.segments().take_drained(configuration) {
            self.forget_logs(drained);
        }
        let before = configuration.version.id.saturating_sub(1);
        let cleared = self.journal().clear(before);
        cleared.map_err(kept_error)
    }
}

/// Returns the error of machines whose memory is gone, which no other one has.
pub(super) fn memory_gone(
    config: &Config,
    machines: BTreeSet<MachineId>,
    newest: &Configuration,
) -> MachineError {
    MachineError::MemoryGone {
        machines,
        memory: config.memory.dir.clone(),
        run_dir: run_dir(config).join(&config.cluster.name),
        configuration: newest.version,
    }
}

/// Checks that a machine can take over what its process has kept that is a member of a configuration, before the machine decides anything.
///
/// # Errors
/// [`MachineError::Kept`] if it has another format, was kept with another configuration file, or is shorter than it was.
pub(super) fn check_own(
    config: &Config,
    me: MachineId,
    newest: &Configuration,
    starts: &[KeptStart],
) -> Result<(), MachineError> {
    let boot = newest.member(me).map_or(0, |member| member.boot);
    let path = journal_of(&run_dir(config), &config.cluster.name, me, boot);
    if !exists(&path)? {
        // Nothing is taken over.
        return Ok(());
    }
    open_journal(config, &path)?;
    let own: Vec<RegionId> = newest.full_on(me).collect();
    let start = starts.iter().filter(|start| start.boot == boot);
    let mut files = start.flat_map(|start| &start.files);
    files.try_for_each(|file| check_size(config, (me, &own), file))
}

/// Checks that a file which a machine has kept, which has these regions, is not shorter than it was. It may be gone: the caller looks for that.
fn check_size(
    config: &Config,
    (me, own): (MachineId, &[RegionId]),
    file: &KeptFile,
) -> Result<(), MachineError> {
    let of = |machine| {
        let workers = config.machine(machine).map_or(0, |found| found.workers);
        (machine, usize::from(workers))
    };
    let needed = match file.what {
        KeptName::Region(region) if own.contains(&region) => config.memory.region_bytes,
        KeptName::Logs(logs) => {
            SegmentLayout::of(ring_format(config), of(me), of(logs.peer)).bytes() as u64
        }
        // Other regions are not taken over.
        KeptName::Region(_)
        | KeptName::Place
        | KeptName::Member
        | KeptName::Seen(_)
        | KeptName::Noted(_) => 0,
    };
    match file.path.symlink_metadata() {
        Ok(found) if found.len() < needed => Err(failed(format_args!(
            "{} has {} bytes instead of {needed}; {GIVE_UP}",
            file.path.display(),
            found.len()
        ))),
        _ => Ok(()),
    }
}

/// Returns the members of a configuration whose memory is gone, if these are all starts that have kept some. No member runs.
pub(super) fn gone_in(
    config: &Config,
    newest: &Configuration,
    starts: &[KeptStart],
) -> BTreeSet<MachineId> {
    let (run_dir, cluster) = (run_dir(config), &config.cluster.name);
    let is_gone = |member: &Process| {
        let full: Vec<RegionId> = newest.full_on(member.machine).collect();
        let start = starts.iter().find(|start| start.boot == member.boot);
        let has_files = start.is_some_and(|start| {
            let mut regions = full.iter();
            regions.all(|region| start.has(KeptName::Region(*region))) && start.has_logs()
        });
        let journal = journal_of(&run_dir, cluster, member.machine, member.boot);
        // If that cannot be found out, it may be there.
        let has_all = has_files && journal.try_exists().unwrap_or(true);
        !full.is_empty() && !has_all
    };
    let gone = newest.storing().filter(is_gone);
    gone.map(|member| member.machine).collect()
}

/// Returns what all starts of machines of a cluster have kept.
///
/// # Errors
/// If the directory of memory cannot be listed.
pub(super) fn kept_starts(config: &Config) -> Result<Vec<KeptStart>, KeptError> {
    let (run_dir, cluster) = (run_dir(config), &config.cluster.name);
    of_cluster(&run_dir, &config.memory.dir, cluster).map_err(not_listed(config))
}

fn memory_dir(config: &Config) -> std::path::Display<'_> {
    config.memory.dir.display()
}

fn keep_place(config: &Config, exporter: &ShmExporter) -> Result<(), KeptError> {
    let placed = exporter.keep_place(&store_dir(config));
    placed.map_err(|error| KeptError::of("create a link in", memory_dir(config), error))
}

/// Returns the error of a directory of memory that cannot be listed.
fn not_listed(config: &Config) -> impl Fn(io::Error) -> KeptError {
    |error| KeptError::of("list", memory_dir(config), error)
}

fn exists(path: &Path) -> Result<bool, KeptError> {
    let found = path.try_exists();
    found.map_err(|error| KeptError::of("look for", path.display(), error))
}

/// Returns the exporter of a machine that keeps what it has.
fn keeps(config: &Config, me: MachineId, exporter: &Exporter) -> Option<ShmExporter> {
    match exporter {
        Exporter::Shm(exporter) if config.keeps_memory() && config.memory_of(me) > 0 => {
            Some(exporter.clone())
        }
        _ => None,
    }
}

/// Opens a journal of a machine of a cluster with this configuration.
fn open_journal(config: &Config, path: &Path) -> Result<Journal, MachineError> {
    Journal::open(path, &config.canonical()).map_err(|error| match error {
        JournalError::Owner { path, owner } => failed(format_args!(
            "{} was written by a machine with another configuration: {}; start all machines with the configuration that they had",
            path.display(),
            config.differences(&owner)
        )),
        error => failed(error),
    })
}

fn kept_error(why: impl std::fmt::Display) -> KeptError {
    KeptError(why.to_string())
}

fn failed(why: impl std::fmt::Display) -> MachineError {
    MachineError::Kept(kept_error(why))
}

/// Logs that a file could not be removed. It is removed by a later start.
fn note(removed: io::Result<()>) {
    if let Err(error) = removed {
        tracing::warn!(%error, "cannot remove memory that is not needed any more");
    }
}
