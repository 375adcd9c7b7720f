//! Files of shared memory whose machine is gone, of any cluster and run directory.
//!
//! Every start removes them, for what another run left would be lost memory; [`find_leavings`] and
//! [`remove_leaving`] are for those who want to see them first (`farm clean`, `farm doctor`).
//!
//! A start makes the file of key 0 before any other, locks it (`flock`) before it makes the next,
//! and holds the lock until it has removed its files or its process ends. So whoever gets the lock
//! of such a file, and finds the file still under its name, knows that no process uses the files
//! with that start number, and none ever will: the numbers are random and 64 bits long. Only the
//! holder of the lock removes them, the locked file last. A start that lost the lock, or whose file
//! was removed before it had it, gives that start number up.
//!
//! The names of this protocol have an `l` before the start number. Files of builds that did not lock
//! are named otherwise and are left alone, because nothing tells whether they are in use.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use fs4::fs_std::FileExt;

use super::files::{Names, StartError, os, remove};
use crate::ids::MachineId;

/// The name of a file of shared memory, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MemoryName<'a> {
    /// Everything up to the start number, which all files of one start begin with.
    start: &'a str,
    machine: MachineId,
    /// The key.
    pub(super) key: u64,
    /// The cluster's name.
    cluster: &'a str,
}

impl<'a> MemoryName<'a> {
    /// `None` unless the name is exactly what `Names::memory` makes.
    pub(super) fn parse(name: &'a str) -> Option<Self> {
        let mut parts = name.splitn(6, '-');
        let mut part = || parts.next();
        let (farm, identity, machine) = (part()?, part()?, part()?);
        let (boot, key, cluster) = (part()?, part()?, part()?);
        let number: u16 = decimal(machine.strip_prefix('m')?)?.try_into().ok()?;
        let id = MachineId::new(number)?;
        let fits = farm == "farm"
            && is_hash(identity)
            && is_hash(boot.strip_prefix('l')?)
            && !cluster.is_empty();
        let start = farm.len() + identity.len() + machine.len() + boot.len() + 3;
        fits.then_some(Self {
            start: &name[..start],
            machine: id,
            key: decimal(key)?,
            cluster,
        })
    }
}

fn is_hash(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// A number as it is printed, without a sign or zeros in front.
fn decimal(text: &str) -> Option<u64> {
    text.parse().ok().filter(|n: &u64| n.to_string() == text)
}

/// Locks the first file of a start, for its machine or for whoever cleans up. `None` if somebody
/// else has the lock, or removed the file before it was locked here.
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
    // Names are removed under the lock only, so a file that has a name now keeps it.
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

/// Removes the files of machines that are gone. What cannot be removed is no reason not to start.
pub(super) fn remove_leavings(memory_dir: &Path) {
    for files in by_start(memory_dir) {
        let first = &files[0];
        if first.key == 0
            && let Err(error) = remove_if_gone(&first.path, memory_dir, &first.start)
        {
            tracing::warn!(%error, "leaving files of a machine that may be gone");
        }
    }
}

/// The files of each start, the one to be locked first.
fn by_start(memory_dir: &Path) -> Vec<Vec<MemoryFile>> {
    let mut files = list(memory_dir);
    files.sort();
    let starts = files.chunk_by(|a, b| a.start == b.start);
    starts.map(<[MemoryFile]>::to_vec).collect()
}

/// Files of this user that are named like shared memory.
fn list(memory_dir: &Path) -> Vec<MemoryFile> {
    let user = rustix::process::geteuid().as_raw();
    let Ok(entries) = std::fs::read_dir(memory_dir) else {
        return Vec::new();
    };
    let own_bytes = |entry: &std::fs::DirEntry| {
        let found = entry.metadata().ok()?;
        (found.is_file() && found.uid() == user).then_some(found.len())
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

/// The number of files and bytes that were removed: 0 if the machine is not gone.
fn remove_if_gone(first: &Path, memory_dir: &Path, start: &str) -> Result<(u64, u64), StartError> {
    let Some(_held) = hold(first).map_err(os("lock", first))? else {
        return Ok((0, 0));
    };
    let (mut count, mut bytes) = (0, 0);
    // Listed again: the machine may have made more before it ended. The locked file goes last.
    let files = list(memory_dir).into_iter();
    let mut files: Vec<MemoryFile> = files.filter(|file| file.start == start).collect();
    files.sort_by_key(|file| file.key == 0);
    for file in files {
        tracing::info!(file = %file.path.display(), "removing what a machine that is gone left");
        remove(&file.path)?;
        count += 1;
        bytes += file.bytes;
    }
    Ok((count, bytes))
}

/// What a process of a machine left that ended without cleaning up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// The cluster.
    pub cluster: String,
    /// The machine.
    pub machine: MachineId,
    /// The directory that the files are in.
    pub dir: PathBuf,
    /// How many files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What they are.
    pub what: Left,
}

/// What the files of a [`Leaving`] are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// Shared memory of a machine that is gone. The text is what the names of its files begin with.
    Memory(String),
    /// Shared memory without the file whose lock tells whether its machine runs: only a person can know.
    UnknownMemory(String),
    /// The lock and the socket of a machine that is gone.
    Names,
}

/// Finds what machines that are gone left in a directory of shared memory and in a run directory, of any
/// cluster. Nothing that a running machine holds is among it, and nothing of other users.
pub fn find_leavings(memory_dir: &Path, run_dir: &Path) -> Vec<Leaving> {
    let mut leavings = Vec::new();
    for files in by_start(memory_dir) {
        let first = &files[0];
        let what = match first.key {
            0 => match hold(&first.path) {
                Ok(Some(_held)) => Left::Memory(first.start.clone()),
                // In use, or not to be looked at.
                Ok(None) | Err(_) => continue,
            },
            _ => Left::UnknownMemory(first.start.clone()),
        };
        leavings.push(Leaving {
            cluster: first.cluster.clone(),
            machine: first.machine,
            dir: memory_dir.to_owned(),
            files: files.len() as u64,
            bytes: files.iter().map(|file| file.bytes).sum(),
            what,
        });
    }
    leavings.extend(names_of_the_gone(run_dir));
    leavings
}

/// Locks and sockets below a run directory that no process holds.
fn names_of_the_gone(run_dir: &Path) -> Vec<Leaving> {
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
            let files = [lock, socket].iter().filter(|path| path.exists()).count();
            if is_free && files > 0 {
                found.push(Leaving {
                    cluster: cluster.to_owned(),
                    machine,
                    dir: dir.clone(),
                    files: files as u64,
                    bytes: 0,
                    what: Left::Names,
                });
            }
        }
    }
    found
}

/// The machine whose lock or socket a path names.
fn machine_of(path: &Path) -> Option<MachineId> {
    let name = path.file_name()?.to_str()?;
    let number = name.strip_prefix('m')?;
    let number = number
        .strip_suffix(".lock")
        .or_else(|| number.strip_suffix(".sock"))?;
    MachineId::new(decimal(number)?.try_into().ok()?)
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Removes what was found, if its machine is still gone; files and bytes that were removed.
///
/// # Errors
/// [`StartError::Os`]: a file cannot be locked or removed.
pub fn remove_leaving(leaving: &Leaving) -> Result<(u64, u64), StartError> {
    match &leaving.what {
        Left::Memory(start) => {
            let first = by_start(&leaving.dir).into_iter().flatten();
            let mut first = first.filter(|file| file.start == *start && file.key == 0);
            match first.next() {
                Some(first) => remove_if_gone(&first.path, &leaving.dir, start),
                None => Ok((0, 0)),
            }
        }
        Left::UnknownMemory(_) => Ok((0, 0)),
        Left::Names => {
            let run_dir = leaving.dir.parent().unwrap_or(&leaving.dir);
            // Memory is looked for where none is: it has its own entries.
            let names = Names::new(run_dir, &leaving.dir, &leaving.cluster);
            match names.claim(leaving.machine) {
                // Dropping the claim removes the lock; the socket is gone already.
                Ok(_claim) => Ok((leaving.files, 0)),
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
        }
    }

    /// The two first files of a start of machine 7.
    fn files(dir: &Path, run: &str, boot: u64) -> [PathBuf; 2] {
        let paths = [0, 1].map(|key| names(dir, run).memory(id(7), boot, key));
        for path in &paths {
            std::fs::write(path, b"x").unwrap();
        }
        paths
    }

    #[test]
    fn only_whole_names_of_shared_memory_are_taken_for_such() {
        let path = names(Path::new("/d"), "r").memory(id(7), BOOT, 3);
        let name = path.file_name().unwrap().to_str().unwrap();
        let parsed = MemoryName::parse(name).expect("its own names are known");
        assert_eq!(
            (parsed.key, parsed.machine, parsed.cluster),
            (3, id(7), "c-1")
        );
        assert!(name.starts_with(parsed.start) && parsed.start.ends_with("-l000000000000dead"));
        let others = [
            "farm-0123456789abcdef-m7-000000000000dead-0-c",
            "farm-0123456789abcdef-m7-l000000000000dead-0-",
            "farm-0123456789abcdef-m7-l000000000000dead-0",
            "farm-0123456789abcdef-m7-l000000000000dead-00-c",
            "farm-0123456789abcdef-m7-l000000000000dead-+1-c",
            "farm-0123456789abcdef-m7-l000000000000DEAD-0-c",
            "farm-0123456789abcdef-m0-l000000000000dead-0-c",
            "farm-0123456789abcde-m7-l000000000000dead-0-c",
            "xfarm-0123456789abcdef-m7-l000000000000dead-0-c",
        ];
        for other in others {
            assert_eq!(MemoryName::parse(other), None, "{other}");
        }
    }

    #[test]
    fn any_start_removes_files_of_the_dead_and_none_of_the_living() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let dead = files(dir, "gone", BOOT);
        let living = files(dir, "there", BOOT + 1);
        let held = hold(&living[0]).unwrap().expect("nobody else has it");
        // Without the first file nothing tells whether a machine uses the others.
        let [first, unknown] = files(dir, "unknown", BOOT + 2);
        std::fs::remove_file(first).unwrap();
        let running = ShmMachine::start(config(dir, "running")).unwrap();
        let (_memory, _) = running.export(4096, true).unwrap();
        let its_own = list(dir).iter().filter(|f| f.machine == id(1)).count();

        drop(ShmMachine::start(config(dir, "new")).unwrap());
        assert!(dead.iter().all(|path| !path.exists()), "left: {dead:?}");
        assert!(living.iter().chain([&unknown]).all(|path| path.exists()));
        let now = list(dir).iter().filter(|f| f.machine == id(1)).count();
        assert_eq!((its_own, now), (2, 2), "a machine that runs lost files");
        drop(held);
        remove_leavings(dir);
        assert!(living.iter().all(|path| !path.exists()));
    }

    /// After `kill -9` of a run, 808 MB stayed in shared memory until a machine was started there: nothing named
    /// them.
    #[test]
    fn leavings_are_found_counted_and_removed_and_those_of_the_living_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let run_dir = dir.join("running");
        let machine = ShmMachine::start(config(dir, "running")).unwrap();
        let (_memory, _) = machine.export(4096, true).unwrap();
        assert_eq!(find_leavings(dir, &run_dir), []);
        let dead = files(dir, "gone", BOOT);
        let [first, unknown] = files(dir, "unknown", BOOT + 2);
        std::fs::remove_file(first).unwrap();
        // A lock that no process holds, and a socket that none listens at, with a lock and without.
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

        let found = find_leavings(dir, &run_dir);
        let told: Vec<_> = found
            .iter()
            .map(|it| (it.cluster.as_str(), it.machine.get(), it.files, it.bytes))
            .collect();
        assert_eq!(told.len(), 4, "{found:#?}");
        assert!(told.contains(&("c-1", 7, 2, 2)), "{told:?}");
        assert!(told.contains(&("c-1", 7, 1, 1)), "{told:?}");
        assert!(told.contains(&("c-1", 7, 2, 0)), "{told:?}");
        assert!(told.contains(&("c-1", 8, 1, 0)), "{told:?}");
        let removed = found.iter().map(|it| remove_leaving(it).unwrap());
        let (count, bytes) = removed.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        assert_eq!((count, bytes), (5, 2));
        assert!(dead.iter().chain(&stale).all(|path| !path.exists()));
        assert!(unknown.exists() && cluster.join("notes.txt").exists());
        let its_own = list(dir).iter().filter(|f| f.machine == id(1)).count();
        assert_eq!(its_own, 2, "a machine that runs lost files");
        let names = Names::new(&run_dir, dir, "c-1");
        assert!(names.lock(id(1)).exists() && names.socket(id(1)).exists());
        // What was found may have been started since: then it is kept.
        let before = find_leavings(dir, &run_dir);
        drop(machine);
        let started = ShmMachine::start(config(dir, "running")).unwrap();
        let stale = Leaving {
            what: Left::Names,
            machine: id(1),
            dir: cluster.clone(),
            ..before[0].clone()
        };
        assert_eq!(remove_leaving(&stale).unwrap(), (0, 0));
        assert!(names.lock(id(1)).exists() && names.socket(id(1)).exists());
        drop(started);
    }

    /// Starts against clean-ups without pause: whoever has started has its files.
    #[test]
    fn a_machine_that_is_starting_keeps_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        remove_leavings(dir);
                    }
                });
            }
            let intact = (0..300).all(|_| {
                let machine = ShmMachine::start(config(dir, "starting")).unwrap();
                let (_memory, named) = machine.export(4096, true).unwrap();
                std::thread::yield_now();
                // Not more is asked for: files of a start number that was given up may be there yet.
                let path = |key| names(dir, "starting").memory(id(1), named.boot, key);
                path(0).exists() && path(1).exists()
            });
            done.store(true, Ordering::Relaxed);
            assert!(intact, "a start lost its files");
        });
        assert_eq!(list(dir), []);
    }
}
