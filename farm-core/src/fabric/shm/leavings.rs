//! Files of shared memory whose machine is gone, of whichever cluster and run directory.
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

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use fs4::fs_std::FileExt;

use super::files::{StartError, os, remove};
use crate::ids::MachineId;

/// The name of a file of shared memory, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MemoryName<'a> {
    /// Everything up to the start number, which all files of one start begin with.
    start: &'a str,
    /// The key.
    pub(super) key: u64,
}

impl<'a> MemoryName<'a> {
    /// `None` unless the name is exactly what `Names::memory` makes.
    pub(super) fn parse(name: &'a str) -> Option<Self> {
        let mut parts = name.splitn(6, '-');
        let mut part = || parts.next();
        let (farm, identity, machine) = (part()?, part()?, part()?);
        let (boot, key, cluster) = (part()?, part()?, part()?);
        let number: u16 = decimal(machine.strip_prefix('m')?)?.try_into().ok()?;
        MachineId::new(number)?;
        let fits = farm == "farm"
            && is_hash(identity)
            && is_hash(boot.strip_prefix('l')?)
            && !cluster.is_empty();
        let start = farm.len() + identity.len() + machine.len() + boot.len() + 3;
        fits.then_some(Self {
            start: &name[..start],
            key: decimal(key)?,
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

/// Removes the files of machines that are gone. What cannot be removed is no reason not to start.
pub(super) fn remove_leavings(memory_dir: &Path) {
    let mut names = list(memory_dir);
    // By start number, the file to be locked first.
    names.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
    for files in names.chunk_by(|a, b| a.0 == b.0) {
        let first = &files[0];
        if first.1 == 0
            && let Err(error) = remove_if_gone(&first.2, memory_dir, &first.0)
        {
            tracing::warn!(%error, "leaving files of a machine that may be gone");
        }
    }
}

/// Files of this user that are named like shared memory: start, key, path.
fn list(memory_dir: &Path) -> Vec<(String, u64, PathBuf)> {
    let user = rustix::process::geteuid().as_raw();
    let Ok(entries) = std::fs::read_dir(memory_dir) else {
        return Vec::new();
    };
    let is_own = |entry: &std::fs::DirEntry| {
        let found = entry.metadata();
        found.is_ok_and(|found| found.is_file() && found.uid() == user)
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let name = MemoryName::parse(name.to_str()?)?;
            is_own(&entry).then(|| (name.start.to_owned(), name.key, entry.path()))
        })
        .collect()
}

fn remove_if_gone(first: &Path, memory_dir: &Path, start: &str) -> Result<(), StartError> {
    let Some(_held) = hold(first).map_err(os("lock", first))? else {
        return Ok(());
    };
    // Listed again: the machine may have made more before it ended.
    for (_, key, path) in list(memory_dir).iter().filter(|file| file.0 == start) {
        if *key != 0 {
            tracing::info!(file = %path.display(), "removing what a machine that is gone left");
            remove(path)?;
        }
    }
    tracing::info!(file = %first.display(), "removing what a machine that is gone left");
    remove(first)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::fabric::shm::files::Names;
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
        assert_eq!(parsed.key, 3);
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
        let its_own = list(dir).iter().filter(|f| f.0.contains("-m1-")).count();

        drop(ShmMachine::start(config(dir, "new")).unwrap());
        assert!(dead.iter().all(|path| !path.exists()), "left: {dead:?}");
        assert!(living.iter().chain([&unknown]).all(|path| path.exists()));
        let now = list(dir).iter().filter(|f| f.0.contains("-m1-")).count();
        assert_eq!((its_own, now), (2, 2), "a machine that runs lost files");
        drop(held);
        remove_leavings(dir);
        assert!(living.iter().all(|path| !path.exists()));
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
