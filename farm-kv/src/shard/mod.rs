//! How a shard's owner puts, changes and removes pairs: chained associative hopscotch hashing
//! (`FaRM'14 §3.6`), each change one transaction over the buckets and blocks it touches.
//!
//! A new pair goes to a free slot of its home bucket, else of the next one. Else the nearest free
//! slot further on is moved towards home by pushing native pairs one bucket forward; or, where a
//! remove has left one, the nearest free slot before home is moved forward by letting foreign pairs
//! return to their own home. Else the pair goes to the home bucket's chain. Whether a slot can be
//! moved is known from each bucket's slot bits alone, and no placement puts fewer pairs into chains:
//! every pair has two adjacent buckets to be in, so a chain of displacements is a straight line.
//!
//! A remove fills the hole from a chain that may use it, moving the hole by at most two buckets to
//! reach one.
//!
//! Invariants, checked by [`crate::ops::check`]: a key is in the table once; a native pair's home is
//! its bucket and a foreign one's the bucket before; only the second block of a chain, or the first
//! of one with no second, may have a free slot, and none is empty.

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

/// Buckets looked at from home on for a free slot. The search ends early where nothing can be
/// moved; at 90 % occupancy it looks at three on average, and more than sixteen gain nothing.
const FORWARD: u32 = 16;
/// Buckets looked at before home.
const BACKWARD: u32 = 4;
/// Buckets by which a hole is moved to reach a chain.
const REACH: u32 = 2;

/// A pair on its way from one place to another.
type Pair = SmallVec<[u8; 64]>;

/// What a change did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// A new pair is in the table.
    Inserted,
    /// The value of a pair was replaced.
    Updated,
    /// The pair is gone.
    Removed,
    /// Nothing: an insert found the key.
    Exists,
    /// Nothing: an update or remove did not find the key.
    Absent,
}

/// How a committed change moved the shard's counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Pairs more or less.
    pub pairs: i64,
    /// Overflow blocks more or less.
    pub blocks: i64,
}

/// Where a pair is.
enum Place {
    Bucket { bucket: u32, slot: usize },
    Block { block: ObjectId, slot: usize },
}

/// One transaction on one shard.
pub(crate) struct Editor<'a> {
    pub(crate) worker: &'a mut Worker,
    pub(crate) tx: &'a mut Tx,
    pub(crate) layout: Layout,
    /// The shard's first bucket.
    pub(crate) first: Address,
    /// Buckets of the shard, the spare one not counted.
    pub(crate) buckets: u32,
    /// The shard is on another machine: objects and blocks have to be brought in before.
    pub(crate) elsewhere: bool,
    /// A block for a chain that grows on another machine.
    pub(crate) spare: Option<ObjectId>,
    /// What has to be brought in, where an edit failed for want of it.
    pub(crate) missing: Option<Missing>,
    /// Buckets that this edit writes.
    pub(crate) written: SmallVec<[u32; 24]>,
    pub(crate) delta: Delta,
}

/// What an edit of a shard cannot have at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// An object of another machine, or one that is locked.
    Object(Address, SizeClass),
    /// A new block near this address, on another machine.
    Block(Address),
}

impl<'a> Editor<'a> {
    /// Works on a shard of this machine.
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
    /// Inserts, or replaces the value: as `insert` and `update` allow.
    pub(crate) fn put(
        &mut self,
        home: u32,
        pair: &[u8],
        insert: bool,
        update: bool,
    ) -> Result<Changed, TxError> {
        let key: &Key = pair[..KEY_BYTES]
            .try_into()
            .expect("a pair begins with its key");
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

    /// Gives both sides of every boundary between two buckets that the transaction writes the same new
    /// joint version, if this edit writes one of them.
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
            // Freed since the pointer to it was read.
            Err(TxError::NotAllocated(address)) => return Err(Abort::Changed(address).into()),
            block => block?,
        };
        if !next.names(self.tx.incarnation(block)) {
            return Err(Abort::Changed(next.address).into());
        }
        Ok(block)
    }

    /// Where a key's value lies: the object and the first of its bytes in the payload.
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
            // Only memory that is damaged leads round.
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

    /// The bucket, to be written.
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

    /// Puts a new pair where it belongs.
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

    /// A free slot after `home + 1` that can be moved there: every bucket up to it has a native pair
    /// to push on.
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

    /// A free slot before `home` that can be moved there: every bucket after it has a foreign pair
    /// that can return.
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

    /// Moves a hole back to `until` by pushing native pairs one bucket forward.
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

    /// Moves a hole forward to `until` by returning foreign pairs to their home.
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

    /// Moves a native (or foreign) pair of `from` into the free slot of the neighbour `to`, where it
    /// is foreign (or native). Gives the slot that it left.
    fn shift(
        &mut self,
        from: u32,
        native: bool,
        to: u32,
        to_slot: usize,
    ) -> Result<usize, TxError> {
        let slot = self
            .slot_of(from, native)?
            .expect("the search saw a pair that can be moved");
        let object = self.bucket(from)?;
        let pair = Pair::from_slice(self.layout.bucket(self.tx.payload(object)).pair(slot));
        if !mutants::is_on("displacement leaves the pair in neither bucket") {
            self.put_in(to, to_slot, &pair, !native)?;
        }
        self.clear(from, slot)?;
        Ok(slot)
    }

    /// Fills a hole from a chain that may use it: that of its bucket or of the one before, or one
    /// that the hole can be moved to.
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

    /// Moves the last pair of `chain`'s chain into a slot.
    fn pull(&mut self, chain: u32, bucket: u32, slot: usize, native: bool) -> Result<(), TxError> {
        marks::mark("kv: chain pulled from");
        let taken = self.take_last(chain)?.expect("the chain is not empty");
        self.put_in(bucket, slot, &taken, native)
    }
}
