//! What must be so for two machines to work together; else why they cannot, for both to tell.

use crate::fabric::Capability;
use crate::ids::MachineId;

pub(in crate::fabric) fn same_version(ours: u32, theirs: u32) -> Result<(), String> {
    match ours == theirs {
        true => Ok(()),
        false => Err(format!("protocol version {ours} here, {theirs} there")),
    }
}

pub(in crate::fabric) fn same_cluster(ours: &str, theirs: &str) -> Result<(), String> {
    match ours == theirs {
        true => Ok(()),
        false => Err(format!("cluster {ours:?} here, {:?} there", told(theirs))),
    }
}

/// As much of a stranger's text as is worth being told.
pub(in crate::fabric) fn told(text: &str) -> String {
    text.chars().take(64).collect()
}

/// By digest.
pub(in crate::fabric) fn same_configuration(ours: u64, theirs: u64) -> Result<(), String> {
    match ours == theirs {
        true => Ok(()),
        false => Err(format!(
            "their configurations differ (digest {ours:#x} here, {theirs:#x} there): start both from the \
             same file"
        )),
    }
}

/// What a machine offers is of its own memory, of this start.
pub(in crate::fabric) fn offers_its_own<'a>(
    machine: MachineId,
    boot: u64,
    offer: impl IntoIterator<Item = &'a Capability>,
) -> Result<(), String> {
    let mut offer = offer.into_iter();
    match offer.all(|memory| memory.machine == machine && memory.boot == boot) {
        true => Ok(()),
        false => Err("it offers memory that is not its own".into()),
    }
}
