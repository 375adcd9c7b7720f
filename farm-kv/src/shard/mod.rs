//! Inserting, changing and removing pairs in a shard: chained associative hopscotch hashing (`FaRM'14 §3.6`). Each
//! change is one transaction over the buckets and blocks that it accesses.
//!
//! A new pair is put into a free slot of its home bucket, else of the next bucket. If both are full, the nearest free
//! slot behind them is moved towards home, by moving native pairs one bucket forward. If there is none, and removes
//! have left a free slot shortly before home, that slot is moved forward, by returning foreign pairs to their own home
//! buckets. Otherwise the pair is added to the home bucket's chain. The slot bits of each bucket tell whether a slot
//! can be moved. No placement puts fewer pairs into chains: every pair may be in two adjacent buckets, so a sequence of
//! displacements is a straight line.
//!
//! A remove fills the free slot from a chain that may use it. It moves the slot by at most two buckets to reach a
//! chain.
//!
//! Invariants, checked by [`crate::ops::check`]: a key is in the table at most once; the home of a native pair is its
//! bucket, and that of a foreign pair is the bucket before; only the second block of a chain, or the first if there is
//! no second, may have a free slot; no block is empty.

mod chain;
mod check;

use farm_core::alloc::SizeClass;
use farm_core::ids::Address;
use farm_core::worker::{AddressError, Worker};
use farm_core::{marks, mutants};
use farm_txn::{Abort, ObjectId, Tx, TxError};
use smallvec::SmallVec;

pub use check::ShardFacts;

use crate::layout::{Layout, Next};
use crate::{KEY_BYTES, Key};

/// Number of buckets, from the home bucket on, that are searched for a free slot. The search ends early at a bucket
/// without a pair that can be moved. At 90 % occupancy it visits three buckets on average, and more than sixteen have
/// no benefit.
const FORWARD: u32 = 16;
/// Number of buckets before the home bucket that are searched.
const BACKWARD: u32 = 4;
/// Number of buckets by which a free slot is moved to reach a chain.
const REACH: u32 = 2;

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

/// Effect of a committed change on the shard's counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Change of the number of pairs.
    pub pairs: i64,
    /// Change of the number of overflow blocks.
    pub blocks: i64,
}

/// Location of a pair.
enum Place {
    Bucket { bucket: u32, slot: usize },
    Block { block: ObjectId, slot: usize },
}

/// An edit of one shard in a transaction.
pub(crate) struct Editor<'a> {
    pub(crate) worker: &'a mut Worker,
    pub(crate) tx: &'a mut Tx,
    pub(crate) layout: Layout,
    /// Address of the shard's first bucket.
    pub(crate) first: Address,
    /// Number of buckets of the shard, without the spare one.
    pub(crate) buckets: u32,
    /// Whether the shard is on another machine. Its objects and new blocks must then be added to the transaction before
    /// the edit.
    pub(crate) elsewhere: bool,
    /// New block for a chain that grows on another machine.
    pub(crate) spare: Option<ObjectId>,
    /// The object or block for want of which an edit failed.
    pub(crate) missing: Option<Missing>,
    /// Buckets that this edit writes.
    pub(crate) written: SmallVec<[u32; 24]>,
    pub(crate) delta: Delta,
}

/// An object or block that must be added to the transaction before an edit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// An object of another machine, or a locked one.
    Object(Address, SizeClass),
    /// A new block near this address, on another machine.
    Block(Address),
}

impl<'a> Editor<'a> {
    /// Creates an editor of a shard of this machine.
    pub(crate) fn new(
        worker: &'a mut Worker,
        tx: &'a mut Tx,
        layout: Layout,
        first: Address,
        buckets: u32,
    ) -> Self {
        Self {
            worker,
            tx,
            layout,
            first,
            buckets,
            elsewhere: false,
            spare: None,
            missing: None,
            written: SmallVec::new(),
            delta: Delta::default(),
        }
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
    ) -> Result<Changed, TxError> {
        let key: &Key = pair[..KEY_BYTES]
            .try_into()
            .expect("the key is the start of a pair");
        match self.find(home, key)? {
            Some(place) if update => {
                self.overwrite(place, pair)?;
                Ok(Changed::Updated)
            }
            Some(_) => Ok(Changed::Exists),
            None if insert => {
                self.place(home, pair)?;
                self.delta.pairs += 1;
                Ok(Changed::Inserted)
            }
            None => Ok(Changed::Absent),
        }
    }

    /// Removes a key.
    pub(crate) fn remove(&mut self, home: u32, key: &Key) -> Result<Changed, TxError> {
        match self.find(home, key)? {
            None => return Ok(Changed::Absent),
            Some(Place::Block { block, slot }) => {
                let last = self.take_last(home)?.expect("the pair is in this chain");
                if last[..KEY_BYTES] != *key {
                    self.layout
                        .block(self.tx.payload_mut(block))
                        .put(slot, &last);
                    self.rename_path(home, block)?;
                }
            }
            Some(Place::Bucket { bucket, slot }) => {
                self.clear(bucket, slot)?;
                self.refill(bucket, slot)?;
            }
        }
        self.delta.pairs -= 1;
        Ok(Changed::Removed)
    }

    /// For every boundary between two buckets that the transaction writes, sets a new joint version on both sides, if
    /// this edit writes one of the two buckets.
    pub(crate) fn finish(&mut self) -> Result<(), TxError> {
        let before = self.written.iter().filter_map(|at| at.checked_sub(1));
        let mut boundaries: SmallVec<[u32; 24]> = self.written.iter().copied().collect();
        boundaries.extend(before);
        boundaries.sort_unstable();
        boundaries.dedup();
        for left in boundaries {
            let right = left + 1;
            let written = self.is_written(left) && self.is_written(right);
            if !written || mutants::is_on("joint version not bumped") {
                continue;
            }
            let (left, right) = (self.bucket(left)?, self.bucket(right)?);
            let joint = self
                .layout
                .bucket(self.tx.payload(left))
                .meta()
                .forward
                .wrapping_add(1);
            let mut home = self.layout.bucket(self.tx.payload_mut(left));
            home.set_meta(crate::layout::Meta {
                forward: joint,
                ..home.meta()
            });
            let mut next = self.layout.bucket(self.tx.payload_mut(right));
            next.set_meta(crate::layout::Meta {
                backward: joint,
                ..next.meta()
            });
        }
        Ok(())
    }

    fn is_written(&self, bucket: u32) -> bool {
        let object = self.tx.find(self.address(bucket));
        bucket <= self.buckets && object.is_some_and(|object| self.tx.is_written(object))
    }

    pub(crate) fn address(&self, bucket: u32) -> Address {
        Address::new(
            self.first.region(),
            self.first.offset() + bucket * self.layout.bucket_bytes() as u32,
        )
    }

    #[inline]
    fn bucket(&mut self, bucket: u32) -> Result<ObjectId, TxError> {
        let address = self.address(bucket);
        self.object(address, self.layout.bucket_class)
    }

    #[inline]
    fn object(&mut self, address: Address, class: SizeClass) -> Result<ObjectId, TxError> {
        let read = self.tx.read_class(self.worker, address, class);
        if let Err(
            TxError::Address(AddressError::Elsewhere { .. }) | TxError::Abort(Abort::Locked(_)),
        ) = read
        {
            self.missing = Some(Missing::Object(address, class));
        }
        read
    }

    fn block(&mut self, next: Next) -> Result<ObjectId, TxError> {
        let class = self.layout.block_class;
        let block = match self.object(next.address, class) {
            // The block was freed after the pointer to it was read.
            Err(TxError::NotAllocated(address)) => return Err(Abort::Changed(address).into()),
            block => block?,
        };
        if !next.names(self.tx.incarnation(block)) {
            return Err(Abort::Changed(next.address).into());
        }
        Ok(block)
    }

    /// Returns the object that contains a key's value, and the offset of the value in the payload.
    pub(crate) fn value(
        &mut self,
        home: u32,
        key: &Key,
    ) -> Result<Option<(ObjectId, usize)>, TxError> {
        let place = self.find(home, key)?;
        Ok(match place {
            None => None,
            Some(Place::Bucket { bucket, slot }) => {
                Some((self.bucket(bucket)?, self.layout.value_at(slot)))
            }
            Some(Place::Block { block, slot }) => Some((block, self.layout.value_at(slot))),
        })
    }

    fn find(&mut self, home: u32, key: &Key) -> Result<Option<Place>, TxError> {
        for (bucket, native) in [(home, true), (home + 1, false)] {
            let object = self.bucket(bucket)?;
            if let Some(slot) = self
                .layout
                .bucket(self.tx.payload(object))
                .find(key, native)
            {
                return Ok(Some(Place::Bucket { bucket, slot }));
            }
        }
        let home = self.bucket(home)?;
        let mut next = self.layout.bucket(self.tx.payload(home)).next();
        let mut passed = 0;
        while let Some(pointer) = next {
            let block = self.block(pointer)?;
            passed += 1;
            // Only damaged memory contains a cycle.
            if passed > self.tx.len() {
                return Err(Abort::Changed(pointer.address).into());
            }
            let view = self.layout.block(self.tx.payload(block));
            if let Some(slot) = view.find(key) {
                return Ok(Some(Place::Block { block, slot }));
            }
            next = view.next();
        }
        Ok(None)
    }

    fn overwrite(&mut self, place: Place, pair: &[u8]) -> Result<(), TxError> {
        match place {
            Place::Bucket { bucket, slot } => {
                let object = self.write(bucket)?;
                let mut view = self.layout.bucket(self.tx.payload_mut(object));
                let native = view.meta().native & 1 << slot != 0;
                view.put(slot, pair, native);
            }
            Place::Block { block, slot } => self
                .layout
                .block(self.tx.payload_mut(block))
                .put(slot, pair),
        }
        Ok(())
    }

    /// Returns a bucket for a write.
    fn write(&mut self, bucket: u32) -> Result<ObjectId, TxError> {
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
    ) -> Result<(), TxError> {
        let object = self.write(bucket)?;
        self.layout
            .bucket(self.tx.payload_mut(object))
            .put(slot, pair, native);
        Ok(())
    }

    fn clear(&mut self, bucket: u32, slot: usize) -> Result<(), TxError> {
        let object = self.write(bucket)?;
        self.layout.bucket(self.tx.payload_mut(object)).clear(slot);
        Ok(())
    }

    fn free_slot(&mut self, bucket: u32) -> Result<Option<usize>, TxError> {
        let object = self.bucket(bucket)?;
        Ok(self.layout.bucket(self.tx.payload(object)).free_slot())
    }

    fn slot_of(&mut self, bucket: u32, native: bool) -> Result<Option<usize>, TxError> {
        let object = self.bucket(bucket)?;
        Ok(self.layout.bucket(self.tx.payload(object)).first_of(native))
    }

    fn has_chain(&mut self, bucket: u32) -> Result<bool, TxError> {
        let object = self.bucket(bucket)?;
        Ok(self.layout.bucket(self.tx.payload(object)).next().is_some())
    }

    /// Stores a new pair in a bucket or in the chain.
    fn place(&mut self, home: u32, pair: &[u8]) -> Result<(), TxError> {
        if let Some(slot) = self.free_slot(home)? {
            return self.put_in(home, slot, pair, true);
        }
        if let Some(slot) = self.free_slot(home + 1)? {
            return self.put_in(home + 1, slot, pair, false);
        }
        if let Some((bucket, slot)) = self.hole_after(home)? {
            let slot = self.move_hole_back(bucket, slot, home + 1)?;
            return self.put_in(home + 1, slot, pair, false);
        }
        if let Some((bucket, slot)) = self.hole_before(home)? {
            let slot = self.move_hole_forward(bucket, slot, home)?;
            return self.put_in(home, slot, pair, true);
        }
        self.append(home, pair)
    }

    /// Finds a free slot behind `home + 1` that can be moved there: every bucket up to it has a native pair that can be
    /// moved forward.
    fn hole_after(&mut self, home: u32) -> Result<Option<(u32, usize)>, TxError> {
        let mut bucket = home + 1;
        while self.slot_of(bucket, true)?.is_some()
            && bucket < self.buckets
            && bucket + 1 - home < FORWARD
        {
            bucket += 1;
            if let Some(slot) = self.free_slot(bucket)? {
                return Ok(Some((bucket, slot)));
            }
        }
        Ok(None)
    }

    /// Finds a free slot before `home` that can be moved there: every bucket behind it has a foreign pair that can
    /// return to its home.
    fn hole_before(&mut self, home: u32) -> Result<Option<(u32, usize)>, TxError> {
        let mut bucket = home;
        while bucket > 0 && home - bucket < BACKWARD && self.slot_of(bucket, false)?.is_some() {
            bucket -= 1;
            if let Some(slot) = self.free_slot(bucket)? {
                return Ok(Some((bucket, slot)));
            }
        }
        Ok(None)
    }

    /// Moves a free slot back to bucket `until`, by moving native pairs one bucket forward.
    fn move_hole_back(
        &mut self,
        mut bucket: u32,
        mut slot: usize,
        until: u32,
    ) -> Result<usize, TxError> {
        marks::mark("kv: displaced forward");
        while bucket > until {
            slot = self.shift(bucket - 1, true, bucket, slot)?;
            bucket -= 1;
        }
        Ok(slot)
    }

    /// Moves a free slot forward to bucket `until`, by returning foreign pairs to their home.
    fn move_hole_forward(
        &mut self,
        mut bucket: u32,
        mut slot: usize,
        until: u32,
    ) -> Result<usize, TxError> {
        marks::mark("kv: displaced backward");
        while bucket < until {
            slot = self.shift(bucket + 1, false, bucket, slot)?;
            bucket += 1;
        }
        Ok(slot)
    }

    /// Moves a native (or foreign) pair of `from` into the free slot of the neighbour `to`, where it becomes foreign
    /// (or native). Returns the slot that it left.
    fn shift(
        &mut self,
        from: u32,
        native: bool,
        to: u32,
        to_slot: usize,
    ) -> Result<usize, TxError> {
        let slot = self
            .slot_of(from, native)?
            .expect("the search found a pair that can be moved");
        let object = self.bucket(from)?;
        let pair = Pair::from_slice(self.layout.bucket(self.tx.payload(object)).pair(slot));
        if !mutants::is_on("displacement leaves the pair in neither bucket") {
            self.put_in(to, to_slot, &pair, !native)?;
        }
        self.clear(from, slot)?;
        Ok(slot)
    }

    /// Fills a free slot from a chain that may use it: that of its bucket or of the bucket before, or a chain to which
    /// the slot can be moved.
    fn refill(&mut self, bucket: u32, slot: usize) -> Result<(), TxError> {
        if self.refill_here(bucket, slot)? {
            return Ok(());
        }
        let (mut back, mut ahead) = (Some(bucket), Some(bucket));
        for _ in 0..REACH {
            back = match back {
                Some(at) if at > 0 && self.slot_of(at - 1, true)?.is_some() => Some(at - 1),
                _ => None,
            };
            if let Some(to) = back
                && to > 0
                && self.has_chain(to - 1)?
            {
                let slot = self.move_hole_back(bucket, slot, to)?;
                return self.pull(to - 1, to, slot, false);
            }
            ahead = match ahead {
                Some(at) if at < self.buckets && self.slot_of(at + 1, false)?.is_some() => {
                    Some(at + 1)
                }
                _ => None,
            };
            if let Some(to) = ahead
                && to < self.buckets
                && self.has_chain(to)?
            {
                let slot = self.move_hole_forward(bucket, slot, to)?;
                return self.pull(to, to, slot, true);
            }
        }
        Ok(())
    }

    fn refill_here(&mut self, bucket: u32, slot: usize) -> Result<bool, TxError> {
        if bucket < self.buckets && self.has_chain(bucket)? {
            self.pull(bucket, bucket, slot, true)?;
            return Ok(true);
        }
        if bucket > 0 && self.has_chain(bucket - 1)? {
            self.pull(bucket - 1, bucket, slot, false)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Moves the last pair of the chain of bucket `chain` into a slot.
    fn pull(&mut self, chain: u32, bucket: u32, slot: usize, native: bool) -> Result<(), TxError> {
        marks::mark("kv: chain pulled from");
        let taken = self.take_last(chain)?.expect("the chain is not empty");
        self.put_in(bucket, slot, &taken, native)
    }
}
