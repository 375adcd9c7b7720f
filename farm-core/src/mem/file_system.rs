//! The file system of a directory.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Properties of a file system.
pub(super) struct FileSystem {
    pub(super) hugetlbfs: bool,
    pub(super) block_bytes: usize,
    /// Bytes free to this process; `u64::MAX` for a file system without limit.
    pub(super) available_bytes: u64,
}

impl FileSystem {
    pub(super) fn at(dir: &Path) -> std::io::Result<Self> {
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
            // A tmpfs or hugetlbfs without limit reports zero blocks.
            available_bytes: match stats.f_blocks {
                0 => u64::MAX,
                _ => stats.f_bavail * block_bytes,
            },
        })
    }
}
