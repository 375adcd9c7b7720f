//! Whether the cluster runs with the configuration that this command was given.

use farm::status::replicas::{ReplicaState, running_configuration};
use farm_core::config::Config;

/// Checks that all machines run with this configuration, except for keys that each machine may choose.
///
/// # Errors
/// The keys that differ on one of the machines.
pub(super) fn check_running(config: &Config, states: &[ReplicaState]) -> Result<(), String> {
    let digest = config.digest();
    let Some(other) = states.iter().find(|state| state.digest != digest) else {
        return Ok(());
    };
    let machine = other.machine;
    let running = running_configuration(config, machine).map_err(|error| error.to_string())?;
    let running = running.ok_or_else(|| format!("machine {machine} has stopped"))?;
    Err(named(config, &running))
}

/// Returns how the configuration of a machine of this cluster that runs differs from this one; `None` if none of them has another one, or
/// does not say so.
pub(crate) fn of_running(config: &Config) -> Option<String> {
    let canonical = config.canonical();
    let machines = config.machines.iter().map(|machine| machine.id);
    let mut running = machines.filter_map(|machine| running_configuration(config, machine).ok()?);
    let other = running.find(|running| *running != canonical)?;
    Some(named(config, &other))
}

fn named(config: &Config, running: &str) -> String {
    let differences = config.differences(running);
    format!(
        "it runs with another configuration than this command was given: {differences}; use the configuration of the machines (--config, --set)"
    )
}
