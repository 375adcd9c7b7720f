//! The workers that own shards.
//!
//! A shard is owned by a worker of the primary of the region in which its buckets are: the one whose number is the shard's number
//! modulo the number of workers. The region map says which machine is the primary. Hashing only *proposes* the machines on which
//! the shards of a new table are made.

use farm_core::ids::{Address, MachineId, RegionId, WorkerId, WorkerRef};
use farm_core::limits::VIRTUAL_RINGS;
use farm_core::membership::configuration::Configuration;
use farm_core::region::placement::Placement;
use farm_core::worker::Worker;
use xxhash_rust::xxh3::xxh3_64;

use crate::state::kv;

/// Returns the worker that owns a shard, by the address of its first bucket.
pub(crate) fn owner_of(worker: &Worker, first: Address, shard: u32) -> WorkerRef {
    let machine = worker.machine_of(first.region());
    let mut machines = worker.machines().iter();
    let workers = machines.find(|one| one.0 == machine).map_or(1, |one| one.1);
    owner_on(machine, workers, shard)
}

/// Returns the worker of a machine that owns a shard there.
fn owner_on(machine: MachineId, workers: usize, shard: u32) -> WorkerRef {
    let worker = WorkerId::new((shard as usize % workers) as u16);
    let worker = worker.expect("a machine has no more workers than there are worker ids");
    WorkerRef::new(machine, worker)
}

/// Looks up the owner of a shard of an open table again, and returns it.
pub(crate) fn look_up_again(worker: &mut Worker, table: u16, shard: u32) -> WorkerRef {
    let first = kv(worker).tables[&table].shards[shard as usize].first;
    let owner = owner_of(worker, first, shard);
    if let Some(open) = kv(worker).tables.get_mut(&table) {
        open.shards[shard as usize].owner = owner;
    }
    owner
}

/// Looks up the owners of all shards of all open tables, because a worker applies another configuration. Afterwards none of them is a
/// machine that was lost: another process of it may be connected before it has joined, and knows no table.
pub(crate) fn apply(worker: &mut Worker, _: &Configuration) {
    let tables: Vec<u16> = kv(worker).tables.all().map(|one| one.spec.id).collect();
    for table in tables {
        look_up_all(worker, table);
    }
}

/// Looks up the owners of all shards of an open table again.
pub(crate) fn look_up_all(worker: &mut Worker, table: u16) {
    let shards = kv(worker).tables.get(&table).map_or(0, |t| t.spec.shards);
    for shard in 0..shards {
        look_up_again(worker, table, shard);
    }
}

/// Returns the worker that should make, and then own, each shard of a new table. Consistent hashing orders the machines that store
/// regions for each shard. A machine gets at most its share of the shards, rounded up, in proportion to its number of workers. If
/// possible, no worker owns more than its share.
pub(crate) fn propose(
    placement: &Placement,
    machines: &[(MachineId, usize)],
    shards: u32,
) -> Vec<WorkerRef> {
    let machines = machines.iter().copied();
    let storing = machines.filter(|(machine, _)| placement.contains(*machine));
    let machines: Vec<(MachineId, usize)> = storing.collect();
    let workers: usize = machines.iter().map(|machine| machine.1).sum();
    let most = |of: usize| (shards as usize * of).div_ceil(workers);
    // The number of shards of each worker of each machine.
    let mut taken: Vec<Vec<usize>> = machines.iter().map(|one| vec![0; one.1]).collect();
    let mut of_machine: Vec<usize> = vec![0; machines.len()];
    (0..shards)
        .map(|shard| {
            let hash = xxh3_64(&shard.to_le_bytes());
            let position = (hash >> 32) as u32 & RegionId::MAX_POSITION;
            let ring = (hash % u64::from(VIRTUAL_RINGS)) as u32;
            let point = RegionId::new(ring, position.max(1)).expect(
                "the numbers of the virtual ring and of the position are valid in a region id",
            );
            let with_room = || {
                let replicas = placement.replicas(point, placement.machines());
                replicas
                    .filter_map(|machine| machines.iter().position(|entry| entry.0 == machine))
                    .filter(|index| of_machine[*index] < most(machines[*index].1))
            };
            let even = |index: &usize| taken[*index][shard as usize % machines[*index].1] < most(1);
            let index = with_room().find(even).or_else(|| with_room().next());
            let index = index.expect("the machines' parts add up to at least the number of shards");
            let (machine, workers) = machines[index];
            taken[index][shard as usize % workers] += 1;
            of_machine[index] += 1;
            owner_on(machine, workers, shard)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn machine(n: u16) -> MachineId {
        MachineId::new(n).unwrap()
    }

    fn proposed(machines: &[(MachineId, usize)], shards: u32) -> BTreeMap<WorkerRef, usize> {
        let ids: Vec<MachineId> = machines.iter().map(|one| one.0).collect();
        let mut counts = BTreeMap::new();
        for owner in propose(&Placement::new(&ids), machines, shards) {
            *counts.entry(owner).or_default() += 1;
        }
        counts
    }

    #[test]
    fn shards_are_spread_evenly_over_machines_and_workers() {
        for (workers, per_worker) in [(1, 4), (2, 2), (3, 5), (8, 1)] {
            let machines = [1, 2, 3].map(|n| (machine(n), workers));
            let shards = 3 * workers * per_worker;
            let counts = proposed(&machines, shards as u32);
            assert_eq!(counts.len(), 3 * workers);
            let most = counts.values().max().copied().unwrap();
            assert!(most <= per_worker + 1, "{counts:?}");
        }
    }

    #[test]
    fn a_machine_gets_its_share_by_its_number_of_workers() {
        let machines = [(machine(1), 1), (machine(2), 3)];
        for shards in 1..40 {
            let counts = proposed(&machines, shards);
            let on = |id| {
                let on = counts
                    .iter()
                    .filter(|(owner, _)| owner.machine == machine(id));
                on.map(|(_, count)| count).sum::<usize>()
            };
            assert!(on(1) <= (shards as usize).div_ceil(4), "{counts:?}");
            assert!(on(2) <= (shards as usize * 3).div_ceil(4), "{counts:?}");
            assert_eq!(on(1) + on(2), shards as usize);
        }
    }
}
