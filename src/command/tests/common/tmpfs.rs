//! Small file systems, for disks that are full or cannot be written.

use std::path::PathBuf;

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};

use super::Place;

/// A mounted tmpfs. It is unmounted when dropped.
pub(crate) struct Tmpfs(pub(crate) PathBuf);

impl Tmpfs {
    /// Mounts a tmpfs at a new directory of the place. Prints a notice and returns `None` if this user may not mount.
    pub(crate) fn mount(place: &Place, dir: &str, options: &str) -> Option<Self> {
        let dir = place.path(dir);
        std::fs::create_dir(&dir).unwrap();
        let options = std::ffi::CString::new(options).unwrap();
        let mounted = mount(
            "farm-e2e",
            &dir,
            "tmpfs",
            MountFlags::empty(),
            options.as_c_str(),
        );
        match mounted {
            Ok(()) => Some(Self(dir)),
            Err(error) => {
                eprintln!("SKIPPED: this user cannot mount a tmpfs ({error}); run as root");
                None
            }
        }
    }

    /// Forbids or allows writes.
    pub(crate) fn set_read_only(&self, read_only: bool) {
        let flags = match read_only {
            true => MountFlags::RDONLY,
            false => MountFlags::empty(),
        };
        mount_remount(&self.0, flags, "").unwrap();
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        unmount(&self.0, UnmountFlags::DETACH).unwrap();
    }
}
