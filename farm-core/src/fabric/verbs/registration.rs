//! Memory that a device may reach.

use std::ptr::NonNull;
use std::sync::Arc;

use super::abi::*;
use super::device::Opened;
use super::error::VerbsError;

/// What may reach each other on a device: one per machine (`FaRM'14 §3.1`).
pub(super) struct ProtectionDomain {
    pub(super) opened: Arc<Opened>,
    domain: NonNull<ibv_pd>,
}

// SAFETY: as of the device; verbs may be called from any thread.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    pub(super) fn new(opened: Arc<Opened>) -> Result<Self, VerbsError> {
        // SAFETY: the context is open.
        let made = unsafe { (opened.library.ibv_alloc_pd)(opened.context.as_ptr()) };
        let domain = opened.made(made, "make a protection domain")?;
        Ok(Self { opened, domain })
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_pd {
        self.domain.as_ptr()
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: whatever was made of it holds an `Arc` of this, so it is gone by now.
        unsafe { (self.opened.library.ibv_dealloc_pd)(self.domain.as_ptr()) };
    }
}

/// Who may reach registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// The device, for this machine's own operations.
    Own,
    /// Peers too, by reads.
    PeersRead,
    /// Peers too, by reads, writes and atomics.
    PeersWrite,
}

/// Memory that is registered until this is dropped.
///
/// Peers' addresses count from its start: what they name is an offset.
pub(super) struct Registration {
    domain: Arc<ProtectionDomain>,
    region: NonNull<ibv_mr>,
}

// SAFETY: as of the protection domain.
unsafe impl Send for Registration {}
// SAFETY: as above; nothing is changed through a shared reference.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers `bytes` bytes at `start`.
    ///
    /// # Safety
    /// The memory stays mapped, and is owned by nobody who would mind that the device changes it, for as
    /// long as this lives.
    pub(super) unsafe fn new(
        domain: Arc<ProtectionDomain>,
        start: *mut u8,
        bytes: usize,
        reach: Reach,
    ) -> Result<Self, VerbsError> {
        let opened = &domain.opened;
        let access = IBV_ACCESS_LOCAL_WRITE
            | match reach {
                Reach::Own => 0,
                Reach::PeersRead => IBV_ACCESS_REMOTE_READ,
                Reach::PeersWrite => {
                    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC
                }
            };
        // This machine's own work requests name addresses, those of peers offsets.
        let first = match reach {
            Reach::Own => start as u64,
            Reach::PeersRead | Reach::PeersWrite => 0,
        };
        // SAFETY: the memory is the caller's promise. Relaxed ordering is not asked for: writes land in
        // the order in which they arrive.
        let made = unsafe {
            (opened.library.ibv_reg_mr_iova)(domain.as_ptr(), start.cast(), bytes, first, access)
        };
        let region = NonNull::new(made).ok_or_else(|| VerbsError::Memory {
            device: opened.name.clone(),
            bytes,
            source: std::io::Error::last_os_error(),
        })?;
        Ok(Self { domain, region })
    }

    /// What this machine's own work requests name it by.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: the region is registered.
        unsafe { self.region.as_ref() }.lkey
    }

    /// What peers name it by.
    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: the region is registered.
        unsafe { self.region.as_ref() }.rkey
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: registered by us and not yet deregistered.
        unsafe { (self.domain.opened.library.ibv_dereg_mr)(self.region.as_ptr()) };
    }
}
