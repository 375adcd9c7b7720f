//! Checks of the invariants of a whole shard.

use super::{EditError, Editor};
use crate::layout::{BLOCK_SLOTS, Next};

/// Counts of a shard, as found by [`crate::ops::check`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardFacts {
    /// Number of pairs in buckets and chains.
    pub pairs: u64,
    /// Number of pairs in chains.
    pub chained: u64,
    /// Number of overflow blocks.
    pub blocks: u64,
}

impl ShardFacts {
    /// Adds the counts of another part of the shard.
    pub(crate) fn add(&mut self, more: Self) {
        self.pairs += more.pairs;
        self.chained += more.chained;
        self.blocks += more.blocks;
    }
}

impl Editor<'_> {
    /// Checks the invariants of a bucket and its chain; `home_of` returns the bucket of a key, and `joint` is the joint
    /// version that the bucket before has, if that was read. Returns the counts and the joint version for the next bucket, or a
    /// description of the first violation.
    pub(crate) fn check_bucket(
        &self,
        bucket: u32,
        joint: Option<u16>,
        home_of: &dyn Fn(&[u8]) -> u32,
    ) -> Result<Result<(ShardFacts, u16), String>, EditError> {
        let view = self
            .shard
            .layout
            .bucket(self.tx.payload(self.bucket(bucket)?));
        let meta = view.meta();
        if let Some(joint) = joint.filter(|joint| meta.backward != *joint) {
            return Ok(Err(format!(
                "the joint versions between bucket {bucket} and the previous bucket differ: {joint} and {}",
                meta.backward
            )));
        }
        let mut facts = ShardFacts::default();
        for slot in (0..self.shard.layout.slots).filter(|slot| meta.occupied & 1 << slot != 0) {
            let key = &view.pair(slot)[..self.shard.layout.key_bytes];
            let native = meta.native & 1 << slot != 0;
            if home_of(key) + u32::from(!native) != bucket {
                return Ok(Err(format!(
                    "slot {slot} of bucket {bucket} contains a pair that belongs to bucket {}",
                    home_of(key)
                )));
            }
            facts.pairs += 1;
        }
        let chain = self.check_chain(bucket, view.next(), home_of)?;
        Ok(chain.map(|chain| {
            facts.add(chain);
            (facts, meta.forward)
        }))
    }

    /// Adds the pairs of a bucket and its chain to `pairs`, each as the key and the value.
    pub(crate) fn pairs_of_bucket(
        &self,
        bucket: u32,
        pairs: &mut Vec<Vec<u8>>,
    ) -> Result<(), EditError> {
        let layout = &self.shard.layout;
        let view = layout.bucket(self.tx.payload(self.bucket(bucket)?));
        let occupied = view.meta().occupied;
        let slots = (0..layout.slots).filter(|slot| occupied & 1 << slot != 0);
        pairs.extend(slots.map(|slot| view.pair(slot).to_vec()));
        let mut next = view.next();
        while let Some(pointer) = next {
            let view = layout.block(self.tx.payload(self.block(pointer)?));
            let occupied = view.occupied();
            let slots = (0..BLOCK_SLOTS).filter(|slot| occupied & 1 << slot != 0);
            pairs.extend(slots.map(|slot| view.pair(slot).to_vec()));
            next = view.next();
        }
        Ok(())
    }

    fn check_chain(
        &self,
        bucket: u32,
        mut next: Option<Next>,
        home_of: &dyn Fn(&[u8]) -> u32,
    ) -> Result<Result<ShardFacts, String>, EditError> {
        let mut facts = ShardFacts::default();
        while let Some(pointer) = next {
            let block = self.block(pointer)?;
            let view = self.shard.layout.block(self.tx.payload(block));
            let occupied = view.occupied();
            let full = occupied == (1 << BLOCK_SLOTS) - 1;
            let may_have_room = facts.blocks == 1 || facts.blocks == 0 && view.next().is_none();
            if occupied == 0 || !full && !may_have_room {
                return Ok(Err(format!(
                    "a block of bucket {bucket}'s chain is empty, or has a free slot and may not have one: \
                     its occupied slots are {occupied:#b}"
                )));
            }
            for slot in (0..BLOCK_SLOTS).filter(|slot| occupied & 1 << slot != 0) {
                let key = &view.pair(slot)[..self.shard.layout.key_bytes];
                if home_of(key) != bucket {
                    return Ok(Err(format!(
                        "bucket {bucket}'s chain contains a pair that belongs to bucket {}",
                        home_of(key)
                    )));
                }
                facts.pairs += 1;
                facts.chained += 1;
            }
            facts.blocks += 1;
            next = view.next();
        }
        Ok(Ok(facts))
    }
}
