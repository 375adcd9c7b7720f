//! The comparison of the replicas of all regions, by digests that the machines compute.

use std::collections::BTreeMap;

use farm::status::replicas::{
    RegionDigest, RegionReplicas, ReplicaState, SlotPage, region_digest, slot_page,
};
use farm_core::alloc::replicas::{
    BlockDigest, SlotDigest, different_blocks, different_parts, different_slots,
};
use farm_core::config::Config;
use farm_core::ids::{Address, MachineId, RegionId};
use serde::Serialize;

/// Maximum number of differences that are reported.
const MOST_DIFFERENCES: usize = 20;

/// The result of a comparison.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// Number of regions.
    pub(super) regions: usize,
    /// What each machine stores, in the order of the configuration.
    pub(super) machines: Vec<MachineTotals>,
    /// The machines that should store regions, and are lost.
    pub(super) lost: Vec<String>,
    /// Number of blocks and replicas that differ from their primaries.
    pub(super) different: u64,
    /// The first differences.
    pub(super) differences: Vec<Difference>,
}

/// What a machine stores.
#[derive(Debug, Serialize)]
pub(super) struct MachineTotals {
    /// The machine.
    pub(super) machine: String,
    /// Number of replicas that it stores.
    pub(super) replicas: u64,
    /// Number of these of which it is the primary.
    pub(super) primaries: u64,
    /// Number of blocks and runs with objects in these replicas.
    pub(super) blocks: u64,
    /// Number of allocated objects in these replicas.
    pub(super) objects: u64,
    /// Number of blocks and replicas that differ from their primaries.
    pub(super) different: u64,
}

/// A difference between a replica and its primary.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Difference {
    /// The machine whose replica differs from the primary's, or whose replica is damaged or missing.
    pub(super) machine: String,
    /// The primary of the region.
    pub(super) primary: String,
    /// The region.
    pub(super) region: String,
    /// The block, if the difference is in one.
    pub(super) block: Option<u32>,
    /// The object, if the difference is in one.
    pub(super) address: Option<String>,
    /// What differs: `replica`, `block`, `allocated`, `incarnation`, `version` or `bytes`.
    pub(super) differs: Vec<String>,
    /// What the machine has.
    pub(super) has: String,
    /// What the primary has.
    pub(super) primary_has: String,
}

impl Comparison {
    /// Compares the replicas of all regions that the machines know, while nothing changes them.
    ///
    /// # Errors
    /// If a machine does not answer, or one that stores a region is not in the configuration.
    pub(super) fn of(config: &Config, states: &[ReplicaState]) -> Result<Self, String> {
        let Some(regions) = states.first().map(|state| &state.regions) else {
            return Ok(Self::default());
        };
        let digests = all_digests(config, states)?;
        let mut compared = Self {
            regions: regions.len(),
            machines: totals(states, &digests),
            lost: lost(config, states),
            ..Self::default()
        };
        for region in regions {
            compared.add_region(config, region, &digests)?;
        }
        Ok(compared)
    }

    /// Returns whether all replicas are equal.
    pub(super) fn is_equal(&self) -> bool {
        self.different == 0
    }

    fn add_region(
        &mut self,
        config: &Config,
        region: &RegionReplicas,
        digests: &Digests,
    ) -> Result<(), String> {
        let RegionReplicas { region, machines } = region;
        let Some((primary, backups)) = machines.split_first() else {
            return Ok(());
        };
        let digest = |machine: MachineId| match digests.get(&(*region, machine)) {
            Some(digest) => Ok(digest),
            None => Err(format!(
                "machine {machine} stores a replica of region {region}, but is not a machine of the configuration that answers; use \
                 the configuration that the cluster runs with"
            )),
        };
        let mut pair = Pair {
            region: *region,
            primary: *primary,
            machine: *primary,
        };
        let primary_blocks = match digest(*primary)? {
            RegionDigest::Blocks(blocks) => Some(blocks),
            bad => {
                self.add(pair.of_replica(bad));
                None
            }
        };
        for backup in backups {
            pair.machine = *backup;
            match (digest(*backup)?, primary_blocks) {
                (RegionDigest::Blocks(blocks), Some(primary_blocks)) => {
                    self.add_pair(config, pair, primary_blocks, blocks)?;
                }
                (RegionDigest::Blocks(_), None) => {}
                (bad, _) => self.add(pair.of_replica(bad)),
            }
        }
        Ok(())
    }

    /// Compares two replicas, block by block.
    fn add_pair(
        &mut self,
        config: &Config,
        pair: Pair,
        primary: &[BlockDigest],
        backup: &[BlockDigest],
    ) -> Result<(), String> {
        for block in different_blocks(primary, backup) {
            let at = |digests: &[BlockDigest]| {
                let mut digests = digests.iter();
                digests.find(|digest| digest.block == block).copied()
            };
            let blocks = [at(primary), at(backup)];
            let mut found = Vec::new();
            let room = MOST_DIFFERENCES.saturating_sub(self.differences.len());
            if let [Some(one), Some(other)] = &blocks
                && one.has_shape_of(other)
            {
                found = pair.slots_of(config, block, room)?;
            }
            if found.is_empty() {
                found.push(pair.of_block(block, blocks));
            }
            self.count(pair.machine);
            found.truncate(room);
            self.differences.append(&mut found);
        }
        Ok(())
    }

    fn add(&mut self, difference: (MachineId, Difference)) {
        self.count(difference.0);
        if self.differences.len() < MOST_DIFFERENCES {
            self.differences.push(difference.1);
        }
    }

    fn count(&mut self, machine: MachineId) {
        self.different += 1;
        let name = machine.to_string();
        let totals = self.machines.iter_mut().find(|one| one.machine == name);
        if let Some(totals) = totals {
            totals.different += 1;
        }
    }
}

/// The digests of all replicas.
type Digests = BTreeMap<(RegionId, MachineId), RegionDigest>;

/// Reads the digests of all replicas, from all machines at the same time.
fn all_digests(config: &Config, states: &[ReplicaState]) -> Result<Digests, String> {
    let of_machine = |state: &ReplicaState| -> Result<Digests, String> {
        let machine = state.machine;
        let stored = state.regions.iter();
        let stored = stored.filter(|region| region.machines.contains(&machine));
        let digest = |region: RegionId| {
            let digest = answered(machine, region_digest(config, machine, region))?;
            Ok(((region, machine), digest))
        };
        stored.map(|region| digest(region.region)).collect()
    };
    std::thread::scope(|scope| {
        let of_machine = &of_machine;
        let threads = states.iter();
        let threads = threads.map(|state| scope.spawn(move || of_machine(state)));
        let threads: Vec<_> = threads.collect();
        let mut digests = Digests::new();
        for thread in threads {
            let of_machine = thread
                .join()
                .expect("a thread that reads digests does not panic");
            digests.append(&mut of_machine?);
        }
        Ok(digests)
    })
}

fn answered<T>(machine: MachineId, answer: farm::Result<Option<T>>) -> Result<T, String> {
    let answer = answer.map_err(|error| error.to_string())?;
    answer.ok_or_else(|| format!("machine {machine} has stopped"))
}

fn totals(states: &[ReplicaState], digests: &Digests) -> Vec<MachineTotals> {
    let of_machine = |state: &ReplicaState| {
        let machine = state.machine;
        let own = digests.iter().filter(|((_, at), _)| *at == machine);
        let blocks = own.filter_map(|(_, digest)| match digest {
            RegionDigest::Blocks(blocks) => Some(blocks),
            RegionDigest::Damaged(_) | RegionDigest::Missing => None,
        });
        let blocks: Vec<_> = blocks.collect();
        let used = blocks.iter().flat_map(|blocks| blocks.iter());
        let used: Vec<_> = used.filter_map(|block| block.used).collect();
        let primaries = state.regions.iter();
        let primaries = primaries.filter(|region| region.machines.first() == Some(&machine));
        MachineTotals {
            machine: machine.to_string(),
            replicas: blocks.len() as u64,
            primaries: primaries.count() as u64,
            blocks: used.len() as u64,
            objects: used.iter().map(|used| used.objects).sum(),
            different: 0,
        }
    };
    states.iter().map(of_machine).collect()
}

fn lost(config: &Config, states: &[ReplicaState]) -> Vec<String> {
    let storing = config.storing_machines().map(|machine| machine.id);
    let answers = |machine: &MachineId| states.iter().any(|state| state.machine == *machine);
    let lost = storing.filter(|machine| !answers(machine));
    lost.map(|machine| machine.to_string()).collect()
}

/// A replica, and its primary.
#[derive(Clone, Copy)]
struct Pair {
    region: RegionId,
    primary: MachineId,
    machine: MachineId,
}

impl Pair {
    /// Returns the difference of a replica that cannot be compared.
    fn of_replica(self, digest: &RegionDigest) -> (MachineId, Difference) {
        let has = match digest {
            RegionDigest::Damaged(why) => why.clone(),
            RegionDigest::Missing | RegionDigest::Blocks(_) => "it has no memory".to_owned(),
        };
        let mut difference = self.difference(None, None);
        difference.differs.push("replica".to_owned());
        difference.has = has;
        (self.machine, difference)
    }

    fn of_block(self, block: u32, [primary, backup]: [Option<BlockDigest>; 2]) -> Difference {
        Difference {
            differs: vec!["block".to_owned()],
            has: BlockDigest::text(backup.as_ref()),
            primary_has: BlockDigest::text(primary.as_ref()),
            ..self.difference(Some(block), None)
        }
    }

    fn of_slot(
        self,
        block: u32,
        (offset, [primary, backup]): (u32, [Option<&SlotDigest>; 2]),
    ) -> Difference {
        let parts = different_parts(primary, backup);
        Difference {
            differs: parts.iter().map(ToString::to_string).collect(),
            has: SlotDigest::text(backup),
            primary_has: SlotDigest::text(primary),
            ..self.difference(Some(block), Some(offset))
        }
    }

    fn difference(self, block: Option<u32>, offset: Option<u32>) -> Difference {
        let address = offset.map(|offset| Address::new(self.region, offset));
        Difference {
            machine: self.machine.to_string(),
            primary: self.primary.to_string(),
            region: self.region.to_string(),
            block,
            address: address.map(|address| address.to_string()),
            differs: Vec::new(),
            has: String::new(),
            primary_has: String::new(),
        }
    }

    /// Returns the first objects of a block at which the replicas differ, at most this many.
    fn slots_of(self, config: &Config, block: u32, most: usize) -> Result<Vec<Difference>, String> {
        let mut found = Vec::new();
        let mut from = 0;
        while found.len() < most {
            let page = |machine| -> Result<SlotPage, String> {
                answered(
                    machine,
                    slot_page(config, machine, (self.region, block), from),
                )
            };
            let (primary, backup) = (page(self.primary)?, page(self.machine)?);
            let slots = different_slots(&primary.slots, &backup.slots).into_iter();
            found.extend(slots.map(|slot| self.of_slot(block, slot)));
            match (primary.next, backup.next) {
                (Some(next), Some(other)) if next == other && next > from => from = next,
                _ => break,
            }
        }
        found.truncate(most);
        Ok(found)
    }
}
