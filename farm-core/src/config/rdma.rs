//! The configuration of the verbs fabric: `[rdma]`, and the machines' keys for addresses and
//! devices.

use std::path::PathBuf;

use serde::Serialize;

use super::value::{Misfit, Value};
use crate::fabric::verbs::{ConnectionConfig, ObjectReads};
use crate::ids::MachineId;

/// Largest number of work requests of one queue pair.
pub(super) const MOST_SEND_DEPTH: u32 = 1 << 15;
/// Smallest number of work requests of one queue pair: the requests reserved for notifications and
/// headers must fit.
pub(super) const LEAST_SEND_DEPTH: u32 = 64;
/// Largest inline write, in bytes.
pub(super) const MOST_INLINE_BYTES: u32 = 1024;
/// Base of the TCP ports of machines without a configured address. A machine's port is this number
/// plus its id.
const PORT_BASE: u16 = 7400;
/// The word for a value that is determined automatically.
const AUTO: &str = "auto";

/// The configuration of RDMA devices.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RdmaConfig {
    /// File of the secret by which machines authenticate each other. `None`: a file that is created
    /// in the directory of sockets, which suffices for machines on one host.
    #[serde(serialize_with = "or_auto")]
    pub secret_file: Option<PathBuf>,
    /// Number of workers of a machine that share queue pairs.
    pub workers_per_queue: u32,
    /// Maximum number of work requests in flight on one connection.
    pub send_depth: u32,
    /// Maximum number of notifications that may wait for one worker.
    pub receive_depth: u32,
    /// Largest write, in bytes, whose data is stored in its work request.
    pub inline_bytes: u32,
    /// Bytes of a packet; `None`: the smaller of the active MTUs of the two ports.
    #[serde(serialize_with = "or_auto")]
    pub mtu: Option<u32>,
    /// Exponent of the acknowledgement timeout, which is 4.096 us times two to the power of this
    /// number.
    pub timeout: u8,
    /// Traffic class of packets.
    pub traffic_class: u8,
    /// Service level of packets.
    pub service_level: u8,
    /// Whether the number of requests in flight is adapted (SMART §4.2).
    pub adaptive_throttle: bool,
    /// How object reads are made consistent; `None`: as the device requires.
    #[serde(serialize_with = "or_auto")]
    pub object_reads: Option<ObjectReads>,
}

impl Default for RdmaConfig {
    fn default() -> Self {
        let connection = ConnectionConfig::default();
        Self {
            secret_file: None,
            workers_per_queue: 1,
            send_depth: connection.send_depth,
            receive_depth: 1024,
            inline_bytes: connection.inline_bytes,
            mtu: None,
            timeout: connection.timeout,
            traffic_class: connection.traffic_class,
            service_level: connection.service_level,
            adaptive_throttle: true,
            object_reads: None,
        }
    }
}

/// A machine's address and device on the verbs fabric.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RdmaPlace {
    /// Address at which the machine listens, as `host:port`; `None`: 127.0.0.1 and port 7400 plus
    /// the machine's id.
    #[serde(serialize_with = "or_auto")]
    pub address: Option<String>,
    /// Device name; `None`: the first usable device.
    #[serde(serialize_with = "or_auto")]
    pub device: Option<String>,
    /// Port of the device; `None`: the first active port.
    #[serde(serialize_with = "or_auto")]
    pub device_port: Option<u8>,
    /// GID index of the port; `None`: determined automatically.
    #[serde(serialize_with = "or_auto")]
    pub gid_index: Option<u8>,
}

impl RdmaPlace {
    /// Returns the address at which the machine listens.
    pub fn address_of(&self, machine: MachineId) -> String {
        let automatic = || format!("127.0.0.1:{}", PORT_BASE + machine.get());
        self.address.clone().unwrap_or_else(automatic)
    }
}

pub(super) const OBJECT_READS: [(&str, Option<ObjectReads>); 4] = [
    (AUTO, None),
    ("whole-lines", Some(ObjectReads::WholeLines)),
    ("header-after", Some(ObjectReads::HeaderAfter)),
    ("headers-around", Some(ObjectReads::HeadersAround)),
];

pub(super) fn or_auto<T: Serialize, S: serde::Serializer>(
    value: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => value.serialize(serializer),
        None => AUTO.serialize(serializer),
    }
}

/// Reads `"auto"` or text.
pub(super) fn auto_or_text(value: &Value) -> Result<Option<String>, Misfit> {
    value.text().map(|text| (text != AUTO).then_some(text))
}

/// Reads `"auto"` or a non-empty name.
pub(super) fn auto_or_name(value: &Value) -> Result<Option<String>, Misfit> {
    match auto_or_text(value)? {
        Some(name) if name.is_empty() => Err(value.out_of_range()),
        name => Ok(name),
    }
}

/// Reads `"auto"` or a positive whole number.
pub(super) fn auto_or_port(value: &Value) -> Result<Option<u8>, Misfit> {
    match auto_or_whole(value)? {
        Some(0) => Err(value.out_of_range()),
        port => Ok(port),
    }
}

/// Reads `"auto"` or a whole number.
pub(super) fn auto_or_whole<T: TryFrom<i128>>(value: &Value) -> Result<Option<T>, Misfit> {
    match value.text() {
        Ok(text) if text == AUTO => Ok(None),
        _ => value.whole().map(Some),
    }
}

/// Reads `"auto"` or a size.
pub(super) fn auto_or_size(value: &Value) -> Result<Option<u64>, Misfit> {
    match value.text() {
        Ok(text) if text == AUTO => Ok(None),
        _ => value.size().map(Some),
    }
}

/// Formats a value as [`auto_or_text`] reads it.
pub(super) fn show_text(text: Option<&str>) -> String {
    toml::Value::from(text.unwrap_or(AUTO)).to_string()
}

/// Formats a value as [`auto_or_whole`] reads it.
pub(super) fn show_whole<T: ToString>(number: &Option<T>) -> String {
    match number {
        None => show_text(None),
        Some(number) => number.to_string(),
    }
}
