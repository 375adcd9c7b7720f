//! Reliable connections.

use std::ptr::NonNull;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::abi::*;
use super::completions::Completions;
use super::device::{Device, LinkLayer, PortAddress, mtu_code};
use super::error::VerbsError;

/// How often a packet that is not acknowledged is sent again, and a receiver that is not ready asked
/// again: the most there is; for the latter that is for ever.
const MOST_RETRIES: u8 = 7;
/// How long a receiver that has no receive request asks to wait: 0.64 ms.
const RNR_TIMER: u8 = 12;
const PSN_BITS: u32 = 24;
/// Routers that a packet may pass, of `RoCE` v2.
const HOPS: u8 = 64;

/// One end of a connection, as the other side needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct QueueAddress {
    pub(super) number: u32,
    /// Number of the first packet that it sends.
    pub(super) first_packet: u32,
}

/// How connections behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionConfig {
    /// Work requests in flight on one connection.
    pub send_depth: u32,
    /// Bytes of a write that the device is to take with the work request.
    pub inline_bytes: u32,
    /// How long a packet's acknowledgement is waited for: 4.096 us times two to the power of this.
    pub timeout: u8,
    /// Traffic class of the packets: of `RoCE` v2 the DSCP in its upper six bits.
    pub traffic_class: u8,
    /// Service level, which `InfiniBand` maps to lanes and `RoCE` to priorities.
    pub service_level: u8,
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        Self {
            send_depth: 256,
            inline_bytes: 192,
            timeout: 14,
            traffic_class: 0,
            service_level: 0,
        }
    }
}

/// A queue pair: our end of a connection.
pub(super) struct QueuePair {
    completions: Arc<Completions>,
    pair: NonNull<ibv_qp>,
    /// Bytes of a write that it takes inline.
    pub(super) inline_bytes: u32,
    first_packet: u32,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for QueuePair {}
// SAFETY: as above; posting takes `&mut self`, because the order of what is posted matters.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// A queue pair that is not connected. Sends its first packet by this number.
    pub(super) fn new(
        completions: Arc<Completions>,
        config: &ConnectionConfig,
        first_packet: u32,
    ) -> Result<Self, VerbsError> {
        let domain = &completions.domain;
        let opened = &domain.opened;
        let mut asked = ibv_qp_init_attr {
            qp_context: std::ptr::null_mut(),
            send_cq: completions.queue(),
            recv_cq: completions.queue(),
            srq: completions.receives(),
            cap: ibv_qp_cap {
                max_send_wr: config.send_depth,
                max_recv_wr: 0,
                max_send_sge: 1,
                max_recv_sge: 0,
                max_inline_data: config.inline_bytes,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain, queues and attributes are there for the call.
        let made = unsafe { (opened.library.ibv_create_qp)(domain.as_ptr(), &mut asked) };
        let what = format!(
            "make a queue pair of {} work requests of {} bytes inline",
            config.send_depth, config.inline_bytes
        );
        let pair = opened.made(made, &what)?;
        Ok(Self {
            inline_bytes: asked.cap.max_inline_data.min(config.inline_bytes),
            pair,
            completions,
            first_packet: first_packet & ((1 << PSN_BITS) - 1),
        })
    }

    /// What the other side needs to know of it.
    pub(super) fn address(&self) -> QueueAddress {
        QueueAddress {
            // SAFETY: the queue pair is there.
            number: unsafe { self.pair.as_ref() }.qp_num,
            first_packet: self.first_packet,
        }
    }

    /// Connects it: it receives from now on, and may send when the other side does.
    ///
    /// `peer_reads` is how many reads and atomics the other side serves at one time.
    pub(super) fn connect(
        &mut self,
        device: &Device,
        config: &ConnectionConfig,
        port: &PortAddress,
        queue: QueueAddress,
        peer_reads: u8,
    ) -> Result<(), VerbsError> {
        let limits = &device.opened.attributes;
        let mut attributes = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            port_num: device.port,
            qp_access_flags: (IBV_ACCESS_REMOTE_READ
                | IBV_ACCESS_REMOTE_WRITE
                | match device.has_atomics() {
                    true => IBV_ACCESS_REMOTE_ATOMIC,
                    false => 0,
                }) as u32,
            ..ibv_qp_attr::default()
        };
        let initial = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attributes, initial, "initialize a queue pair")?;

        attributes.qp_state = IBV_QPS_RTR;
        attributes.path_mtu = mtu_code(device.address.mtu.min(port.mtu)).unwrap_or(1);
        attributes.dest_qp_num = queue.number;
        attributes.rq_psn = queue.first_packet;
        attributes.max_dest_rd_atomic = limits.max_qp_rd_atom.clamp(1, 255) as u8;
        attributes.min_rnr_timer = RNR_TIMER;
        attributes.ah_attr = path(device, config, port);
        let receiving = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attributes, receiving, "make a queue pair receive")?;

        attributes.qp_state = IBV_QPS_RTS;
        attributes.timeout = config.timeout;
        attributes.retry_cnt = MOST_RETRIES;
        attributes.rnr_retry = MOST_RETRIES;
        attributes.sq_psn = self.first_packet;
        attributes.max_rd_atomic = (limits.max_qp_init_rd_atom.clamp(1, 255) as u8).min(peer_reads);
        let sending = IBV_QP_STATE
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attributes, sending, "make a queue pair send")
    }

    fn modify(
        &mut self,
        attributes: &mut ibv_qp_attr,
        mask: i32,
        what: &str,
    ) -> Result<(), VerbsError> {
        let opened = &self.completions.domain.opened;
        // SAFETY: the queue pair is there, the attributes outlive the call.
        let code = unsafe { (opened.library.ibv_modify_qp)(self.pair.as_ptr(), attributes, mask) };
        opened.check(code, what)
    }

    /// Whether the device says that the bytes of a write land in increasing order. `None`: it cannot be
    /// asked, by this version of the library.
    pub(super) fn lands_in_order(&self) -> Option<bool> {
        let ask = self
            .completions
            .domain
            .opened
            .library
            .ibv_query_qp_data_in_order?;
        // SAFETY: the queue pair is there.
        Some(unsafe { ask(self.pair.as_ptr(), IBV_WR_RDMA_WRITE, 0) } == 1)
    }

    /// Posts a list of work requests by one doorbell.
    ///
    /// # Errors
    /// The driver's code: what was not taken never will be, so the connection is to be broken.
    ///
    /// # Safety
    /// The list is linked by `next` up to a null, each request's list of memory is there, and each memory
    /// stays registered until the request has ended or this queue pair is dropped.
    #[inline]
    pub(super) unsafe fn post(&mut self, first: *mut ibv_send_wr) -> Result<(), i32> {
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is there, an open context has its driver's functions, and the list is
        // the caller's promise.
        let code = unsafe {
            let context = self.pair.as_ref().context;
            let post_send = (*context).ops.post_send.expect("a driver sends");
            post_send(self.pair.as_ptr(), first, &mut bad)
        };
        match code {
            0 => Ok(()),
            code => Err(code),
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let library = self.completions.domain.opened.library;
        // SAFETY: made by us. After this the device touches no memory on its behalf.
        unsafe { (library.ibv_destroy_qp)(self.pair.as_ptr()) };
    }
}

/// The way of packets to a port.
fn path(device: &Device, config: &ConnectionConfig, port: &PortAddress) -> ibv_ah_attr {
    let ethernet = port.link_layer == LinkLayer::Ethernet;
    // Of one InfiniBand subnet, by the first half of the address, the LID is enough.
    let same_subnet = port.gid[..8] == device.address.gid[..8];
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid::new(port.gid),
            sgid_index: device.gid_index,
            hop_limit: HOPS,
            traffic_class: config.traffic_class,
            flow_label: 0,
        },
        dlid: port.lid,
        sl: config.service_level,
        is_global: (ethernet || !same_subnet).into(),
        port_num: device.port,
        ..ibv_ah_attr::default()
    }
}
