//! A file of entries to which a process appends, and which the next one reads after the process was killed at any moment.
//!
//! ```text
//! header   magic (7 B) and format of all that is kept (1 B) | bytes of the owner (8 B) | checksum of all of the header (8 B) | owner
//! entry    bytes (4 B) | 0 (4 B) | configuration (8 B) | checksum (8 B) | body
//! ```
//!
//! An entry that a kill has torn is the last one; nothing that follows from it was done, so that readers stop there. The next entry takes
//! its place.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::FORMAT;

const MAGIC: [u8; 7] = *b"farmjrn";
/// Bytes of the header before the owner.
const HEADER_BYTES: usize = 24;
const ENTRY_BYTES: usize = 24;
/// Longest body of an entry.
const MOST_BYTES: usize = u32::MAX as usize;

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// An operation of the system failed.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// The operation, as a verb.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error.
        #[source]
        source: io::Error,
    },
    /// The file is no journal.
    #[error("{} is not a journal of farm, or is damaged. The memory that its machine has kept cannot be used. Move the file away, and start all machines: \
         they go on without that memory, if the others have copies of all regions", .0.display())]
    NotOne(PathBuf),
    /// Another version of the program has written the journal.
    #[error(
        "what this machine has kept has format {found}, and this program reads format {FORMAT} ({}): use the version of farm that has written \
         it, or remove what that cluster left with `farm destroy`", path.display()
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u8,
    },
    /// The journal has another owner.
    #[error("{} is not a journal of this owner", path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: String,
    },
    /// An entry is too long.
    #[error("an entry of {0} bytes is too long for a journal")]
    TooLong(usize),
}

/// An entry, with its configuration.
type Entry = (u64, Vec<u8>);

/// A journal.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    /// Bytes of the header with the owner.
    begin: u64,
    /// Bytes of the header and of all whole entries.
    end: u64,
    /// The latest configuration that an entry is for.
    latest: u64,
}

impl Journal {
    /// Creates a new journal. The owner is any text, and is to be named when it is [opened](Journal::open).
    ///
    /// # Errors
    /// [`JournalError::Io`], also if the file exists.
    pub fn create(path: &Path, owner: &str) -> Result<Self, JournalError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path);
        let file = file.map_err(error("create", path))?;
        let mut header = [0; HEADER_BYTES];
        header[..7].copy_from_slice(&MAGIC);
        header[7] = FORMAT;
        header[8..16].copy_from_slice(&(owner.len() as u64).to_le_bytes());
        let sum = header_sum(&header[..16], owner.as_bytes());
        header[16..].copy_from_slice(&sum.to_le_bytes());
        let header = [&header, owner.as_bytes()].concat();
        file.write_all_at(&header, 0)
            .map_err(error("write", path))?;
        let begin = header.len() as u64;
        Ok(Self {
            file,
            path: path.into(),
            begin,
            end: begin,
            latest: 0,
        })
    }

    /// Opens a journal of this owner.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn open(path: &Path, owner: &str) -> Result<Self, JournalError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path);
        let file = file.map_err(error("open", path))?;
        let mut journal = Self {
            file,
            path: path.into(),
            begin: 0,
            end: 0,
            latest: 0,
        };
        let bytes = journal.bytes()?;
        let path = || path.to_path_buf();
        match bytes.get(..8) {
            // What follows may be anything.
            Some([magic @ .., found]) if *magic == MAGIC && *found != FORMAT => {
                let found = *found;
                return Err(JournalError::Format {
                    path: path(),
                    found,
                });
            }
            Some([magic @ .., _]) if *magic == MAGIC => {}
            _ => return Err(JournalError::NotOne(path())),
        }
        let found = owner_of(&bytes).ok_or_else(|| JournalError::NotOne(path()))?;
        if found != owner {
            let owner = found.into();
            return Err(JournalError::Owner {
                path: path(),
                owner,
            });
        }
        journal.begin = (HEADER_BYTES + owner.len()) as u64;
        let (entries, end) = journal.decode(&bytes);
        journal.end = end;
        journal.latest = entries.iter().map(|entry| entry.0).max().unwrap_or(0);
        Ok(journal)
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// [`JournalError`]: the entry does not count.
    pub fn append(&mut self, configuration: u64, body: &[u8]) -> Result<(), JournalError> {
        if body.len() > MOST_BYTES {
            return Err(JournalError::TooLong(body.len()));
        }
        let mut entry = vec![0; ENTRY_BYTES];
        entry[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
        entry[8..16].copy_from_slice(&configuration.to_le_bytes());
        let sum = sum(self.end, &entry[..16], body);
        entry[16..24].copy_from_slice(&sum.to_le_bytes());
        entry.extend_from_slice(body);
        let written = self.file.write_all_at(&entry, self.end);
        written.map_err(error("write", &self.path))?;
        self.end += entry.len() as u64;
        self.latest = self.latest.max(configuration);
        Ok(())
    }

    /// Returns the bodies of all entries, oldest first.
    ///
    /// # Errors
    /// [`JournalError::Io`].
    pub fn entries(&self) -> Result<Vec<Vec<u8>>, JournalError> {
        let (entries, _) = self.decode(&self.bytes()?);
        Ok(entries.into_iter().map(|entry| entry.1).collect())
    }

    /// Removes all entries, unless one is for a later configuration than this one.
    ///
    /// # Errors
    /// [`JournalError::Io`].
    pub fn clear(&mut self, configuration: u64) -> Result<(), JournalError> {
        if self.latest > configuration {
            return Ok(());
        }
        let cleared = self.file.set_len(self.begin);
        cleared.map_err(error("shorten", &self.path))?;
        self.end = self.begin;
        Ok(())
    }

    fn bytes(&self) -> Result<Vec<u8>, JournalError> {
        std::fs::read(&self.path).map_err(error("read", &self.path))
    }

    /// Returns the whole entries of the bytes of this journal, and where they end.
    fn decode(&self, bytes: &[u8]) -> (Vec<Entry>, u64) {
        let (mut entries, mut at) = (Vec::new(), self.begin as usize);
        while let Some(rest) = bytes.get(at..)
            && rest.len() >= ENTRY_BYTES
        {
            let length = (word(rest, 0) & u64::from(u32::MAX)) as usize;
            let Some(body) = rest.get(ENTRY_BYTES..ENTRY_BYTES + length) else {
                break;
            };
            if word(rest, 16) != sum(at as u64, &rest[..16], body) {
                break;
            }
            entries.push((word(rest, 8), body.to_vec()));
            at += ENTRY_BYTES + length;
        }
        (entries, at as u64)
    }
}

/// Returns the owner of a journal with these bytes; `None` if its header is damaged.
fn owner_of(bytes: &[u8]) -> Option<&str> {
    if bytes.len() < HEADER_BYTES {
        return None;
    }
    let end = usize::try_from(word(bytes, 8)).ok()?;
    let end = end.checked_add(HEADER_BYTES)?;
    let owner = bytes.get(HEADER_BYTES..end)?;
    let is_whole = word(bytes, 16) == header_sum(&bytes[..16], owner);
    str::from_utf8(owner).ok().filter(|_| is_whole)
}

/// Returns the checksum of a header.
fn header_sum(head: &[u8], owner: &[u8]) -> u64 {
    xxh3_64_with_seed(owner, xxh3_64(head))
}

/// Returns the checksum of an entry, which depends on its place: what an entry before it has left there is not taken for one.
fn sum(at: u64, head: &[u8], body: &[u8]) -> u64 {
    xxh3_64_with_seed(body, xxh3_64_with_seed(head, at))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes[at..at + 8].try_into();
    u64::from_le_bytes(word.expect("a word has 8 bytes"))
}

fn error<'a>(what: &'static str, path: &'a Path) -> impl Fn(io::Error) -> JournalError + 'a {
    move |source| JournalError::Io {
        what,
        path: path.into(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OWNER: &str = "an owner";

    #[test]
    fn entries_are_read_again_and_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let mut journal = Journal::create(&path, "seven").unwrap();
        assert!(Journal::create(&path, "seven").is_err(), "it exists");
        journal.append(2, b"one").unwrap();
        journal.append(3, b"").unwrap();
        journal.clear(2).unwrap();
        let expected = [b"one".to_vec(), Vec::new()];
        assert_eq!(journal.entries().unwrap(), expected);
        let mut again = Journal::open(&path, "seven").unwrap();
        assert_eq!(again.entries().unwrap(), expected);
        again.clear(2).unwrap();
        assert_eq!(again.entries().unwrap(), expected);
        again.clear(3).unwrap();
        again.append(4, b"two").unwrap();
        drop(again);
        assert_eq!(
            Journal::open(&path, "seven").unwrap().entries().unwrap(),
            [b"two".to_vec()]
        );
        let other = Journal::open(&path, "eight").unwrap_err();
        assert!(
            matches!(&other, JournalError::Owner { owner, .. } if owner == "seven"),
            "{other}"
        );
        let refused = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            Journal::open(&path, "eight").unwrap_err().to_string()
        };
        let newer = refused(b"farmjrn\xff");
        assert!(
            newer.contains("has format 255, and this program reads format 3"),
            "{newer}"
        );
        let torn = [&b"farmjrn"[..], &[FORMAT]].concat();
        let endless = [&torn[..], &[0xff; 16]].concat();
        let longer = b"something longer than it is";
        for bytes in [&b""[..], b"farmjrn", longer, &torn, &endless] {
            let other = refused(bytes);
            assert!(other.contains("is not a journal of farm"), "{other}");
        }
    }

    proptest! {
        /// Whatever is at the end of the file, whole entries before it are read, and the next one is appended after them.
        #[test]
        fn a_torn_entry_is_the_last_one(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..6),
            cut in 0usize..300,
            garbage in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("journal");
            let mut journal = Journal::create(&path, OWNER).unwrap();
            let mut ends = vec![journal.end as usize];
            let begin = ends[0];
            for body in &bodies {
                journal.append(1, body).unwrap();
                ends.push(journal.end as usize);
            }
            let mut bytes = std::fs::read(&path).unwrap();
            bytes.truncate(cut.max(begin));
            let whole = ends.iter().filter(|end| **end <= bytes.len()).count() - 1;
            bytes.extend(&garbage);
            std::fs::write(&path, &bytes).unwrap();
            let mut journal = Journal::open(&path, OWNER).unwrap();
            // Garbage may be what was cut off.
            let found = journal.entries().unwrap();
            prop_assert!(found.len() >= whole && bodies.starts_with(&found));
            journal.append(1, b"next").unwrap();
            let again = Journal::open(&path, OWNER).unwrap().entries().unwrap();
            prop_assert_eq!(&again[..found.len()], &found[..]);
            prop_assert_eq!(&again[found.len()..], &[b"next".to_vec()][..]);
        }
    }
}
