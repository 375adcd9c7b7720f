//! A directory of small files, each of which is created whole and never changes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use fs4::fs_std::FileExt;

/// The operations of a store on its directory. Each of them can be the last one of its process, and other processes' can come
/// between any two.
pub trait Directory: Send {
    /// Returns the path of a file, for messages.
    fn path(&self, name: &str) -> PathBuf;

    /// Returns the names of all files. A file that exists during the whole call is among them.
    ///
    /// # Errors
    /// The system's.
    fn list(&mut self) -> io::Result<Vec<String>>;

    /// Returns the content of a file.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::NotFound`] if there is none.
    fn read(&mut self, name: &str) -> io::Result<Vec<u8>>;

    /// Creates a file that only this process uses, with its content durable. It stays until [`Directory::remove`], or until
    /// another process [removes it](Directory::remove_abandoned) when this one has ended.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::AlreadyExists`] if there is a file of this name, or another process is removing it: try
    /// another name.
    fn create(&mut self, name: &str, content: &[u8]) -> io::Result<()>;

    /// Gives a file a second name.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::AlreadyExists`] if there is a file of the new name.
    fn link(&mut self, name: &str, new: &str) -> io::Result<()>;

    /// Makes all names durable.
    ///
    /// # Errors
    /// The system's.
    fn sync(&mut self) -> io::Result<()>;

    /// Removes a name. If there is none, nothing happens.
    ///
    /// # Errors
    /// The system's.
    fn remove(&mut self, name: &str) -> io::Result<()>;

    /// Removes a file that [`Directory::create`] made, if the process that made it has ended.
    ///
    /// # Errors
    /// The system's.
    fn remove_abandoned(&mut self, name: &str) -> io::Result<()>;
}

/// A directory of the file system. The files that were created and not removed are locked (`flock`), so that other processes
/// know that they are in use.
#[derive(Debug)]
pub struct OsDirectory {
    path: PathBuf,
    created: Vec<(String, File)>,
}

impl OsDirectory {
    /// Opens a directory, and creates it if there is none.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(path)?;
        Ok(Self {
            path: path.to_owned(),
            created: Vec::new(),
        })
    }
}

/// Locks a file that was just created. Another process may have taken it for an abandoned one before it was locked.
fn lock_named(file: &File) -> io::Result<()> {
    match file.try_lock_exclusive()? && file.metadata()?.nlink() > 0 {
        true => Ok(()),
        false => Err(io::ErrorKind::AlreadyExists.into()),
    }
}

/// Returns `Ok` also if there was no file.
fn unless_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

impl Directory for OsDirectory {
    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn list(&mut self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            // A name that is not UTF-8 is of no file of the store.
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    fn read(&mut self, name: &str) -> io::Result<Vec<u8>> {
        let mut file = OpenOptions::new()
            .read(true)
            // A pipe in the place of the file must not block.
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(self.path(name))?;
        let mut content = Vec::new();
        // One byte more than a store accepts, so that a file that is too long is not read whole.
        let most = super::encoding::MOST_BYTES as u64 + 1;
        (&mut file).take(most).read_to_end(&mut content)?;
        Ok(content)
    }

    fn create(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        let path = self.path(name);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        let written = lock_named(&file).and_then(|()| {
            file.write_all(content)?;
            file.sync_all()
        });
        match written {
            Ok(()) => self.created.push((name.to_owned(), file)),
            Err(_) => unless_gone(std::fs::remove_file(&path))?,
        }
        written
    }

    fn link(&mut self, name: &str, new: &str) -> io::Result<()> {
        std::fs::hard_link(self.path(name), self.path(new))
    }

    fn sync(&mut self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        let removed = unless_gone(std::fs::remove_file(self.path(name)));
        self.created.retain(|(created, _)| created != name);
        removed
    }

    fn remove_abandoned(&mut self, name: &str) -> io::Result<()> {
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(self.path(name));
        let file = match opened {
            Ok(file) => file,
            Err(error) => return unless_gone(Err(error)),
        };
        // Held until the name is removed: only an owner that has ended has let go of it.
        match file.try_lock_exclusive()? {
            true => unless_gone(std::fs::remove_file(self.path(name))),
            false => Ok(()),
        }
    }
}
