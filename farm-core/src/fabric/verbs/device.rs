//! Devices: the available ones, the chosen port and address, and their capabilities.

use std::ffi::CStr;
use std::fs;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::abi::*;
use super::error::VerbsError;
use super::library::{Library, library};
use crate::fabric::AtomicScope;

/// The device, port and address that a machine should use. Omitted parts are chosen automatically.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceChoice {
    /// Name of the device, such as `mlx5_0`. `None`: the first usable device with an active port.
    pub device: Option<String>,
    /// Number of the port, from 1. `None`: the first active port.
    pub port: Option<u8>,
    /// Index in the port's table of GIDs. `None`: for `RoCE` the first v2 address that is mapped
    /// from IPv4, else the first v2 address, else the first address; for `InfiniBand` index 0.
    pub gid_index: Option<u8>,
    /// Maximum bytes of a packet: 256, 512, 1024, 2048 or 4096. `None`: the active MTU of the port.
    /// A connection uses the minimum of both ends.
    pub mtu: Option<u32>,
}

/// The link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkLayer {
    /// `InfiniBand`: addresses are LIDs, which a subnet manager assigns.
    InfiniBand,
    /// Ethernet: `RoCE`. Addresses are GIDs, derived from the interface's addresses.
    Ethernet,
}

/// An entry of a port's table of addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GidReport {
    /// Index in the table.
    pub index: u8,
    /// Bytes of the address.
    pub gid: [u8; 16],
    /// The kernel's name of the address type: `RoCE v2`, `IB/RoCE v1`.
    pub kind: String,
    /// The network interface of the address, if there is one.
    pub interface: Option<String>,
}

impl GidReport {
    /// Returns the address for display.
    pub fn address(&self) -> std::net::Ipv6Addr {
        self.gid.into()
    }

    fn is_v2(&self) -> bool {
        self.kind == "RoCE v2"
    }

    fn is_ipv4(&self) -> bool {
        self.gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]
    }
}

/// A port, as shown by `farm doctor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortReport {
    /// Number of the port, from 1.
    pub port: u8,
    /// Whether the port is active.
    pub is_active: bool,
    /// Link layer of the port.
    pub link_layer: LinkLayer,
    /// Active MTU and maximum MTU, in bytes.
    pub mtu: (u32, u32),
    /// Local identifier, only for `InfiniBand`.
    pub lid: u16,
    /// Addresses of the port.
    pub gids: Vec<GidReport>,
}

impl PortReport {
    /// Returns the address that is used if none is configured.
    pub fn usual_gid(&self) -> Option<&GidReport> {
        choose_gid(self, None).ok()
    }
}

/// A device, as shown by `farm doctor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceReport {
    /// Name of the device.
    pub name: String,
    /// The kernel's name of the driver.
    pub driver: String,
    /// Version of the firmware.
    pub firmware: String,
    /// Why the fabric cannot use the device, if it cannot.
    pub unfit: Option<String>,
    /// Ports of the device.
    pub ports: Vec<PortReport>,
}

/// Returns all devices of this host.
///
/// # Errors
/// [`VerbsError`] when the library cannot be loaded or a device cannot be queried.
pub fn devices() -> Result<Vec<DeviceReport>, VerbsError> {
    names()?
        .into_iter()
        .map(|name| {
            let opened = Opened::named(&name)?;
            let ports = (1..=opened.attributes.phys_port_cnt).map(|port| opened.port(port));
            Ok(DeviceReport {
                driver: opened.driver(),
                firmware: text(&opened.attributes.fw_ver),
                unfit: opened.unfit(),
                ports: ports.collect::<Result<_, _>>()?,
                name,
            })
        })
        .collect()
}

fn names() -> Result<Vec<String>, VerbsError> {
    let library = library()?;
    let mut names = Vec::new();
    each_device(library, |device| {
        // SAFETY: the list is not freed before `each_device` returns.
        names.push(text(unsafe { &(*device).name }));
        false
    });
    Ok(names)
}

/// Calls `is_found` for each device until it returns true.
fn each_device(library: &Library, mut is_found: impl FnMut(*mut ibv_device) -> bool) {
    let mut count = 0;
    // SAFETY: a plain call; the count outlives it.
    let list = unsafe { (library.ibv_get_device_list)(&mut count) };
    if list.is_null() {
        return;
    }
    for index in 0..count as usize {
        // SAFETY: the list has `count` entries.
        if is_found(unsafe { *list.add(index) }) {
            break;
        }
    }
    // SAFETY: this function owns the list, and no entry of it is used after this.
    unsafe { (library.ibv_free_device_list)(list) };
}

fn text(chars: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|c| *c as u8).collect();
    CStr::from_bytes_until_nul(&bytes).map_or_else(
        |_| String::from_utf8_lossy(&bytes).into_owned(),
        |text| text.to_string_lossy().into_owned(),
    )
}

/// An open device.
pub(super) struct Opened {
    pub(super) library: &'static Library,
    pub(super) context: NonNull<ibv_context>,
    pub(super) name: String,
    path: PathBuf,
    pub(super) attributes: ibv_device_attr,
}

// SAFETY: verbs may be called from any thread (`ibv_open_device(3)`: the library is thread-safe).
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: every object created on the context holds an `Arc` of this value, so all of them
        // are destroyed by now.
        unsafe { (self.library.ibv_close_device)(self.context.as_ptr()) };
    }
}

impl Opened {
    fn named(name: &str) -> Result<Self, VerbsError> {
        let library = library()?;
        let (mut context, mut path, mut found) = (std::ptr::null_mut(), PathBuf::new(), false);
        each_device(library, |device| {
            // SAFETY: the list is not freed before `each_device` returns.
            let device_ref = unsafe { &*device };
            if text(&device_ref.name) != name {
                return false;
            }
            found = true;
            path = PathBuf::from(text(&device_ref.ibdev_path));
            // SAFETY: the device is an entry of the list.
            context = unsafe { (library.ibv_open_device)(device) };
            true
        });
        let there = || match names() {
            Ok(names) if !names.is_empty() => names.join(", "),
            _ => "none".into(),
        };
        if !found {
            return Err(VerbsError::NoSuchDevice {
                name: name.into(),
                there: there(),
            });
        }
        let context = NonNull::new(context).ok_or_else(|| VerbsError::Refused {
            device: name.into(),
            what: "be opened".into(),
            source: std::io::Error::last_os_error(),
        })?;
        let mut opened = Self {
            library,
            context,
            name: name.into(),
            path,
            // SAFETY: plain numbers, for which all zeroes is a valid value.
            attributes: unsafe { std::mem::zeroed() },
        };
        // SAFETY: the context is open, the attributes outlive the call.
        let code =
            unsafe { (library.ibv_query_device)(opened.context.as_ptr(), &mut opened.attributes) };
        opened.check(code, "report its attributes")?;
        Ok(opened)
    }

    /// Returns an error if a call returned a code other than 0.
    pub(super) fn check(&self, code: i32, what: &str) -> Result<(), VerbsError> {
        match code {
            0 => Ok(()),
            code => Err(VerbsError::Refused {
                device: self.name.clone(),
                what: what.into(),
                source: std::io::Error::from_raw_os_error(code.abs()),
            }),
        }
    }

    /// Returns the object that a call created, or the error of the call.
    pub(super) fn made<T>(&self, made: *mut T, what: &str) -> Result<NonNull<T>, VerbsError> {
        NonNull::new(made).ok_or_else(|| VerbsError::Refused {
            device: self.name.clone(),
            what: what.into(),
            source: std::io::Error::last_os_error(),
        })
    }

    pub(super) fn driver(&self) -> String {
        if self.is_soft_roce() {
            return "rdma_rxe".into();
        }
        let link = fs::read_link(self.path.join("device/driver"));
        let name = link
            .ok()
            .and_then(|link| Some(link.file_name()?.to_string_lossy().into_owned()));
        name.unwrap_or_else(|| "unknown".into())
    }

    /// Returns whether this is the kernel's software device, which has known properties beyond
    /// those that it reports.
    pub(super) fn is_soft_roce(&self) -> bool {
        // Only the software device has this file, which contains the name of the network interface.
        // On some kernels it also has the entry `device`, which belongs to the interface.
        self.path.join("parent").exists()
    }

    /// Returns why the fabric cannot use the device, or `None` if it can.
    fn unfit(&self) -> Option<String> {
        // SAFETY: an open context has a device.
        let device = unsafe { &*self.context.as_ref().device };
        let attributes = &self.attributes;
        if device.transport_type != IBV_TRANSPORT_IB {
            return Some(
                "the device supports no reliable connections with one-sided operations and ordered writes, as \
                 InfiniBand and RoCE do (iWARP and EFA devices do not); use another device, or \
                 cluster.fabric = \"shm\" on one host"
                    .into(),
            );
        }
        if attributes.max_qp_rd_atom < 1 || attributes.max_qp_init_rd_atom < 1 {
            return Some("the device supports no one-sided reads".into());
        }
        if attributes.max_srq < 1 {
            return Some(
                "the device supports no shared receive queues, which are needed to wake sleeping workers"
                    .into(),
            );
        }
        None
    }

    fn port(&self, port: u8) -> Result<PortReport, VerbsError> {
        let attributes = self.port_attributes(port)?;
        let ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
        Ok(PortReport {
            port,
            is_active: attributes.state == IBV_PORT_ACTIVE,
            link_layer: match ethernet {
                true => LinkLayer::Ethernet,
                false => LinkLayer::InfiniBand,
            },
            mtu: (
                mtu_bytes(attributes.active_mtu),
                mtu_bytes(attributes.max_mtu),
            ),
            lid: attributes.lid,
            gids: self.gids(port, attributes.gid_tbl_len.clamp(0, 255) as u8),
        })
    }

    fn port_attributes(&self, port: u8) -> Result<ibv_port_attr, VerbsError> {
        // SAFETY: plain numbers, for which all zeroes is a valid value.
        let mut attributes: ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and the attributes outlive the call; the exported function
        // fills their first part.
        let code =
            unsafe { (self.library.ibv_query_port)(self.context.as_ptr(), port, &mut attributes) };
        self.check(code, &format!("report the attributes of port {port}"))?;
        Ok(attributes)
    }

    fn gids(&self, port: u8, most: u8) -> Vec<GidReport> {
        let of_port = self.path.join("ports").join(port.to_string());
        let line = |kind: &str, index: u8| {
            let path = of_port.join("gid_attrs").join(kind).join(index.to_string());
            // An empty entry of the table cannot be read.
            fs::read_to_string(path).map(|line| line.trim().to_owned())
        };
        let report = |index: u8| {
            let mut gid = ibv_gid::default();
            // SAFETY: the context is open, and the GID outlives the call.
            let code = unsafe {
                (self.library.ibv_query_gid)(self.context.as_ptr(), port, index.into(), &mut gid)
            };
            let is_there = code == 0 && gid.raw != [0; 16];
            is_there.then(|| GidReport {
                index,
                gid: gid.raw,
                kind: line("types", index).unwrap_or_else(|_| "IB/RoCE v1".into()),
                interface: line("ndevs", index).ok(),
            })
        };
        (0..most).filter_map(report).collect()
    }
}

/// Returns the bytes of a packet for the library's code.
fn mtu_bytes(code: i32) -> u32 {
    match code {
        1..=5 => 128 << code,
        _ => 0,
    }
}

/// Returns whether `bytes` is a valid maximum packet size.
pub fn is_packet_size(bytes: u32) -> bool {
    mtu_code(bytes).is_some()
}

/// Returns the library's code for a packet of `bytes`.
pub(super) fn mtu_code(bytes: u32) -> Option<i32> {
    (1..=5).find(|code| mtu_bytes(*code) == bytes)
}

/// The address of a port: what peers need to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PortAddress {
    pub(super) link_layer: LinkLayer,
    pub(super) gid: [u8; 16],
    pub(super) lid: u16,
    /// Bytes of a packet.
    pub(super) mtu: u32,
}

/// The device, port and address that a machine uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DevicePlace {
    /// Name of the device.
    pub name: String,
    /// Number of the port, from 1.
    pub port: u8,
    /// Index in the port's table of GIDs.
    pub gid_index: u8,
    /// Bytes of a packet. A connection uses the minimum of both ends.
    pub mtu: u32,
}

impl std::fmt::Display for DevicePlace {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            name,
            port,
            gid_index,
            mtu,
        } = self;
        write!(out, "{name} (port {port}, GID {gid_index}, MTU {mtu})")
    }
}

/// An open device with the chosen port.
pub(super) struct Device {
    pub(super) opened: Arc<Opened>,
    pub(super) port: u8,
    pub(super) gid_index: u8,
    pub(super) address: PortAddress,
}

impl Device {
    pub(super) fn open(choice: &DeviceChoice) -> Result<Self, VerbsError> {
        if let Some(name) = &choice.device {
            let opened = Opened::named(name)?;
            return match opened.unfit() {
                Some(lacks) => Err(VerbsError::Unfit {
                    device: name.clone(),
                    lacks,
                }),
                None => Self::with_port(opened, choice),
            };
        }
        let mut last = VerbsError::NoDevices;
        for name in names()? {
            let opened = Opened::named(&name)?;
            let tried = match opened.unfit() {
                Some(lacks) => Err(VerbsError::Unfit {
                    device: name,
                    lacks,
                }),
                None => Self::with_port(opened, choice),
            };
            match tried {
                Ok(device) => return Ok(device),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn with_port(opened: Opened, choice: &DeviceChoice) -> Result<Self, VerbsError> {
        let count = opened.attributes.phys_port_cnt;
        let wrong = |port, what: String| VerbsError::Port {
            device: opened.name.clone(),
            port,
            what,
        };
        let report = match choice.port {
            Some(port) if (1..=count).contains(&port) => opened.port(port)?,
            Some(port) => {
                return Err(wrong(
                    port,
                    format!("the port does not exist; the device has {count} ports"),
                ));
            }
            None => {
                let ports = (1..=count).map(|port| opened.port(port));
                let ports = ports.collect::<Result<Vec<_>, _>>()?;
                let active = ports.iter().find(|port| port.is_active);
                active
                    .or(ports.first())
                    .cloned()
                    .ok_or_else(|| wrong(1, "the device has no ports".into()))?
            }
        };
        if !report.is_active {
            let what =
                "the port is not active: see `ip link` (RoCE) or the subnet manager (InfiniBand)";
            return Err(wrong(report.port, what.into()));
        }
        let gid = choose_gid(&report, choice.gid_index)
            .map_err(|what| wrong(report.port, what))?
            .clone();
        let mtu = choice.mtu.unwrap_or(report.mtu.0);
        if !is_packet_size(mtu) || mtu > report.mtu.0 {
            let what = format!(
                "rdma.mtu = {mtu} is invalid or larger than the active MTU of {}: raise the interface's MTU \
                 (RoCE) or the subnet's (InfiniBand), or set rdma.mtu to \"auto\"",
                report.mtu.0
            );
            return Err(wrong(report.port, what));
        }
        Ok(Self {
            port: report.port,
            gid_index: gid.index,
            address: PortAddress {
                link_layer: report.link_layer,
                gid: gid.gid,
                lid: report.lid,
                mtu,
            },
            opened: Arc::new(opened),
        })
    }

    pub(super) fn place(&self) -> DevicePlace {
        DevicePlace {
            name: self.opened.name.clone(),
            port: self.port,
            gid_index: self.gid_index,
            mtu: self.address.mtu,
        }
    }

    /// Returns the scope in which the device's atomics are atomic.
    pub(super) fn atomic_scope(&self) -> AtomicScope {
        match self.opened.attributes.atomic_cap {
            IBV_ATOMIC_GLOB => AtomicScope::Global,
            _ => AtomicScope::Device,
        }
    }

    /// Returns whether the device supports atomics.
    pub(super) fn has_atomics(&self) -> bool {
        self.opened.attributes.atomic_cap != IBV_ATOMIC_NONE
    }
}

fn choose_gid(port: &PortReport, asked: Option<u8>) -> Result<&GidReport, String> {
    let gids = &port.gids;
    let found = match (asked, port.link_layer) {
        (Some(index), _) => gids.iter().find(|gid| gid.index == index),
        (None, LinkLayer::InfiniBand) => gids.first(),
        (None, LinkLayer::Ethernet) => gids
            .iter()
            .find(|gid| gid.is_v2() && gid.is_ipv4())
            .or_else(|| gids.iter().find(|gid| gid.is_v2()))
            .or_else(|| gids.first()),
    };
    found.ok_or_else(|| match asked {
        Some(index) => {
            format!("the port has no GID at index {index}; `farm doctor` lists its GIDs")
        }
        None => "the port has no GID: assign an address to its network interface".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u8, kind: &str, ipv4: bool) -> GidReport {
        let mut bytes = [0xfe; 16];
        if ipv4 {
            bytes[..12].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        }
        GidReport {
            index,
            gid: bytes,
            kind: kind.into(),
            interface: None,
        }
    }

    fn port(link_layer: LinkLayer, gids: Vec<GidReport>) -> PortReport {
        PortReport {
            port: 1,
            is_active: true,
            link_layer,
            mtu: (1024, 4096),
            lid: 0,
            gids,
        }
    }

    #[test]
    fn roce_prefers_routable_addresses() {
        let chosen = |gids| {
            let port = port(LinkLayer::Ethernet, gids);
            choose_gid(&port, None).map(|gid| gid.index)
        };
        let (v1, v2) = ("IB/RoCE v1", "RoCE v2");
        let all = vec![
            gid(0, v1, false),
            gid(1, v2, false),
            gid(2, v1, true),
            gid(3, v2, true),
        ];
        assert_eq!(chosen(all.clone()), Ok(3));
        assert_eq!(chosen(all[..3].to_vec()), Ok(1));
        assert_eq!(chosen(all[..1].to_vec()), Ok(0));
        assert!(chosen(vec![]).unwrap_err().contains("address"));
    }

    #[test]
    fn a_configured_gid_is_used_or_reported_missing() {
        let port = port(LinkLayer::InfiniBand, vec![gid(0, "IB/RoCE v1", false)]);
        assert_eq!(choose_gid(&port, None).unwrap().index, 0);
        assert_eq!(choose_gid(&port, Some(0)).unwrap().index, 0);
        assert!(choose_gid(&port, Some(4)).unwrap_err().contains("index 4"));
    }

    #[test]
    fn packets_have_the_sizes_of_the_specification() {
        let bytes: Vec<_> = (0..7).map(mtu_bytes).collect();
        assert_eq!(bytes, [0, 256, 512, 1024, 2048, 4096, 0]);
        assert_eq!(mtu_code(1024), Some(3));
        assert_eq!(mtu_code(1500), None);
    }
}
