//! The verbs fabric: `[rdma]`, and what a machine says of its device.

use std::path::PathBuf;

use serde::Serialize;

use super::value::{Misfit, Value};
use crate::fabric::verbs::{ConnectionConfig, ObjectReads};
use crate::ids::MachineId;

/// Most work requests of one queue pair.
pub(super) const MOST_SEND_DEPTH: u32 = 1 << 15;
/// Fewest work requests of one queue pair: what is kept for notifications and headers must fit.
pub(super) const LEAST_SEND_DEPTH: u32 = 64;
/// Most bytes of an inline write.
pub(super) const MOST_INLINE_BYTES: u32 = 1024;
/// The TCP port of machine 1 where no address is configured; others follow by their ids.
const FIRST_PORT: u16 = 7400;
/// What stands for a value that is found out.
const AUTO: &str = "auto";

/// How RDMA devices are used.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RdmaConfig {
    /// The file of the secret by which machines know each other. Automatically one that is made in the
    /// directory of sockets, which does for machines of one host.
    #[serde(serialize_with = "or_auto")]
    pub secret_file: Option<PathBuf>,
    /// How many workers of a machine share queue pairs.
    pub workers_per_queue: u32,
    /// Work requests in flight on one connection.
    pub send_depth: u32,
    /// Notifications that may wait for one worker.
    pub receive_depth: u32,
    /// Bytes of a write that goes with its work request.
    pub inline_bytes: u32,
    /// Bytes of a packet; `None`: what both ports have active.
    #[serde(serialize_with = "or_auto")]
    pub mtu: Option<u32>,
    /// How long an acknowledgement is waited for: 4.096 us times two to the power of this.
    pub timeout: u8,
    /// Traffic class of packets.
    pub traffic_class: u8,
    /// Service level.
    pub service_level: u8,
    /// Whether the number of requests in flight is adapted (SMART §4.2).
    pub adaptive_throttle: bool,
    /// How reads of objects are made whole; `None`: as the device needs it.
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

/// A machine's place on the verbs fabric.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RdmaPlace {
    /// Where it listens for others to connect, as `host:port`; `None`: a port of this host.
    #[serde(serialize_with = "or_auto")]
    pub address: Option<String>,
    /// Its device; `None`: the first that can carry a fabric.
    #[serde(serialize_with = "or_auto")]
    pub device: Option<String>,
    /// The device's port; `None`: the first that is active.
    #[serde(serialize_with = "or_auto")]
    pub device_port: Option<u8>,
    /// The index of the port's address; `None`: it is found out.
    #[serde(serialize_with = "or_auto")]
    pub gid_index: Option<u8>,
}

impl RdmaPlace {
    /// Where the machine listens.
    pub fn address_of(&self, machine: MachineId) -> String {
        let automatic = || format!("127.0.0.1:{}", FIRST_PORT + machine.get());
        self.address.clone().unwrap_or_else(automatic)
    }
}

pub(super) const OBJECT_READS: [(&str, Option<ObjectReads>); 4] = [
    (AUTO, None),
    ("whole-lines", Some(ObjectReads::WholeLines)),
    ("header-after", Some(ObjectReads::HeaderAfter)),
    ("headers-around", Some(ObjectReads::HeadersAround)),
];

fn or_auto<T: Serialize, S: serde::Serializer>(
    value: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => value.serialize(serializer),
        None => AUTO.serialize(serializer),
    }
}

/// `"auto"`, or text.
pub(super) fn auto_or_text(value: &Value) -> Result<Option<String>, Misfit> {
    value.text().map(|text| (text != AUTO).then_some(text))
}

/// `"auto"`, or a name.
pub(super) fn auto_or_name(value: &Value) -> Result<Option<String>, Misfit> {
    match auto_or_text(value)? {
        Some(name) if name.is_empty() => Err(value.out_of_range()),
        name => Ok(name),
    }
}

/// `"auto"`, or a number from 1.
pub(super) fn auto_or_port(value: &Value) -> Result<Option<u8>, Misfit> {
    match auto_or_whole(value)? {
        Some(0) => Err(value.out_of_range()),
        port => Ok(port),
    }
}

/// `"auto"`, or a whole number.
pub(super) fn auto_or_whole<T: TryFrom<i128>>(value: &Value) -> Result<Option<T>, Misfit> {
    match value.text() {
        Ok(text) if text == AUTO => Ok(None),
        _ => value.whole().map(Some),
    }
}

/// As [`auto_or_text`] reads it.
pub(super) fn show_text(text: Option<&str>) -> String {
    toml::Value::from(text.unwrap_or(AUTO)).to_string()
}

/// As [`auto_or_whole`] reads it.
pub(super) fn show_whole<T: ToString>(number: &Option<T>) -> String {
    match number {
        None => show_text(None),
        Some(number) => number.to_string(),
    }
}
