//! Completion queues, and the receive requests that writes with immediate data consume.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use super::abi::*;
use super::error::VerbsError;
use super::registration::ProtectionDomain;

/// The `wr_id` of every receive request. Receive requests have no memory and are indistinguishable.
pub(super) const RECEIVE: u64 = u64::MAX;
/// Number of receive requests that are posted in one call.
const RECEIVES_AT_ONCE: usize = 64;

/// The completion queue of one worker, or of the workers that share queue pairs; the channel on
/// which a sleeper waits; and the receive requests, of which each notification of a peer consumes
/// one.
pub(super) struct Completions {
    pub(super) domain: Arc<ProtectionDomain>,
    queue: NonNull<ibv_cq>,
    channel: NonNull<ibv_comp_channel>,
    receives: NonNull<ibv_srq>,
    /// Number of posted receive requests.
    pub(super) receive_count: usize,
}

// SAFETY: as for the device; verbs may be called from any thread.
unsafe impl Send for Completions {}
// SAFETY: as above.
unsafe impl Sync for Completions {}

impl Completions {
    /// Creates a queue for `ends` completions of work requests and for `receives` receive requests,
    /// which are posted.
    pub(super) fn new(
        domain: Arc<ProtectionDomain>,
        ends: u32,
        receives: u32,
    ) -> Result<Self, VerbsError> {
        let opened = &domain.opened;
        let (library, context) = (opened.library, opened.context.as_ptr());
        let attributes = &opened.attributes;
        let receives = receives.min(attributes.max_srq_wr as u32).max(1);
        let ends = ends + receives;
        if ends > attributes.max_cqe as u32 {
            return Err(VerbsError::Refused {
                device: opened.name.clone(),
                what: format!(
                    "create a completion queue of {ends} entries (lower rdma.send_depth)"
                ),
                source: std::io::Error::other(format!(
                    "a completion queue of the device has at most {} entries",
                    attributes.max_cqe
                )),
            });
        }
        // SAFETY: the context is open.
        let channel = unsafe { (library.ibv_create_comp_channel)(context) };
        let channel = opened.made(channel, "create a completion channel")?;
        let undo_channel = || {
            // SAFETY: created above, and not used yet.
            unsafe { (library.ibv_destroy_comp_channel)(channel.as_ptr()) };
        };
        // SAFETY: context and channel are valid.
        let queue = unsafe {
            let nothing = std::ptr::null_mut();
            (library.ibv_create_cq)(context, ends as i32, nothing, channel.as_ptr(), 0)
        };
        let queue = opened
            .made(
                queue,
                &format!("create a completion queue of {ends} entries"),
            )
            .inspect_err(|_| undo_channel())?;
        let mut asked = ibv_srq_init_attr {
            srq_context: std::ptr::null_mut(),
            attr: ibv_srq_attr {
                max_wr: receives,
                max_sge: 1,
                srq_limit: 0,
            },
        };
        // SAFETY: the protection domain is valid, and the attributes outlive the call.
        let made = unsafe { (library.ibv_create_srq)(domain.as_ptr(), &mut asked) };
        let receives_queue = opened
            .made(
                made,
                &format!("create a shared receive queue of {receives} entries"),
            )
            .inspect_err(|_| {
                // SAFETY: created above, and not used yet.
                unsafe { (library.ibv_destroy_cq)(queue.as_ptr()) };
                undo_channel();
            })?;
        let made = Self {
            domain,
            queue,
            channel,
            receives: receives_queue,
            receive_count: receives as usize,
        };
        let nonblocking = rustix::io::ioctl_fionbio(made.channel(), true);
        nonblocking.map_err(|error| VerbsError::Refused {
            device: made.domain.opened.name.clone(),
            what: "make the event channel of a completion queue nonblocking".into(),
            source: error.into(),
        })?;
        made.post_receives(receives as usize)?;
        Ok(made)
    }

    pub(super) fn queue(&self) -> *mut ibv_cq {
        self.queue.as_ptr()
    }

    pub(super) fn receives(&self) -> *mut ibv_srq {
        self.receives.as_ptr()
    }

    /// Returns a descriptor that becomes readable at the first completion after
    /// [`Completions::request_event`].
    pub(super) fn channel(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is valid, and its descriptor lives as long as the channel.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// Takes completions off the queue, oldest first. Returns their number, or `None` if the queue
    /// overran, which its size rules out, or the device is gone.
    #[inline]
    pub(super) fn poll(&self, ends: &mut [ibv_wc]) -> Option<usize> {
        // SAFETY: the queue is valid, and an open context contains its driver's functions.
        let found = unsafe {
            let context = self.queue.as_ref().context;
            let poll_cq = (*context)
                .ops
                .poll_cq
                .expect("the device's driver must provide poll_cq");
            poll_cq(self.queue.as_ptr(), ends.len() as i32, ends.as_mut_ptr())
        };
        usize::try_from(found).ok()
    }

    /// Requests an event for the next completion.
    pub(super) fn request_event(&self) {
        // SAFETY: as in `poll`.
        unsafe {
            let context = self.queue.as_ref().context;
            let request = (*context)
                .ops
                .req_notify_cq
                .expect("the device's driver must provide req_notify_cq");
            request(self.queue.as_ptr(), 0);
        }
    }

    /// Takes all pending events.
    pub(super) fn take_events(&self) {
        let library = self.domain.opened.library;
        let mut queue = std::ptr::null_mut();
        let mut context = std::ptr::null_mut();
        let mut taken = 0;
        // SAFETY: the channel is valid and does not block; both out-parameters outlive the call.
        while unsafe { (library.ibv_get_cq_event)(self.channel.as_ptr(), &mut queue, &mut context) }
            == 0
        {
            taken += 1;
        }
        if taken > 0 {
            // SAFETY: `taken` events of this queue, the only queue of the channel, were taken.
            unsafe { (library.ibv_ack_cq_events)(self.queue.as_ptr(), taken) };
        }
    }

    /// Posts `count` receive requests, to replace consumed ones.
    pub(super) fn post_receives(&self, mut count: usize) -> Result<(), VerbsError> {
        while count > 0 {
            let some = count.min(RECEIVES_AT_ONCE);
            let mut requests: [ibv_recv_wr; RECEIVES_AT_ONCE] =
                std::array::from_fn(|_| ibv_recv_wr {
                    wr_id: RECEIVE,
                    next: std::ptr::null_mut(),
                    sg_list: std::ptr::null_mut(),
                    num_sge: 0,
                });
            for index in 1..some {
                let next: *mut ibv_recv_wr = &mut requests[index];
                requests[index - 1].next = next;
            }
            let mut bad = std::ptr::null_mut();
            // SAFETY: the queue is valid; the list is linked within an array that outlives the
            // call.
            let code = unsafe {
                let context = self.receives.as_ref().context;
                let post = (*context)
                    .ops
                    .post_srq_recv
                    .expect("the device's driver must provide post_srq_recv");
                post(self.receives.as_ptr(), requests.as_mut_ptr(), &mut bad)
            };
            self.domain.opened.check(code, "accept receive requests")?;
            count -= some;
        }
        Ok(())
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        let library = self.domain.opened.library;
        // SAFETY: every queue pair that uses these queues holds an `Arc` of this value, so all of
        // them are destroyed by now.
        unsafe {
            (library.ibv_destroy_srq)(self.receives.as_ptr());
            (library.ibv_destroy_cq)(self.queue.as_ptr());
            (library.ibv_destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}
