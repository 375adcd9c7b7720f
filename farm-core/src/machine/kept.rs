//! What a machine on shared memory keeps beyond its process, in files ([`crate::kept`]).

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::MachineError;
use super::parts::ring_format;
use crate::config::Config;
use crate::config::host::{run_dir, store_dir};
use crate::fabric::shm::Exporter as ShmExporter;
use crate::fabric::shm::kept::{KeptFile, KeptName, find_journals, forget, map, of_cluster};
use crate::fabric::{Capability, Exporter};
use crate::files::unless_gone;
use crate::ids::{MachineId, RegionId};
use crate::kept::{Journal, Kept, KeptError, Segments};
use crate::mem::Memory;
use crate::membership::configuration::{Configuration, Process};
use crate::messaging::{RingFormat, SegmentLayout};
use crate::ring::KeptLog;

/// The memory and the capability of a region.
type Exported = (Memory, Capability);

/// The files that a process keeps.
pub(super) struct KeptFiles {
    exporter: ShmExporter,
    me: MachineId,
    format: RingFormat,
    workers: BTreeMap<MachineId, usize>,
    region_bytes: usize,
    journal: Mutex<Journal>,
    segments: Mutex<Segments>,
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
        let path = exporter.journal(exporter.boot());
        let journal = Journal::create(&path, config.digest()).map_err(failed)?;
        Self::new(config, me, exporter, journal)
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
        let gone = |what: String| MachineError::MemoryGone {
            machine: me,
            what,
            configuration: newest.version,
        };
        let own: Vec<RegionId> = newest.full_on(me).collect();
        let path = exporter.journal(before);
        if !path.exists() {
            // A process that ended while it joined had nothing that is needed.
            return match own.is_empty() {
                true => Self::begin_with(config, me, exporter).map(Some),
                false => Err(gone(format!("the journal {}", path.display()))),
            };
        }
        // Also checks the version and the configuration.
        Journal::open(&path, config.digest()).map_err(failed)?;
        let mut files = exporter.kept().map_err(failed)?;
        files.retain(|file| file.boot == before);
        let has = |region: &RegionId| {
            let mut files = files.iter();
            files.any(|file| file.what == KeptName::Region(*region))
        };
        if let Some(region) = own.iter().find(|region| !has(region)) {
            return Err(gone(format!("the memory of region {region}")));
        }
        let is_needed = |file: &&KeptFile| match file.what {
            KeptName::Region(region) => own.contains(&region),
            KeptName::Logs { .. } => true,
            KeptName::Place | KeptName::Member => false,
        };
        for file in files.iter().filter(is_needed) {
            let taken = exporter.take_over(file);
            taken.map_err(|error| KeptError::of("take over", file.path.display(), error))?;
        }
        let own_path = exporter.journal(exporter.boot());
        let taken = std::fs::hard_link(&path, &own_path);
        taken.map_err(|error| KeptError::of("take over", path.display(), error))?;
        let journal = Journal::open(&own_path, config.digest()).map_err(failed)?;
        Self::new(config, me, exporter, journal).map(Some)
    }

    fn new(
        config: &Config,
        me: MachineId,
        exporter: ShmExporter,
        journal: Journal,
    ) -> Result<Arc<Self>, MachineError> {
        exporter.keep_place(&store_dir(config)).map_err(failed)?;
        let machines = config.machines.iter();
        let workers = machines.map(|machine| (machine.id, usize::from(machine.workers)));
        Ok(Arc::new(Self {
            exporter,
            me,
            format: ring_format(config),
            workers: workers.collect(),
            region_bytes: config.memory.region_bytes as usize,
            journal: Mutex::new(journal),
            segments: Mutex::default(),
        }))
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

    /// Handles that this process is a member of the newest configuration: removes what other processes of this machine have kept.
    pub(super) fn on_member(&self) {
        note(self.exporter.keep_member());
        for (boot, files) in self.others() {
            self.forget(boot, &files);
        }
    }

    /// Handles that no process of this machine is a member of the newest configuration: removes what processes have kept that were members
    /// once. Another one may have asked to join, and be recorded after its end.
    pub(super) fn on_no_member(&self) {
        for (boot, files) in self.others() {
            if files.iter().any(|file| file.what == KeptName::Member) {
                self.forget(boot, &files);
            }
        }
    }

    /// Handles that this process ends before it has been a member, with nothing that is needed. Removes what it has kept.
    pub(super) fn on_failed_start(&self) {
        let files = self.own().unwrap_or_default();
        self.forget(self.exporter.boot(), &files);
    }

    /// Returns what other starts of this machine have kept, by their numbers.
    fn others(&self) -> BTreeMap<u64, Vec<KeptFile>> {
        let own = self.exporter.boot();
        let files = self.exporter.kept().unwrap_or_default();
        let mut others: BTreeMap<u64, Vec<KeptFile>> = BTreeMap::new();
        for file in files.into_iter().filter(|file| file.boot != own) {
            others.entry(file.boot).or_default().push(file);
        }
        others
    }

    /// Removes what a start of this machine has kept: the journal first, as a later start finds it only by the names of the other files.
    fn forget(&self, boot: u64, files: &[KeptFile]) {
        note(unless_gone(std::fs::remove_file(
            self.exporter.journal(boot),
        )));
        for file in files {
            tracing::debug!(file = %file.path.display(), "removing kept memory that is not needed any more");
            note(forget(file));
        }
    }

    /// Returns what this process keeps.
    fn own(&self) -> Result<Vec<KeptFile>, KeptError> {
        let boot = self.exporter.boot();
        let files = self.exporter.kept().map_err(kept_error)?;
        Ok(files.into_iter().filter(|file| file.boot == boot).collect())
    }

    /// Returns what was taken over of logs, with their files.
    fn earlier(&self) -> Result<Vec<(KeptFile, MachineId, u64)>, KeptError> {
        let own = self.exporter.boot();
        let logs = self.own()?.into_iter().filter_map(|file| match file.what {
            KeptName::Logs { peer, boot, .. } if boot != own => Some((file, peer, boot)),
            _ => None,
        });
        Ok(logs.collect())
    }

    fn logs(&self, peer: MachineId, key: u64) -> KeptName {
        let boot = self.exporter.boot();
        KeptName::Logs { peer, boot, key }
    }

    fn forget_logs(&self, (peer, key): (MachineId, u64)) {
        note(self.exporter.forget(self.logs(peer, key)));
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
        let kept = self.exporter.keep(memory, self.logs(peer, memory.key));
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
        for (file, peer, boot) in self.earlier()? {
            let of = |machine| (machine, self.workers(machine));
            let layout = SegmentLayout::of(self.format, of(self.me), of(peer));
            let memory = map(&file.path, layout.bytes()).map_err(kept_error)?;
            logs.extend(layout.kept_logs(&memory, peer, boot));
        }
        Ok(logs)
    }

    fn forget_earlier_logs(&self) {
        for (file, ..) in self.earlier().unwrap_or_default() {
            note(forget(&file));
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

/// Removes what the machines of a cluster have kept in shared memory, and their journals. Its configuration stays. To be called when none of
/// them runs, and the data is not needed.
///
/// # Errors
/// The error of the first file that could not be removed.
pub fn forget_kept(config: &Config) -> io::Result<()> {
    let (run_dir, cluster) = (run_dir(config), &config.cluster.name);
    let files = of_cluster(&run_dir, &config.memory.dir, cluster)?;
    files.iter().try_for_each(forget)?;
    for journal in find_journals(&run_dir, cluster)? {
        unless_gone(std::fs::remove_file(journal))?;
    }
    // Fails while there is something else.
    let _ = std::fs::remove_dir(run_dir.join(cluster));
    Ok(())
}

/// Returns the exporter of a machine that keeps what it has.
fn keeps(config: &Config, me: MachineId, exporter: &Exporter) -> Option<ShmExporter> {
    match exporter {
        Exporter::Shm(exporter) if config.survives_losses() && config.memory_of(me) > 0 => {
            Some(exporter.clone())
        }
        _ => None,
    }
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
