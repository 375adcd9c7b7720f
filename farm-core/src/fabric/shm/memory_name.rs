//! The names of files of shared memory.

use crate::ids::MachineId;

/// The parsed name of a file of shared memory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MemoryName<'a> {
    /// Prefix up to and including the start number, common to all files of one start.
    pub(super) start: &'a str,
    pub(super) machine: MachineId,
    /// Key of the exported memory.
    pub(super) key: u64,
    /// Name of the cluster.
    pub(super) cluster: &'a str,
}

impl<'a> MemoryName<'a> {
    /// Parses a file name. Returns `None` unless the name has the form that `Names::memory` creates.
    pub(super) fn parse(name: &'a str) -> Option<Self> {
        let mut parts = name.splitn(6, '-');
        let mut part = || parts.next();
        let (farm, identity, machine) = (part()?, part()?, part()?);
        let (boot, key, cluster) = (part()?, part()?, part()?);
        let fits = farm == "farm"
            && hash(identity).is_some()
            && hash(boot.strip_prefix('l')?).is_some()
            && !cluster.is_empty();
        let start = farm.len() + identity.len() + machine.len() + boot.len() + 3;
        fits.then_some(Self {
            start: &name[..start],
            machine: machine_id(machine.strip_prefix('m')?)?,
            key: decimal(key)?,
            cluster,
        })
    }
}

/// Parses 64 bits as 16 hexadecimal digits.
pub(super) fn hash(text: &str) -> Option<u64> {
    let is_hash = text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    u64::from_str_radix(text, 16).ok().filter(|_| is_hash)
}

/// Parses a decimal number without a sign or leading zeros.
pub(super) fn decimal(text: &str) -> Option<u64> {
    text.parse().ok().filter(|n: &u64| n.to_string() == text)
}

/// Parses the number of a machine.
pub(super) fn machine_id(text: &str) -> Option<MachineId> {
    MachineId::new(decimal(text)?.try_into().ok()?)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::fabric::shm::files::Names;

    #[test]
    fn only_exact_names_of_shared_memory_are_parsed() {
        let machine = MachineId::new(7).unwrap();
        let path = Names::new(Path::new("/r"), Path::new("/d"), "c-1").memory(machine, 0xdead, 3);
        let name = path.file_name().unwrap().to_str().unwrap();
        let parsed = MemoryName::parse(name).expect("names of this protocol are parsed");
        assert_eq!(
            (parsed.key, parsed.machine, parsed.cluster),
            (3, machine, "c-1")
        );
        assert!(name.starts_with(parsed.start) && parsed.start.ends_with("-l000000000000dead"));
        let others = [
            "farm-0123456789abcdef-m7-000000000000dead-0-c",
            "farm-0123456789abcdef-m7-l000000000000dead-0-",
            "farm-0123456789abcdef-m7-l000000000000dead-0",
            "farm-0123456789abcdef-m7-l000000000000dead-00-c",
            "farm-0123456789abcdef-m7-l000000000000dead-+1-c",
            "farm-0123456789abcdef-m7-l000000000000DEAD-0-c",
            "farm-0123456789abcdef-m0-l000000000000dead-0-c",
            "farm-0123456789abcde-m7-l000000000000dead-0-c",
            "xfarm-0123456789abcdef-m7-l000000000000dead-0-c",
        ];
        for other in others {
            assert_eq!(MemoryName::parse(other), None, "{other}");
        }
    }
}
