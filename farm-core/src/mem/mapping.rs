//! Memory mappings, private or shared through a file, with their space reserved when they are made.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use super::pages::{self, HUGE_PAGE_BYTES};

/// What a mapping may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads only; a store panics before it could fault.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

/// Why a mapping could not be made; the file in question is named.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// The file system has no room for the mapping: nothing was left behind.
    #[error(
        "no space for {bytes} bytes of shared memory in {dir}: {available} bytes are free; \
         lower memory.per_machine_bytes, free space there, or point memory.dir elsewhere"
    )]
    NoSpace {
        /// Directory that holds the shared memory.
        dir: PathBuf,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes that were free when it failed.
        available: u64,
    },
    /// The file is shorter than the length its owner announced.
    #[error("shared memory {path} has {found} bytes where {expected} were announced")]
    Short {
        /// The file.
        path: PathBuf,
        /// Bytes announced.
        expected: u64,
        /// Bytes there.
        found: u64,
    },
    /// Huge pages were required and the directory does not give them.
    #[error(
        "memory.huge_pages is \"require\" but {dir} gave pages of {page_bytes} bytes; free some \
         memory, or mount a directory with `mount -t tmpfs -o huge=always,mode=1777 farm-huge DIR` \
         and set memory.dir to it"
    )]
    NoHugePages {
        /// Directory that holds the shared memory.
        dir: PathBuf,
        /// Page size found there.
        page_bytes: u64,
    },
    /// Huge pages were required, and memory that is in no file has none.
    #[error(
        "memory.huge_pages is \"require\" but the system gave pages of {page_bytes} bytes: set more huge \
         pages aside (sysctl -w vm.nr_hugepages=N), or free some memory"
    )]
    NoPrivateHugePages {
        /// Page size that was had.
        page_bytes: u64,
    },
    /// The operating system refused.
    #[error("cannot {what} {path}: {source}")]
    Os {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
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

// SAFETY: a Mapping is an address range that stays mapped until drop; all access goes through
// atomic operations of `Memory`, which are sound from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives out an address, a length and the access, nothing else.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory of this process alone, `len` bytes rounded up to whole pages.
    ///
    /// # Errors
    /// The system's error if the memory is not to be had.
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

    /// The same, by huge pages where there are some: of those that the system keeps for who asks, else of
    /// those that it makes on request.
    ///
    /// # Errors
    /// The system's error if the memory is not to be had.
    pub fn private(len: usize) -> Result<Self, MappingError> {
        let huge_len = round_up(len.max(1), HUGE_PAGE_BYTES);
        let kept = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_POPULATE;
        let (nowhere, rights) = (std::ptr::null_mut(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a fresh anonymous mapping touches no existing memory. Its pages are reserved by this
        // call, so that none is missing later.
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

    /// Makes the file `path` (mode 0600, must not exist) of at least `len` zeroed bytes, reserves
    /// the space, and maps it for reading and writing; by huge pages where `huge` asks for them and
    /// they are to be had ([`Mapping::page_bytes`]). On failure nothing is left behind.
    ///
    /// # Errors
    /// [`MappingError::NoSpace`] when the file system is full: reserving now is what keeps a full
    /// `/dev/shm` from being a SIGBUS later.
    pub fn create(path: &Path, len: usize, huge: bool) -> Result<Self, MappingError> {
        let file = create_new(path)?;
        let made = Self::reserve_and_map(&file, path, len, huge);
        if made.is_err() {
            // The error that matters is the first one; a leaving is cleaned at the next start.
            let _ = std::fs::remove_file(path);
        }
        made
    }

    /// Sizes the file, puts what it takes into it for huge pages, maps it, makes them, and reserves
    /// the rest: in that order, because pages that are only reserved become huge ones slowly. The
    /// memory is not touched before all of it is reserved.
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

    /// Maps `len` bytes of an existing file that another process made.
    ///
    /// # Errors
    /// [`MappingError::Short`] when the file is smaller than announced (an access past its end
    /// would be a SIGBUS).
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

    /// Enters the pages into the page table now, so that no read or write takes a fault later: what
    /// registering memory with a NIC does.
    fn populate(&self) {
        let advice = match self.access {
            Access::ReadOnly => libc::MADV_POPULATE_READ,
            Access::ReadWrite => libc::MADV_POPULATE_WRITE,
        };
        // SAFETY: the range is our own mapping of a file whose space is reserved; contents stay. A
        // kernel that does not know the advice leaves the faults for later.
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
        let base = NonNull::new(base.cast()).expect("mmap never answers null without MAP_FIXED");
        Ok(Self {
            base,
            len,
            access,
            page_bytes: page_bytes(),
        })
    }

    /// Bytes mapped (at least what was asked for).
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: empty mappings are not made.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What this mapping allows.
    pub fn access(&self) -> Access {
        self.access
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes of the smallest page that a mapping we made is backed by.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Bytes of the pages that a large file of `dir` is mapped by: one is made, and removed again.
    ///
    /// # Errors
    /// As [`Mapping::create`].
    pub fn page_bytes_of(dir: &Path, huge: bool) -> Result<usize, MappingError> {
        let name = format!(".farm-page-{}-{:p}", std::process::id(), &dir);
        let path = dir.join(name);
        let file = create_new(&path)?;
        // At once, so that nothing stays however this process ends.
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

/// What a file system says of itself.
pub(super) struct FileSystem {
    pub(super) hugetlbfs: bool,
    block_bytes: usize,
    /// Free for us; without limit all that there can be.
    available_bytes: u64,
}

impl FileSystem {
    fn at(dir: &Path) -> std::io::Result<Self> {
        let name = CString::new(dir.as_os_str().as_bytes())?;
        // SAFETY: statfs is plain data for which all zeroes is a valid value.
        let mut stats: libc::statfs = unsafe { std::mem::zeroed() };
        // SAFETY: the name is a valid C string and `stats` outlives the call.
        if unsafe { libc::statfs(name.as_ptr(), &mut stats) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let block_bytes = stats.f_bsize as u64;
        Ok(Self {
            hugetlbfs: stats.f_type == libc::HUGETLBFS_MAGIC,
            block_bytes: block_bytes as usize,
            // A tmpfs or hugetlbfs without limit says that it has no blocks.
            available_bytes: match stats.f_blocks {
                0 => u64::MAX,
                _ => stats.f_bavail * block_bytes,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Memory;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_file_made_by_one_side_is_read_by_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        let ours = Memory::of(Mapping::create(&path, 4096, false).unwrap());
        let theirs = Memory::of(Mapping::open(&path, 4096, Access::ReadOnly).unwrap());
        ours.store(64, 7, Ordering::Release);
        assert_eq!(theirs.load(64, Ordering::Acquire), 7);
    }

    #[test]
    fn huge_pages_are_those_that_the_kernel_shows_on_both_sides() {
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
    fn private_memory_is_zeroed_and_whole() {
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
    fn small_pages_where_huge_ones_are_not_wanted() {
        let dir = Path::new("/dev/shm");
        let bytes = Mapping::page_bytes_of(dir, false).unwrap();
        assert_eq!(bytes, super::page_bytes());
        let left = std::fs::read_dir(dir).unwrap();
        let ours = format!(".farm-page-{}-", std::process::id());
        let mut names = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert!(!names.any(|name| name.starts_with(&ours)));
    }

    #[test]
    fn no_space_is_an_error_that_names_the_directory_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        let refused = Mapping::create(&path, 1 << 52, false).unwrap_err();
        assert!(matches!(refused, MappingError::NoSpace { .. }), "{refused}");
        assert!(refused.to_string().contains(dir.path().to_str().unwrap()));
        assert!(!path.exists());
    }

    #[test]
    fn a_short_file_is_refused_rather_than_faulting_later() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        std::fs::write(&path, [0u8; 64]).unwrap();
        let refused = Mapping::open(&path, 4096, Access::ReadOnly).unwrap_err();
        assert!(matches!(refused, MappingError::Short { found: 64, .. }));
    }

    #[test]
    fn others_may_not_read_a_segment() {
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
