//! Files of shared memory that outlive the process that made them (see [`crate::kept`]).
//!
//! They are further names of files that the process exports: what removes the files of ended processes removes only the names under which
//! they were exported. The name has the start of the process that keeps the file:
//!
//! ```text
//! farmd-<cluster>-m<machine>-<start>-r<region>-<name of the cluster>                 memory of a region
//! farmd-<cluster>-m<machine>-<start>-l<peer>.<start>.<key>-<name of the cluster>     logs; the second start is the one that exported them
//! farmd-<cluster>-m<machine>-<start>-place-<name of the cluster>                     link to the directory of the configuration's store
//! farmd-<cluster>-m<machine>-<start>-member-<name of the cluster>                    nothing: the process was a member
//! farmd-<cluster>-m<machine>-<start>-s<change>-<name of the cluster>                 nothing: the last change of the configuration that it knows
//! farmd-<cluster>-m<machine>-<start>-n<peer>.<start>.<key>-<name of the cluster>     nothing: the start keeps the logs with this name
//! ```
//!
//! The link is the first file of a start, and the last that is removed. It says which configuration decides about the others: clusters of the
//! same name can have theirs in several directories, one after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::files::{Names, kept_prefix, memory_name};
use super::machine::{Exporter, is_locked};
use super::memory_name::{decimal, hash, machine_id};
use crate::fabric::Capability;
use crate::files::unless_gone;
use crate::ids::{MachineId, RegionId};
use crate::mem::{Access, Mapping, MappingError, Memory};

/// What names logs that a start keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LogsName {
    /// The machine that writes them.
    pub(crate) peer: MachineId,
    /// The start of the machine that exported them.
    pub(crate) boot: u64,
    pub(crate) key: u64,
}

impl LogsName {
    fn text(self) -> String {
        let Self { peer, boot, key } = self;
        format!("{}.{boot:016x}.{key}", peer.get())
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '.');
        Some(Self {
            peer: machine_id(parts.next()?)?,
            boot: hash(parts.next()?)?,
            key: decimal(parts.next()?)?,
        })
    }
}

/// What a kept file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KeptName {
    /// A link to the directory of the store of the cluster's configuration.
    Place,
    /// Nothing: the process is, or was, a member of a configuration that is stored.
    Member,
    /// The memory of a region.
    Region(RegionId),
    /// Logs that a peer has written.
    Logs(LogsName),
    /// Nothing: these logs are kept. It is removed before them, so that a start notices if they are missing.
    Noted(LogsName),
    /// Nothing: the process has seen this change of the configuration in its store.
    Seen(u64),
}

impl KeptName {
    fn text(self) -> String {
        match self {
            Self::Place => "place".into(),
            Self::Member => "member".into(),
            Self::Region(region) => format!("r{}", region.to_bits()),
            Self::Logs(logs) => format!("l{}", logs.text()),
            Self::Noted(logs) => format!("n{}", logs.text()),
            Self::Seen(change) => format!("s{change}"),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        match text {
            "place" => return Some(Self::Place),
            "member" => return Some(Self::Member),
            _ => {}
        }
        let (kind, what) = text.split_at_checked(1)?;
        match kind {
            "r" => {
                let bits: u32 = decimal(what)?.try_into().ok()?;
                RegionId::from_bits(bits).map(Self::Region)
            }
            "l" => LogsName::parse(what).map(Self::Logs),
            "n" => LogsName::parse(what).map(Self::Noted),
            "s" => decimal(what).map(Self::Seen),
            _ => None,
        }
    }
}

/// A kept file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptFile {
    /// What determines the cluster: see [`Names`].
    pub(crate) identity: u64,
    /// Name of the cluster.
    pub(crate) cluster: String,
    pub(crate) machine: MachineId,
    /// The start of the machine that keeps it.
    pub(crate) boot: u64,
    pub(crate) what: KeptName,
    pub(crate) path: PathBuf,
}

impl KeptFile {
    fn parse(path: PathBuf) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let mut parts = name.splitn(6, '-');
        let mut part = || parts.next();
        let (farm, identity, machine) = (part()?, part()?, part()?);
        let (boot, what, cluster) = (part()?, part()?, part()?);
        let file = Self {
            identity: hash(identity)?,
            cluster: cluster.to_owned(),
            machine: machine_id(machine.strip_prefix('m')?)?,
            boot: hash(boot)?,
            what: KeptName::parse(what)?,
            path: PathBuf::new(),
        };
        let fits = farm == "farmd" && !cluster.is_empty();
        fits.then_some(Self { path, ..file })
    }
}

/// What one start of a machine keeps.
#[derive(Clone, Debug)]
pub(crate) struct KeptStart {
    pub(crate) boot: u64,
    /// Never empty.
    pub(crate) files: Vec<KeptFile>,
}

impl KeptStart {
    /// Returns the directory of the store of the configuration that decides about the files; `None` if the start has only begun.
    pub(crate) fn place(&self) -> Option<PathBuf> {
        let mut files = self.files.iter();
        let place = files.find(|file| file.what == KeptName::Place)?;
        std::fs::read_link(&place.path).ok()
    }

    /// Returns whether the store in this directory decides about the files.
    pub(crate) fn is_of(&self, store: &Path) -> bool {
        self.place().as_deref() == Some(store)
    }

    /// Returns whether the process is, or was, a member of a configuration that is stored.
    pub(crate) fn is_member(&self) -> bool {
        self.has(KeptName::Member)
    }

    /// Returns whether the start keeps this.
    pub(crate) fn has(&self, what: KeptName) -> bool {
        self.files.iter().any(|file| file.what == what)
    }

    /// Returns the last change of the configuration that the process has seen; 0 if it has seen none.
    pub(crate) fn seen(&self) -> u64 {
        let seen = self.files.iter().map(|file| match file.what {
            KeptName::Seen(change) => change,
            _ => 0,
        });
        seen.max().unwrap_or(0)
    }

    /// Returns whether all logs are there that are noted.
    pub(crate) fn has_logs(&self) -> bool {
        let mut noted = self.files.iter().filter_map(|file| match file.what {
            KeptName::Noted(logs) => Some(logs),
            _ => None,
        });
        noted.all(|logs| self.has(KeptName::Logs(logs)))
    }

    /// Removes the journal, then the files, those of regions first: if the removal is interrupted, the next start sees that something is gone.
    ///
    /// # Errors
    /// The file that could not be removed, and why.
    pub(crate) fn remove(&self, journal: &Path) -> Result<(), (PathBuf, io::Error)> {
        unless_gone(std::fs::remove_file(journal)).map_err(|error| (journal.to_owned(), error))?;
        let mut files: Vec<&KeptFile> = self.files.iter().collect();
        files.sort_by_key(|file| match file.what {
            KeptName::Region(_) => 0,
            KeptName::Noted(_) => 1,
            KeptName::Logs(_) => 2,
            KeptName::Member | KeptName::Seen(_) => 3,
            KeptName::Place => 4,
        });
        let mut files = files.into_iter();
        files.try_for_each(|file| forget(file).map_err(|error| (file.path.clone(), error)))
    }

    /// Returns whether the process runs: it holds the lock of its first file.
    fn runs(&self) -> bool {
        let file = &self.files[0];
        let first = (self.boot, 0);
        let name = memory_name(file.identity, file.machine, first, &file.cluster);
        is_locked(&file.path.with_file_name(name))
    }
}

/// Groups files of one machine of one cluster by starts.
fn by_start(files: impl IntoIterator<Item = KeptFile>) -> Vec<KeptStart> {
    let mut starts: BTreeMap<u64, Vec<KeptFile>> = BTreeMap::new();
    for file in files {
        starts.entry(file.boot).or_default().push(file);
    }
    let starts = starts.into_iter();
    let start = |(boot, files)| KeptStart { boot, files };
    starts.map(start).collect()
}

/// What processes of a machine have kept in shared memory for one configuration, which have ended or run, or one process if it is not known for
/// which.
#[derive(Clone, Debug)]
pub struct KeptMemory {
    /// Name of the cluster.
    pub cluster: String,
    /// The machine.
    pub machine: MachineId,
    /// Number of names of files.
    pub files: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// The directory of the store of the cluster's configuration, if it is known.
    pub store: Option<PathBuf>,
    identity: u64,
    starts: Vec<KeptStart>,
}

impl KeptMemory {
    /// Removes the files, and before them the journals in this directory of sockets and locks.
    ///
    /// # Errors
    /// The file that could not be removed, and why.
    pub fn remove(&self, run_dir: &Path) -> Result<(), (PathBuf, io::Error)> {
        let journal = |boot| journal_of(run_dir, &self.cluster, self.machine, boot);
        let mut starts = self.starts.iter();
        starts.try_for_each(|start| start.remove(&journal(start.boot)))
    }

    /// Returns whether they are of this cluster with this directory of sockets and locks.
    pub fn is_of(&self, run_dir: &Path, cluster: &str) -> bool {
        self.identity == Names::new(run_dir, Path::new(""), cluster).identity()
    }

    /// Returns whether a process that has kept some of them is, or was, a member of a configuration that is stored.
    pub fn was_member(&self) -> bool {
        self.starts.iter().any(KeptStart::is_member)
    }

    /// Returns whether one of these starts has kept some of them.
    pub fn is_of_start(&self, boots: &BTreeSet<u64>) -> bool {
        self.starts.iter().any(|start| boots.contains(&start.boot))
    }

    /// Returns how the names of the files of each start begin.
    pub fn prefixes(&self) -> impl Iterator<Item = String> {
        let boots = self.starts.iter().map(|start| start.boot);
        boots.map(|boot| kept_prefix(self.identity, self.machine, boot))
    }

    /// Returns whether a process runs that keeps some of them.
    pub fn is_used(&self) -> bool {
        self.starts.iter().any(KeptStart::runs)
    }

    fn add(&mut self, start: KeptStart, counted: &mut BTreeSet<u64>) {
        for file in &start.files {
            let Ok(facts) = file.path.symlink_metadata() else {
                continue;
            };
            self.files += 1;
            // A file may have several names.
            if counted.insert(facts.ino()) {
                self.bytes += facts.len();
            }
        }
        self.starts.push(start);
    }
}

/// Returns what machines of all clusters have kept in a directory of shared memory, as far as it is this user's.
///
/// # Errors
/// If the directory cannot be read.
pub fn find_kept_memory(memory_dir: &Path) -> io::Result<Vec<KeptMemory>> {
    let user = rustix::process::geteuid().as_raw();
    let mut machines: BTreeMap<(u64, MachineId), Vec<KeptFile>> = BTreeMap::new();
    for file in list(memory_dir)? {
        if matches!(file.path.symlink_metadata(), Ok(facts) if facts.uid() == user) {
            let of = machines.entry((file.identity, file.machine));
            of.or_default().push(file);
        }
    }
    let mut all = Vec::new();
    let mut counted = BTreeSet::new();
    for ((identity, machine), files) in machines {
        let cluster = files[0].cluster.clone();
        let mut found: BTreeMap<(Option<PathBuf>, u64), KeptMemory> = BTreeMap::new();
        for start in by_start(files) {
            let store = start.place();
            // Nothing says whether starts without a link are of one store.
            let alone = if store.is_none() { start.boot } else { 0 };
            let of = found.entry((store.clone(), alone));
            let kept = of.or_insert_with(|| KeptMemory {
                cluster: cluster.clone(),
                machine,
                files: 0,
                bytes: 0,
                store,
                identity,
                starts: Vec::new(),
            });
            kept.add(start, &mut counted);
        }
        all.extend(found.into_values());
    }
    Ok(all)
}

/// Returns all kept files in a directory of shared memory.
fn list(memory_dir: &Path) -> io::Result<Vec<KeptFile>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(memory_dir)? {
        found.extend(KeptFile::parse(entry?.path()));
    }
    Ok(found)
}

/// Returns what all starts of machines of a cluster keep.
pub(crate) fn of_cluster(
    run_dir: &Path,
    memory_dir: &Path,
    cluster: &str,
) -> io::Result<Vec<KeptStart>> {
    let identity = Names::new(run_dir, memory_dir, cluster).identity();
    let mut files = list(memory_dir)?;
    files.retain(|file| file.identity == identity);
    // The number of a start is random.
    Ok(by_start(files))
}

/// Returns the path of the journal of a start of a machine of a cluster.
pub(crate) fn journal_of(run_dir: &Path, cluster: &str, machine: MachineId, boot: u64) -> PathBuf {
    Names::new(run_dir, Path::new(""), cluster).journal(machine, boot)
}

/// Removes a kept file. It is no error if it is gone.
pub(crate) fn forget(file: &KeptFile) -> io::Result<()> {
    unless_gone(std::fs::remove_file(&file.path))
}

impl Exporter {
    fn path(&self, boot: u64, what: KeptName) -> PathBuf {
        let (names, machine) = (&self.shared.names, self.shared.config.machine);
        names.kept(machine, boot, &what.text())
    }

    /// Keeps exported memory.
    pub(crate) fn keep(&self, capability: &Capability, what: KeptName) -> io::Result<()> {
        std::fs::hard_link(self.exported(capability), self.path(self.boot(), what))
    }

    /// Keeps the directory of the store of the cluster's configuration. To be called before anything else is kept.
    pub(crate) fn keep_place(&self, dir: &Path) -> io::Result<()> {
        // A link exists with its target or not at all, and file systems of huge pages have links, but no `write`.
        std::os::unix::fs::symlink(dir, self.path(self.boot(), KeptName::Place))
    }

    /// Notes that this start is a member of a configuration that is stored.
    pub(crate) fn keep_member(&self) -> io::Result<()> {
        std::fs::write(self.path(self.boot(), KeptName::Member), "")
    }

    /// Notes that this start has seen a change of the configuration, after an earlier one, or after none, which is 0.
    pub(crate) fn keep_seen(&self, earlier: u64, change: u64) -> io::Result<()> {
        let path = |change| self.path(self.boot(), KeptName::Seen(change));
        match earlier {
            0 => std::fs::write(path(change), ""),
            _ => std::fs::rename(path(earlier), path(change)),
        }
    }

    /// Keeps exported memory with logs, and notes that.
    pub(crate) fn keep_logs(&self, capability: &Capability, logs: LogsName) -> io::Result<()> {
        self.keep(capability, KeptName::Logs(logs))?;
        std::fs::write(self.path(self.boot(), KeptName::Noted(logs)), "")
    }

    /// Returns the path of the journal of a start of this machine.
    pub(crate) fn journal(&self, boot: u64) -> PathBuf {
        let machine = self.shared.config.machine;
        self.shared.names.journal(machine, boot)
    }

    /// Returns what all starts of this machine keep, also those of clusters of the same name with another store.
    pub(crate) fn kept(&self) -> io::Result<Vec<KeptStart>> {
        let config = &self.shared.config;
        let mut starts = of_cluster(&config.run_dir, &config.memory_dir, &config.cluster)?;
        starts.retain(|start| start.files[0].machine == config.machine);
        Ok(starts)
    }

    /// Keeps a file of an earlier start under this start.
    pub(crate) fn take_over(&self, file: &KeptFile) -> io::Result<()> {
        std::fs::hard_link(&file.path, self.path(self.boot(), file.what))
    }

    /// Removes logs that this start keeps, and first what notes that it keeps them.
    pub(crate) fn forget_logs(&self, logs: LogsName) -> io::Result<()> {
        let forget = |what| unless_gone(std::fs::remove_file(self.path(self.boot(), what)));
        forget(KeptName::Noted(logs))?;
        forget(KeptName::Logs(logs))
    }

    /// Exports a file that this start keeps, so that peers can read it.
    pub(crate) fn export_kept(
        &self,
        what: KeptName,
        bytes: usize,
    ) -> Result<(Memory, Capability), MappingError> {
        let capability = self.next_capability(bytes, false);
        let (kept, path) = (self.path(self.boot(), what), self.exported(&capability));
        std::fs::hard_link(&kept, &path).map_err(|source| MappingError::Os {
            what: "link",
            path: kept,
            source,
        })?;
        Ok((map(&path, bytes)?, capability))
    }
}

/// Maps a kept file of at least this many bytes.
pub(crate) fn map(path: &Path, bytes: usize) -> Result<Memory, MappingError> {
    Ok(Memory::of(Mapping::open(path, bytes, Access::ReadWrite)?).window(0, bytes))
}

/// Returns the journals that starts of machines of a cluster have kept below a directory of sockets and locks, with the numbers of the starts.
pub(crate) fn journals(run_dir: &Path, cluster: &str) -> io::Result<Vec<(u64, PathBuf)>> {
    let entries = match std::fs::read_dir(run_dir.join(cluster)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let start_of = |name: &str| {
        let name = name
            .strip_prefix('m')
            .and_then(|name| name.strip_suffix(".journal"));
        let (machine, boot) = name?.split_once('-')?;
        decimal(machine).and(hash(boot))
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        let boot = entry.file_name().to_str().and_then(start_of);
        found.extend(boot.map(|boot| (boot, entry.path())));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn names_of_kept_files_are_parsed() {
        let machine = MachineId::new(7).unwrap();
        let names = Names::new(Path::new("/r"), Path::new("/d"), "c-1");
        let logs = LogsName {
            peer: MachineId::new(2).unwrap(),
            boot: 0xbeef,
            key: 17,
        };
        let all = [
            KeptName::Place,
            KeptName::Member,
            KeptName::Region(RegionId::new(3, 9).unwrap()),
            KeptName::Logs(logs),
            KeptName::Noted(logs),
            KeptName::Seen(19),
        ];
        for what in all {
            let path = names.kept(machine, 0xdead, &what.text());
            let file = KeptFile::parse(path.clone()).unwrap();
            assert_eq!(
                (file.what, file.machine, file.boot),
                (what, machine, 0xdead)
            );
            assert_eq!(
                (file.cluster.as_str(), file.identity),
                ("c-1", names.identity())
            );
            assert_eq!(file.path, path);
        }
        for other in [
            "farmd-0123456789abcdef-m7-000000000000dead-r0-c",
            "farmd-0123456789abcdef-m7-000000000000dead-l2.00.1-c",
            "farmd-0123456789abcdef-m7-000000000000dead-else-c",
            "farmd-0123456789abcdef-m7-000000000000dead-place-",
            "farm-0123456789abcdef-m7-000000000000dead-place-c",
        ] {
            assert_eq!(
                KeptFile::parse(Path::new("/d").join(other)),
                None,
                "{other}"
            );
        }
    }

    #[test]
    fn what_a_cluster_has_kept_is_found_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let machine = MachineId::new(1).unwrap();
        let names = Names::new(dir.path(), dir.path(), "c");
        let region = KeptName::Region(RegionId::new(3, 9).unwrap());
        let first = names.kept(machine, 1, &region.text());
        std::fs::write(&first, [0; 100]).unwrap();
        // The next start has it, too.
        std::fs::hard_link(&first, names.kept(machine, 2, &region.text())).unwrap();
        let place = |boot| names.kept(machine, boot, &KeptName::Place.text());
        std::os::unix::fs::symlink("/store", place(1)).unwrap();
        std::os::unix::fs::symlink("/store", place(2)).unwrap();
        std::fs::write(dir.path().join("other"), "").unwrap();
        // A cluster of the same name, with its configuration in another directory.
        std::os::unix::fs::symlink("/else", place(3)).unwrap();
        let found = || find_kept_memory(dir.path()).unwrap();
        let store = |kept: &KeptMemory| kept.store.clone().unwrap();
        assert_eq!(
            found().iter().map(store).collect::<Vec<_>>(),
            [Path::new("/else"), Path::new("/store")]
        );
        let kept = &found()[1];
        assert_eq!((kept.files, kept.bytes, kept.machine), (4, 112, machine));

        let listed = || {
            let mut listed = journals(dir.path(), "c").unwrap();
            listed.sort();
            listed
        };
        assert!(listed().is_empty());
        std::fs::create_dir(dir.path().join("c")).unwrap();
        let journal = |boot| {
            let path = names.journal(machine, boot);
            std::fs::write(&path, "").unwrap();
            path
        };
        let (of_this, of_other) = (journal(2), journal(3));
        std::fs::write(dir.path().join("c/m1.lock"), "").unwrap();
        assert_eq!(listed(), [(2, of_this), (3, of_other.clone())]);

        assert!(!kept.is_used());
        let first = File::create(names.memory(machine, 2, 0)).unwrap();
        first.lock().unwrap();
        assert!(kept.is_used() && !found()[0].is_used());
        drop(first);
        kept.remove(dir.path()).unwrap();
        kept.remove(dir.path()).unwrap();
        assert_eq!(found().len(), 1, "that of the other cluster stays");
        assert_eq!(listed(), [(3, of_other)]);
    }
}
