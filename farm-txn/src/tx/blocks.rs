//! What copies of regions must know of the blocks of a transaction's new objects.

use farm_core::alloc::Geometry;
use farm_core::ids::{Address, RegionId};
use smallvec::SmallVec;

/// The blocks of new objects, each with its [word](farm_core::alloc::BlockTable::block_word).
#[derive(Debug, Default)]
pub(crate) struct NewBlocks {
    /// Of the regions; known if there is a block.
    geometry: Option<Geometry>,
    blocks: SmallVec<[(RegionId, u32, u64); 2]>,
}

impl NewBlocks {
    /// Notes the block of an object, whose word `word` returns, if it is not noted.
    pub(crate) fn note(
        &mut self,
        geometry: Geometry,
        address: Address,
        word: impl FnOnce() -> u64,
    ) {
        self.geometry = Some(geometry);
        if self.find(address) == 0
            && let Some(block) = geometry.block_of(address.offset() as usize)
        {
            self.blocks.push((address.region(), block, word()));
        }
    }

    /// Returns the word of the block of an object; 0 if it was not noted.
    pub(crate) fn find(&self, address: Address) -> u64 {
        let block = self
            .geometry
            .and_then(|geometry| geometry.block_of(address.offset() as usize));
        let is = |one: &&(RegionId, u32, u64)| (one.0, Some(one.1)) == (address.region(), block);
        self.blocks.iter().rev().find(is).map_or(0, |one| one.2)
    }

    /// Removes all blocks.
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
    }
}
