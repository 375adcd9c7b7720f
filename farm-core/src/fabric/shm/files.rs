//! Names in the file system: the run directory of a cluster (sockets and locks), and the files of
//! shared memory.
//!
//! The process of a machine holds the machine's lock file locked as long as it lives ([`Claim`]).
//! The holder of a machine's lock may remove files that an earlier process of the machine left
//! behind. `stale_files` states when other processes may remove such files.
//!
//! A clean stop removes the lock file while it holds the lock. So a process that gets the lock of a
//! file must check that the path still names this file. If the path does not, the lock protects
//! nothing, because no other process will ever open the file, and the process retries. The test
//! `a_removed_lock_file_has_one_holder_at_a_time` guards this.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs4::fs_std::FileExt;
use xxhash_rust::xxh3::xxh3_64;

use super::memory_name::MemoryName;
use crate::files::unless_gone;
use crate::ids::MachineId;

/// Number of retries to take a held lock before the machine of the lock counts as running.
const LOCK_ATTEMPTS: u32 = 10;
/// Delay before each of these retries.
const LOCK_RETRY_DELAY: Duration = Duration::from_millis(5);

/// Why a machine could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another process runs this machine of a cluster with the same name.
    #[error(
        "machine {machine} of a cluster named \"{cluster}\" is already running (process {pid}, lock {lock}); \
         stop it, or give this cluster another name (cluster.name) or directory (cluster.run_dir)"
    )]
    AlreadyRunning {
        /// The machine.
        machine: MachineId,
        /// The cluster's name.
        cluster: String,
        /// Process id in the lock file.
        pid: String,
        /// Path of the lock file.
        lock: PathBuf,
    },
    /// An operation of the operating system failed.
    #[error("cannot {what} {path}: {source}")]
    Os {
        /// The operation, as a verb.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The system returned no random number.
    #[error("cannot get a random number for this start: {0}")]
    Random(#[source] std::io::Error),
    /// The machine's own memory could not be allocated.
    #[error(transparent)]
    Mapping(#[from] crate::mem::MappingError),
}

/// The lock of a machine. Dropping it removes the lock file, and the cluster's directory if it is
/// empty then.
#[derive(Debug)]
pub(super) struct Claim {
    lock: File,
    path: PathBuf,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // If the file was removed by hand, the path may name another process's file now.
        if matches!(is_named(&self.lock, &self.path), Ok(true)) {
            // If this fails, the next start or `farm clean` removes the file.
            let _ = std::fs::remove_file(&self.path);
        }
        if let Some(dir) = self.path.parent() {
            // Fails while other machines of the cluster have files in the directory. A start
            // creates the directory again if it is missing.
            let _ = std::fs::remove_dir(dir);
        }
    }
}

/// Returns whether `path` still names the open `file`.
fn is_named(file: &File, path: &Path) -> std::io::Result<bool> {
    let named = match std::fs::symlink_metadata(path) {
        Ok(named) => named,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let open = file.metadata()?;
    Ok((named.dev(), named.ino()) == (open.dev(), open.ino()))
}

/// Returns whether creating a directory failed only because another process created it at the same
/// time, and perhaps removed it again. A file in its place is a permanent error.
fn is_passing(error: &std::io::Error, dir: &Path) -> bool {
    error.kind() == std::io::ErrorKind::AlreadyExists
        && std::fs::symlink_metadata(dir).map_or_else(
            |error| error.kind() == std::io::ErrorKind::NotFound,
            |found| found.is_dir(),
        )
}

fn memory_prefix(identity: u64, machine: MachineId) -> String {
    format!("farm-{identity:016x}-m{}-", machine.get())
}

/// Returns how the names of the files begin that outlive one start.
pub(super) fn kept_prefix(identity: u64, machine: MachineId, boot: u64) -> String {
    format!("farmd-{identity:016x}-m{}-{boot:016x}-", machine.get())
}

/// Returns the name of the file of an exported memory: see [`Names::memory`].
pub(super) fn memory_name(
    identity: u64,
    machine: MachineId,
    (boot, key): (u64, u64),
    cluster: &str,
) -> String {
    let prefix = memory_prefix(identity, machine);
    format!("{prefix}l{boot:016x}-{key}-{cluster}")
}

/// The file names of one machine of one cluster.
#[derive(Clone, Debug)]
pub(super) struct Names {
    run_dir: PathBuf,
    memory_dir: PathBuf,
    cluster: String,
    /// Hash of the run directory and the cluster's name, which also determine the path of the lock.
    /// It distinguishes this cluster's memory files from those of other clusters in the same
    /// directory. The name alone is not sufficient: a cluster of the same name in another run
    /// directory is another cluster, and the files of a cluster `c-m1-x` could be taken for files
    /// of machine 1 of a cluster `c`.
    identity: u64,
}

impl Names {
    pub(super) fn new(run_dir: &Path, memory_dir: &Path, cluster: &str) -> Self {
        let run_dir = run_dir.join(cluster);
        let identity = xxh3_64(run_dir.as_os_str().as_bytes());
        Self {
            run_dir,
            memory_dir: memory_dir.into(),
            cluster: cluster.into(),
            identity,
        }
    }

    pub(super) fn socket(&self, machine: MachineId) -> PathBuf {
        self.run_dir.join(format!("m{}.sock", machine.get()))
    }

    pub(super) fn lock(&self, machine: MachineId) -> PathBuf {
        self.run_dir.join(format!("m{}.lock", machine.get()))
    }

    /// Returns how the names of the files of this machine's exported memory begin.
    pub(super) fn memory_prefix(&self, machine: MachineId) -> String {
        memory_prefix(self.identity, machine)
    }

    /// Returns the path of the file of an exported memory. The start number is random and has 64
    /// bits, so the path cannot be guessed. The `l` before it means that the start holds a lock on
    /// its file of key 0 (see `stale_files`). The cluster's name at the end is for readers of a
    /// directory listing.
    pub(super) fn memory(&self, machine: MachineId, boot: u64, key: u64) -> PathBuf {
        let name = memory_name(self.identity, machine, (boot, key), &self.cluster);
        self.memory_dir.join(name)
    }

    /// Returns the number that distinguishes this cluster from others in the directory of shared memory.
    pub(super) fn identity(&self) -> u64 {
        self.identity
    }

    /// Returns the path of a file that outlives its process (see `kept`).
    pub(super) fn kept(&self, machine: MachineId, boot: u64, what: &str) -> PathBuf {
        let prefix = kept_prefix(self.identity, machine, boot);
        let name = format!("{prefix}{what}-{}", self.cluster);
        self.memory_dir.join(name)
    }

    /// Returns the path of the journal of a start of a machine (see [`crate::kept`]).
    pub(super) fn journal(&self, machine: MachineId, boot: u64) -> PathBuf {
        let name = format!("m{}-{boot:016x}.journal", machine.get());
        self.run_dir.join(name)
    }

    /// Takes the machine's lock, and removes what an earlier process left behind.
    pub(super) fn claim(&self, machine: MachineId) -> Result<Claim, StartError> {
        let mut attempts = 0;
        let mut claim = loop {
            match self.try_claim(machine) {
                Ok(Some(claim)) => break claim,
                Ok(None) => {}
                // `find_stale_files` may hold the lock: it takes each lock for a moment.
                Err(StartError::AlreadyRunning { .. }) if attempts < LOCK_ATTEMPTS => {
                    attempts += 1;
                    std::thread::park_timeout(LOCK_RETRY_DELAY);
                }
                Err(error) => return Err(error),
            }
        };
        claim.lock.set_len(0).map_err(os("write", &claim.path))?;
        writeln!(claim.lock, "{}", std::process::id()).map_err(os("write", &claim.path))?;
        self.clean(machine)?;
        Ok(claim)
    }

    /// Tries once to take the machine's lock. Returns `None` if another process removed the
    /// directory or the lock file meanwhile.
    fn try_claim(&self, machine: MachineId) -> Result<Option<Claim>, StartError> {
        let made = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.run_dir);
        match made {
            Err(error) if is_passing(&error, &self.run_dir) => return Ok(None),
            made => made.map_err(os("create", &self.run_dir))?,
        }
        let path = self.lock(machine);
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path);
        let mut lock = match opened {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(os("open", &path))?,
        };
        if !lock.try_lock_exclusive().map_err(os("lock", &path))? {
            let mut pid = String::new();
            // The pid is only for the message, so a failure to read it is ignored.
            let _ = lock.read_to_string(&mut pid);
            return Err(StartError::AlreadyRunning {
                machine,
                cluster: self.cluster.clone(),
                pid: pid.trim().into(),
                lock: path,
            });
        }
        let named = is_named(&lock, &path).map_err(os("inspect", &path))?;
        Ok(named.then_some(Claim { lock, path }))
    }

    /// Removes the machine's socket and shared memory. Only the holder of its lock may call this.
    pub(super) fn clean(&self, machine: MachineId) -> Result<(), StartError> {
        remove(&self.socket(machine))?;
        let prefix = self.memory_prefix(machine);
        let entries = std::fs::read_dir(&self.memory_dir).map_err(os("list", &self.memory_dir))?;
        let mut firsts = Vec::new();
        for entry in entries {
            let entry = entry.map_err(os("list", &self.memory_dir))?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if !name.starts_with(&prefix) {
                continue;
            }
            tracing::info!(file = %entry.path().display(), "removing a file left behind by an earlier run");
            // Remove the first file of a start (key 0) last: if this process ends half-way, starts of
            // other machines need that file to find that the remaining files are stale.
            if MemoryName::parse(&name).is_some_and(|name| name.key == 0) {
                firsts.push(entry.path());
            } else {
                remove(&entry.path())?;
            }
        }
        firsts.iter().try_for_each(|path| remove(path))
    }
}

/// Returns whether files in a directory are in memory, and not on a disk to which they are written
/// back.
pub(super) fn is_in_memory(dir: &Path) -> std::io::Result<bool> {
    const TMPFS: u64 = 0x0102_1994;
    const HUGETLBFS: u64 = 0x9584_58f6;
    const RAMFS: u64 = 0x8584_58f6;
    let found = rustix::fs::statfs(dir)?.f_type as u32;
    Ok([TMPFS, HUGETLBFS, RAMFS].contains(&found.into()))
}

pub(super) fn remove(path: &Path) -> Result<(), StartError> {
    unless_gone(std::fs::remove_file(path)).map_err(os("remove", path))
}

pub(super) fn os<'a>(
    what: &'static str,
    path: &'a Path,
) -> impl Fn(std::io::Error) -> StartError + 'a {
    move |source| StartError::Os {
        what,
        path: path.into(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u16) -> MachineId {
        MachineId::new(number).unwrap()
    }

    #[test]
    fn a_second_process_of_a_machine_is_refused_with_the_pid_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let names = Names::new(dir.path(), dir.path(), "twice");
        let _held = names.claim(id(1)).unwrap();
        let refused = names.claim(id(1)).unwrap_err();
        let text = refused.to_string();
        assert!(
            text.contains("twice") && text.contains(&std::process::id().to_string()),
            "{text}"
        );
        names
            .claim(id(2))
            .expect("another machine of the same cluster may start");
    }

    /// Regression test: lock files were never removed, because after the removal two processes
    /// could run as one machine: one held the removed file, the other a new file.
    #[test]
    fn a_removed_lock_file_has_one_holder_at_a_time() {
        use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
        const CLAIMS: usize = 2000;
        let dir = tempfile::tempdir().unwrap();
        let names = Names::new(&dir.path().join("run"), dir.path(), "removed");
        let (held, claims) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while claims.load(Ordering::Relaxed) < CLAIMS {
                        match names.claim(id(1)) {
                            Ok(claim) => {
                                assert!(
                                    !held.swap(true, Ordering::SeqCst),
                                    "two processes hold the lock of one machine"
                                );
                                assert!(names.lock(id(1)).exists());
                                claims.fetch_add(1, Ordering::Relaxed);
                                std::thread::yield_now();
                                held.store(false, Ordering::SeqCst);
                                drop(claim);
                            }
                            Err(StartError::AlreadyRunning { .. }) => std::thread::yield_now(),
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
            }
        });
        let left = std::fs::read_dir(dir.path().join("run")).unwrap();
        assert_eq!(left.count(), 0, "the lock and its directory are removed");
    }

    #[test]
    fn a_file_in_place_of_the_run_directory_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("c"), b"").unwrap();
        let names = Names::new(dir.path(), dir.path(), "c");
        let text = names.claim(id(1)).unwrap_err().to_string();
        assert!(
            text.contains("cannot create") && text.contains("exists"),
            "{text}"
        );
    }

    #[test]
    fn a_lock_file_of_another_process_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let names = Names::new(dir.path(), dir.path(), "by-hand");
        let claim = names.claim(id(1)).unwrap();
        // Removed by hand, then created by another start.
        std::fs::remove_file(names.lock(id(1))).unwrap();
        let other = names.claim(id(1)).unwrap();
        drop(claim);
        assert!(names.lock(id(1)).exists());
        assert!(names.claim(id(1)).is_err());
        drop(other);
        assert!(!names.lock(id(1)).exists());
    }

    #[test]
    fn only_stale_files_of_this_machine_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let names = Names::new(dir.path(), dir.path(), "c");
        let left = names.memory(id(1), 0xdead, 3);
        let others = names.memory(id(11), 0xdead, 3);
        let foreign = Names::new(dir.path(), dir.path(), "d").memory(id(1), 1, 1);
        let longer = Names::new(dir.path(), dir.path(), "c-m1-c").memory(id(1), 1, 1);
        let elsewhere = Names::new(&dir.path().join("run"), dir.path(), "c").memory(id(1), 1, 1);
        let kept = [&others, &foreign, &longer, &elsewhere];
        for path in [&left].into_iter().chain(kept) {
            std::fs::write(path, b"x").unwrap();
        }
        let _lock = names.claim(id(1)).unwrap();
        assert!(!left.exists() && kept.iter().all(|path| path.exists()));
    }
}
