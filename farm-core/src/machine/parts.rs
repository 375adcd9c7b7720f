//! The parts of a machine, made as its configuration says.

use std::sync::Arc;

use super::MachineError;
use super::pages::Pages;
use super::spare::Spare;
use crate::alloc::BlockConfig;
use crate::config::{Config, MachineConfig};
use crate::fabric::{ArenaConfig, Capability, Exporter};
use crate::ids::MachineId;
use crate::kept::Kept;
use crate::limits::MAX_OBJECT_BYTES;
use crate::mem::Memory;
use crate::messaging::{RingFormat, SegmentLayout};
use crate::region::backups::Backups;
use crate::region::placement::Placement;
use crate::region::store::{Replication, Store};
use crate::ring::RecordIntegrity;

/// Maximum number of bytes of a worker's arena for the reads of one layer. The arena has room for at least 4 such
/// reads, even if they take more.
const LARGE_READS_BYTES: usize = 8 << 20;

/// Returns the exporter of rings and logs between these machines. A program without memory joins at any time and soon, so its rings and
/// logs do not wait for huge pages.
pub(super) fn between(config: &Config, exporter: &Exporter, machines: [MachineId; 2]) -> Exporter {
    let exporter = exporter.clone();
    match machines.iter().any(|one| config.memory_of(*one) == 0) {
        true => exporter.with_small_pages(),
        false => exporter,
    }
}

/// Exports memory for rings and logs that a peer writes, or those of the own workers, and keeps it if logs are kept.
pub(super) fn export_segment(
    config: &Config,
    exporter: &Exporter,
    (peer, layout): (MachineId, SegmentLayout),
    kept: Option<&dyn Kept>,
) -> Result<(Memory, Capability), MachineError> {
    let exported = exporter.export(layout.bytes(), true);
    let (memory, capability) = exported.map_err(MachineError::Memory)?;
    let checked = Pages::of(config).check_segment(&memory);
    let checked = checked.map_err(|error| MachineError::Memory(error.into()));
    let is_kept = checked.and_then(|()| match kept {
        Some(kept) => Ok(kept.keep_logs(peer, &capability)?),
        None => Ok(()),
    });
    is_kept.inspect_err(|_| exporter.withdraw(&capability))?;
    Ok((memory, capability))
}

pub(super) fn ring_format(config: &Config) -> RingFormat {
    RingFormat {
        ring_bytes: config.rings.ring_bytes as usize,
        log_bytes: config.rings.log_bytes as usize,
        integrity: RecordIntegrity::by_checksum(config.rings.checksums),
        own_logs: config.is_logged(),
    }
}

/// Returns the maximum number of reads that a worker may have in flight: the reads of its operations, and some reads of
/// headers.
pub(super) fn reads_in_flight(config: &Config) -> usize {
    config.worker.operations_in_flight as usize + 64
}

/// Returns the configuration of an arena with slots for `reads` reads of objects, and with slots for the reads of the
/// configured layers. If the slots for a layer are large, there are fewer of them.
pub(super) fn arena(config: &Config, reads: usize) -> ArenaConfig {
    let arena = ArenaConfig::for_reads(reads, MAX_OBJECT_BYTES as usize);
    config.read_bytes().fold(arena, |arena, bytes| {
        arena.with(bytes, reads.min((LARGE_READS_BYTES / bytes).max(4)))
    })
}

/// Returns the allocator of the memory of a machine's regions.
pub(super) fn spare(
    config: &Config,
    id: MachineId,
    exporter: &Exporter,
    kept: Option<Arc<dyn Kept>>,
) -> Spare {
    let (exporter, pages) = (exporter.clone(), Pages::of(config));
    let allocate = move |bytes| {
        let (memory, capability) = exporter.export(bytes, false)?;
        let page_bytes = pages.check(&memory)?;
        tracing::debug!(bytes, page_bytes, "allocated a region");
        Ok((memory, capability))
    };
    let keep = move |region, memory: &Capability| match &kept {
        Some(kept) => Ok(kept.keep_region(region, memory)?),
        None => Ok(()),
    };
    Spare::new(format!("{id}.region"), allocate, keep)
}

/// Makes the store of a machine. `seed` is that of the [configuration](crate::membership::configuration::Configuration).
pub(super) fn make_store(config: &Config, id: MachineId, seed: u64, memory: Spare) -> Store {
    let storing = config.storing_machines();
    let storing: Vec<MachineId> = storing.map(|machine| machine.id).collect();
    let domain = |machine: &MachineConfig| (machine.id, config.domain_of(machine));
    let replication = Replication {
        replicas: config.replicas(),
        logged: config.is_logged(),
        domains: config.machines.iter().map(domain).collect(),
    };
    let copies = memory.clone();
    let copy = move |region, bytes| copies.allocate_now(region, bytes);
    let blocks = BlockConfig {
        block_bytes: config.memory.block_bytes as usize,
        region_bytes: config.memory.region_bytes as usize,
        per_machine_bytes: config.memory_of(id),
        seed,
    };
    Store::new(
        blocks,
        id,
        Placement::new(&storing),
        u64::from(id.get()),
        memory,
    )
    .with_replication(replication, Backups::new(Arc::new(copy), true))
}
