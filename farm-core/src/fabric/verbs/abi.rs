//! The part of libibverbs' binary interface that this backend uses: structs, constants, and the
//! functions of a context. The names are those of `infiniband/verbs.h`, so that its manual pages
//! apply.
//!
//! The interface is stable: libibverbs has kept it since its symbols got the version `IBVERBS_1.1`,
//! for programs and for the drivers that it loads. Sizes and offsets are asserted at compile time
//! against bindgen's output for the header of rdma-core 44. Decision 0011 states why the
//! definitions are here instead of in a crate. Only 64-bit systems are supported, on all of
//! which these definitions hold.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::{offset_of, size_of};

#[repr(C)]
pub(super) struct ibv_device {
    _ops: [*const c_void; 2],
    pub(super) node_type: c_int,
    pub(super) transport_type: c_int,
    pub(super) name: [c_char; 64],
    _dev_name: [c_char; 64],
    _dev_path: [c_char; 256],
    pub(super) ibdev_path: [c_char; 256],
}

type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
type ReqNotifyCq = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;
type PostSrqRecv =
    unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;

/// The driver's functions that are called directly, not through the library.
#[repr(C)]
pub(super) struct ibv_context_ops {
    _before_poll_cq: [*const c_void; 11],
    pub(super) poll_cq: Option<PollCq>,
    pub(super) req_notify_cq: Option<ReqNotifyCq>,
    _before_post_srq_recv: [*const c_void; 7],
    pub(super) post_srq_recv: Option<PostSrqRecv>,
    _before_post_send: [*const c_void; 4],
    pub(super) post_send: Option<PostSend>,
    _after_post_send: [*const c_void; 6],
}

#[repr(C)]
pub(super) struct ibv_context {
    pub(super) device: *mut ibv_device,
    pub(super) ops: ibv_context_ops,
    _cmd_fd: c_int,
    pub(super) async_fd: c_int,
    pub(super) num_comp_vectors: c_int,
    // A mutex and private fields of the library follow.
}

#[repr(C)]
pub(super) struct ibv_pd {
    pub(super) context: *mut ibv_context,
    _handle: u32,
}

#[repr(C)]
pub(super) struct ibv_mr {
    pub(super) context: *mut ibv_context,
    pub(super) pd: *mut ibv_pd,
    pub(super) addr: *mut c_void,
    pub(super) length: usize,
    _handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

#[repr(C)]
pub(super) struct ibv_comp_channel {
    pub(super) context: *mut ibv_context,
    pub(super) fd: c_int,
    _refcnt: c_int,
}

#[repr(C)]
pub(super) struct ibv_cq {
    pub(super) context: *mut ibv_context,
    // Private fields of the library follow.
}

#[repr(C)]
pub(super) struct ibv_srq {
    pub(super) context: *mut ibv_context,
    // Private fields of the library follow.
}

#[repr(C)]
pub(super) struct ibv_qp {
    pub(super) context: *mut ibv_context,
    _qp_context: *mut c_void,
    _pd: *mut ibv_pd,
    _send_cq: *mut ibv_cq,
    _recv_cq: *mut ibv_cq,
    _srq: *mut ibv_srq,
    _handle: u32,
    pub(super) qp_num: u32,
    // Private fields of the library follow.
}

#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ibv_gid {
    pub(super) raw: [u8; 16],
    _align: [u64; 0],
}

impl ibv_gid {
    pub(super) fn new(raw: [u8; 16]) -> Self {
        Self { raw, _align: [] }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_device_attr {
    pub(super) fw_ver: [c_char; 64],
    pub(super) node_guid: u64,
    pub(super) sys_image_guid: u64,
    pub(super) max_mr_size: u64,
    pub(super) page_size_cap: u64,
    pub(super) vendor_id: u32,
    pub(super) vendor_part_id: u32,
    pub(super) hw_ver: u32,
    pub(super) max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    pub(super) device_cap_flags: c_uint,
    pub(super) max_sge: c_int,
    pub(super) max_sge_rd: c_int,
    pub(super) max_cq: c_int,
    pub(super) max_cqe: c_int,
    pub(super) max_mr: c_int,
    pub(super) max_pd: c_int,
    pub(super) max_qp_rd_atom: c_int,
    pub(super) max_ee_rd_atom: c_int,
    pub(super) max_res_rd_atom: c_int,
    pub(super) max_qp_init_rd_atom: c_int,
    pub(super) max_ee_init_rd_atom: c_int,
    pub(super) atomic_cap: c_int,
    _max_ee_to_max_map_per_fmr: [c_int; 11],
    pub(super) max_srq: c_int,
    pub(super) max_srq_wr: c_int,
    pub(super) max_srq_sge: c_int,
    _max_pkeys: u16,
    _local_ca_ack_delay: u8,
    pub(super) phys_port_cnt: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_port_attr {
    pub(super) state: c_int,
    pub(super) max_mtu: c_int,
    pub(super) active_mtu: c_int,
    pub(super) gid_tbl_len: c_int,
    _port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    _bad_pkey_cntr: u32,
    _qkey_viol_cntr: u32,
    _pkey_tbl_len: u16,
    pub(super) lid: u16,
    _sm_lid: u16,
    _lmc: u8,
    _max_vl_num: u8,
    _sm_sl: u8,
    _subnet_timeout: u8,
    _init_type_reply: u8,
    pub(super) active_width: u8,
    pub(super) active_speed: u8,
    _phys_state: u8,
    pub(super) link_layer: u8,
    _flags: u8,
    _port_cap_flags2: u16,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ibv_global_route {
    pub(super) dgid: ibv_gid,
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ibv_ah_attr {
    pub(super) grh: ibv_global_route,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ibv_srq_attr {
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
    pub(super) srq_limit: u32,
}

#[repr(C)]
pub(super) struct ibv_srq_init_attr {
    pub(super) srq_context: *mut c_void,
    pub(super) attr: ibv_srq_attr,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ibv_qp_cap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

#[repr(C)]
pub(super) struct ibv_qp_init_attr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut ibv_cq,
    pub(super) recv_cq: *mut ibv_cq,
    pub(super) srq: *mut ibv_srq,
    pub(super) cap: ibv_qp_cap,
    pub(super) qp_type: c_int,
    pub(super) sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ibv_qp_attr {
    pub(super) qp_state: c_int,
    pub(super) cur_qp_state: c_int,
    pub(super) path_mtu: c_int,
    pub(super) path_mig_state: c_int,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    pub(super) cap: ibv_qp_cap,
    pub(super) ah_attr: ibv_ah_attr,
    pub(super) alt_ah_attr: ibv_ah_attr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ibv_sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// The remote address of a one-sided read or write.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct rdma {
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
}

/// The remote address and operands of an atomic.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct atomic {
    pub(super) remote_addr: u64,
    pub(super) compare_add: u64,
    pub(super) swap: u64,
    pub(super) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union ibv_send_wr_wr {
    pub(super) rdma: rdma,
    pub(super) atomic: atomic,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_send_wr {
    pub(super) wr_id: u64,
    pub(super) next: *mut ibv_send_wr,
    pub(super) sg_list: *mut ibv_sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_int,
    pub(super) send_flags: c_uint,
    /// Immediate data, in network byte order.
    pub(super) imm_data: u32,
    pub(super) wr: ibv_send_wr_wr,
    _qp_type: u64,
    _bind_mw: [u64; 6],
}

impl Default for ibv_send_wr {
    fn default() -> Self {
        Self {
            wr_id: 0,
            next: std::ptr::null_mut(),
            sg_list: std::ptr::null_mut(),
            num_sge: 0,
            opcode: IBV_WR_RDMA_WRITE,
            send_flags: 0,
            imm_data: 0,
            wr: ibv_send_wr_wr {
                atomic: atomic {
                    remote_addr: 0,
                    compare_add: 0,
                    swap: 0,
                    rkey: 0,
                },
            },
            _qp_type: 0,
            _bind_mw: [0; 6],
        }
    }
}

#[repr(C)]
pub(super) struct ibv_recv_wr {
    pub(super) wr_id: u64,
    pub(super) next: *mut ibv_recv_wr,
    pub(super) sg_list: *mut ibv_sge,
    pub(super) num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ibv_wc {
    pub(super) wr_id: u64,
    pub(super) status: c_int,
    pub(super) opcode: c_int,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    /// Immediate data, in network byte order.
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: c_uint,
    _pkey_index: u16,
    _slid: u16,
    _sl: u8,
    _dlid_path_bits: u8,
}

pub(super) const IBV_TRANSPORT_IB: c_int = 0;

pub(super) const IBV_ATOMIC_NONE: c_int = 0;
pub(super) const IBV_ATOMIC_GLOB: c_int = 2;

pub(super) const IBV_PORT_ACTIVE: c_int = 4;
pub(super) const IBV_LINK_LAYER_ETHERNET: u8 = 2;

pub(super) const IBV_ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const IBV_ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub(super) const IBV_ACCESS_REMOTE_READ: c_int = 1 << 2;
pub(super) const IBV_ACCESS_REMOTE_ATOMIC: c_int = 1 << 3;

pub(super) const IBV_QPT_RC: c_int = 2;
pub(super) const IBV_QPS_INIT: c_int = 1;
pub(super) const IBV_QPS_RTR: c_int = 2;
pub(super) const IBV_QPS_RTS: c_int = 3;

pub(super) const IBV_QP_STATE: c_int = 1;
pub(super) const IBV_QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(super) const IBV_QP_PKEY_INDEX: c_int = 1 << 4;
pub(super) const IBV_QP_PORT: c_int = 1 << 5;
pub(super) const IBV_QP_AV: c_int = 1 << 7;
pub(super) const IBV_QP_PATH_MTU: c_int = 1 << 8;
pub(super) const IBV_QP_TIMEOUT: c_int = 1 << 9;
pub(super) const IBV_QP_RETRY_CNT: c_int = 1 << 10;
pub(super) const IBV_QP_RNR_RETRY: c_int = 1 << 11;
pub(super) const IBV_QP_RQ_PSN: c_int = 1 << 12;
pub(super) const IBV_QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(super) const IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(super) const IBV_QP_SQ_PSN: c_int = 1 << 16;
pub(super) const IBV_QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(super) const IBV_QP_DEST_QPN: c_int = 1 << 20;

pub(super) const IBV_WR_RDMA_WRITE: c_int = 0;
pub(super) const IBV_WR_RDMA_WRITE_WITH_IMM: c_int = 1;
pub(super) const IBV_WR_RDMA_READ: c_int = 4;
pub(super) const IBV_WR_ATOMIC_CMP_AND_SWP: c_int = 5;
pub(super) const IBV_WR_ATOMIC_FETCH_AND_ADD: c_int = 6;

pub(super) const IBV_SEND_FENCE: c_uint = 1;
pub(super) const IBV_SEND_SIGNALED: c_uint = 1 << 1;
pub(super) const IBV_SEND_INLINE: c_uint = 1 << 3;

pub(super) const IBV_WC_SUCCESS: c_int = 0;

// Offsets and sizes from the header, for x86-64 and aarch64.
const _: () = {
    assert!(size_of::<*const ()>() == 8, "verbs need a 64-bit system");
    assert!(size_of::<ibv_device>() == 664);
    assert!(size_of::<ibv_context_ops>() == 256);
    assert!(offset_of!(ibv_context_ops, poll_cq) == 88);
    assert!(offset_of!(ibv_context_ops, post_srq_recv) == 160);
    assert!(offset_of!(ibv_context_ops, post_send) == 200);
    assert!(offset_of!(ibv_context, async_fd) == 268);
    assert!(offset_of!(ibv_mr, lkey) == 36 && size_of::<ibv_mr>() == 48);
    assert!(size_of::<ibv_comp_channel>() == 16);
    assert!(offset_of!(ibv_qp, qp_num) == 52);
    assert!(size_of::<ibv_gid>() == 16);
    assert!(size_of::<ibv_device_attr>() == 232);
    assert!(offset_of!(ibv_device_attr, max_srq) == 212);
    assert!(size_of::<ibv_port_attr>() == 52);
    assert!(offset_of!(ibv_port_attr, link_layer) == 46);
    assert!(size_of::<ibv_ah_attr>() == 32);
    assert!(size_of::<ibv_srq_init_attr>() == 24);
    assert!(size_of::<ibv_qp_init_attr>() == 64);
    assert!(size_of::<ibv_qp_attr>() == 144);
    assert!(offset_of!(ibv_qp_attr, rate_limit) == 136);
    assert!(size_of::<ibv_sge>() == 16);
    assert!(size_of::<ibv_send_wr>() == 128);
    assert!(offset_of!(ibv_send_wr, wr) == 40);
    assert!(size_of::<ibv_recv_wr>() == 32);
    assert!(size_of::<ibv_wc>() == 48);
    assert!(offset_of!(ibv_wc, qp_num) == 28);
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares sizes, offsets and constants with the library's header, using a C compiler. Skipped
    /// without the header, unless `FARM_VERBS_HEADER` is set.
    #[test]
    #[allow(clippy::disallowed_methods)] // Runs a compiler.
    fn layouts_and_constants_match_the_header() {
        let header = std::path::Path::new("/usr/include/infiniband/verbs.h");
        if !header.exists() {
            let wanted = std::env::var_os("FARM_VERBS_HEADER").is_some();
            assert!(
                !wanted,
                "{} is missing: install libibverbs-dev",
                header.display()
            );
            println!("skipped: {} does not exist", header.display());
            return;
        }
        let mut checks = Vec::new();
        macro_rules! check {
            (size $($name:ident)*) => {$(
                let text = format!("sizeof(struct {})", stringify!($name));
                checks.push((text, size_of::<$name>() as u64));
            )*};
            (offsets $($name:ident.$field:ident)*) => {$(
                let text = format!(
                    "offsetof(struct {}, {})", stringify!($name), stringify!($field)
                );
                checks.push((text, offset_of!($name, $field) as u64));
            )*};
            (values $($name:ident)*) => {$(
                #[allow(clippy::unnecessary_cast)]
                checks.push((stringify!($name).to_owned(), $name as u64));
            )*};
        }
        check!(size ibv_device ibv_context_ops ibv_pd ibv_mr ibv_comp_channel ibv_device_attr
            ibv_port_attr ibv_global_route ibv_ah_attr ibv_srq_attr ibv_srq_init_attr ibv_qp_cap
            ibv_qp_init_attr ibv_qp_attr ibv_sge ibv_send_wr ibv_recv_wr ibv_wc);
        check!(offsets ibv_device.node_type ibv_device.transport_type ibv_device.name
            ibv_device.ibdev_path ibv_context_ops.poll_cq ibv_context_ops.req_notify_cq
            ibv_context_ops.post_srq_recv ibv_context_ops.post_send ibv_context.ops
            ibv_context.async_fd ibv_context.num_comp_vectors ibv_pd.context ibv_mr.lkey ibv_mr.rkey
            ibv_comp_channel.fd ibv_cq.context ibv_srq.context ibv_qp.context ibv_qp.qp_num
            ibv_device_attr.fw_ver ibv_device_attr.max_mr_size ibv_device_attr.max_qp_wr
            ibv_device_attr.max_cqe ibv_device_attr.max_qp_rd_atom ibv_device_attr.max_qp_init_rd_atom
            ibv_device_attr.atomic_cap ibv_device_attr.max_srq ibv_device_attr.max_srq_wr
            ibv_device_attr.phys_port_cnt ibv_port_attr.state ibv_port_attr.active_mtu
            ibv_port_attr.gid_tbl_len ibv_port_attr.lid ibv_port_attr.link_layer
            ibv_global_route.sgid_index ibv_global_route.hop_limit ibv_global_route.traffic_class
            ibv_ah_attr.dlid ibv_ah_attr.sl ibv_ah_attr.is_global ibv_ah_attr.port_num
            ibv_srq_init_attr.attr ibv_qp_init_attr.srq ibv_qp_init_attr.cap ibv_qp_init_attr.qp_type
            ibv_qp_init_attr.sq_sig_all ibv_qp_attr.qp_state ibv_qp_attr.path_mtu ibv_qp_attr.rq_psn
            ibv_qp_attr.sq_psn ibv_qp_attr.dest_qp_num ibv_qp_attr.qp_access_flags ibv_qp_attr.ah_attr
            ibv_qp_attr.pkey_index ibv_qp_attr.max_rd_atomic ibv_qp_attr.max_dest_rd_atomic
            ibv_qp_attr.min_rnr_timer ibv_qp_attr.port_num ibv_qp_attr.timeout ibv_qp_attr.retry_cnt
            ibv_qp_attr.rnr_retry ibv_send_wr.wr_id ibv_send_wr.next ibv_send_wr.sg_list
            ibv_send_wr.num_sge ibv_send_wr.opcode ibv_send_wr.send_flags ibv_send_wr.imm_data
            ibv_send_wr.wr ibv_recv_wr.next ibv_recv_wr.num_sge ibv_wc.status ibv_wc.opcode
            ibv_wc.vendor_err ibv_wc.imm_data ibv_wc.qp_num ibv_wc.wc_flags);
        check!(values IBV_TRANSPORT_IB IBV_ATOMIC_NONE IBV_ATOMIC_GLOB IBV_PORT_ACTIVE
            IBV_LINK_LAYER_ETHERNET IBV_ACCESS_LOCAL_WRITE IBV_ACCESS_REMOTE_WRITE
            IBV_ACCESS_REMOTE_READ IBV_ACCESS_REMOTE_ATOMIC IBV_QPT_RC IBV_QPS_INIT IBV_QPS_RTR
            IBV_QPS_RTS IBV_QP_STATE IBV_QP_ACCESS_FLAGS IBV_QP_PKEY_INDEX IBV_QP_PORT IBV_QP_AV
            IBV_QP_PATH_MTU IBV_QP_TIMEOUT IBV_QP_RETRY_CNT IBV_QP_RNR_RETRY IBV_QP_RQ_PSN
            IBV_QP_MAX_QP_RD_ATOMIC IBV_QP_MIN_RNR_TIMER IBV_QP_SQ_PSN IBV_QP_MAX_DEST_RD_ATOMIC
            IBV_QP_DEST_QPN IBV_WR_RDMA_WRITE IBV_WR_RDMA_WRITE_WITH_IMM IBV_WR_RDMA_READ
            IBV_WR_ATOMIC_CMP_AND_SWP IBV_WR_ATOMIC_FETCH_AND_ADD IBV_SEND_FENCE IBV_SEND_SIGNALED
            IBV_SEND_INLINE IBV_WC_SUCCESS);
        let mut program = String::from("#include <stddef.h>\n#include <infiniband/verbs.h>\n");
        for (text, value) in &checks {
            program += &format!("_Static_assert({text} == {value}, \"{text} is not {value}\");\n");
        }
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("layouts.c");
        std::fs::write(&source, program).unwrap();
        let compiled = std::process::Command::new("cc")
            .args(["-fsyntax-only", "-x", "c"])
            .arg(&source)
            .output()
            .expect("run the C compiler");
        let compiler_output = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{compiler_output}");
    }
}
