//! The resources of a machine of a configuration: memory by purpose, and the number of rings that a
//! worker polls.

use super::parts::{arena, ring_format};
use crate::config::Config;
use crate::ids::MachineId;
use crate::messaging::SegmentLayout;

/// Nanoseconds that each polled ring or log adds to a worker's turn without work. Measured on a
/// Sapphire Rapids: 62 ns at 3 rings and 914 ns at 95.
const POLL_NANOS: f64 = 9.3;
/// Nanoseconds of an idle turn without rings.
const TURN_NANOS: f64 = 35.0;

/// The resources that one machine of a configuration takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizing {
    /// Bytes of the message rings in this machine's memory, and of the lines to which peers report
    /// heads.
    pub ring_bytes: u64,
    /// Bytes of the logs in this machine's memory.
    pub log_bytes: u64,
    /// Bytes of the workers' arenas.
    pub arena_bytes: u64,
    /// Maximum number of bytes of regions, and of the copies of other machines' regions that belong to this machine if they are
    /// spread evenly.
    pub region_bytes: u64,
    /// Number of rings and logs that the worker with the most of them polls in every turn.
    pub polled: u64,
}

impl Sizing {
    /// Returns the resources of machine `id`, or `None` if the configuration has no such machine.
    pub fn of(config: &Config, id: MachineId) -> Option<Self> {
        let format = ring_format(config);
        let own = usize::from(config.machine(id)?.workers);
        let within = SegmentLayout::within(format, own).bytes() as u64;
        let own_logs = if format.own_logs { own } else { 0 };
        let (mut segments, mut log_bytes) = (within, (own_logs * format.log_bytes) as u64);
        // A worker polls one ring of each worker of its own machine.
        let mut polled = own as u64;
        for peer in config.machines.iter().filter(|peer| peer.id != id) {
            let theirs = usize::from(peer.workers);
            segments += SegmentLayout::between(format, own, theirs).bytes() as u64;
            log_bytes += (theirs * format.log_bytes) as u64;
            polled += 2 * theirs.div_ceil(own) as u64;
        }
        let own_regions = config.memory_of(id);
        let copies = (config.replicas() as u64 - 1).saturating_mul(config.total_memory());
        let copies = match own_regions {
            0 => 0,
            _ => copies / config.storing_machines().count() as u64,
        };
        let arena = arena(config, super::reads_in_flight(config));
        Some(Self {
            ring_bytes: segments - log_bytes,
            log_bytes,
            arena_bytes: arena.bytes() as u64 * own as u64,
            region_bytes: own_regions + copies,
            polled,
        })
    }

    /// Returns the sum of all bytes.
    pub fn bytes(&self) -> u64 {
        self.ring_bytes + self.log_bytes + self.arena_bytes + self.region_bytes
    }

    /// Returns the approximate duration of a worker's turn that finds no work, in microseconds.
    pub fn idle_turn_us(&self) -> f64 {
        (TURN_NANOS + POLL_NANOS * self.polled as f64) / 1000.0
    }
}
