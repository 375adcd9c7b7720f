//! Files of shared memory whose machine is gone, of any cluster and run directory.
//!
//! Every start removes such files, because the files of another run would otherwise occupy memory
//! forever. [`find_stale_files`] and [`remove_stale_files`] are for tools that list the files before
//! they remove any (`farm clean`, `farm doctor`).
//!
//! A start creates the file of key 0 before any other file, and locks it (`flock`) before it
//! creates the next one. It holds the lock until it has removed its files or its process ends. A
//! process that gets the lock of such a file, and finds that the file still has a name, therefore
//! knows that no process uses the files with this start number. No process ever will, because start
//! numbers are random and 64 bits long. Only the holder of the lock removes the files, the locked
//! file last. A start that did not get the lock, or whose file was removed before it had the lock,
//! discards its start number.
//!
//! The names of this protocol have an `l` before the start number. Files of builds that did not
//! lock have other names. They are not removed, because nothing shows whether they are in use.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use fs4::fs_std::FileExt;

use super::files::{Names, StartError, os, remove};
use super::memory_name::{MemoryName, machine_id};
use crate::ids::MachineId;

/// Locks the first file of a start. A machine holds this lock while it runs, and a clean-up takes the
/// lock before it removes the files of the start. Returns `None` if another process holds the lock,
/// or removed the file before this call locked it.
pub(super) fn hold(path: &Path) -> std::io::Result<Option<File>> {
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if !file.try_lock_exclusive()? {
        return Ok(None);
    }
    // Files are removed only under the lock, so a file that has a name now keeps it.
    let named = file.metadata()?.nlink() > 0;
    Ok(named.then_some(file))
}

/// A file of shared memory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MemoryFile {
    start: String,
    key: u64,
    machine: MachineId,
    cluster: String,
    bytes: u64,
    path: PathBuf,
}

/// Removes the files of machines that are gone. Failures are logged and do not prevent a start.
pub(super) fn remove_all_stale_files(memory_dir: &Path) {
    for files in by_start(memory_dir) {
        let first = &files[0];
        if first.key == 0
            && let Err(error) = remove_if_gone(&first.path, memory_dir, &first.start)
        {
            tracing::warn!(%error, "cannot remove memory files of a machine that may have ended; the next start retries");
        }
    }
}

/// Returns the files of every start, grouped by start. Each group begins with the file of key 0,
/// whose lock shows whether the machine runs, if this file exists.
fn by_start(memory_dir: &Path) -> Vec<Vec<MemoryFile>> {
    let mut files = list(memory_dir);
    files.sort();
    let starts = files.chunk_by(|a, b| a.start == b.start);
    starts.map(<[MemoryFile]>::to_vec).collect()
}

/// Returns the files of this user that have names of shared memory.
fn list(memory_dir: &Path) -> Vec<MemoryFile> {
    let user = rustix::process::geteuid().as_raw();
    let Ok(entries) = std::fs::read_dir(memory_dir) else {
        return Vec::new();
    };
    let own_bytes = |entry: &std::fs::DirEntry| {
        let found = entry.metadata().ok()?;
        // Memory that has another name, because it is kept, stays.
        let bytes = if found.nlink() > 1 { 0 } else { found.len() };
        (found.is_file() && found.uid() == user).then_some(bytes)
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let name = MemoryName::parse(name.to_str()?)?;
            Some(MemoryFile {
                start: name.start.to_owned(),
                key: name.key,
                machine: name.machine,
                cluster: name.cluster.to_owned(),
                bytes: own_bytes(&entry)?,
                path: entry.path(),
            })
        })
        .collect()
}

/// Removes the files of a start, if its machine is gone. Returns the number of removed files and
/// bytes: 0 if the machine runs.
fn remove_if_gone(first: &Path, memory_dir: &Path, start: &str) -> Result<(u64, u64), StartError> {
    let Some(_held) = hold(first).map_err(os("lock", first))? else {
        return Ok((0, 0));
    };
    let (mut count, mut bytes) = (0, 0);
    // List the files again: the machine may have created more before it ended. Remove the locked
    // file last.
    let files = list(memory_dir).into_iter();
    let mut files: Vec<MemoryFile> = files.filter(|file| file.start == start).collect();
    files.sort_by_key(|file| file.key == 0);
    for file in files {
        tracing::info!(file = %file.path.display(), "removing a file that a machine left behind");
        remove(&file.path)?;
        count += 1;
        bytes += file.bytes;
    }
    Ok((count, bytes))
}

/// The files left behind by a machine's process that ended without cleaning up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleFiles {
    /// Name of the cluster.
    pub cluster: String,
    /// Id of the machine.
    pub machine: MachineId,
    /// Directory of the files.
    pub dir: PathBuf,
    /// Number of files.
    pub files: u64,
    /// Bytes that are freed when the files are removed.
    pub bytes: u64,
    /// Kind of the files.
    pub what: StaleKind,
}

impl StaleFiles {
    /// Returns whether they are of this cluster with this directory of sockets and locks.
    pub fn is_of(&self, run_dir: &Path, cluster: &str) -> bool {
        let names = Names::new(run_dir, &self.dir, cluster);
        match &self.what {
            StaleKind::Memory(start) | StaleKind::UnknownMemory(start) => {
                start.starts_with(&names.memory_prefix(self.machine))
            }
            StaleKind::Names => self.dir == run_dir.join(cluster),
        }
    }
}

/// The kind of the files of a [`StaleFiles`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StaleKind {
    /// Shared memory of a machine that is gone. The text is the common prefix of the file names.
    Memory(String),
    /// Shared memory without the file whose lock shows whether its machine runs. Only the user can
    /// decide to remove it.
    UnknownMemory(String),
    /// The lock and the socket of a machine that is gone.
    Names,
}

/// Finds the files that machines of any cluster left behind in a directory of shared memory and in
/// a run directory. Excludes files of running machines and of other users.
pub fn find_stale_files(memory_dir: &Path, run_dir: &Path) -> Vec<StaleFiles> {
    let mut stale_files = Vec::new();
    for files in by_start(memory_dir) {
        let first = &files[0];
        let what = match first.key {
            0 => match hold(&first.path) {
                Ok(Some(_held)) => StaleKind::Memory(first.start.clone()),
                // In use, or not accessible.
                Ok(None) | Err(_) => continue,
            },
            _ => StaleKind::UnknownMemory(first.start.clone()),
        };
        stale_files.push(StaleFiles {
            cluster: first.cluster.clone(),
            machine: first.machine,
            dir: memory_dir.to_owned(),
            files: files.len() as u64,
            bytes: files.iter().map(|file| file.bytes).sum(),
            what,
        });
    }
    stale_files.extend(abandoned_names(run_dir));
    stale_files
}

/// Finds locks and sockets of this user below a run directory that no process holds.
fn abandoned_names(run_dir: &Path) -> Vec<StaleFiles> {
    let user = rustix::process::geteuid().as_raw();
    let mut found = Vec::new();
    for dir in entries(run_dir) {
        let Some(cluster) = dir.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        let machines: BTreeSet<MachineId> = entries(&dir)
            .iter()
            .filter_map(|path| machine_of(path))
            .collect();
        let names = Names::new(run_dir, run_dir, cluster);
        for machine in machines {
            let (lock, socket) = (names.lock(machine), names.socket(machine));
            let is_free = match hold(&lock) {
                Ok(Some(_held)) => true,
                Ok(None) => !lock.exists() && UnixStream::connect(&socket).is_err(),
                Err(_) => false,
            };
            let found_of = |path: &PathBuf| path.symlink_metadata().ok();
            let files: Vec<_> = [lock, socket].iter().filter_map(found_of).collect();
            let are_own = files.iter().all(|file| file.uid() == user);
            if is_free && are_own && !files.is_empty() {
                found.push(StaleFiles {
                    cluster: cluster.to_owned(),
                    machine,
                    dir: dir.clone(),
                    files: files.len() as u64,
                    bytes: 0,
                    what: StaleKind::Names,
                });
            }
        }
    }
    found
}

/// Returns the machine of a lock's or socket's path.
fn machine_of(path: &Path) -> Option<MachineId> {
    let name = path.file_name()?.to_str()?;
    let number = name.strip_prefix('m')?;
    let number = number
        .strip_suffix(".lock")
        .or_else(|| number.strip_suffix(".sock"))?;
    machine_id(number)
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Removes stale files, if their machine is still gone. Returns the number of removed files and
/// bytes.
///
/// # Errors
/// [`StartError::Os`]: a file cannot be locked or removed.
pub fn remove_stale_files(stale: &StaleFiles) -> Result<(u64, u64), StartError> {
    match &stale.what {
        StaleKind::Memory(start) => {
            let first = by_start(&stale.dir).into_iter().flatten();
            let mut first = first.filter(|file| file.start == *start && file.key == 0);
            match first.next() {
                Some(first) => remove_if_gone(&first.path, &stale.dir, start),
                None => Ok((0, 0)),
            }
        }
        StaleKind::UnknownMemory(_) => Ok((0, 0)),
        StaleKind::Names => {
            let run_dir = stale.dir.parent().unwrap_or(&stale.dir);
            // `claim` also removes shared memory, for which `find_stale_files` returns separate
            // entries. So the names refer to a memory directory without shared memory.
            let names = Names::new(run_dir, &stale.dir, &stale.cluster);
            match names.claim(stale.machine) {
                // Dropping the claim removes the lock. `claim` has removed the socket.
                Ok(_claim) => Ok((stale.files, 0)),
                Err(StartError::AlreadyRunning { .. }) => Ok((0, 0)),
                Err(error) => Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::fabric::shm::{ShmConfig, ShmMachine};

    const BOOT: u64 = 0xdead;

    fn id(number: u16) -> MachineId {
        MachineId::new(number).unwrap()
    }

    fn names(dir: &Path, run: &str) -> Names {
        Names::new(&dir.join(run), dir, "c-1")
    }

    fn config(dir: &Path, run: &str) -> ShmConfig {
        ShmConfig {
            cluster: "c-1".into(),
            run_dir: dir.join(run),
            memory_dir: dir.into(),
            huge_pages: false,
            machine: id(1),
            workers: 1,
            digest: 1,
            lease: None,
        }
    }

    /// Creates the first two files of a start of machine 7.
    fn files(dir: &Path, run: &str, boot: u64) -> [PathBuf; 2] {
        let paths = [0, 1].map(|key| names(dir, run).memory(id(7), boot, key));
        for path in &paths {
            std::fs::write(path, b"x").unwrap();
        }
        paths
    }

    #[test]
    fn any_start_removes_only_files_of_dead_machines() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let dead = files(dir, "gone", BOOT);
        let living = files(dir, "there", BOOT + 1);
        let held = hold(&living[0]).unwrap().expect("the lock is free");
        // Without the first file, nothing shows whether a machine uses the others.
        let [first, unknown] = files(dir, "unknown", BOOT + 2);
        std::fs::remove_file(first).unwrap();
        let running = ShmMachine::start(config(dir, "running")).unwrap();
        let (_memory, _) = running.export(4096, true).unwrap();
        let own_files = list(dir).iter().filter(|f| f.machine == id(1)).count();

        drop(ShmMachine::start(config(dir, "new")).unwrap());
        assert!(dead.iter().all(|path| !path.exists()), "left: {dead:?}");
        assert!(living.iter().chain([&unknown]).all(|path| path.exists()));
        let now = list(dir).iter().filter(|f| f.machine == id(1)).count();
        assert_eq!((own_files, now), (2, 2), "a running machine lost files");
        drop(held);
        remove_all_stale_files(dir);
        assert!(living.iter().all(|path| !path.exists()));
    }

    /// Regression test: after `kill -9` of a run, 808 MB stayed in shared memory until a machine
    /// was started there, and no tool reported them.
    #[test]
    fn only_stale_files_of_dead_machines_are_found_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let run_dir = dir.join("running");
        let machine = ShmMachine::start(config(dir, "running")).unwrap();
        let (_memory, _) = machine.export(4096, true).unwrap();
        assert_eq!(find_stale_files(dir, &run_dir), []);
        let dead = files(dir, "gone", BOOT);
        let [first, unknown] = files(dir, "unknown", BOOT + 2);
        std::fs::remove_file(first).unwrap();
        // A lock that no process holds, and sockets without a listener, one with a lock and one
        // without.
        let cluster = run_dir.join("c-1");
        let stale = [
            cluster.join("m7.lock"),
            cluster.join("m7.sock"),
            cluster.join("m8.sock"),
        ];
        for path in &stale {
            std::fs::write(path, b"1\n").unwrap();
        }
        std::fs::write(cluster.join("notes.txt"), b"mine").unwrap();

        let found = find_stale_files(dir, &run_dir);
        let summary: Vec<_> = found
            .iter()
            .map(|it| (it.cluster.as_str(), it.machine.get(), it.files, it.bytes))
            .collect();
        assert_eq!(summary.len(), 4, "{found:#?}");
        assert!(summary.contains(&("c-1", 7, 2, 2)), "{summary:?}");
        assert!(summary.contains(&("c-1", 7, 1, 1)), "{summary:?}");
        assert!(summary.contains(&("c-1", 7, 2, 0)), "{summary:?}");
        assert!(summary.contains(&("c-1", 8, 1, 0)), "{summary:?}");
        let removed = found.iter().map(|it| remove_stale_files(it).unwrap());
        let (count, bytes) = removed.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        assert_eq!((count, bytes), (5, 2));
        assert!(dead.iter().chain(&stale).all(|path| !path.exists()));
        assert!(unknown.exists() && cluster.join("notes.txt").exists());
        let own_files = list(dir).iter().filter(|f| f.machine == id(1)).count();
        assert_eq!(own_files, 2, "a running machine lost files");
        let names = Names::new(&run_dir, dir, "c-1");
        assert!(names.lock(id(1)).exists() && names.socket(id(1)).exists());
        // A machine may have been started since its files were found: then they are kept.
        let before = find_stale_files(dir, &run_dir);
        drop(machine);
        let started = ShmMachine::start(config(dir, "running")).unwrap();
        let stale = StaleFiles {
            what: StaleKind::Names,
            machine: id(1),
            dir: cluster.clone(),
            ..before[0].clone()
        };
        assert_eq!(remove_stale_files(&stale).unwrap(), (0, 0));
        assert!(names.lock(id(1)).exists() && names.socket(id(1)).exists());
        drop(started);
    }

    /// Starts race with clean-ups: every started machine has its files.
    #[test]
    fn a_machine_that_is_starting_keeps_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        remove_all_stale_files(dir);
                    }
                });
            }
            let intact = (0..300).all(|_| {
                let machine = ShmMachine::start(config(dir, "starting")).unwrap();
                let (_memory, named) = machine.export(4096, true).unwrap();
                std::thread::yield_now();
                // Check no more than these: files of a start number that was discarded may still
                // exist.
                let path = |key| names(dir, "starting").memory(id(1), named.boot, key);
                path(0).exists() && path(1).exists()
            });
            done.store(true, Ordering::Relaxed);
            assert!(intact, "a start lost its files");
        });
        assert_eq!(list(dir), []);
    }
}
