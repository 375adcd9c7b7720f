//! What a machine takes of its host, in words.

use farm_core::config::host::run_dir;
use farm_core::config::{Config, rounded_size};
use farm_core::machine::{Machine, Sizing};

/// Returns the device and the address, or the directories, that a machine uses, and the memory that it takes.
pub(super) fn took(config: &Config, machine: &Machine) -> String {
    let id = machine.id();
    let fabric = match machine.device() {
        Some(device) => {
            let own = config.machine(id);
            let address = own.map_or_else(String::new, |own| own.rdma.address_of(id));
            format!("device {device}, address {address}")
        }
        None => {
            let sockets = run_dir(config).join(&config.cluster.name);
            format!("shared memory, sockets in {}", sockets.display())
        }
    };
    let memory = Sizing::of(config, id).map_or_else(String::new, |sizing| {
        format!(
            "; {} for rings, {} for logs, {} for arenas and up to {} for regions in {}",
            rounded_size(sizing.ring_bytes),
            rounded_size(sizing.log_bytes),
            rounded_size(sizing.arena_bytes),
            rounded_size(sizing.region_bytes),
            config.memory.dir.display()
        )
    });
    let workers = machine.workers();
    format!("machine {id} has {workers} worker(s); {fabric}{memory}")
}
