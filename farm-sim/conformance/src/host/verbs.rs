//! Clusters over the RDMA devices of this host.

use std::collections::BTreeMap;
use std::net::TcpListener;

use farm_core::fabric::verbs::{
    ConnectionConfig, DeviceChoice, ObjectReads, Secret, VerbsConfig, devices,
};
use farm_core::ids::MachineId;
use serde::{Deserialize, Serialize};

use crate::THREE;

/// How a fabric uses the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variant {
    /// How object reads are made consistent. `None`: the default for the device.
    pub object_reads: Option<ObjectReads>,
    /// Whether the limit of requests in flight adapts to the load.
    pub adaptive_throttle: bool,
    /// Number of workers that share one set of queue pairs.
    pub workers_per_queue: usize,
    /// Limit of work requests in flight on one connection.
    pub send_depth: u32,
}

impl Variant {
    /// The defaults of the configuration.
    pub const DEFAULT: Self = Self {
        object_reads: None,
        adaptive_throttle: false,
        workers_per_queue: 1,
        send_depth: 256,
    };
}

/// The addresses, devices and secret of one cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VerbsPlace {
    /// Address and device name of each machine.
    pub machines: BTreeMap<MachineId, (String, String)>,
    /// The cluster's secret.
    pub secret: Vec<u8>,
    /// How the machines use their devices.
    pub variant: Variant,
}

impl VerbsPlace {
    /// Creates a place on this host, with new addresses. The usable devices are assigned to the machines
    /// round-robin.
    ///
    /// # Panics
    /// If the host has no usable device.
    pub fn fresh(variant: Variant) -> Self {
        let found = devices().expect("devices can be listed");
        let fit = found.iter().filter(|device| device.unfit.is_none());
        let names: Vec<&String> = fit.map(|device| &device.name).collect();
        assert!(
            !names.is_empty(),
            "this host has no RDMA device that a fabric can use: {found:?}"
        );
        // All listeners stay bound until each address is known, so that the ports differ.
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

    /// Returns the configuration of one machine of this place.
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
            lease: None,
        }
    }
}
