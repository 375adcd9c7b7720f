//! A directory of small files, each of which is created whole and never changes.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs4::fs_std::FileExt;
use rustix::fs::{Access, access};

use crate::files::unless_gone;

/// Tries to lock a directory, which fail only while a tool inspects or removes it.
const MARK_TRIES: u32 = 100;
/// Tries after which a directory is taken for one in use whose lock others share.
const SHARED_TRIES: u32 = 4;
/// Time between two of these tries.
const MARK_RETRY: Duration = Duration::from_millis(10);

/// The operations of a store on its directory. Each of them can be the last one of its process, and other processes' can come
/// between any two.
pub trait Directory: Send {
    /// Returns the path of a file, for messages.
    fn path(&self, name: &str) -> PathBuf;

    /// Creates the directory for this user alone, unless it exists, and marks it as used until this value is dropped.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::WouldBlock`] if a tool is removing it.
    fn make(&mut self) -> io::Result<()>;

    /// Marks the directory as used until this value is dropped, unless it is marked, or does not exist.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::WouldBlock`] if a tool is removing it.
    fn mark(&mut self) -> io::Result<()>;

    /// Removes the directories that [`Directory::make`] created, unless something else is in them, and the mark.
    fn unmake(&mut self);

    /// Returns the names of all files. A file that exists during the whole call is among them.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::NotFound`] if there is no directory.
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
/// know that they are in use. A process that uses the directory holds a shared lock of the directory itself, so that tools do not
/// remove it; no process waits longer than 1 s for that lock.
#[derive(Debug)]
pub struct OsDirectory {
    path: PathBuf,
    created: Vec<(String, File)>,
    /// The directories that this value created, the outermost first.
    made: Vec<PathBuf>,
    /// The directory, with a shared lock.
    mark: Option<File>,
}

impl OsDirectory {
    /// Names a directory. The directory is neither read nor created.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            created: Vec::new(),
            made: Vec::new(),
            mark: None,
        }
    }

    /// Creates the directory and the directories above that are missing. Their names are durable afterwards.
    fn create_missing(&mut self) -> io::Result<()> {
        let missing = self.path.ancestors().take_while(|dir| !dir.is_dir());
        let missing: Vec<PathBuf> = missing.map(Path::to_owned).collect();
        for dir in missing.into_iter().rev() {
            match DirBuilder::new().mode(0o700).create(&dir) {
                Ok(()) => self.made.push(dir.clone()),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => {}
                Err(error) => return Err(error),
            }
            if let Some(above) = dir.parent() {
                File::open(above)?.sync_all()?;
            }
        }
        Ok(())
    }

    /// Tries something that fails only while a tool has the lock of the directory.
    fn try_often(&mut self, mut once: impl FnMut(&mut Self) -> io::Result<bool>) -> io::Result<()> {
        for _ in 0..MARK_TRIES {
            if once(self)? {
                return Ok(());
            }
            std::thread::park_timeout(MARK_RETRY);
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Marks the directory as used. Returns false if a tool holds its lock, or has removed it.
    fn try_mark(&mut self) -> io::Result<bool> {
        let dir = match open(&self.path) {
            Ok(dir) => dir,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let marked = FileExt::try_lock_shared(&dir)? && is_at(&dir, &self.path);
        self.mark = marked.then_some(dir);
        Ok(marked)
    }
}

/// Takes the lock that no process has that uses the directory. Returns `None` if a process uses the directory, or removed it. Waits
/// up to 1 s while another tool has the lock.
///
/// # Errors
/// The system's; [`io::ErrorKind::NotFound`] if there is no directory.
pub fn lock_unused(path: &Path) -> io::Result<Option<File>> {
    let mut shared = 0;
    for _ in 0..MARK_TRIES {
        let dir = open(path)?;
        // Those who use the directory share its lock. Tools share it only for a moment.
        if FileExt::try_lock_shared(&dir)? {
            if dir.try_lock_exclusive()? {
                return Ok(is_at(&dir, path).then_some(dir));
            }
            shared += 1;
            if shared == SHARED_TRIES {
                break;
            }
        }
        std::thread::park_timeout(MARK_RETRY);
    }
    Ok(None)
}

/// Opens a directory. Anything else is refused, and a pipe does not block.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(libc::O_DIRECTORY)
        .open(path)
}

/// Returns whether an open directory is still the one at a path.
fn is_at(dir: &File, path: &Path) -> bool {
    let identity = |found: std::fs::Metadata| (found.dev(), found.ino());
    let open = dir.metadata().ok().map(identity);
    open.is_some() && open == std::fs::metadata(path).ok().map(identity)
}

/// Returns a directory, or the next one above that exists.
fn existing(path: &Path) -> &Path {
    let mut above = path.ancestors();
    let found = above.find(|dir| dir.symlink_metadata().is_ok());
    found.unwrap_or(Path::new("/"))
}

/// The free space of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes for this user.
    pub bytes: u64,
    /// Number of further files; `None` if it is not limited.
    pub files: Option<u64>,
}

/// Returns the free space of the disk of a directory, which need not exist.
///
/// # Errors
/// The system's.
pub fn space(path: &Path) -> io::Result<Space> {
    let found = rustix::fs::statvfs(existing(path))?;
    Ok(Space {
        bytes: match found.f_blocks {
            // A tmpfs without a limit.
            0 => u64::MAX,
            _ => found.f_bavail.saturating_mul(found.f_frsize),
        },
        files: (found.f_files > 0).then_some(found.f_favail),
    })
}

/// Checks, without a change, that this user may read and write in a directory, or create it.
///
/// # Errors
/// The system's, with the first directory above, or the directory itself, that does not allow it.
pub fn check_usable(path: &Path) -> Result<(), (PathBuf, io::Error)> {
    let found = existing(path);
    let allowed = match std::fs::metadata(found) {
        Ok(is) if is.is_dir() => {
            let needed = match found == path {
                true => Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK,
                false => Access::WRITE_OK | Access::EXEC_OK,
            };
            access(found, needed).map_err(io::Error::from)
        }
        Ok(_) => Err(io::ErrorKind::NotADirectory.into()),
        Err(error) => Err(error),
    };
    allowed.map_err(|error| (found.to_owned(), error))
}

/// Locks a file that was just created. Another process may have taken it for an abandoned one before it was locked.
fn lock_named(file: &File) -> io::Result<()> {
    match file.try_lock_exclusive()? && file.metadata()?.nlink() > 0 {
        true => Ok(()),
        false => Err(io::ErrorKind::AlreadyExists.into()),
    }
}

impl Directory for OsDirectory {
    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn make(&mut self) -> io::Result<()> {
        self.try_often(|dir| {
            dir.create_missing()?;
            dir.try_mark()
        })
    }

    fn mark(&mut self) -> io::Result<()> {
        self.try_often(|dir| Ok(dir.mark.is_some() || !dir.path.try_exists()? || dir.try_mark()?))
    }

    fn unmake(&mut self) {
        self.mark = None;
        for dir in self.made.drain(..).rev() {
            // Another process may use it.
            let _ = std::fs::remove_dir(dir);
        }
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
