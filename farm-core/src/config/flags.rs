//! Overriding single keys, as command-line flags do.

use super::error::{ConfigError, Place, Problem, ProblemKind, nearest, one_of};
use super::keys::{self, Key, MACHINE_KEYS};
use super::origin::origin_of;
use super::read::refusal;
use super::value::Value;
use super::{Config, MachineConfig, Sections};
use crate::ids::MachineId;
use crate::limits::Limits;

/// Sets the key `path` to `text`, the value of `flag`.
pub(super) fn set(
    config: &mut Config,
    flag: &str,
    path: &str,
    text: &str,
) -> Result<(), ConfigError> {
    let place = Place::Flag(flag.to_owned());
    let value = Value::from_flag(text);
    let refuse = |problem: Problem| {
        Err(ConfigError::Invalid {
            name: flag.to_owned(),
            problems: vec![problem],
        })
    };
    let known = keys::all(&config.sections).find(|key| key.path == path);
    if let Some(key) = known
        && let Some(set) = keys::set(config, path, &value)
    {
        return match set {
            Ok(()) => {
                config.origins.insert(path.to_owned(), place);
                Ok(())
            }
            Err(misfit) => refuse(refusal(key, place, misfit, &Limits::PRODUCTION)),
        };
    }
    let Some((which, key)) = machine_key(path) else {
        return refuse(unknown_path(&config.sections, place, path));
    };
    let ids: Vec<MachineId> = config.machines.iter().map(|machine| machine.id).collect();
    let chosen = |id: &MachineId| which == "*" || which == id.get().to_string();
    if !ids.iter().any(chosen) {
        let ids: Vec<String> = ids.iter().map(|id| id.get().to_string()).collect();
        return refuse(Problem {
            kind: ProblemKind::UnknownKey,
            place,
            key: path.to_owned(),
            found: format!("there is no machine {which}"),
            expected: format!("the id of a machine ({}), or * for all", one_of(&ids)),
            advice: "check the [[machine]] sections".to_owned(),
        });
    }
    for machine in config
        .machines
        .iter_mut()
        .filter(|machine| chosen(&machine.id))
    {
        if let Err(misfit) = (key.set)(machine, &value) {
            return refuse(refusal(key.facts(), place, misfit, &Limits::PRODUCTION));
        }
        config
            .origins
            .insert(origin_of(machine.id, key.name()), place.clone());
    }
    Ok(())
}

/// Returns `which` and `name` of `machine.<which>.<name>`.
fn of_machine(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix("machine.")?.split_once('.')
}

/// Splits `machine.<which>.<name>`. Rejects the name `id`, because ids cannot change.
fn machine_key(path: &str) -> Option<(&str, &'static Key<MachineConfig>)> {
    let (which, name) = of_machine(path)?;
    let key = MACHINE_KEYS
        .iter()
        .find(|key| key.name() == name && name != "id")?;
    Some((which, key))
}

fn unknown_path(sections: &Sections, place: Place, path: &str) -> Problem {
    let machine_keys = MACHINE_KEYS.iter().map(|key| key.name());
    let of_machines = machine_keys.filter(|name| *name != "id");
    let of_machines: Vec<String> = of_machines
        .map(|name| format!("machine.*.{name}"))
        .collect();
    let paths = || {
        let of_machines = of_machines.iter().map(String::as_str);
        keys::all(sections).map(|key| key.path).chain(of_machines)
    };
    // The number of a machine in the path must not make it look unlike the key.
    let general = match of_machine(path) {
        Some((_, name)) => format!("machine.*.{name}"),
        None => path.to_owned(),
    };
    let same_name = || keys::all(sections).find(|key| key.name() == path);
    let near = nearest(&general, paths()).or_else(|| same_name().map(|key| key.path));
    let (expected, advice) = match near {
        Some(near) => (
            "a key of the configuration".to_owned(),
            format!("did you mean \"{near}\"?"),
        ),
        None => (
            format!("one of {}", one_of(&paths().collect::<Vec<_>>())),
            "write section and key with a dot between".to_owned(),
        ),
    };
    Problem {
        kind: ProblemKind::UnknownKey,
        place,
        key: path.to_owned(),
        found: "there is no such key".to_owned(),
        expected,
        advice,
    }
}
