//! Names on the file system: the run directory of a cluster (sockets and locks), and the files of
//! shared memory.
//!
//! A machine's lock file is held locked for as long as its process lives. Who holds the lock of a
//! machine may remove what an earlier process of that machine left behind. `leavings` says when
//! others may.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use fs4::fs_std::FileExt;
use xxhash_rust::xxh3::xxh3_64;

use super::leavings::MemoryName;
use crate::ids::MachineId;

/// Why a machine could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another process runs this machine of a cluster with this name.
    #[error(
        "machine {machine} of a cluster named \"{cluster}\" is already running (process {pid}, lock {lock}); \
         stop it, or give this cluster another name (cluster.name) or directory (cluster.run_dir)"
    )]
    AlreadyRunning {
        /// The machine.
        machine: MachineId,
        /// The cluster's name.
        cluster: String,
        /// Process id that the lock file names.
        pid: String,
        /// The lock file.
        lock: PathBuf,
    },
    /// The operating system refused.
    #[error("cannot {what} {path}: {source}")]
    Os {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The system gave no random number.
    #[error("no random number for this start: {0}")]
    Random(#[source] std::io::Error),
    /// The machine's own memory could not be made.
    #[error(transparent)]
    Mapping(#[from] crate::mem::MappingError),
}

/// The names of one machine of one cluster.
#[derive(Clone, Debug)]
pub(super) struct Names {
    run_dir: PathBuf,
    memory_dir: PathBuf,
    cluster: String,
    /// Tells this cluster's memory from that of others in the same directory: a hash of the run
    /// directory and the name, which the lock covers. The name alone would not do: a cluster of the
    /// same name in another run directory is another cluster, and a name may begin like another's
    /// files.
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

    fn lock(&self, machine: MachineId) -> PathBuf {
        self.run_dir.join(format!("m{}.lock", machine.get()))
    }

    fn memory_prefix(&self, machine: MachineId) -> String {
        format!("farm-{:016x}-m{}-", self.identity, machine.get())
    }

    /// The file of an exported memory. The start number is random and 64 bits long: nobody who was
    /// not told can guess the name. The `l` before it says that the start holds a lock on its file
    /// of key 0 (see `leavings`). The cluster's name at the end is for people.
    pub(super) fn memory(&self, machine: MachineId, boot: u64, key: u64) -> PathBuf {
        let prefix = self.memory_prefix(machine);
        self.memory_dir
            .join(format!("{prefix}l{boot:016x}-{key}-{}", self.cluster))
    }

    /// Takes the machine's lock, and removes what an earlier process left behind.
    pub(super) fn claim(&self, machine: MachineId) -> Result<File, StartError> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.run_dir)
            .map_err(os("create", &self.run_dir))?;
        let path = self.lock(machine);
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(os("open", &path))?;
        if !lock.try_lock_exclusive().map_err(os("lock", &path))? {
            let mut pid = String::new();
            // Only for the message: an unreadable pid does not change the answer.
            let _ = lock.read_to_string(&mut pid);
            return Err(StartError::AlreadyRunning {
                machine,
                cluster: self.cluster.clone(),
                pid: pid.trim().into(),
                lock: path,
            });
        }
        lock.set_len(0).map_err(os("write", &path))?;
        writeln!(lock, "{}", std::process::id()).map_err(os("write", &path))?;
        self.clean(machine)?;
        Ok(lock)
    }

    /// Removes the machine's socket and shared memory. Only for the holder of its lock.
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
            tracing::info!(file = %entry.path().display(), "removing what an earlier run left");
            // The first file goes last: if this stops half-way, it tells what the others are.
            if MemoryName::parse(&name).is_some_and(|name| name.key == 0) {
                firsts.push(entry.path());
            } else {
                remove(&entry.path())?;
            }
        }
        firsts.iter().try_for_each(|path| remove(path))
    }
}

pub(super) fn remove(path: &Path) -> Result<(), StartError> {
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(os("remove", path)(source))
        }
        _ => Ok(()),
    }
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
    fn a_second_process_of_a_machine_is_refused_and_told_who_runs() {
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

    #[test]
    fn leavings_of_this_machine_are_removed_and_nothing_else_is() {
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
