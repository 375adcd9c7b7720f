//! Detects that the memory of a machine is short.

use crate::alloc::{AllocError, Block, BlockSource, Place, SizeClass};
use crate::ids::{RegionId, WorkerId};
use crate::region::store::Store;

/// The blocks of a worker's machine; records whether memory is short.
pub(in crate::worker) struct Source<'a> {
    store: &'a Store,
    /// Whether a request waits until the memory of a region is made.
    waits: bool,
    /// Shortage that an acquisition has found, if any.
    pub(in crate::worker) shortage: Option<Shortage>,
}

/// How short the memory of a machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::worker) enum Shortage {
    /// The free memory is below the threshold.
    Low,
    /// An allocation failed for lack of memory.
    Refused,
}

impl Shortage {
    /// Returns the shortage that the result of an allocation indicates.
    pub(in crate::worker) fn of<T>(store: &Store, ended: &Result<T, AllocError>) -> Option<Self> {
        match ended {
            Ok(_) => store.is_low().then_some(Shortage::Low),
            Err(AllocError::OutOfMemory { .. } | AllocError::NoRegion(_)) => {
                Some(Shortage::Refused)
            }
            Err(_) => None,
        }
    }
}

impl<'a> Source<'a> {
    pub(in crate::worker) fn of(store: &'a Store) -> Self {
        Self {
            store,
            waits: true,
            shortage: None,
        }
    }

    /// As [`Source::of`]. Requests do not wait until the memory of a region is made.
    pub(in crate::worker) fn without_waits(store: &'a Store) -> Self {
        Self {
            waits: false,
            ..Self::of(store)
        }
    }
}

impl BlockSource for Source<'_> {
    fn has_region(&self, region: RegionId) -> bool {
        BlockSource::has_region(&self.store, region)
    }

    fn acquire(
        &mut self,
        class: SizeClass,
        owner: WorkerId,
        place: Place,
    ) -> Result<Option<Block>, AllocError> {
        let acquired = self.store.acquire_block(class, owner, place, self.waits);
        // `Ok(None)` means that one region or ring is full, which does not imply that memory is
        // short.
        if !matches!(acquired, Ok(None)) {
            self.shortage = self.shortage.max(Shortage::of(self.store, &acquired));
        }
        acquired
    }

    fn give_back(&mut self, block: Block) {
        let mut store = self.store;
        store.give_back(block);
    }
}
