//! Which memory with logs is needed.

use crate::ids::MachineId;
use crate::membership::configuration::{Configuration, Process};

/// The memory with logs that one process of a machine has exported, by the keys of its capabilities.
#[derive(Clone, Debug, Default)]
pub struct Segments(Vec<Segment>);

#[derive(Clone, Debug)]
struct Segment {
    peer: MachineId,
    key: u64,
    /// The start of the peer that writes the logs; `None` before it is connected.
    boot: Option<u64>,
}

impl Segments {
    /// Adds memory for the logs of a peer. Returns memory that was offered to the peer before, to which it has not connected: it is
    /// not needed.
    pub fn add(&mut self, peer: MachineId, key: u64) -> Option<(MachineId, u64)> {
        let unused = |segment: &Segment| segment.peer == peer && segment.boot.is_none();
        let before = self.0.iter().position(unused);
        let before = before.map(|at| self.0.remove(at));
        let boot = None;
        self.0.push(Segment { peer, key, boot });
        before.map(|segment| (segment.peer, segment.key))
    }

    /// Handles that a process is connected, whose workers write the logs in the memory with this key.
    pub fn connected(&mut self, process: Process, key: u64) {
        let of = |segment: &&mut Segment| (segment.peer, segment.key) == (process.machine, key);
        if let Some(segment) = self.0.iter_mut().find(of) {
            segment.boot = Some(process.boot);
        }
    }

    /// Handles that a process has left in order. Returns the keys of the memory for its logs, which are not needed any more.
    pub fn left(&mut self, process: Process) -> Vec<u64> {
        let is_its = |segment: &mut Segment| {
            (segment.peer, segment.boot) == (process.machine, Some(process.boot))
        };
        let its = self.0.extract_if(.., is_its);
        its.map(|segment| segment.key).collect()
    }

    /// All machines had recovered before this configuration. Removes the memory for processes that its members have followed: their logs
    /// were drained before. Returns their machines and keys.
    pub fn take_drained(&mut self, configuration: &Configuration) -> Vec<(MachineId, u64)> {
        let mut drained = Vec::new();
        for member in configuration.running() {
            let is_of = |segment: &Segment| {
                segment.peer == member.machine && segment.boot == Some(member.boot)
            };
            let Some(current) = self.0.iter().position(is_of) else {
                continue;
            };
            let mut at = 0;
            self.0.retain(|segment| {
                let stays = at >= current || segment.peer != member.machine;
                if !stays {
                    drained.push((segment.peer, segment.key));
                }
                at += 1;
                stays
            });
        }
        drained
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::configuration::testing::{configuration, machine};

    #[test]
    fn logs_are_needed_until_a_later_process_of_their_writer_is_a_member() {
        let mut known = configuration("test", &[1, 2, 3]);
        let boot = known.members[1].boot;
        let process = |id, boot| Process {
            machine: machine(id),
            boot,
        };
        let mut segments = Segments::default();
        assert_eq!(segments.add(machine(2), 1), None);
        segments.connected(process(2, boot), 1);
        assert_eq!(segments.add(machine(3), 2), None);
        assert!(segments.take_drained(&known).is_empty());
        // A process that ended before it was connected, and the next one.
        assert_eq!(segments.add(machine(2), 3), None);
        assert_eq!(segments.add(machine(2), 4), Some((machine(2), 3)));
        segments.connected(process(2, boot + 1), 4);
        assert!(segments.take_drained(&known).is_empty());
        known.members[1].boot = boot + 1;
        // One more has connected, and is no member.
        assert_eq!(segments.add(machine(2), 5), None);
        segments.connected(process(2, boot + 2), 5);
        assert_eq!(segments.take_drained(&known), [(machine(2), 1)]);
        assert!(segments.take_drained(&known).is_empty());
        assert!(segments.left(process(2, boot)).is_empty());
        assert_eq!(segments.left(process(2, boot + 2)), [5]);
    }
}
