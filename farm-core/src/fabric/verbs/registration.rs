//! Memory registered with a device.

use std::ptr::NonNull;
use std::sync::Arc;

use super::abi::*;
use super::device::Opened;
use super::error::VerbsError;

/// A protection domain: queue pairs and memory regions of one domain can use each other. One per
/// machine (`FaRM'14 §3.1`).
pub(super) struct ProtectionDomain {
    pub(super) opened: Arc<Opened>,
    domain: NonNull<ibv_pd>,
}

// SAFETY: as for the device; verbs may be called from any thread.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    pub(super) fn new(opened: Arc<Opened>) -> Result<Self, VerbsError> {
        // SAFETY: the context is open.
        let made = unsafe { (opened.library.ibv_alloc_pd)(opened.context.as_ptr()) };
        let domain = opened.made(made, "create a protection domain")?;
        Ok(Self { opened, domain })
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_pd {
        self.domain.as_ptr()
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: every object created in this domain holds an `Arc` of it, so all of them are
        // destroyed by now.
        unsafe { (self.opened.library.ibv_dealloc_pd)(self.domain.as_ptr()) };
    }
}

/// The permitted access to registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Only the device, for this machine's own operations.
    Own,
    /// Additionally peers, by reads.
    PeersRead,
    /// Additionally peers, by reads, writes and atomics.
    PeersWrite,
}

/// Memory that is registered until this value is dropped.
///
/// Peers' addresses are offsets from the start of the memory.
pub(super) struct Registration {
    domain: Arc<ProtectionDomain>,
    region: NonNull<ibv_mr>,
}

// SAFETY: as for the protection domain.
unsafe impl Send for Registration {}
// SAFETY: as above; nothing is changed through a shared reference.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers `bytes` bytes at `start`.
    ///
    /// # Safety
    /// The memory must stay mapped as long as this value lives. No code may assume that the device
    /// leaves the memory unchanged.
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
        // This machine's own work requests use addresses; those of peers use offsets.
        let first = match reach {
            Reach::Own => start as u64,
            Reach::PeersRead | Reach::PeersWrite => 0,
        };
        // SAFETY: the caller guarantees that the memory is mapped. Relaxed ordering is not
        // requested: writes land in the order in which they arrive.
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

    /// Returns the key for this machine's own work requests.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: the region is registered.
        unsafe { self.region.as_ref() }.lkey
    }

    /// Returns the key for peers.
    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: the region is registered.
        unsafe { self.region.as_ref() }.rkey
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: `new` registered the region, and it is not deregistered yet.
        unsafe { (self.domain.opened.library.ibv_dereg_mr)(self.region.as_ptr()) };
    }
}
