//! Huge pages for shared files, where the kernel gives them without being set up for it.
//!
//! A random read from gigabytes of small pages spends more time on walks of the page table than on
//! the lines it came for. `MADV_COLLAPSE` (Linux 6.1) makes huge pages of a file in a tmpfs whatever
//! its mount and the system's settings say, and needs no rights. It is quick only for a file that is
//! nearly empty: 0.13 s a GiB with one page of each 2 MiB present, 2.5 s with all of them (measured on
//! Linux 6.18).

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

/// Bytes of a huge page.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// `MADV_COLLAPSE`, which the C library's binding does not name everywhere.
const MADV_COLLAPSE: libc::c_int = 25;
/// Times that a page is asked for while the kernel says that it is busy.
const TRIES: usize = 3;

/// Maps a shared file at an address of which huge pages can be made.
///
/// # Errors
/// The system's.
pub(super) fn map_aligned(
    file: &File,
    len: usize,
    protection: libc::c_int,
) -> std::io::Result<*mut libc::c_void> {
    let (file, flags) = (file.as_raw_fd(), libc::MAP_SHARED);
    if len < HUGE_PAGE_BYTES {
        return checked(
            // SAFETY: a fresh shared mapping of a file that is open; it touches no existing memory.
            unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, file, 0) },
        );
    }
    // A hole in the address space that surely has an aligned part, then the file over that part.
    let hole_len = len + HUGE_PAGE_BYTES;
    let hole = checked(
        // SAFETY: a fresh mapping of nothing; it touches no existing memory.
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
    // SAFETY: the aligned part and what is around it lie within the hole, which is ours and which
    // nobody else knows of; `len` is whole pages. What is left of the hole is unmapped once.
    unsafe {
        let at = hole.cast::<u8>().add(before);
        let mapped = checked(libc::mmap(
            at.cast(),
            len,
            protection,
            flags | libc::MAP_FIXED,
            file,
            0,
        ));
        if mapped.is_err() {
            libc::munmap(hole, hole_len);
            return mapped;
        }
        if before > 0 {
            libc::munmap(hole, before);
        }
        libc::munmap(at.add(len).cast(), hole_len - before - len);
        mapped
    }
}

/// Puts a page into each huge page's worth of an empty file, which is what there has to be before it
/// can be made one.
///
/// # Errors
/// The system's, when the file system is full.
pub(super) fn begin_each(file: &File, len: usize) -> std::io::Result<()> {
    (0..len / HUGE_PAGE_BYTES).try_for_each(|page| {
        // Written, not reserved: pages that are not up to date are collapsed slowly.
        file.write_all_at(&[0], (page * HUGE_PAGE_BYTES) as u64)
    })
}

/// Makes huge pages of a mapping and tells whether it now has nothing else. Contents stay.
pub(super) fn collapse(base: NonNull<u8>, len: usize) -> bool {
    let advise = |at: usize, len: usize| {
        // SAFETY: the range lies within our own mapping; the advice changes no contents.
        unsafe { libc::madvise(base.as_ptr().add(at).cast(), len, MADV_COLLAPSE) == 0 }
    };
    let whole = len / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if whole == 0 || advise(0, whole) {
        return whole == len;
    }
    let mut all = whole == len;
    for at in (0..whole).step_by(HUGE_PAGE_BYTES) {
        let mut tries = (0..TRIES).map(|_| advise(at, HUGE_PAGE_BYTES));
        all &= tries.any(|made| made);
    }
    all
}

fn checked(mapped: *mut libc::c_void) -> std::io::Result<*mut libc::c_void> {
    if mapped == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    Ok(mapped)
}
