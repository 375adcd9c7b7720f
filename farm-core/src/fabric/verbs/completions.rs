//! Where the ends of work requests are queued, and the receive requests that immediate data take.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use super::abi::*;
use super::error::VerbsError;
use super::registration::ProtectionDomain;

/// The `wr_id` of every receive request: they have no memory and are all alike.
pub(super) const RECEIVE: u64 = u64::MAX;
/// Receive requests that are posted at one time.
const RECEIVES_AT_ONCE: usize = 64;

/// The completion queue of one worker, or of those that share queue pairs, with the channel that a
/// sleeper waits at and the receive requests that a peer's notification takes one of.
pub(super) struct Completions {
    pub(super) domain: Arc<ProtectionDomain>,
    queue: NonNull<ibv_cq>,
    channel: NonNull<ibv_comp_channel>,
    receives: NonNull<ibv_srq>,
    /// Receive requests that are posted.
    pub(super) receive_count: usize,
}

// SAFETY: as of the device; verbs may be called from any thread.
unsafe impl Send for Completions {}
// SAFETY: as above.
unsafe impl Sync for Completions {}

impl Completions {
    /// Room for `ends` ends of work requests, and `receives` receive requests, which are posted.
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
                what: format!("make a completion queue of {ends}: lower rdma.send_depth"),
                source: std::io::Error::other(format!("it takes {} at most", attributes.max_cqe)),
            });
        }
        // SAFETY: the context is open.
        let channel = unsafe { (library.ibv_create_comp_channel)(context) };
        let channel = opened.made(channel, "make a completion channel")?;
        let undo_channel = || {
            // SAFETY: made above, and nothing uses it yet.
            unsafe { (library.ibv_destroy_comp_channel)(channel.as_ptr()) };
        };
        // SAFETY: context and channel are there.
        let queue = unsafe {
            let nothing = std::ptr::null_mut();
            (library.ibv_create_cq)(context, ends as i32, nothing, channel.as_ptr(), 0)
        };
        let queue = opened
            .made(queue, &format!("make a completion queue of {ends}"))
            .inspect_err(|_| undo_channel())?;
        let mut asked = ibv_srq_init_attr {
            srq_context: std::ptr::null_mut(),
            attr: ibv_srq_attr {
                max_wr: receives,
                max_sge: 1,
                srq_limit: 0,
            },
        };
        // SAFETY: the protection domain is there, the attributes outlive the call.
        let made = unsafe { (library.ibv_create_srq)(domain.as_ptr(), &mut asked) };
        let receives_queue = opened
            .made(made, &format!("make a shared receive queue of {receives}"))
            .inspect_err(|_| {
                // SAFETY: made above, and nothing uses it yet.
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
            what: "not wait for events".into(),
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

    /// Becomes readable at the first end after [`Completions::request_event`].
    pub(super) fn channel(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is there, and its descriptor lives as long as it.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// Takes ends off the queue, oldest first; how many, or `None` when it overran, which its size rules
    /// out, or the device is gone.
    #[inline]
    pub(super) fn poll(&self, ends: &mut [ibv_wc]) -> Option<usize> {
        // SAFETY: the queue is there, and an open context has its driver's functions.
        let found = unsafe {
            let context = self.queue.as_ref().context;
            let poll_cq = (*context).ops.poll_cq.expect("a driver polls");
            poll_cq(self.queue.as_ptr(), ends.len() as i32, ends.as_mut_ptr())
        };
        usize::try_from(found).ok()
    }

    /// Asks for an event at the next end.
    pub(super) fn request_event(&self) {
        // SAFETY: as in `poll`.
        unsafe {
            let context = self.queue.as_ref().context;
            let request = (*context).ops.req_notify_cq.expect("a driver notifies");
            request(self.queue.as_ptr(), 0);
        }
    }

    /// Takes the events that have come.
    pub(super) fn take_events(&self) {
        let library = self.domain.opened.library;
        let mut queue = std::ptr::null_mut();
        let mut context = std::ptr::null_mut();
        let mut taken = 0;
        // SAFETY: the channel is there and does not block; both places outlive the call.
        while unsafe { (library.ibv_get_cq_event)(self.channel.as_ptr(), &mut queue, &mut context) }
            == 0
        {
            taken += 1;
        }
        if taken > 0 {
            // SAFETY: so many events of this queue, the only one of the channel, were taken.
            unsafe { (library.ibv_ack_cq_events)(self.queue.as_ptr(), taken) };
        }
    }

    /// Posts receive requests, in place of those that were taken.
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
            // SAFETY: the queue is there; the list is linked within an array that outlives the call.
            let code = unsafe {
                let context = self.receives.as_ref().context;
                let post = (*context).ops.post_srq_recv.expect("a driver receives");
                post(self.receives.as_ptr(), requests.as_mut_ptr(), &mut bad)
            };
            self.domain.opened.check(code, "take receive requests")?;
            count -= some;
        }
        Ok(())
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        let library = self.domain.opened.library;
        // SAFETY: every queue pair that uses them holds an `Arc` of this, so they are gone by now.
        unsafe {
            (library.ibv_destroy_srq)(self.receives.as_ptr());
            (library.ibv_destroy_cq)(self.queue.as_ptr());
            (library.ibv_destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}
