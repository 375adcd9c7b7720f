//! Reliable connections.

use std::ptr::NonNull;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::abi::*;
use super::completions::Completions;
use super::device::{Device, LinkLayer, PortAddress, mtu_code};
use super::error::VerbsError;

/// Number of retries for a packet without acknowledgement, and for a receiver that is not ready:
/// the maximum. For a receiver that is not ready it means unlimited retries.
pub(super) const MOST_RETRIES: u8 = 7;
/// Code of the delay after which a sender retries if the receiver has no receive request: 0.64 ms.
const RNR_TIMER: u8 = 12;
const PSN_BITS: u32 = 24;
/// Hop limit of `RoCE` v2 packets.
const HOPS: u8 = 64;

/// The address of one end of a connection, which the other side needs to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct QueueAddress {
    pub(super) number: u32,
    /// Number of the first packet that this end sends.
    pub(super) first_packet: u32,
}

/// The parameters of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionConfig {
    /// Maximum number of work requests in flight on one connection.
    pub send_depth: u32,
    /// Largest write, in bytes, whose data is stored in its work request.
    pub inline_bytes: u32,
    /// Exponent of the acknowledgement timeout: 4.096 us times two to the power of this.
    pub timeout: u8,
    /// Traffic class of the packets. For `RoCE` v2, its upper six bits are the DSCP.
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

/// A queue pair: this machine's end of a connection.
pub(super) struct QueuePair {
    completions: Arc<Completions>,
    pair: NonNull<ibv_qp>,
    /// Maximum number of bytes of an inline write.
    pub(super) inline_bytes: u32,
    first_packet: u32,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for QueuePair {}
// SAFETY: as above; posting takes `&mut self`, because the order of posts matters.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Creates a queue pair that is not connected. Its first packet will have the number
    /// `first_packet`.
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
        // SAFETY: domain, queues and attributes are valid for the call.
        let made = unsafe { (opened.library.ibv_create_qp)(domain.as_ptr(), &mut asked) };
        let what = format!(
            "create a queue pair for {} work requests with {} inline bytes",
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

    /// Returns the address that the other side needs to connect.
    pub(super) fn address(&self) -> QueueAddress {
        QueueAddress {
            // SAFETY: the queue pair is valid.
            number: unsafe { self.pair.as_ref() }.qp_num,
            first_packet: self.first_packet,
        }
    }

    /// Connects the queue pair. It receives from now on, and may send once the other side receives.
    ///
    /// `peer_reads` is the number of reads and atomics that the other side serves concurrently.
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
        self.modify(
            &mut attributes,
            receiving,
            "switch a queue pair to receiving",
        )?;

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
        self.modify(&mut attributes, sending, "switch a queue pair to sending")
    }

    fn modify(
        &mut self,
        attributes: &mut ibv_qp_attr,
        mask: i32,
        what: &str,
    ) -> Result<(), VerbsError> {
        let opened = &self.completions.domain.opened;
        // SAFETY: the queue pair is valid, and the attributes outlive the call.
        let code = unsafe { (opened.library.ibv_modify_qp)(self.pair.as_ptr(), attributes, mask) };
        opened.check(code, what)
    }

    /// Returns whether the device reports that the bytes of a write land in increasing order.
    /// `None` if this version of the library has no such query.
    pub(super) fn lands_in_order(&self) -> Option<bool> {
        let ask = self
            .completions
            .domain
            .opened
            .library
            .ibv_query_qp_data_in_order?;
        // SAFETY: the queue pair is valid.
        Some(unsafe { ask(self.pair.as_ptr(), IBV_WR_RDMA_WRITE, 0) } == 1)
    }

    /// Posts a list of work requests with one doorbell.
    ///
    /// # Errors
    /// The driver's error code. Requests that were not accepted are lost, so the caller must break
    /// the connection.
    ///
    /// # Safety
    /// The list must be linked by `next` and end with null. Each request's list of memory must be
    /// valid, and each memory must stay registered until the request has ended or this queue pair
    /// is dropped.
    #[inline]
    pub(super) unsafe fn post(&mut self, first: *mut ibv_send_wr) -> Result<(), i32> {
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair is valid, an open context contains its driver's functions, and the
        // caller guarantees the list.
        let code = unsafe {
            let context = self.pair.as_ref().context;
            let post_send = (*context)
                .ops
                .post_send
                .expect("the device's driver must provide post_send");
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
        // SAFETY: `new` created the queue pair. Afterwards the device accesses no memory for it.
        unsafe { (library.ibv_destroy_qp)(self.pair.as_ptr()) };
    }
}

/// Returns the path of packets to a port.
fn path(device: &Device, config: &ConnectionConfig, port: &PortAddress) -> ibv_ah_attr {
    let ethernet = port.link_layer == LinkLayer::Ethernet;
    // Within one InfiniBand subnet, identified by the first half of the address, the LID is
    // sufficient.
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
