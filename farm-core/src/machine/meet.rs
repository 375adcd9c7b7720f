//! How a machine meets the others at its start.

use std::collections::BTreeMap;

use super::MachineError;
use super::parts::{between, export_segment, ring_format};
use crate::config::{Config, MachineConfig};
use crate::fabric::{Begins, Capability, ConnectError, FabricMachine, Patience, PeerOffer, Roster};
use crate::ids::MachineId;
use crate::kept::Kept;
use crate::membership::configuration::{Configuration, Process};
use crate::messaging::{LinkPeer, SegmentLayout};

/// The machines that a machine has connected to.
pub(super) struct Met {
    /// These machines, this one included.
    pub(super) peers: Vec<LinkPeer>,
    /// The segments that this machine exports for them.
    pub(super) segments: BTreeMap<MachineId, Capability>,
    /// Those that ran before, so that this machine joins them.
    pub(super) running: Vec<MachineId>,
}

/// Connects machine `id` to those that it must meet: to all that store memory, those of the `known` configuration if there is one. If it
/// `joins` others, it connects to all further machines, too, that are present. Exports memory for the rings between their workers, and
/// keeps it if logs are `kept`.
pub(super) fn meet(
    config: &Config,
    (id, joins): (MachineId, bool),
    fabric: &mut FabricMachine,
    (known, patience): (Option<&Configuration>, Patience<'_>),
    kept: Option<&dyn Kept>,
) -> Result<Met, MachineError> {
    let exporter = fabric.exporter();
    let mut segments = Vec::with_capacity(config.machines.len());
    let workers = config.machine(id).map_or(0, |own| usize::from(own.workers));
    let machines: Vec<MachineId> = config.machines.iter().map(|machine| machine.id).collect();
    let is_lost = |machine: MachineId| known.is_some_and(|known| !known.stores(machine));
    // A machine that is lost may be joining, too.
    let is_joiner = |machine: &MachineId| {
        config.memory_of(*machine) == 0 || joins && *machine == id || is_lost(*machine)
    };
    let joiners: Vec<MachineId> = machines.iter().copied().filter(is_joiner).collect();
    let is_outsider =
        |one: &MachineId| joins && known.is_some_and(|known| known.running_on(*one).is_none());
    let outsiders: Vec<MachineId> = machines.iter().copied().filter(is_outsider).collect();
    // The others let those that join connect later.
    let joins = joiners.contains(&id);
    let meets = |machine: &&MachineConfig| joins || !joiners.contains(&machine.id);
    for machine in config.machines.iter().filter(meets) {
        let theirs = usize::from(machine.workers);
        let layout = SegmentLayout::of(ring_format(config), (id, workers), (machine.id, theirs));
        let exporter = between(config, &exporter, [id, machine.id]);
        let (memory, capability) = export_segment(config, &exporter, (machine.id, layout), kept)?;
        segments.push((machine.id, theirs, memory, capability));
    }
    let mut offer = |peer: MachineId| {
        segments
            .iter()
            .filter(|segment| segment.0 == peer)
            .map(|segment| segment.3)
            .collect()
    };
    let roster = Roster {
        machines: &machines,
        joiners: &joiners,
        returning: match config.survives_losses() {
            true => &machines,
            false => &[],
        },
        outsiders: &outsiders,
        begins: match known {
            _ if joins => Begins::Joining,
            None => Begins::New,
            Some(known) => Begins::After(known.change),
        },
    };
    let met = fabric.connect(roster, &mut offer, patience)?;
    segments.retain(|(machine, .., capability)| {
        let is_met = met.iter().any(|peer| peer.machine == *machine);
        if !is_met {
            fabric.exporter().withdraw(capability);
        }
        is_met
    });
    let segment_of = |machine: MachineId, met: &[PeerOffer]| {
        let peer = met.iter().find(|peer| peer.machine == machine);
        peer.and_then(|peer| peer.offer.first().copied())
            .ok_or_else(|| {
                let why = "the peer offered no memory segment for rings".into();
                ConnectError::Refused { machine, why }
            })
    };
    let mut peers = Vec::with_capacity(segments.len());
    for (machine, workers, ours, capability) in &segments {
        let theirs = segment_of(*machine, &met)?;
        if let Some(kept) = kept {
            let boot = theirs.boot;
            let machine = *machine;
            kept.connected(Process { machine, boot }, capability);
        }
        if theirs.bytes != ours.len() as u64 && *machine == id {
            return Err(MachineError::NoSuchMachine(id));
        }
        peers.push(LinkPeer {
            machine: *machine,
            workers: *workers,
            ours: ours.clone(),
            theirs,
        });
    }
    let segments = segments.iter();
    let running = met.iter().filter(|peer| peer.runs);
    Ok(Met {
        peers,
        segments: segments.map(|segment| (segment.0, segment.3)).collect(),
        running: running.map(|peer| peer.machine).collect(),
    })
}
