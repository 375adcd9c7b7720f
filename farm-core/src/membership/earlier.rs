//! The configuration that an earlier cluster left in the directory of its store: found by tools, and removed where a user asks
//! for that.
//!
//! A process that uses a store holds a shared lock of the directory ([`OsDirectory`]). [`find`] and [`Earlier::remove`] hold the
//! exclusive lock, so they never take or remove the store of a cluster that runs.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::directory::{Directory, OsDirectory, lock_unused};
use super::files::{FileStore, NEW, number};
use super::store::{ConfigStore, StoreError};

/// What is in the directory of a configuration store.
#[derive(Debug)]
pub enum Found {
    /// No configuration, or no directory.
    Nothing,
    /// A configuration that a running process uses.
    InUse,
    /// The configuration of a cluster that ran before.
    Earlier(Earlier),
}

/// The configuration of a cluster that ran before. While this value exists, no start can use the directory.
#[derive(Debug)]
pub struct Earlier {
    dir: PathBuf,
    change: u64,
    files: u64,
    bytes: u64,
    /// The directory, with an exclusive lock.
    _lock: File,
}

/// Finds the configuration of a cluster of this name in a directory.
///
/// # Errors
/// [`StoreError`] if the directory or the newest configuration cannot be read, or is that of another cluster.
pub fn find(dir: &Path, cluster: &str) -> Result<Found, StoreError> {
    let lock = match lock_unused(dir) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(source) => return Err(error("lock the directory", dir, source)),
    };
    let Some(newest) = FileStore::at(dir, cluster).read()? else {
        return Ok(Found::Nothing);
    };
    let Some(lock) = lock else {
        return Ok(Found::InUse);
    };
    let files = files(dir)?;
    Ok(Found::Earlier(Earlier {
        dir: dir.to_owned(),
        change: newest.change,
        files: files.len() as u64,
        bytes: files.iter().map(|file| file.bytes).sum(),
        _lock: lock,
    }))
}

impl Earlier {
    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the number of the last change of the configuration.
    pub fn change(&self) -> u64 {
        self.change
    }

    /// Returns the number of files of the store.
    pub fn files(&self) -> u64 {
        self.files
    }

    /// Returns the bytes of these files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the id of the user to whom the newest configuration belongs, if that is not the user of this process.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn other_owner(&self) -> Result<Option<u32>, StoreError> {
        let files = files(&self.dir)?;
        let newest = files.into_iter().max_by_key(|file| file.number);
        let path = newest.map_or_else(|| self.dir.clone(), |file| file.path);
        let found = path.symlink_metadata();
        let found = found.map_err(|source| error("examine", &path, source))?;
        let is_other = found.uid() != rustix::process::geteuid().as_raw();
        Ok(is_other.then(|| found.uid()))
    }

    /// Removes the files of the store, the newest configuration last. The directory stays.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn remove(self) -> Result<(), StoreError> {
        let mut files = files(&self.dir)?;
        files.sort_by_key(|file| file.number);
        for StoreFile { path, .. } in &files {
            std::fs::remove_file(path).map_err(|source| error("remove", path, source))?;
        }
        Ok(())
    }
}

/// A file of a store.
struct StoreFile {
    path: PathBuf,
    bytes: u64,
    /// The number of the configuration; `None` for a file that was not named yet.
    number: Option<u64>,
}

fn files(dir: &Path) -> Result<Vec<StoreFile>, StoreError> {
    let listed = OsDirectory::new(dir).list();
    let names = listed.map_err(|source| error("list the directory", dir, source))?;
    let names = names.into_iter();
    let names = names.filter(|name| number(name).is_some() || name.starts_with(NEW));
    Ok(names
        .map(|name| {
            let path = dir.join(&name);
            StoreFile {
                bytes: path.symlink_metadata().map_or(0, |found| found.len()),
                number: number(&name),
                path,
            }
        })
        .collect())
}

fn error(what: &'static str, path: &Path, source: io::Error) -> StoreError {
    let path = path.to_owned();
    StoreError::Io { what, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::configuration::testing::configuration;
    use crate::membership::store::Swap;

    /// Stores the first configuration of the cluster `test`. The store is in use until the value is dropped.
    fn started(dir: &Path) -> FileStore {
        let mut store = FileStore::at(dir, "test");
        let first = configuration("test", &[1, 2]);
        assert_eq!(store.compare_and_swap(&first).unwrap(), Swap::Won);
        store
    }

    fn earlier(dir: &Path) -> Earlier {
        match find(dir, "test") {
            Ok(Found::Earlier(earlier)) => earlier,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_store_is_removed_after_its_last_process_has_ended() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("store");
        assert!(matches!(find(&dir, "test"), Ok(Found::Nothing)));
        let mut store = started(&dir);
        let next = configuration("test", &[1, 2]).next(false);
        assert_eq!(store.compare_and_swap(&next).unwrap(), Swap::Won);
        assert!(matches!(find(&dir, "test"), Ok(Found::InUse)));
        // The process of the first configuration has ended, and the next one goes on.
        drop(store);
        let mut store = FileStore::at(&dir, "test");
        let third = next.next(false);
        assert_eq!(store.compare_and_swap(&third).unwrap(), Swap::Won);
        assert!(matches!(find(&dir, "test"), Ok(Found::InUse)));
        let other = find(&dir, "other").unwrap_err().to_string();
        assert!(other.contains("the cluster \"test\""), "{other}");
        drop(store);
        assert!(find(&dir, "other").is_err());

        // A file that a process left before it got its name, and a file of the user.
        std::fs::write(dir.join("new-config-7"), "abc").unwrap();
        std::fs::write(dir.join("notes"), "").unwrap();
        let found = earlier(&dir);
        assert_eq!(
            (found.change(), found.files(), found.dir()),
            (3, 4, dir.as_path())
        );
        assert!(found.bytes() > 3, "{found:?}");
        // A start does not take it for a store without a configuration.
        let first = configuration("test", &[1, 2]);
        let refused = FileStore::at(&dir, "test").compare_and_swap(&first);
        assert_eq!(refused.unwrap(), Swap::Lost);
        assert_eq!(found.other_owner().unwrap(), None);
        found.remove().unwrap();
        assert!(matches!(find(&dir, "test"), Ok(Found::Nothing)));
        let left: Vec<_> = std::fs::read_dir(&dir).unwrap().collect();
        assert_eq!(left[0].as_ref().unwrap().file_name(), "notes");
        assert_eq!(left.len(), 1);
        drop(started(&dir));
        earlier(&dir).remove().unwrap();
        assert!(matches!(find(&dir, "test"), Ok(Found::Nothing)));
    }

    #[test]
    fn a_start_during_the_removal_of_a_directory_is_refused_with_advice() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("store");
        std::fs::create_dir(&dir).unwrap();
        let lock = lock_unused(&dir).unwrap().expect("no process uses it");
        let first = configuration("test", &[1, 2]);
        let refused = FileStore::at(&dir, "test").compare_and_swap(&first);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("farm destroy"), "{refused}");
        drop(lock);
        drop(started(&dir));
    }
}
