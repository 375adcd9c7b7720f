//! Whether the cluster runs with the configuration that this command was given.

use std::collections::BTreeMap;

use farm::status::replicas::{ReplicaState, running_configuration};
use farm_core::config::Config;

/// Maximum number of differences that are named.
const MOST_NAMED: usize = 8;

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
    let named = differences(&config.canonical(), running);
    let more = match named.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    format!(
        "it runs with another configuration than this command was given: {}{more}; use the configuration of the machines (--config, --set)",
        named[..named.len().min(MOST_NAMED)].join("; ")
    )
}

/// Returns the keys of a [canonical](Config::canonical) text, with the number of the machine in those of machines.
fn keys(canonical: &str) -> BTreeMap<String, &str> {
    let mut machine = "";
    let key = |line| {
        let (key, value): (&str, &str) = str::split_once(line, " = ")?;
        let key = match key.split_once('.') {
            Some(("machine", name)) => {
                if name == "id" {
                    machine = value;
                }
                format!("machine.{machine}.{name}")
            }
            _ => key.to_owned(),
        };
        Some((key, value))
    };
    canonical.lines().filter_map(key).collect()
}

/// Returns the keys that differ, with both values.
fn differences(given: &str, running: &str) -> Vec<String> {
    let (given, running) = (keys(given), keys(running));
    let mut all: Vec<&String> = given.keys().chain(running.keys()).collect();
    all.sort();
    all.dedup();
    let is_listed = |keys: &BTreeMap<String, &str>, key: &str| {
        let id = key
            .rsplit_once('.')
            .map(|(machine, _)| format!("{machine}.id"));
        id.is_some_and(|id| keys.contains_key(&id))
    };
    let differ = |key: &&String| match (given.get(*key), running.get(*key)) {
        (Some(given), Some(running)) if given == running => None,
        (Some(given), Some(running)) => Some(format!("{key} is {given} here, and {running} there")),
        // Of a machine that only one of them lists, its id suffices.
        (Some(_), None)
            if !key.ends_with(".id") && is_listed(&given, key) && !is_listed(&running, key) =>
        {
            None
        }
        (None, Some(_))
            if !key.ends_with(".id") && is_listed(&running, key) && !is_listed(&given, key) =>
        {
            None
        }
        (Some(given), None) => Some(format!("{key} = {given} is only here")),
        (None, running) => Some(format!("{key} = {} is only there", running.unwrap_or(&""))),
    };
    all.iter().filter_map(differ).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_machines_that_differ_are_named() {
        let given = Config::default_for(3, 1);
        let mut running = Config::default_for(2, 1);
        let named = |given: &Config, running: &Config| {
            differences(&given.canonical(), &running.canonical())
        };
        assert_eq!(named(&running, &running), Vec::<String>::new());
        assert_eq!(named(&given, &running), ["machine.3.id = 3 is only here"]);
        assert_eq!(named(&running, &given), ["machine.3.id = 3 is only there"]);
        running.set("durability.mode", "memory").unwrap();
        running.set("machine.2.workers", "4").unwrap();
        running.set("transactions.patience_ms", "1").unwrap();
        assert_eq!(
            named(&given, &running),
            [
                "durability.mode is \"none\" here, and \"memory\" there",
                "machine.2.workers is 1 here, and 4 there",
                "machine.3.id = 3 is only here",
            ]
        );
        let older = running
            .canonical()
            .replace("durability.dir = \"auto\"\n", "");
        assert_eq!(
            differences(&running.canonical(), &older),
            ["durability.dir = \"auto\" is only here"]
        );
    }
}
