//! How a store gets the memory of its regions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use rand_xoshiro::Xoshiro256PlusPlus;

use super::lock;
use crate::alloc::{AllocError, RegionSource, choose_region_id};
use crate::fabric::Capability;
use crate::ids::{MachineId, RegionId};
use crate::mem::Memory;
use crate::region::map::RegionMap;
use crate::region::placement::Placement;

/// Why memory of a region could not be allocated.
pub type AllocationError = Box<dyn std::error::Error + Send + Sync>;

/// Allocates the memory of regions.
pub trait RegionMemory: Send {
    /// Allocates zeroed memory of this many bytes for a region, and exports it, so that peers can read it. If regions are
    /// [kept](crate::kept), it is.
    ///
    /// # Errors
    /// The reason why there is no memory.
    fn allocate(
        &mut self,
        region: RegionId,
        bytes: usize,
    ) -> Result<(Memory, Capability), AllocationError>;

    /// Announces that memory of this many bytes will soon be needed.
    fn prepare(&mut self, _bytes: usize) {}

    /// Returns whether memory of this many bytes can be allocated without a wait.
    fn is_ready(&self, _bytes: usize) -> bool {
        true
    }
}

impl<F> RegionMemory for F
where
    F: FnMut(RegionId, usize) -> Result<(Memory, Capability), AllocationError> + Send,
{
    fn allocate(
        &mut self,
        region: RegionId,
        bytes: usize,
    ) -> Result<(Memory, Capability), AllocationError> {
        self(region, bytes)
    }
}

pub(super) type Regions = Arc<Mutex<BTreeMap<RegionId, (Memory, Capability)>>>;

/// Creates regions of a store. The lock of the block allocator is held meanwhile, so that there is one call at a time.
pub(super) struct NewRegions<M> {
    pub(super) local: MachineId,
    pub(super) placement: Placement,
    pub(super) map: Arc<RegionMap>,
    pub(super) regions: Regions,
    pub(super) region_bytes: usize,
    pub(super) memory: M,
    pub(super) rng: Xoshiro256PlusPlus,
}

impl<M: RegionMemory> RegionSource for NewRegions<M> {
    fn new_region(&mut self, near: Option<RegionId>) -> Result<(RegionId, Memory), AllocError> {
        if !self.map.is_complete() {
            // A region that exists could be made once more.
            let why = "this machine has not joined the others yet";
            return Err(AllocError::NoRegion(why.into()));
        }
        let (place, rng) = (&self.placement, &mut self.rng);
        let is_known = |id| self.map.contains(id);
        let id = choose_region_id(place, self.local, near, is_known, rng).ok_or_else(|| {
            AllocError::NoRegion(
                "no virtual ring has a free position that makes this machine the primary".into(),
            )
        })?;
        let allocated = self.memory.allocate(id, self.region_bytes);
        let (memory, capability) =
            allocated.map_err(|error| AllocError::NoRegion(error.to_string()))?;
        lock(&self.regions).insert(id, (memory.clone(), capability));
        self.map.add_new(id);
        Ok((id, memory))
    }

    fn prepare(&mut self) {
        self.memory.prepare(self.region_bytes);
    }

    fn is_ready(&self) -> bool {
        self.memory.is_ready(self.region_bytes)
    }
}
