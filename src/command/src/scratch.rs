//! Working directories of a command, which are removed when it ends. A killed command leaves them behind; a lock in the
//! directory shows that.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use farm_core::config::Config;
use farm_core::config::host::run_dir;
use farm_core::fabric::shm::{KeptMemory, find_kept_memory, remove_stale_files};
use farm_core::machine::stale_files;

/// The start of the names of all working directories.
const PREFIX: &str = "farm-run-";
/// The name of the directory of a store in a working directory.
const STORE: &str = "configuration";
/// The file that the command locks.
const LOCK: &str = "in-use";

/// A working directory, which is removed on drop.
pub(crate) struct Scratch {
    /// The configuration of machines that keep what they have, if their cluster ends with the command.
    config: Option<Config>,
    dir: tempfile::TempDir,
    /// Held until the directory is removed.
    _lock: File,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let Some(config) = &self.config else { return };
        let kept = find_kept_memory(&config.memory.dir).unwrap_or_default();
        let is_here = |kept: &KeptMemory| {
            let store = kept.store.as_deref();
            store.is_some_and(|store| store.starts_with(self.dir.path()))
        };
        let here = kept.into_iter().filter(is_here);
        here.for_each(|kept| forget(&kept, &run_dir(config)));
        // Of a machine that was killed, and was not started again before the command was interrupted.
        for stale in stale_files(config) {
            if let Err(error) = remove_stale_files(&stale) {
                tracing::warn!(%error, "cannot remove files of a killed machine; `farm clean` removes them");
            }
        }
    }
}

/// Returns whether the directory of a store was in a working directory that is gone.
pub(crate) fn was_scratch(store: &Path) -> bool {
    let is_named = |dir: &&Path| {
        let name = dir.file_name();
        name.is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
    };
    let mut above = store.ancestors().skip(1);
    let Some(dir) = above.find(is_named).filter(|_| store.ends_with(STORE)) else {
        return false;
    };
    let is_gone = matches!(dir.try_exists(), Ok(false));
    // Otherwise a file system may not be mounted.
    let is_alone = dir.parent().is_some_and(Path::is_dir);
    is_gone && is_alone
}

/// Removes the memory that clusters of this name have kept whose command was killed.
pub(crate) fn forget_abandoned(config: &Config) {
    let abandoned = Abandoned::find(&std::env::temp_dir());
    let is_abandoned = |kept: &KeptMemory| {
        let store = kept.store.as_deref();
        kept.cluster == config.cluster.name
            && store.is_some_and(|store| {
                let mut abandoned = abandoned.iter();
                was_scratch(store) || abandoned.any(|one| store.starts_with(&one.dir))
            })
    };
    let kept = find_kept_memory(&config.memory.dir).unwrap_or_default();
    let kept = kept.into_iter();
    let abandoned = kept.filter(|kept| is_abandoned(kept) && !kept.is_used());
    abandoned.for_each(|kept| forget(&kept, &run_dir(config)));
}

fn forget(kept: &KeptMemory, run_dir: &Path) {
    if let Err((path, error)) = kept.remove(run_dir) {
        tracing::warn!(%error, "cannot remove {}; `farm clean` removes it", path.display());
    }
}

impl Scratch {
    /// Creates an empty directory in `parent`, apart from the file with the lock.
    pub(crate) fn new(parent: &Path) -> anyhow::Result<Self> {
        let failed = || format!("cannot create a working directory in {}", parent.display());
        let dir = tempfile::Builder::new()
            .prefix(PREFIX)
            .tempdir_in(parent)
            .with_context(failed)?;
        // Locked before it has its name: otherwise `farm clean` could find it between the two steps.
        let (path, new) = (dir.path().join(LOCK), dir.path().join("new"));
        let lock = File::create(&new).with_context(failed)?;
        lock.lock().with_context(failed)?;
        std::fs::rename(&new, path).with_context(failed)?;
        Ok(Self {
            config: None,
            dir,
            _lock: lock,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Places the store of a configuration in this directory, unless the user named another one: a cluster that ends with the
    /// command leaves nothing that would make the next one refuse to start. Removes what one has left that was killed.
    pub(crate) fn keep_store_of(&mut self, config: &mut Config) {
        if !config.is_logged() {
            return;
        }
        forget_abandoned(config);
        if config.durability.dir.is_none() {
            config.durability.dir = Some(self.path().join(STORE));
            self.config = Some(config.clone());
        }
    }
}

/// A working directory that a killed command left behind.
pub(crate) struct Abandoned {
    pub(crate) dir: PathBuf,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// The lock that the command held.
    _lock: File,
}

impl Abandoned {
    /// Finds the working directories in `parent` that no command uses. Skips those of other users.
    pub(crate) fn find(parent: &Path) -> Vec<Self> {
        let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
        let named = entries.filter(|entry| {
            let name = entry.file_name();
            name.to_str().is_some_and(|name| name.starts_with(PREFIX))
        });
        let mut found: Vec<Self> = named.filter_map(|it| Self::of(it.path())).collect();
        found.sort_by(|one, other| one.dir.cmp(&other.dir));
        found
    }

    fn of(dir: PathBuf) -> Option<Self> {
        let path = dir.join(LOCK);
        let found = path.symlink_metadata().ok()?;
        if !found.is_file() || found.uid() != rustix::process::geteuid().as_raw() {
            return None;
        }
        let lock = File::options().write(true).open(path).ok()?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => return None,
        }
        let (mut files, mut bytes) = (0, 0);
        count(&dir, &mut files, &mut bytes).ok()?;
        Some(Self {
            dir,
            files: files - 1,
            bytes,
            _lock: lock,
        })
    }

    /// Removes the directory.
    pub(crate) fn remove(self) -> anyhow::Result<()> {
        std::fs::remove_dir_all(&self.dir)
            .with_context(|| format!("cannot remove {}", self.dir.display()))
    }
}

/// Adds the numbers of files below a directory, and of their bytes.
fn count(dir: &Path, files: &mut u64, bytes: &mut u64) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let facts = entry.metadata()?;
        if facts.is_dir() {
            count(&entry.path(), files, bytes)?;
        } else {
            *files += 1;
            *bytes += facts.len();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_that_no_command_uses_are_abandoned() {
        let parent = tempfile::tempdir().unwrap();
        let found = || Abandoned::find(parent.path());
        let used = Scratch::new(parent.path()).unwrap();
        assert!(found().is_empty(), "its command runs");
        // What a killed command leaves.
        let left = parent.path().join("farm-run-left");
        std::fs::create_dir_all(left.join("below")).unwrap();
        std::fs::write(left.join("below/data"), [0; 100]).unwrap();
        assert!(found().is_empty(), "it may be of another program");
        std::fs::write(left.join(LOCK), "").unwrap();
        std::fs::create_dir(parent.path().join("farm-else")).unwrap();
        let mut abandoned = found();
        assert_eq!(abandoned.len(), 1);
        assert_eq!((abandoned[0].files, abandoned[0].bytes), (1, 100));
        abandoned.remove(0).remove().unwrap();
        assert!(found().is_empty() && !left.exists());
        let path = used.path().to_owned();
        drop(used);
        assert!(!path.exists());
    }

    #[test]
    fn only_a_store_in_a_working_directory_that_is_gone_was_of_a_command() {
        let parent = tempfile::tempdir().unwrap();
        let store = |name: &str| parent.path().join(name);
        assert!(was_scratch(&store("farm-run-x/configuration")));
        assert!(
            was_scratch(&store("farm-run-x/17/configuration")),
            "`farm bench losses`"
        );
        assert!(!was_scratch(&store("farm-run-x/store")), "a user's");
        assert!(!was_scratch(&store("run-x/configuration")), "a user's");
        assert!(
            !was_scratch(&store("away/farm-run-x/configuration")),
            "not mounted"
        );
        std::fs::create_dir(store("farm-run-x")).unwrap();
        assert!(!was_scratch(&store("farm-run-x/configuration")));
    }

    /// A link to a directory elsewhere must not remove that one.
    #[test]
    fn a_lock_that_is_a_link_is_not_followed() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("farm-run-link");
        std::fs::create_dir(&dir).unwrap();
        let target = parent.path().join("target");
        std::fs::write(&target, "").unwrap();
        std::os::unix::fs::symlink(&target, dir.join(LOCK)).unwrap();
        assert!(Abandoned::find(parent.path()).is_empty());
    }
}
