//! Models: the allocator against sets of live objects and runs, and damaged tables.

mod ahead;
mod blocks;
mod reclassify;
mod replicas;
mod slab_model;
mod slabs;
mod table;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

use super::{
    Adoption, AllocError, BlockAllocator, BlockConfig, BlockTable, Slab, choose_region_id,
};
use crate::ids::{MachineId, RegionId, WorkerId};
use crate::mem::Memory;
use crate::region::placement::Placement;

/// Blocks of one page, regions of 16 blocks.
const TINY: BlockConfig = BlockConfig {
    block_bytes: 4096,
    region_bytes: 16 * 4096,
    per_machine_bytes: 4 * 16 * 4096,
    seed: 3,
};

/// Creates a block allocator for machine 1 of 3, whose regions are placed as in production.
fn tiny_machine(config: BlockConfig, seed: u64) -> BlockAllocator {
    let machines: Vec<_> = (1..=3).map(|id| MachineId::new(id).unwrap()).collect();
    let placement = Placement::new(&machines);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut made: Vec<RegionId> = Vec::new();
    BlockAllocator::new(config, move |near| {
        let taken = |id: RegionId| made.contains(&id);
        let id = choose_region_id(&placement, machines[0], near, taken, &mut rng)
            .ok_or_else(|| AllocError::NoRegion("no position is ours".into()))?;
        made.push(id);
        Ok((id, Memory::anonymous(config.region_bytes)))
    })
}

/// Has a machine with this many workers adopt copies of all regions of another one, which it scans slot by slot. `between` is called
/// between two slots with the region and its copy.
fn adopt_copies(
    of: &BlockAllocator,
    workers: u16,
    mut between: impl FnMut(&mut Adoption, (RegionId, Memory)),
) -> (BlockAllocator, Vec<Slab>) {
    let none = |_near| Err(AllocError::NoRegion("no region is made".into()));
    let mut blocks = BlockAllocator::new(TINY, none);
    let owners = (0..workers).filter_map(WorkerId::new);
    let mut slabs: Vec<Slab> = owners
        .map(|owner| Slab::new(owner, blocks.changes()))
        .collect();
    for table in of.tables() {
        let (region, copy) = (table.region(), Memory::anonymous(TINY.region_bytes));
        let mut words = vec![0; TINY.region_bytes / 8];
        table.memory().read_words(0, &mut words);
        copy.write_words(0, &words);
        let mut adoption = Adoption::new(BlockTable::open(copy.clone(), region).unwrap());
        while !adoption.step(1).unwrap() {
            between(&mut adoption, (region, copy.clone()));
        }
        for block in blocks.adopt(adoption, slabs.len()).unwrap() {
            slabs[block.owner().index()].take_adopted(block);
        }
    }
    (blocks, slabs)
}
