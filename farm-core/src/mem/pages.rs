//! Huge pages for shared files, on kernels that provide them without configuration.
//!
//! A random read from gigabytes of small pages spends more time on page table walks than on the lines themselves.
//! `MADV_COLLAPSE` (Linux 6.1) creates huge pages for a file in a tmpfs, regardless of the mount options and of the
//! system's settings, and needs no privileges. It is fast only for a file that is nearly empty: it takes 0.13 s per GiB
//! if one page of each 2 MiB is present, and 2.5 s if all pages are present (measured on Linux 6.18).

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

use super::file_system::FileSystem;

/// Bytes of a huge page.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// `MADV_COLLAPSE`, which some versions of the C library's binding do not define.
const MADV_COLLAPSE: libc::c_int = 25;
/// Maximum number of requests for one huge page while the kernel reports that it is busy.
const TRIES: usize = 3;
/// Number of huge pages whose requests may fail before no more are requested: in each failure, the kernel searches its
/// memory for long.
const MOST_FAILURES: usize = 4;

/// Returns whether the huge pages of this kernel have [`HUGE_PAGE_BYTES`].
pub(super) fn can_collapse() -> bool {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
        .is_ok_and(|bytes| bytes.trim().parse() == Ok(HUGE_PAGE_BYTES))
}

/// Maps a shared file at an address that allows huge pages.
///
/// # Errors
/// The error of the system call.
pub(super) fn map(
    file: &File,
    len: usize,
    protection: libc::c_int,
    place: &FileSystem,
) -> std::io::Result<*mut libc::c_void> {
    let (file, flags) = (file.as_raw_fd(), libc::MAP_SHARED);
    // The kernel itself aligns a mapping of a hugetlbfs, whatever the size of its pages.
    if place.hugetlbfs || len < HUGE_PAGE_BYTES {
        return checked(
            // SAFETY: a fresh shared mapping of a file that is open; it touches no existing memory.
            unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, file, 0) },
        );
    }
    // First reserves a hole in the address space that is large enough to have an aligned part, then maps the file over
    // that part.
    let hole_len = len + HUGE_PAGE_BYTES;
    let hole = checked(
        // SAFETY: a fresh mapping without access; it touches no existing memory.
        unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                hole_len,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        },
    )?;
    let before = hole.cast::<u8>().align_offset(HUGE_PAGE_BYTES);
    // SAFETY: the aligned part and the rest are within the hole, which is ours; `len` is whole pages. The rest is
    // unmapped once. If mapping the file failed, the aligned part is not unmapped: the kernel may have unmapped it, and
    // another thread may have mapped memory there since.
    unsafe {
        let at = hole.cast::<u8>().add(before);
        let fixed = flags | libc::MAP_FIXED;
        let mapped = checked(libc::mmap(at.cast(), len, protection, fixed, file, 0));
        if before > 0 {
            libc::munmap(hole, before);
        }
        libc::munmap(at.add(len).cast(), hole_len - before - len);
        mapped
    }
}

/// Writes one page into each huge page's range of an empty file: a range can be collapsed only if it has a page.
///
/// # Errors
/// The error of the system call, if the file system is full.
pub(super) fn begin_each(file: &File, len: usize) -> std::io::Result<()> {
    (0..len / HUGE_PAGE_BYTES).try_for_each(|page| {
        // The page is written, not reserved: pages that are not up to date are collapsed slowly.
        file.write_all_at(&[0], (page * HUGE_PAGE_BYTES) as u64)
    })
}

/// Replaces the pages of a mapping by huge pages, as far as huge pages are available. The contents stay.
pub(super) fn collapse(base: NonNull<u8>, len: usize) {
    let advise = |at: usize, len: usize| {
        // SAFETY: the range is within our own mapping; the advice changes no contents.
        match unsafe { libc::madvise(base.as_ptr().add(at).cast(), len, MADV_COLLAPSE) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error().raw_os_error()),
        }
    };
    match advise(0, len) {
        Ok(()) | Err(Some(libc::EINVAL)) => return,
        Err(_) => {}
    }
    let mut failures = 0;
    for at in (0..len / HUGE_PAGE_BYTES).map(|page| page * HUGE_PAGE_BYTES) {
        let mut tries = (0..TRIES).map(|_| advise(at, HUGE_PAGE_BYTES));
        let busy =
            |made: &Result<(), Option<i32>>| matches!(made, Err(Some(libc::EAGAIN | libc::EBUSY)));
        let made = tries.find(|made| !busy(made));
        failures += usize::from(made != Some(Ok(())));
        if failures == MOST_FAILURES {
            return;
        }
    }
}

/// Returns the bytes of a mapping that `/proc/self/smaps` reports as mapped by huge pages.
pub(super) fn huge_bytes(base: NonNull<u8>, len: usize) -> usize {
    if len < HUGE_PAGE_BYTES {
        return 0;
    }
    let begin = format!("{:x}-", base.as_ptr() as usize);
    let Ok(maps) = std::fs::read_to_string("/proc/self/smaps") else {
        return 0;
    };
    let ours = maps.lines().skip_while(|line| !line.starts_with(&begin));
    let facts = ours.skip(1).take_while(|line| !line.contains('-'));
    let huge = facts.filter_map(|line| {
        let kib = line
            .strip_prefix("ShmemPmdMapped:")
            .or_else(|| line.strip_prefix("FilePmdMapped:"))?;
        kib.trim().strip_suffix(" kB")?.parse::<usize>().ok()
    });
    huge.sum::<usize>() * 1024
}

fn checked(mapped: *mut libc::c_void) -> std::io::Result<*mut libc::c_void> {
    if mapped == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    Ok(mapped)
}
