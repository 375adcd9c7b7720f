//! Where regions are: the replicas of every region of the cluster, as the configuration records them
//! ([`crate::membership::configuration`]). Shared by the workers of a machine.
//!
//! Hashing only proposes the machines of a new region ([`super::placement`]). This map is the one way to find the machines of
//! a region that exists. A region is in the map of every machine before any commit with an object in it is reported, so an
//! address in a region that the map does not know is the address of no object.
//!
//! The map also has the address of the catalog, the object from which tables are found, once the configuration names one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;

use crate::alloc::ring_distance;
use crate::ids::{Address, MachineId, RegionId};
use crate::limits::MAX_REPLICAS;
use crate::membership::configuration::RegionReplicas;
use crate::time::Nanos;

/// The machines that store a region, the primary first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    machines: [MachineId; MAX_REPLICAS],
    count: u8,
}

impl Replicas {
    /// Returns these machines, the primary first; `None` for an empty list, one of more than [`MAX_REPLICAS`], or one that names a
    /// machine twice.
    pub fn new(machines: impl IntoIterator<Item = MachineId>) -> Option<Self> {
        let mut machines = machines.into_iter();
        let primary = machines.next()?;
        let mut replicas = Self::one(primary);
        for machine in machines {
            if replicas.all().contains(&machine) {
                return None;
            }
            *replicas.machines.get_mut(usize::from(replicas.count))? = machine;
            replicas.count += 1;
        }
        Some(replicas)
    }

    /// Returns a machine without backups.
    pub fn one(primary: MachineId) -> Self {
        Self {
            machines: [primary; MAX_REPLICAS],
            count: 1,
        }
    }

    /// Returns a region of a configuration and its machines.
    pub fn recorded(region: &RegionReplicas) -> Option<(RegionId, Self)> {
        Self::new(region.machines()).map(|replicas| (region.region, replicas))
    }

    /// Returns the primary.
    #[inline]
    pub fn primary(&self) -> MachineId {
        self.machines[0]
    }

    /// Returns the backups.
    #[inline]
    pub fn backups(&self) -> &[MachineId] {
        &self.machines[1..usize::from(self.count)]
    }

    /// Returns all machines, the primary first.
    pub fn all(&self) -> &[MachineId] {
        &self.machines[..usize::from(self.count)]
    }
}

/// A region that this machine has made, and that not all machines know yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unrecorded {
    /// It is being recorded.
    UnderWay,
    /// It could not be recorded, for this reason, at this time. A commit that needs it later begins again.
    Failed(String, Nanos),
}

#[derive(Debug, Default)]
struct Own {
    unrecorded: BTreeMap<RegionId, Unrecorded>,
    /// Regions whose recording no worker has begun.
    new: Vec<RegionId>,
}

/// The regions of the cluster, and those that this machine has made. See the [module](self).
#[derive(Debug, Default)]
pub struct RegionMap {
    /// Replaced as a whole by every change, which is rare, so that readers take no lock.
    recorded: ArcSwap<BTreeMap<RegionId, Replicas>>,
    own: Mutex<Own>,
    /// Length of `own.unrecorded`.
    unrecorded: AtomicUsize,
    /// Whether regions may be missing that were recorded before this machine joined.
    incomplete: AtomicBool,
    /// The bits of the catalog's address; null until this machine knows it.
    catalog: AtomicU64,
}

impl RegionMap {
    /// Returns whether every region is in the map that was recorded before now. It is not while the machine joins a cluster.
    pub fn is_complete(&self) -> bool {
        !self.incomplete.load(Ordering::Acquire)
    }

    /// Records that regions may be missing, because this machine joins a cluster.
    pub fn begin_joining(&self) {
        self.incomplete.store(true, Ordering::Release);
    }

    /// Records that all regions are in the map.
    pub(crate) fn complete(&self) {
        self.incomplete.store(false, Ordering::Release);
    }

    /// Returns the replicas of a region, if it is recorded.
    #[inline]
    pub fn lookup(&self, region: RegionId) -> Option<Replicas> {
        self.recorded.load().get(&region).copied()
    }

    /// Returns all recorded regions.
    pub fn all(&self) -> Vec<(RegionId, Replicas)> {
        let recorded = self.recorded.load();
        let all = recorded
            .iter()
            .map(|(region, replicas)| (*region, *replicas));
        let mut all: Vec<_> = all.collect();
        all.sort_unstable_by_key(|one| one.0);
        all
    }

    /// Returns the replicas of the recorded region of `primary` that is closest to `region` on its virtual ring.
    pub(crate) fn closest_of_group(
        &self,
        region: RegionId,
        primary: MachineId,
    ) -> Option<Replicas> {
        let recorded = self.recorded.load();
        let mates = recorded
            .iter()
            .filter(|(_, replicas)| replicas.primary() == primary);
        let distances =
            mates.filter_map(|(mate, replicas)| Some((ring_distance(region, *mate)?, *replicas)));
        let closest = distances.min_by_key(|(distance, _)| *distance);
        closest.map(|(_, replicas)| replicas)
    }

    /// Records regions that the configuration has. Other machines may not know them yet.
    pub(crate) fn record(&self, regions: &[(RegionId, Replicas)]) {
        self.recorded.rcu(|before| {
            let mut after = BTreeMap::clone(before);
            after.extend(regions.iter().copied());
            after
        });
    }

    /// Replaces all regions by those of another configuration. Regions of this machine that the
    /// configuration has are recorded.
    pub(crate) fn replace(&self, regions: BTreeMap<RegionId, Replicas>) {
        let mut own = self.own();
        own.unrecorded
            .retain(|region, _| !regions.contains_key(region));
        own.new.retain(|region| !regions.contains_key(region));
        self.count(&own);
        self.recorded.store(Arc::new(regions));
    }

    /// Returns the address of the catalog, if this machine knows it.
    #[inline]
    pub fn catalog(&self) -> Option<Address> {
        let address = Address::from_bits(self.catalog.load(Ordering::Acquire));
        address.filter(|address| !address.is_null())
    }

    /// Records the catalog that the configuration names.
    pub(crate) fn set_catalog(&self, catalog: Address) {
        self.catalog.store(catalog.to_bits(), Ordering::Release);
    }

    /// Records that all machines know a region of this machine.
    pub(crate) fn confirm(&self, region: RegionId) {
        let mut own = self.own();
        own.unrecorded.remove(&region);
        self.count(&own);
    }

    /// Adds a region that this machine has made.
    pub(crate) fn add_new(&self, region: RegionId) {
        let mut own = self.own();
        own.unrecorded.insert(region, Unrecorded::UnderWay);
        own.new.push(region);
        self.count(&own);
    }

    /// Returns whether a region with this id exists or is being recorded.
    pub(crate) fn contains(&self, region: RegionId) -> bool {
        self.lookup(region).is_some() || self.own().unrecorded.contains_key(&region)
    }

    /// Takes a region whose recording must be begun by the caller.
    pub(crate) fn take_new(&self) -> Option<RegionId> {
        match self.has_unrecorded() {
            true => self.own().new.pop(),
            false => None,
        }
    }

    /// Records that a region cannot be recorded now.
    pub(crate) fn fail(&self, region: RegionId, why: String, now: Nanos) {
        if let Some(state) = self.own().unrecorded.get_mut(&region) {
            *state = Unrecorded::Failed(why, now);
        }
    }

    /// Lets a region that could not be recorded be recorded again: the next [`RegionMap::take_new`] returns it.
    pub(crate) fn begin_again(&self, region: RegionId) {
        let mut own = self.own();
        if let Some(state @ Unrecorded::Failed(..)) = own.unrecorded.get_mut(&region) {
            *state = Unrecorded::UnderWay;
            own.new.push(region);
        }
    }

    /// Returns whether this machine has made regions that not all machines know.
    #[inline]
    pub fn has_unrecorded(&self) -> bool {
        self.unrecorded.load(Ordering::Acquire) > 0
    }

    /// Returns whether regions that this machine has made are being recorded.
    pub fn is_recording(&self) -> bool {
        let under_way = |state: &Unrecorded| *state == Unrecorded::UnderWay;
        self.has_unrecorded() && self.own().unrecorded.values().any(under_way)
    }

    /// Returns how far the recording of a region that this machine has made is; `None` if there is no such region, or all
    /// machines know it.
    pub fn unrecorded(&self, region: RegionId) -> Option<Unrecorded> {
        match self.has_unrecorded() {
            true => self.own().unrecorded.get(&region).cloned(),
            false => None,
        }
    }

    fn count(&self, own: &Own) {
        self.unrecorded
            .store(own.unrecorded.len(), Ordering::Release);
    }

    fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(id: u16) -> MachineId {
        MachineId::new(id).unwrap()
    }

    fn region(position: u32) -> RegionId {
        RegionId::new(3, position).unwrap()
    }

    #[test]
    fn replicas_have_a_primary_and_at_most_four_backups() {
        let of = |ids: &[u16]| Replicas::new(ids.iter().map(|id| machine(*id)));
        assert_eq!(of(&[]), None);
        let three = of(&[3, 1, 2]).unwrap();
        assert_eq!(three.primary(), machine(3));
        assert_eq!(three.backups(), [machine(1), machine(2)]);
        assert_eq!(three.all().len(), 3);
        assert_eq!(of(&[7]), Some(Replicas::one(machine(7))));
        assert!(of(&[1, 2, 3, 4, 5]).is_some());
        assert_eq!(of(&[1, 2, 1]), None, "twice");
        assert_eq!(of(&[1, 2, 3, 4, 5, 6]), None);
    }

    #[test]
    fn a_new_region_is_unrecorded_until_it_is_recorded() {
        let map = RegionMap::default();
        assert!(!map.has_unrecorded() && map.take_new().is_none());
        map.add_new(region(5));
        assert!(map.contains(region(5)) && map.lookup(region(5)).is_none());
        assert_eq!(map.take_new(), Some(region(5)));
        assert_eq!(map.take_new(), None, "one worker records it");
        assert_eq!(map.unrecorded(region(5)), Some(Unrecorded::UnderWay));
        map.begin_again(region(5));
        assert_eq!(map.take_new(), None, "it is under way");
        map.fail(region(5), "full".into(), Nanos(7));
        let failed = Unrecorded::Failed("full".into(), Nanos(7));
        assert_eq!(map.unrecorded(region(5)), Some(failed));
        map.begin_again(region(5));
        assert_eq!(map.take_new(), Some(region(5)));
        let replicas = Replicas::one(machine(1));
        map.record(&[(region(5), replicas), (region(6), replicas)]);
        assert!(map.has_unrecorded(), "other machines may not know it");
        map.confirm(region(5));
        assert!(!map.has_unrecorded() && map.unrecorded(region(5)).is_none());
        assert_eq!(map.lookup(region(6)), Some(replicas));
        assert_eq!(map.all(), [(region(5), replicas), (region(6), replicas)]);
    }
}
