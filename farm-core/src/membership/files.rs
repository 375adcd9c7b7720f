//! The configuration store of a cluster on one computer: files in a directory that all machines reach, without a service.
//!
//! The configuration of change 7 is the file `config-00000000000000000007`. The newest configuration is that of the greatest
//! number. A file is written under another name first, and gets its name by `link(2)`, which one process alone can do for each
//! number. A change therefore takes effect whole and at one moment, and only as the successor of the configuration that its
//! writer knew. No process waits for another: one that is stopped or killed at any step leaves at most a file that nobody
//! reads, and that a later change removes.
//!
//! A number names both kinds of changes, because names by configuration and minor number would let a new configuration and a
//! change within the old one both succeed (docs/decisions/0030).
//!
//! The last [`KEPT`] files stay, and older ones are removed. A process that was stopped for so long that the number of its change
//! was used and removed can use it again. It then finds a number that is at least [`KEPT`] greater, and does not report success.

use std::io;
use std::path::{Path, PathBuf};

use super::configuration::Configuration;
use super::directory::{Directory, OsDirectory};
use super::encoding::DecodeError;
use super::store::{ConfigStore, StoreError, Swap};
use crate::fabric::random_words;

/// The number of configurations that are kept.
pub const KEPT: u64 = 16;
/// Tries of a read that finds that its file was removed meanwhile, or is no longer the newest.
const READ_TRIES: u32 = 1000;
/// Tries to find a name for a new file.
const NAME_TRIES: u32 = 10;
/// Prefix of the names of files that are being written.
pub(super) const NEW: &str = "new-config-";
/// Prefix of the names of configurations.
const CONFIG: &str = "config-";
/// Digits of the number in a name, so that names sort as numbers do.
const DIGITS: usize = 20;

/// A configuration store of files: see the [module](self).
#[derive(Debug)]
pub struct FileStore<D = OsDirectory> {
    dir: D,
    cluster: String,
    /// [`KEPT`], except in tests.
    kept: u64,
    /// Whether the directory has been found or created. Until then a missing directory is a store without a configuration.
    exists: bool,
}

impl FileStore {
    /// Names the store of a cluster in a directory. The first configuration creates the directory.
    pub fn at(path: &Path, cluster: &str) -> Self {
        Self::new(OsDirectory::new(path), cluster)
    }
}

impl<D: Directory> FileStore<D> {
    /// Creates the store of a cluster over a directory.
    pub fn new(dir: D, cluster: &str) -> Self {
        Self {
            dir,
            cluster: cluster.to_owned(),
            kept: KEPT,
            exists: false,
        }
    }

    fn newest(&mut self) -> Result<Option<u64>, StoreError> {
        Ok(numbers(&self.list()?).max())
    }

    fn list(&mut self) -> Result<Vec<String>, StoreError> {
        match self.dir.list() {
            Ok(names) => {
                self.exists = true;
                Ok(names)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.exists => Ok(Vec::new()),
            Err(source) => Err(self.error("list the directory", "", source)),
        }
    }

    fn error(&self, what: &'static str, name: &str, source: io::Error) -> StoreError {
        if source.kind() == io::ErrorKind::NotFound && self.exists {
            return StoreError::Gone(self.path(""));
        }
        let path = self.path(name);
        StoreError::Io { what, path, source }
    }

    /// Creates the directory, unless it exists.
    fn make(&mut self) -> Result<(), StoreError> {
        let made = self.dir.make();
        made.map_err(|source| self.error("create the directory", "", source))?;
        self.exists = true;
        Ok(())
    }

    /// Returns the path of a file, or of the directory if the name is empty.
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path(name)
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        let synced = self.dir.sync();
        synced.map_err(|source| self.error("sync the directory", "", source))
    }

    /// Reads the configuration of a number. Returns `None` if there is no such file.
    fn read_number(&mut self, number: u64) -> Result<Option<Configuration>, StoreError> {
        let name = name(number);
        let bytes = match self.dir.read(&name) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.error("read", &name, error)),
        };
        let path = self.path(&name);
        let found = match Configuration::decode(&bytes) {
            Ok(found) => found,
            Err(source @ DecodeError::Newer(_)) => return Err(StoreError::Newer { path, source }),
            Err(source) => return Err(StoreError::Damaged { path, source }),
        };
        if found.cluster != self.cluster {
            return Err(StoreError::OtherCluster {
                path,
                found: found.cluster,
                expected: self.cluster.clone(),
            });
        }
        if found.change != number {
            let found = found.change;
            return Err(StoreError::Misplaced { path, found });
        }
        Ok(Some(found))
    }

    /// Writes a file that nobody reads yet. Returns its name.
    fn write_new(&mut self, bytes: &[u8]) -> Result<String, StoreError> {
        let mut tries = 0;
        loop {
            let unique = random().map_err(|source| self.error("choose a name in", "", source))?;
            let name = format!("{NEW}{unique:016x}");
            tries += 1;
            match self.dir.create(&name, bytes) {
                Ok(()) => return Ok(name),
                Err(error)
                    if error.kind() == io::ErrorKind::AlreadyExists && tries < NAME_TRIES => {}
                Err(error) => return Err(self.error("write", &name, error)),
            }
        }
    }

    /// Decides whether the change that got the name of `number` took effect.
    fn outcome(&mut self, number: u64) -> Result<Swap, StoreError> {
        self.sync()?;
        let newest = self.newest()?.unwrap_or_default();
        match newest.checked_sub(number) {
            // The number was not used before: files with numbers that are less than `KEPT` smaller than the newest are never
            // removed.
            Some(later) if later < self.kept => Ok(Swap::Won),
            _ => Err(StoreError::Restless(self.path(""))),
        }
    }

    /// Writes the configuration of a change.
    fn put(&mut self, change: u64, bytes: &[u8]) -> Result<Swap, StoreError> {
        let new = self.write_new(bytes)?;
        let linked = self.dir.link(&new, &name(change));
        let outcome = match linked {
            Ok(()) => self
                .outcome(change)
                .map_err(|error| StoreError::Unknown(Box::new(error))),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Swap::Lost),
            Err(error) => Err(self.error("name", &name(change), error)),
        };
        // The file keeps its other name.
        if let Err(error) = self.dir.remove(&new) {
            tracing::warn!(%error, name = new, "cannot remove the first name of a configuration");
        }
        if let Ok(Swap::Won) = outcome {
            self.prune(change);
        }
        outcome
    }

    /// Removes the files that are not needed after the change of this number. What fails is done by a later change.
    fn prune(&mut self, number: u64) {
        let Ok(names) = self.list() else { return };
        let mut old: Vec<u64> = numbers(&names)
            .filter(|old| old + self.kept <= number)
            .collect();
        old.sort_unstable();
        for number in old {
            if let Err(error) = self.dir.remove(&name(number)) {
                tracing::warn!(%error, number, "cannot remove an old configuration");
            }
        }
        for name in names.iter().filter(|name| name.starts_with(NEW)) {
            if let Err(error) = self.dir.remove_abandoned(name) {
                tracing::warn!(%error, name, "cannot remove a file that a process left behind");
            }
        }
    }
}

impl<D: Directory> ConfigStore for FileStore<D> {
    fn read(&mut self) -> Result<Option<Configuration>, StoreError> {
        for _ in 0..READ_TRIES {
            let Some(newest) = self.newest()? else {
                return Ok(None);
            };
            let found = self.read_number(newest)?;
            // If the file is gone, or is no longer the newest, others have changed the configuration meanwhile.
            if found.is_some() && self.newest()? == Some(newest) {
                // The process that made it the newest may not have come to this.
                self.sync()?;
                return Ok(found);
            }
        }
        Err(StoreError::Restless(self.path("")))
    }

    fn compare_and_swap(&mut self, next: &Configuration) -> Result<Swap, StoreError> {
        let version = next.version;
        let encoded = next.encode();
        let bytes = encoded.map_err(|source| StoreError::Encode { version, source })?;
        let before = (next.change > 1).then(|| next.change - 1);
        if before.is_some() {
            let marked = self.dir.mark();
            marked.map_err(|source| self.error("lock the directory", "", source))?;
        }
        let newest = self.newest()?;
        if let Some(before) = before.filter(|before| newest < Some(*before)) {
            return Err(StoreError::Gone(self.path(&name(before))));
        }
        if newest != before {
            return Ok(Swap::Lost);
        }
        if before.is_some() {
            return self.put(next.change, &bytes);
        }
        let put = self.make().and_then(|()| self.put(next.change, &bytes));
        if !matches!(put, Ok(Swap::Won) | Err(StoreError::Unknown(_))) {
            self.dir.unmake();
        }
        put
    }
}

/// Returns the name of the configuration of a change.
fn name(number: u64) -> String {
    format!("{CONFIG}{number:0DIGITS$}")
}

fn random() -> io::Result<u64> {
    random_words::<1>().map(|[word]| word)
}

/// Returns the numbers of all configurations among these names, in any order.
fn numbers(names: &[String]) -> impl Iterator<Item = u64> + '_ {
    names.iter().filter_map(|name| number(name))
}

/// Returns the number in the name of a configuration.
pub(super) fn number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(CONFIG)?;
    let decimal = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| decimal)
}

#[cfg(test)]
mod tests;
