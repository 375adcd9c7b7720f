//! Clusters over the RDMA devices of this host.

use std::collections::BTreeMap;
use std::net::TcpListener;

use farm_core::fabric::verbs::{
    ConnectionConfig, DeviceChoice, ObjectReads, Secret, VerbsConfig, devices,
};
use farm_core::ids::MachineId;
use serde::{Deserialize, Serialize};

use crate::THREE;

/// How devices are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variant {
    /// How reads of objects are made whole; `None`: as the device needs it.
    pub object_reads: Option<ObjectReads>,
    /// Whether the number of requests in flight is adapted.
    pub adaptive_throttle: bool,
    /// How many workers share queue pairs.
    pub workers_per_queue: usize,
    /// Work requests in flight on one connection.
    pub send_depth: u32,
}

impl Variant {
    /// As configured if nothing is said.
    pub const DEFAULT: Self = Self {
        object_reads: None,
        adaptive_throttle: false,
        workers_per_queue: 1,
        send_depth: 256,
    };
}

/// Where the machines of one cluster find each other: an address to connect at, and a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VerbsPlace {
    /// Of each machine: address and device.
    pub machines: BTreeMap<MachineId, (String, String)>,
    /// What they all know.
    pub secret: Vec<u8>,
    /// How they use their devices.
    pub variant: Variant,
}

impl VerbsPlace {
    /// A place on this host, whose devices are given to the machines in turn, to be used in this way.
    ///
    /// # Panics
    /// If there is no device that can carry a fabric.
    pub fn fresh(variant: Variant) -> Self {
        let found = devices().expect("devices can be listed");
        let fit = found.iter().filter(|device| device.unfit.is_none());
        let names: Vec<&String> = fit.map(|device| &device.name).collect();
        assert!(
            !names.is_empty(),
            "no RDMA device can carry a fabric: {found:?}"
        );
        // Held together until all are found, so that they differ.
        let held = THREE.map(|_| TcpListener::bind(("127.0.0.1", 0)).expect("a free port"));
        let address = |listener: &TcpListener| {
            let address = listener.local_addr().expect("a bound port has an address");
            address.to_string()
        };
        let devices = names.into_iter().cycle().cloned();
        let machines = THREE.into_iter().zip(held.iter().map(address).zip(devices));
        Self {
            machines: machines.collect(),
            secret: b"known to this test only".into(),
            variant,
        }
    }

    /// The configuration of one machine here.
    pub fn config(&self, machine: MachineId) -> VerbsConfig {
        let addresses = self.machines.iter();
        let addresses = addresses.map(|(machine, place)| (*machine, place.0.clone()));
        VerbsConfig {
            cluster: "conformance".into(),
            machine,
            workers: self.variant.workers_per_queue,
            digest: 1,
            addresses: addresses.collect(),
            secret: Secret::of(&self.secret),
            device: DeviceChoice {
                device: Some(self.machines[&machine].1.clone()),
                ..DeviceChoice::default()
            },
            connection: ConnectionConfig {
                send_depth: self.variant.send_depth,
                ..ConnectionConfig::default()
            },
            workers_per_queue: self.variant.workers_per_queue,
            receive_depth: 256,
            huge_pages: false,
            object_reads: self.variant.object_reads,
            adaptive_throttle: self.variant.adaptive_throttle,
            parks: true,
        }
    }
}
