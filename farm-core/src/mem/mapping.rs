//! Memory mappings, private or shared through a file. Their space is reserved when they are created.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use super::file_system::FileSystem;
use super::pages::{self, HUGE_PAGE_BYTES};

/// Kinds of access that a mapping allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads only; a store panics instead of faulting.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

/// Why a mapping could not be created or opened.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// The file system has no room for the mapping: nothing was left behind.
    #[error(
        "no space for {bytes} bytes of shared memory in {dir}: {available} bytes are free; \
         free space there; a cluster that has kept no data can also have a lower memory.per_machine_bytes, or another memory.dir"
    )]
    NoSpace {
        /// Directory that holds the shared memory.
        dir: PathBuf,
        /// Bytes requested.
        bytes: u64,
        /// Bytes that were free at that time.
        available: u64,
    },
    /// The file is shorter than the length that its owner announced.
    #[error("shared memory {path} has {found} bytes, but its owner announced {expected}")]
    Short {
        /// Path of the file.
        path: PathBuf,
        /// Bytes announced.
        expected: u64,
        /// Bytes in the file.
        found: u64,
    },
    /// Huge pages were required, but the directory does not provide them.
    #[error(
        "memory.huge_pages is \"require\" but {dir} provides pages of {page_bytes} bytes; free some \
         memory, or mount a directory with `mount -t tmpfs -o huge=always,mode=1777 farm-huge DIR` \
         and set memory.dir to it"
    )]
    NoHugePages {
        /// Directory that holds the shared memory.
        dir: PathBuf,
        /// Size of the pages that the directory provided.
        page_bytes: u64,
    },
    /// Huge pages were required, but private memory did not get them.
    #[error(
        "memory.huge_pages is \"require\" but the system provided pages of {page_bytes} bytes: set more huge \
         pages aside (sysctl -w vm.nr_hugepages=N), or free some memory"
    )]
    NoPrivateHugePages {
        /// Size of the pages that the system provided.
        page_bytes: u64,
    },
    /// A system call failed.
    #[error("cannot {what} {path}: {source}")]
    Os {
        /// The operation.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the system call.
        #[source]
        source: std::io::Error,
    },
}

/// An owned mapping. The bytes are reached through [`super::Memory`] only.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    access: Access,
    page_bytes: usize,
}

// SAFETY: a `Mapping` is an address range that stays mapped until drop; all access goes through atomic operations of
// `Memory`, which are sound from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` exposes only an address, a length, the access and the page size.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps zeroed memory that is private to this process: `len` bytes, rounded up to whole pages.
    ///
    /// # Errors
    /// [`MappingError::Os`] if the memory is not available.
    pub fn anonymous(len: usize) -> Result<Self, MappingError> {
        let len = round_up(len.max(1), page_bytes());
        // SAFETY: a fresh anonymous mapping touches no existing memory.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        Self::from_mmap(base, len, Access::ReadWrite, Path::new("anonymous memory"))
    }

    /// As [`Mapping::anonymous`], with huge pages if available: pages that the system keeps reserved (hugetlb), else
    /// transparent huge pages.
    ///
    /// # Errors
    /// [`MappingError::Os`] if the memory is not available.
    pub fn private(len: usize) -> Result<Self, MappingError> {
        let huge_len = round_up(len.max(1), HUGE_PAGE_BYTES);
        let kept = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_POPULATE;
        let (nowhere, rights) = (std::ptr::null_mut(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a fresh anonymous mapping touches no existing memory. This call reserves its pages, so that no later
        // access fails for lack of one.
        let base = unsafe { libc::mmap(nowhere, huge_len, rights, kept, -1, 0) };
        if base != libc::MAP_FAILED {
            let name = Path::new("anonymous memory");
            let mut mapping = Self::from_mmap(base, huge_len, Access::ReadWrite, name)?;
            mapping.page_bytes = HUGE_PAGE_BYTES;
            return Ok(mapping);
        }
        let mut mapping = Self::anonymous(huge_len)?;
        // SAFETY: the range is our own fresh mapping; the advice changes no contents.
        unsafe { libc::madvise(mapping.base.as_ptr().cast(), huge_len, libc::MADV_HUGEPAGE) };
        mapping.populate();
        if pages::huge_bytes(mapping.base, huge_len) >= huge_len - HUGE_PAGE_BYTES {
            mapping.page_bytes = HUGE_PAGE_BYTES;
        }
        Ok(mapping)
    }

    /// Creates the file `path` (mode 0600, must not exist) with at least `len` zeroed bytes, reserves the space, and
    /// maps it for reading and writing. If `huge` is true, uses huge pages as far as they are available
    /// ([`Mapping::page_bytes`]). On failure nothing is left behind.
    ///
    /// # Errors
    /// [`MappingError::NoSpace`] if the file system is full: without the reservation a full `/dev/shm` would cause a
    /// SIGBUS later.
    pub fn create(path: &Path, len: usize, huge: bool) -> Result<Self, MappingError> {
        let file = create_new(path)?;
        let made = Self::reserve_and_map(&file, path, len, huge);
        if made.is_err() {
            // Report the first error. The next start removes a file that is left behind.
            let _ = std::fs::remove_file(path);
        }
        made
    }

    /// Sizes the file, writes the bytes that huge pages need, maps the file, creates the huge pages, and reserves the
    /// rest: in that order, because pages that are only reserved become huge pages slowly. No other part of the memory
    /// is touched before all of it is reserved.
    fn reserve_and_map(
        file: &File,
        path: &Path,
        len: usize,
        huge: bool,
    ) -> Result<Self, MappingError> {
        let dir = path.parent().unwrap_or(Path::new("/"));
        let place = FileSystem::at(dir).map_err(os("inspect", dir))?;
        let collapse = huge && !place.hugetlbfs && len >= HUGE_PAGE_BYTES && pages::can_collapse();
        let grain = match collapse {
            true => HUGE_PAGE_BYTES,
            false => place.block_bytes.max(page_bytes()),
        };
        let len = round_up(len.max(1), grain);
        let no_space = || MappingError::NoSpace {
            dir: dir.into(),
            bytes: len as u64,
            available: place.available_bytes,
        };
        let refused = |what, error: std::io::Error| match error.raw_os_error() {
            Some(libc::ENOSPC | libc::ENOMEM) => no_space(),
            _ => os(what, path)(error),
        };
        if place.available_bytes < len as u64 {
            return Err(no_space());
        }
        file.set_len(len as u64).map_err(os("size", path))?;
        if collapse {
            pages::begin_each(file, len).map_err(|error| refused("write", error))?;
        }
        let base = pages::map(file, len, libc::PROT_READ | libc::PROT_WRITE, &place);
        let base = base.map_err(|error| refused("map", error))?;
        let mut mapping = Self::from_mmap(base, len, Access::ReadWrite, path)?;
        if collapse {
            pages::collapse(mapping.base, len);
        } else if huge {
            // SAFETY: the range is our own fresh mapping; the advice changes no contents.
            unsafe { libc::madvise(mapping.base.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        }
        // SAFETY: a plain system call on a descriptor we own.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len as libc::off_t) } {
            0 => {}
            code => return Err(refused("reserve", std::io::Error::from_raw_os_error(code))),
        }
        mapping.populate();
        mapping.page_bytes = match place.hugetlbfs {
            true => place.block_bytes,
            false if pages::huge_bytes(mapping.base, len) >= len => HUGE_PAGE_BYTES,
            false => page_bytes(),
        };
        Ok(mapping)
    }

    /// Maps `len` bytes of an existing file that another process created.
    ///
    /// # Errors
    /// [`MappingError::Short`] if the file is shorter than announced (an access past its end would cause a SIGBUS).
    pub fn open(path: &Path, len: usize, access: Access) -> Result<Self, MappingError> {
        let file = OpenOptions::new()
            .read(true)
            .write(access == Access::ReadWrite)
            .open(path)
            .map_err(os("open", path))?;
        let found = file.metadata().map_err(os("inspect", path))?.len();
        if found < len as u64 || len == 0 {
            return Err(MappingError::Short {
                path: path.into(),
                expected: len as u64,
                found,
            });
        }
        let dir = path.parent().unwrap_or(Path::new("/"));
        let place = FileSystem::at(dir).map_err(os("inspect", dir))?;
        let protection = match access {
            Access::ReadOnly => libc::PROT_READ,
            Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        let len = found as usize;
        let base = pages::map(&file, len, protection, &place).map_err(os("map", path))?;
        let mapping = Self::from_mmap(base, len, access, path)?;
        mapping.populate();
        Ok(mapping)
    }

    /// Enters the pages into the page table, so that no later read or write takes a page fault, as registering memory
    /// with a NIC does.
    fn populate(&self) {
        let advice = match self.access {
            Access::ReadOnly => libc::MADV_POPULATE_READ,
            Access::ReadWrite => libc::MADV_POPULATE_WRITE,
        };
        // SAFETY: the range is our own mapping of a file whose space is reserved; contents stay. A kernel that does not
        // know the advice returns an error, and the page faults happen later.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, advice) };
    }

    fn from_mmap(
        base: *mut libc::c_void,
        len: usize,
        access: Access,
        path: &Path,
    ) -> Result<Self, MappingError> {
        if base == libc::MAP_FAILED {
            return Err(os("map", path)(std::io::Error::last_os_error()));
        }
        let base = NonNull::new(base.cast()).expect("mmap never returns null without MAP_FIXED");
        Ok(Self {
            base,
            len,
            access,
            page_bytes: page_bytes(),
        })
    }

    /// Returns the bytes mapped, at least as many as requested.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the mapping is empty, which it never is.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the access that this mapping allows.
    pub fn access(&self) -> Access {
        self.access
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the bytes of the smallest page of a mapping that this process created.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Returns the bytes of the pages that map a large file in `dir`. Creates such a file and removes it again.
    ///
    /// # Errors
    /// As [`Mapping::create`].
    pub fn page_bytes_of(dir: &Path, huge: bool) -> Result<usize, MappingError> {
        let name = format!(".farm-page-{}-{:p}", std::process::id(), &dir);
        let path = dir.join(name);
        let file = create_new(&path)?;
        // The file is removed at once, so that none remains however this process ends.
        std::fs::remove_file(&path).map_err(os("remove", &path))?;
        let made = Self::reserve_and_map(&file, &path, HUGE_PAGE_BYTES, huge)?;
        Ok(made.page_bytes)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by us with this length and every `Memory` over it is gone.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn os<'a>(what: &'static str, path: &'a Path) -> impl Fn(std::io::Error) -> MappingError + 'a {
    move |source| MappingError::Os {
        what,
        path: path.into(),
        source,
    }
}

fn page_bytes() -> usize {
    // SAFETY: sysconf has no preconditions.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

fn round_up(len: usize, grain: usize) -> usize {
    len.div_ceil(grain) * grain
}

fn create_new(path: &Path) -> Result<File, MappingError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    options.open(path).map_err(os("create", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Memory;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_file_that_one_mapping_writes_is_read_by_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        let ours = Memory::of(Mapping::create(&path, 4096, false).unwrap());
        let theirs = Memory::of(Mapping::open(&path, 4096, Access::ReadOnly).unwrap());
        ours.store(64, 7, Ordering::Release);
        assert_eq!(theirs.load(64, Ordering::Acquire), 7);
    }

    #[test]
    fn reported_huge_pages_are_huge_in_both_mappings() {
        let dir = Path::new("/dev/shm");
        for len in [
            4096,
            HUGE_PAGE_BYTES,
            5 * HUGE_PAGE_BYTES,
            5 * HUGE_PAGE_BYTES + 4096,
        ] {
            let path = dir.join(format!(".farm-test-{}-{len}", std::process::id()));
            let ours = Mapping::create(&path, len, true).unwrap();
            let theirs = Mapping::open(&path, len, Access::ReadOnly);
            std::fs::remove_file(&path).unwrap();
            let theirs = theirs.unwrap();
            if ours.page_bytes() == HUGE_PAGE_BYTES {
                assert!(len >= HUGE_PAGE_BYTES && ours.len() >= len);
                let shown = |mapping: &Mapping| pages::huge_bytes(mapping.base, mapping.len);
                assert_eq!((shown(&ours), shown(&theirs)), (ours.len(), ours.len()));
            }
            let (ours, theirs) = (Memory::of(ours), Memory::of(theirs));
            for at in (0..len).step_by(4096) {
                assert_eq!(theirs.load(at, Ordering::Relaxed), 0);
                ours.store(at, at as u64 + 1, Ordering::Release);
                assert_eq!(theirs.load(at, Ordering::Acquire), at as u64 + 1);
            }
        }
    }

    #[test]
    fn private_memory_is_zeroed_and_writable() {
        for len in [1, HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES + 8] {
            let memory = Memory::of(Mapping::private(len).unwrap());
            assert!(memory.len() >= len);
            for at in (0..len).step_by(4096) {
                assert_eq!(memory.load(at, Ordering::Relaxed), 0);
                memory.store(at, at as u64, Ordering::Relaxed);
            }
        }
    }

    #[test]
    fn pages_are_small_if_huge_ones_are_not_requested() {
        let dir = Path::new("/dev/shm");
        let bytes = Mapping::page_bytes_of(dir, false).unwrap();
        assert_eq!(bytes, super::page_bytes());
        let left = std::fs::read_dir(dir).unwrap();
        let ours = format!(".farm-page-{}-", std::process::id());
        let mut names = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert!(!names.any(|name| name.starts_with(&ours)));
    }

    #[test]
    fn no_space_is_an_error_that_names_the_directory_and_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        let refused = Mapping::create(&path, 1 << 52, false).unwrap_err();
        assert!(matches!(refused, MappingError::NoSpace { .. }), "{refused}");
        assert!(refused.to_string().contains(dir.path().to_str().unwrap()));
        assert!(!path.exists());
    }

    #[test]
    fn opening_a_short_file_fails() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        std::fs::write(&path, [0u8; 64]).unwrap();
        let refused = Mapping::open(&path, 4096, Access::ReadOnly).unwrap_err();
        assert!(matches!(refused, MappingError::Short { found: 64, .. }));
    }

    #[test]
    fn other_users_cannot_read_a_segment() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        let _mapping = Mapping::create(&path, 1, false).unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }

    #[test]
    #[should_panic(expected = "read-only")]
    fn a_store_to_a_read_only_mapping_panics_instead_of_faulting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        let _ours = Mapping::create(&path, 4096, false).unwrap();
        let theirs = Memory::of(Mapping::open(&path, 4096, Access::ReadOnly).unwrap());
        theirs.store(0, 1, Ordering::Relaxed);
    }
}
