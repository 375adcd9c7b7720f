//! The fabric configuration of a machine, derived from the cluster's configuration.

use super::MachineError;
use crate::config::{Config, Fabric, HugePages};
use crate::fabric::FabricConfig;
use crate::fabric::shm::ShmConfig;
use crate::fabric::verbs::{ConnectionConfig, DeviceChoice, Secret, VerbsConfig};
use crate::ids::MachineId;
use crate::worker::IdlePolicy;

/// Returns the fabric configuration of machine `machine`.
///
/// # Errors
/// [`MachineError`] when the configuration has no such machine, or the cluster's secret cannot be
/// read.
pub fn fabric_config(config: &Config, machine: MachineId) -> Result<FabricConfig, MachineError> {
    let huge_pages = config.memory.huge_pages != HugePages::Off;
    let run_dir = crate::config::host::run_dir(config);
    let own = config.machine(machine);
    let own = own.ok_or(MachineError::NoSuchMachine(machine))?;
    let workers = usize::from(own.workers);
    if config.cluster.fabric == Fabric::Shm {
        return Ok(FabricConfig::Shm(ShmConfig {
            cluster: config.cluster.name.clone(),
            run_dir,
            memory_dir: config.memory.dir.clone(),
            huge_pages,
            machine,
            workers,
            digest: config.digest(),
            lease: config.survives_losses().then(|| config.lease()),
        }));
    }
    let rdma = &config.rdma;
    let secret = match &rdma.secret_file {
        Some(path) => Secret::read(path)?,
        None => Secret::of_host(&run_dir, &config.cluster.name)?,
    };
    let addresses = config.machines.iter();
    let addresses = addresses.map(|machine| (machine.id, machine.rdma.address_of(machine.id)));
    Ok(FabricConfig::Verbs(Box::new(VerbsConfig {
        cluster: config.cluster.name.clone(),
        machine,
        workers,
        digest: config.digest(),
        addresses: addresses.collect(),
        secret,
        device: DeviceChoice {
            device: own.rdma.device.clone(),
            port: own.rdma.device_port,
            gid_index: own.rdma.gid_index,
            mtu: rdma.mtu,
        },
        connection: ConnectionConfig {
            send_depth: rdma.send_depth,
            inline_bytes: rdma.inline_bytes,
            timeout: rdma.timeout,
            traffic_class: rdma.traffic_class,
            service_level: rdma.service_level,
        },
        workers_per_queue: rdma.workers_per_queue as usize,
        receive_depth: rdma.receive_depth,
        huge_pages,
        object_reads: rdma.object_reads,
        adaptive_throttle: rdma.adaptive_throttle,
        lease: config.survives_losses().then(|| config.lease()),
        parks: matches!(super::idle_policy(config, machine), IdlePolicy::Park { .. }),
    })))
}
