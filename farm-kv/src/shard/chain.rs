//! Chains of overflow blocks: adding a pair, and taking the last pair.

use farm_core::ids::Address;
use farm_core::{marks, mutants};
use farm_txn::{Abort, ObjectId};
use smallvec::SmallVec;

use super::{EditError, Editor, Missing, Pair};
use crate::layout::{BLOCK_SLOTS, Next};

/// A block of a chain.
#[derive(Clone, Copy)]
struct Link {
    block: ObjectId,
    address: Address,
}

/// The first two blocks of a chain. The chain grows and shrinks at its second block, or at its first one if it has no
/// other: all other blocks of the chain are full.
#[derive(Clone, Copy)]
pub(super) struct Chain {
    first: Option<Link>,
    second: Option<Link>,
}

impl Chain {
    /// Returns the block that grows and shrinks.
    fn last(&self) -> Option<Link> {
        self.second.or(self.first)
    }
}

impl Editor<'_> {
    /// Adds a pair to a bucket's chain: to the block with a free slot, if there is one. Otherwise to a new first block,
    /// which also takes a pair of the old first block. So the new block is full, and the old one has a free slot.
    pub(super) fn append(&mut self, home: u32, pair: &[u8]) -> Result<(), EditError> {
        marks::mark("kv: chain appended");
        let chain = self.chain(home)?;
        if let Some(last) = chain.last()
            && let Some(slot) = self.free_slot_in(last.block)
        {
            self.put_in_block(last.block, slot, pair);
            // The same transaction may have removed the key from bucket `home + 1`. A reader with the old state of the
            // home bucket (perhaps without a chain) and the new state of the next bucket must see that the two do not
            // match.
            if self.written_bucket(home + 1).is_some() {
                let object = self.write(home)?;
                self.tx.payload_mut(object);
            }
            return Ok(());
        }
        let block = self.new_block(home)?;
        marks::mark("kv: chain grown by a block");
        self.put_in_block(block, 0, pair);
        let next = match chain.first {
            None => None,
            Some(old) => {
                let taken = self.take_highest(old.block);
                self.put_in_block(block, 1, &taken);
                Some(self.rename(old))
            }
        };
        self.set_next_of_block(block, next);
        let pointer = Next::new(self.tx.address(block), self.tx.incarnation(block));
        self.set_chain(home, Some(pointer))?;
        Ok(())
    }

    /// Takes the spare block for a chain of `home` that grows.
    fn new_block(&mut self, home: u32) -> Result<ObjectId, EditError> {
        let near = self.shard.address(home);
        let spare = self.spare.take();
        spare.ok_or(EditError::Missing(Missing::Block(near)))
    }

    /// Returns the first two blocks of a bucket's chain.
    ///
    /// # Errors
    /// [`Abort::Changed`] if one of them is empty: only damaged memory of another machine contains such a block.
    pub(super) fn chain(&self, bucket: u32) -> Result<Chain, EditError> {
        let object = self.bucket(bucket)?;
        let first = self.link(self.shard.layout.bucket(self.tx.payload(object)).next())?;
        let second = match first {
            None => None,
            Some(Link { block, .. }) => {
                self.link(self.shard.layout.block(self.tx.payload(block)).next())?
            }
        };
        Ok(Chain { first, second })
    }

    fn link(&self, pointer: Option<Next>) -> Result<Option<Link>, EditError> {
        let Some(pointer) = pointer else {
            return Ok(None);
        };
        let (block, address) = (self.block(pointer)?, pointer.address);
        match self.shard.layout.block(self.tx.payload(block)).occupied() {
            0 => Err(Abort::Changed(address).into()),
            _ => Ok(Some(Link { block, address })),
        }
    }

    /// Takes the last pair of a bucket's chain. Every block on the path to it gets a new incarnation. So a reader that
    /// read the bucket before, and follows it to the pair's old place, finds another incarnation than expected and
    /// restarts.
    pub(super) fn take_last(&mut self, bucket: u32) -> Result<Option<Pair>, EditError> {
        let chain = self.chain(bucket)?;
        let (Some(first), Some(last)) = (chain.first, chain.last()) else {
            return Ok(None);
        };
        let pair = self.take_highest(last.block);
        let emptied = self
            .shard
            .layout
            .block(self.tx.payload(last.block))
            .occupied()
            == 0;
        let mut left = if emptied {
            marks::mark("kv: chain collapsed");
            let after = if mutants::is_on("chain block freed but still linked") {
                Some(Next::new(last.address, self.tx.incarnation(last.block)))
            } else {
                self.shard.layout.block(self.tx.payload(last.block)).next()
            };
            self.tx.free(last.block);
            after
        } else {
            Some(self.rename(last))
        };
        if chain.second.is_some() {
            self.set_next_of_block(first.block, left);
            left = Some(self.rename(first));
        }
        self.set_chain(bucket, left)?;
        Ok(Some(pair))
    }

    /// Gives a block, and all blocks on the path to it, new incarnations. A key was removed from the block, and the
    /// same transaction may insert that key at a place that a concurrent reader has already searched. The block may be
    /// one of the first two blocks now, even if it came after them before.
    pub(super) fn rename_path(&mut self, bucket: u32, block: ObjectId) -> Result<(), EditError> {
        let mut path: SmallVec<[Link; 4]> = SmallVec::new();
        let object = self.bucket(bucket)?;
        let mut next = self.shard.layout.bucket(self.tx.payload(object)).next();
        while let Some(pointer) = next
            && path.last().is_none_or(|link| link.block != block)
        {
            let block = self.block(pointer)?;
            let address = pointer.address;
            path.push(Link { block, address });
            next = self.shard.layout.block(self.tx.payload(block)).next();
        }
        // The chain contains the block, unless it is damaged memory of another machine.
        if path.last().is_none_or(|link| link.block != block) {
            return Ok(());
        }
        if path.len() > 2 {
            marks::mark("kv: path of a chain renamed");
        }
        let mut renamed = None;
        while let Some(link) = path.pop() {
            if renamed.is_some() {
                self.set_next_of_block(link.block, renamed);
            }
            renamed = Some(self.rename(link));
        }
        self.set_chain(bucket, renamed)
    }

    /// Takes the pair in the highest occupied slot of a block, which [`Editor::chain`] has returned.
    fn take_highest(&mut self, block: ObjectId) -> Pair {
        let mut view = self.shard.layout.block(self.tx.payload_mut(block));
        let (next, occupied) = (view.next(), view.occupied());
        let slot = occupied.ilog2() as usize;
        let pair = Pair::from_slice(view.pair(slot));
        view.set_tail(next, occupied & !(1 << slot));
        pair
    }

    /// Gives a block a new incarnation, and returns a pointer with that incarnation.
    fn rename(&mut self, link: Link) -> Next {
        if !mutants::is_on("chain block not renamed") {
            self.tx.increment_incarnation(link.block);
        }
        Next::new(link.address, self.tx.incarnation(link.block))
    }

    fn free_slot_in(&self, block: ObjectId) -> Option<usize> {
        let free =
            !self.shard.layout.block(self.tx.payload(block)).occupied() & ((1 << BLOCK_SLOTS) - 1);
        (free != 0).then(|| free.trailing_zeros() as usize)
    }

    fn put_in_block(&mut self, block: ObjectId, slot: usize, pair: &[u8]) {
        let mut view = self.shard.layout.block(self.tx.payload_mut(block));
        view.put(slot, pair);
        let (next, occupied) = (view.next(), view.occupied() | 1 << slot);
        view.set_tail(next, occupied);
    }

    fn set_next_of_block(&mut self, block: ObjectId, next: Option<Next>) {
        let mut view = self.shard.layout.block(self.tx.payload_mut(block));
        let occupied = view.occupied();
        view.set_tail(next, occupied);
    }

    fn set_chain(&mut self, bucket: u32, chain: Option<Next>) -> Result<(), EditError> {
        let object = self.write(bucket)?;
        self.shard
            .layout
            .bucket(self.tx.payload_mut(object))
            .set_next(chain);
        Ok(())
    }
}
