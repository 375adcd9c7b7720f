//! Checks of the invariants of a whole shard.

use farm_txn::TxError;

use super::Editor;
use crate::layout::{BLOCK_SLOTS, Next};
use crate::{KEY_BYTES, Key};

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

impl Editor<'_> {
    /// Reads the whole shard and checks its invariants; `home_of` returns the bucket of a key.
    pub(crate) fn check(
        &mut self,
        home_of: &dyn Fn(&Key) -> u32,
    ) -> Result<Result<ShardFacts, String>, TxError> {
        let mut facts = ShardFacts::default();
        let mut joint = 0;
        for bucket in 0..=self.buckets {
            let object = self.bucket(bucket)?;
            let view = self.layout.bucket(self.tx.payload(object));
            let meta = view.meta();
            if bucket > 0 && meta.backward != joint {
                return Ok(Err(format!(
                    "joint versions before bucket {bucket} differ: {joint}, {}",
                    meta.backward
                )));
            }
            joint = meta.forward;
            for slot in (0..self.layout.slots).filter(|slot| meta.occupied & 1 << slot != 0) {
                let key: &Key = view.pair(slot)[..KEY_BYTES].try_into().expect("a key");
                let native = meta.native & 1 << slot != 0;
                if home_of(key) + u32::from(!native) != bucket {
                    return Ok(Err(format!(
                        "slot {slot} of bucket {bucket} contains a pair of bucket {}",
                        home_of(key)
                    )));
                }
                facts.pairs += 1;
            }
            let chain = view.next();
            if let Err(why) = self.check_chain(bucket, chain, home_of, &mut facts)? {
                return Ok(Err(why));
            }
            let (worker, tx) = (&mut *self.worker, &mut *self.tx);
            tx.abort(worker);
        }
        Ok(Ok(facts))
    }

    fn check_chain(
        &mut self,
        bucket: u32,
        mut next: Option<Next>,
        home_of: &dyn Fn(&Key) -> u32,
        facts: &mut ShardFacts,
    ) -> Result<Result<(), String>, TxError> {
        let mut index = 0;
        while let Some(pointer) = next {
            let block = self.block(pointer)?;
            let view = self.layout.block(self.tx.payload(block));
            let occupied = view.occupied();
            let full = occupied == (1 << BLOCK_SLOTS) - 1;
            let may_have_room = index == 1 || index == 0 && view.next().is_none();
            if occupied == 0 || !full && !may_have_room {
                return Ok(Err(format!(
                    "a block of bucket {bucket}'s chain has the occupied slots {occupied:#b}"
                )));
            }
            for slot in (0..BLOCK_SLOTS).filter(|slot| occupied & 1 << slot != 0) {
                let key: &Key = view.pair(slot)[..KEY_BYTES].try_into().expect("a key");
                if home_of(key) != bucket {
                    return Ok(Err(format!(
                        "bucket {bucket}'s chain contains a pair of bucket {}",
                        home_of(key)
                    )));
                }
                facts.pairs += 1;
                facts.chained += 1;
            }
            facts.blocks += 1;
            index += 1;
            next = view.next();
        }
        Ok(Ok(()))
    }
}
