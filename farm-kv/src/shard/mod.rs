//! Inserting, changing and removing pairs in a shard: chained associative hopscotch hashing (`FaRM'14 §3.6`). Each
//! change is one transaction over the buckets and blocks that it accesses.
//!
//! A new pair is put into a free slot of its home bucket, else of the next bucket. If both are full, the nearest free
//! slot after them is moved towards home, by moving native pairs one bucket forward. If there is none, and removes have
//! left a free slot shortly before home, that slot is moved forward, by returning foreign pairs to their own home
//! buckets. Otherwise the pair is added to the home bucket's chain. The slot bits of each bucket show whether a slot
//! can be moved. No placement puts fewer pairs into chains: every pair may be in two adjacent buckets, so a sequence of
//! displacements is a straight line.
//!
//! A remove fills the free slot from a chain that may use it. It moves the slot by at most two buckets to reach a
//! chain.
//!
//! Invariants, checked by [`crate::ops::check`]: a key is in the table at most once; the home of a native pair is its
//! bucket, and that of a foreign pair is the bucket before; only the second block of a chain, or the first if there is
//! no second, may have a free slot; no block is empty.
//!
//! The `Editor` is a value: it works on the objects that a transaction holds, and does no input or output. A change
//! reads everything that it needs before its first write. If the transaction lacks an object, the change ends with
//! `EditError::Missing` and has written nothing; the caller adds the object to the transaction and makes the change
//! again. `complete` does that with objects of this machine.

mod chain;
mod check;
mod complete;
mod displace;

use farm_core::alloc::SizeClass;
use farm_core::ids::Address;
use farm_core::mutants;
use farm_txn::{Abort, ObjectId, Tx, TxError};
use smallvec::SmallVec;

pub use check::ShardFacts;
pub(crate) use complete::{Incomplete, complete};

use crate::layout::{Layout, Meta, Next};

/// A copy of a pair while it is moved.
type Pair = SmallVec<[u8; 64]>;

/// Outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// A new pair was inserted.
    Inserted,
    /// The value of a pair was replaced.
    Updated,
    /// The pair was removed.
    Removed,
    /// No effect: the key of an insert exists.
    Exists,
    /// No effect: the key of an update or remove does not exist.
    Absent,
}

/// Location of a pair.
enum Place {
    Bucket { bucket: u32, slot: usize },
    Block { block: ObjectId, slot: usize },
}

/// A shard: the place and the layout of its buckets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardPlace {
    pub(crate) layout: Layout,
    /// Address of the first bucket.
    pub(crate) first: Address,
    /// Number of buckets, without the spare one.
    pub(crate) buckets: u32,
}

impl ShardPlace {
    pub(crate) fn address(&self, bucket: u32) -> Address {
        Address::new(
            self.first.region(),
            self.first.offset() + bucket * self.layout.bucket_bytes() as u32,
        )
    }
}

/// Changes of one shard in one transaction. See the [module](self).
pub(crate) struct Editor<'a> {
    tx: &'a mut Tx,
    shard: ShardPlace,
    /// New block for a chain that grows.
    spare: Option<ObjectId>,
    /// Buckets that the changes write.
    written: SmallVec<[u32; 24]>,
}

/// An object that the transaction must have before a change can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// An existing object.
    Object(Address, SizeClass),
    /// A new block near this address; [`Editor::set_spare`] receives it.
    Block(Address),
}

/// Why a change was not made. It has written nothing.
#[derive(Debug)]
pub(crate) enum EditError {
    /// The transaction lacks an object.
    Missing(Missing),
    /// The transaction conflicts with another one, or memory is damaged.
    Failed(TxError),
}

impl From<TxError> for EditError {
    fn from(error: TxError) -> Self {
        EditError::Failed(error)
    }
}

impl From<Abort> for EditError {
    fn from(abort: Abort) -> Self {
        EditError::Failed(abort.into())
    }
}

impl<'a> Editor<'a> {
    /// Creates an editor of a shard.
    pub(crate) fn new(tx: &'a mut Tx, shard: ShardPlace) -> Self {
        Self {
            tx,
            shard,
            spare: None,
            written: SmallVec::new(),
        }
    }

    /// Sets the new block for a chain that grows. [`Editor::finish`] frees it, if no chain has grown.
    pub(crate) fn set_spare(&mut self, block: Option<ObjectId>) {
        self.spare = block;
    }

    /// Returns the new block that no chain uses.
    pub(crate) fn spare(&self) -> Option<ObjectId> {
        self.spare
    }
}

impl Editor<'_> {
    /// Inserts the pair or replaces its value, as far as `insert` and `update` permit.
    pub(crate) fn put(
        &mut self,
        home: u32,
        pair: &[u8],
        insert: bool,
        update: bool,
    ) -> Result<Changed, EditError> {
        let key = &pair[..self.shard.layout.key_bytes];
        match self.find(home, key)? {
            Some(place) if update => {
                self.overwrite(place, pair)?;
                Ok(Changed::Updated)
            }
            Some(_) => Ok(Changed::Exists),
            None if insert => {
                self.place(home, pair)?;
                Ok(Changed::Inserted)
            }
            None => Ok(Changed::Absent),
        }
    }

    /// Removes a key.
    pub(crate) fn remove(&mut self, home: u32, key: &[u8]) -> Result<Changed, EditError> {
        match self.find(home, key)? {
            None => return Ok(Changed::Absent),
            Some(Place::Block { block, slot }) => {
                let last = self
                    .take_last(home)?
                    .expect("a chain that contains the key is not empty");
                if last[..self.shard.layout.key_bytes] != *key {
                    self.shard
                        .layout
                        .block(self.tx.payload_mut(block))
                        .put(slot, &last);
                    self.rename_path(home, block)?;
                }
            }
            Some(Place::Bucket { bucket, slot }) => {
                if mutants::is_on("an edit writes before it has read everything") {
                    self.clear(bucket, slot)?;
                }
                let refill = self.find_refill(bucket)?;
                self.clear(bucket, slot)?;
                if let Some(refill) = refill {
                    self.refill(bucket, slot, refill)?;
                }
            }
        }
        Ok(Changed::Removed)
    }

    /// Ends the changes. For every boundary between two buckets that the transaction writes, sets a new joint version
    /// on both sides, if these changes write one of the two buckets.
    pub(crate) fn finish(mut self) {
        if let Some(unused) = self.spare.take() {
            self.tx.free(unused);
        }
        let before = self.written.iter().filter_map(|at| at.checked_sub(1));
        let mut boundaries: SmallVec<[u32; 24]> = self.written.iter().copied().collect();
        boundaries.extend(before);
        boundaries.sort_unstable();
        boundaries.dedup();
        for left in boundaries {
            let both = self.written_bucket(left).zip(self.written_bucket(left + 1));
            if let Some((left, right)) = both
                && !mutants::is_on("joint version not bumped")
            {
                self.join(left, right);
            }
        }
    }

    /// Sets a new joint version between two buckets.
    fn join(&mut self, left: ObjectId, right: ObjectId) {
        let layout = self.shard.layout;
        let joint = layout
            .bucket(self.tx.payload(left))
            .meta()
            .forward
            .wrapping_add(1);
        let mut home = layout.bucket(self.tx.payload_mut(left));
        home.set_meta(Meta {
            forward: joint,
            ..home.meta()
        });
        let mut next = layout.bucket(self.tx.payload_mut(right));
        next.set_meta(Meta {
            backward: joint,
            ..next.meta()
        });
    }

    /// Returns a bucket, if the transaction writes it.
    fn written_bucket(&self, bucket: u32) -> Option<ObjectId> {
        let object = self.tx.find(self.shard.address(bucket))?;
        (bucket <= self.shard.buckets && self.tx.is_written(object)).then_some(object)
    }

    #[inline]
    fn bucket(&self, bucket: u32) -> Result<ObjectId, EditError> {
        self.object(self.shard.address(bucket), self.shard.layout.bucket_class)
    }

    #[inline]
    fn object(&self, address: Address, class: SizeClass) -> Result<ObjectId, EditError> {
        match self.tx.known(address, class) {
            Some(known) => Ok(known?),
            None => Err(EditError::Missing(Missing::Object(address, class))),
        }
    }

    fn block(&self, next: Next) -> Result<ObjectId, EditError> {
        let block = match self.object(next.address, self.shard.layout.block_class) {
            // The block was freed after the pointer to it was read.
            Err(EditError::Failed(TxError::NotAllocated(address))) => {
                return Err(Abort::Changed(address).into());
            }
            block => block?,
        };
        if !next.names(self.tx.incarnation(block)) {
            return Err(Abort::Changed(next.address).into());
        }
        Ok(block)
    }

    /// Returns the object that contains a key's value, and the offset of the value in the payload.
    pub(crate) fn value(
        &self,
        home: u32,
        key: &[u8],
    ) -> Result<Option<(ObjectId, usize)>, EditError> {
        let place = self.find(home, key)?;
        Ok(match place {
            None => None,
            Some(Place::Bucket { bucket, slot }) => {
                Some((self.bucket(bucket)?, self.shard.layout.value_at(slot)))
            }
            Some(Place::Block { block, slot }) => Some((block, self.shard.layout.value_at(slot))),
        })
    }

    fn find(&self, home: u32, key: &[u8]) -> Result<Option<Place>, EditError> {
        for (bucket, native) in [(home, true), (home + 1, false)] {
            let object = self.bucket(bucket)?;
            if let Some(slot) = self
                .shard
                .layout
                .bucket(self.tx.payload(object))
                .find(key, native)
            {
                return Ok(Some(Place::Bucket { bucket, slot }));
            }
        }
        let home = self.bucket(home)?;
        let mut next = self.shard.layout.bucket(self.tx.payload(home)).next();
        let mut passed = 0;
        while let Some(pointer) = next {
            let block = self.block(pointer)?;
            passed += 1;
            // Only damaged memory contains a cycle.
            if passed > self.tx.len() {
                return Err(Abort::Changed(pointer.address).into());
            }
            let view = self.shard.layout.block(self.tx.payload(block));
            if let Some(slot) = view.find(key) {
                return Ok(Some(Place::Block { block, slot }));
            }
            next = view.next();
        }
        Ok(None)
    }

    fn overwrite(&mut self, place: Place, pair: &[u8]) -> Result<(), EditError> {
        match place {
            Place::Bucket { bucket, slot } => {
                let object = self.write(bucket)?;
                let mut view = self.shard.layout.bucket(self.tx.payload_mut(object));
                let native = view.meta().native & 1 << slot != 0;
                view.put(slot, pair, native);
            }
            Place::Block { block, slot } => self
                .shard
                .layout
                .block(self.tx.payload_mut(block))
                .put(slot, pair),
        }
        Ok(())
    }

    /// Returns a bucket for a write.
    fn write(&mut self, bucket: u32) -> Result<ObjectId, EditError> {
        if !self.written.contains(&bucket) {
            self.written.push(bucket);
        }
        self.bucket(bucket)
    }

    fn put_in(
        &mut self,
        bucket: u32,
        slot: usize,
        pair: &[u8],
        native: bool,
    ) -> Result<(), EditError> {
        let object = self.write(bucket)?;
        self.shard
            .layout
            .bucket(self.tx.payload_mut(object))
            .put(slot, pair, native);
        Ok(())
    }

    fn clear(&mut self, bucket: u32, slot: usize) -> Result<(), EditError> {
        let object = self.write(bucket)?;
        self.shard
            .layout
            .bucket(self.tx.payload_mut(object))
            .clear(slot);
        Ok(())
    }

    fn free_slot(&self, bucket: u32) -> Result<Option<usize>, EditError> {
        let object = self.bucket(bucket)?;
        Ok(self
            .shard
            .layout
            .bucket(self.tx.payload(object))
            .free_slot())
    }

    fn slot_of(&self, bucket: u32, native: bool) -> Result<Option<usize>, EditError> {
        let object = self.bucket(bucket)?;
        Ok(self
            .shard
            .layout
            .bucket(self.tx.payload(object))
            .first_of(native))
    }

    fn has_chain(&self, bucket: u32) -> Result<bool, EditError> {
        let object = self.bucket(bucket)?;
        Ok(self
            .shard
            .layout
            .bucket(self.tx.payload(object))
            .next()
            .is_some())
    }
}

#[cfg(test)]
mod tests;
