//! The conditions under which two machines can work together. If they cannot, both machines report
//! the reason.

use crate::fabric::Capability;
use crate::ids::MachineId;

/// Maximum number of machines of a list that a message names.
const MOST_LISTED: usize = 16;

pub(in crate::fabric) fn same_version(ours: u32, theirs: u32) -> Result<(), String> {
    match ours == theirs {
        true => Ok(()),
        false => Err(format!("the protocol versions differ: {ours} and {theirs}")),
    }
}

pub(in crate::fabric) fn same_cluster(ours: &str, theirs: &str) -> Result<(), String> {
    match ours == theirs {
        true => Ok(()),
        false => Err(format!(
            "the cluster names differ: {ours:?} and {:?}",
            excerpt(theirs)
        )),
    }
}

/// Returns the start of a peer's text, short enough for a message.
pub(in crate::fabric) fn excerpt(text: &str) -> String {
    text.chars().take(64).collect()
}

/// A machine, and the machines that its configuration lists.
pub(in crate::fabric) type Listed<'a> = (MachineId, &'a [MachineId]);

/// Checks that both configurations list the same machines.
pub(in crate::fabric) fn same_machines(one: Listed<'_>, other: Listed<'_>) -> Result<(), String> {
    let names = |machines: &[MachineId]| {
        let names = machines.iter().take(MOST_LISTED).map(ToString::to_string);
        let names = names.collect::<Vec<_>>().join(", ");
        match machines.len() {
            count if count > MOST_LISTED => format!("{names} and {} more", count - MOST_LISTED),
            _ => names,
        }
    };
    let sorted = |machines: &[MachineId]| {
        let mut machines = machines.to_vec();
        machines.sort_unstable();
        machines
    };
    let (ours, theirs) = (sorted(one.1), sorted(other.1));
    match ours == theirs {
        true => Ok(()),
        false => Err(format!(
            "the configurations differ: the configuration of {} lists machines {}, that of {} lists {}; start all \
             machines from the same file",
            one.0,
            names(&ours),
            other.0,
            names(&theirs)
        )),
    }
}

/// Checks that the configurations have the same digest.
pub(in crate::fabric) fn same_configuration(ours: u64, theirs: u64) -> Result<(), String> {
    match ours == theirs {
        true => Ok(()),
        false => Err(format!(
            "the configurations differ (digests {ours:#x} and {theirs:#x}): start both machines from the \
             same file"
        )),
    }
}

/// Checks that a machine offers only its own memory, of its current start.
pub(in crate::fabric) fn offers_its_own<'a>(
    machine: MachineId,
    boot: u64,
    offer: impl IntoIterator<Item = &'a Capability>,
) -> Result<(), String> {
    let mut offer = offer.into_iter();
    match offer.all(|memory| memory.machine == machine && memory.boot == boot) {
        true => Ok(()),
        false => Err(
            "the peer offers memory of another machine, or of another start of its process".into(),
        ),
    }
}
