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

use farm_core::ids::Address;
use farm_core::worker::Worker;
use farm_txn::{ObjectId, Tx, TxError};
use smallvec::SmallVec;

use crate::layout::{BLOCK_SLOTS, Layout, Next};
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
    /// Buckets that this transaction writes.
    pub(crate) written: SmallVec<[u32; 24]>,
    pub(crate) delta: Delta,
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

    /// Gives both sides of every boundary between two written buckets the same new joint version.
    pub(crate) fn finish(&mut self) -> Result<(), TxError> {
        self.written.sort_unstable();
        for index in 1..self.written.len() {
            let (left, right) = (self.written[index - 1], self.written[index]);
            if left + 1 != right {
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

    fn address(&self, bucket: u32) -> Address {
        Address::new(
            self.first.region(),
            self.first.offset() + bucket * self.layout.bucket_bytes() as u32,
        )
    }

    #[inline]
    fn bucket(&mut self, bucket: u32) -> Result<ObjectId, TxError> {
        let address = self.address(bucket);
        self.tx
            .read_class(self.worker, address, self.layout.bucket_class)
    }

    fn block(&mut self, next: Next) -> Result<ObjectId, TxError> {
        let class = self.layout.block_class;
        let block = match self.tx.read_class(self.worker, next.address, class) {
            // Freed since the pointer to it was read.
            Err(TxError::NotAllocated(address)) => {
                return Err(farm_txn::Abort::Changed(address).into());
            }
            block => block?,
        };
        if !next.names(self.tx.incarnation(block)) {
            return Err(farm_txn::Abort::Changed(next.address).into());
        }
        Ok(block)
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
        while let Some(pointer) = next {
            let block = self.block(pointer)?;
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
        self.put_in(to, to_slot, &pair, !native)?;
        self.clear(from, slot)?;
        Ok(slot)
    }

    /// Adds a pair to a bucket's chain: to the block that has room, else to a new first block, which
    /// takes a pair of the old one along, so that it is full and the next one is not.
    fn append(&mut self, home: u32, pair: &[u8]) -> Result<(), TxError> {
        let chain = self.chain(home)?;
        if let Some(last) = chain.last()
            && let Some(slot) = self.free_slot_in(last.block)
        {
            self.put_in_block(last.block, slot, pair);
            return Ok(());
        }
        let near = self.address(home);
        let payload = farm_core::object::payload_capacity(self.layout.block_bytes());
        let block = self.tx.alloc(self.worker, payload, Some(near))?;
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
        self.delta.blocks += 1;
        Ok(())
    }

    /// The first two blocks of a bucket's chain.
    fn chain(&mut self, bucket: u32) -> Result<Chain, TxError> {
        let object = self.bucket(bucket)?;
        let Some(pointer) = self.layout.bucket(self.tx.payload(object)).next() else {
            return Ok(Chain {
                first: None,
                second: None,
            });
        };
        let block = self.block(pointer)?;
        let first = Link {
            block,
            address: pointer.address,
        };
        let second = match self.layout.block(self.tx.payload(block)).next() {
            None => None,
            Some(pointer) => Some(Link {
                block: self.block(pointer)?,
                address: pointer.address,
            }),
        };
        Ok(Chain {
            first: Some(first),
            second,
        })
    }

    /// Takes the last pair of a bucket's chain. Every block on the way to it gets a new incarnation:
    /// a reader that read the bucket before, and will look for the pair where it was, finds another
    /// block than it was sent to, and begins again.
    fn take_last(&mut self, bucket: u32) -> Result<Option<Pair>, TxError> {
        let chain = self.chain(bucket)?;
        let (Some(first), Some(last)) = (chain.first, chain.last()) else {
            return Ok(None);
        };
        let pair = self.take_highest(last.block);
        let emptied = self.layout.block(self.tx.payload(last.block)).occupied() == 0;
        let mut left = if emptied {
            let after = self.layout.block(self.tx.payload(last.block)).next();
            self.tx.free(last.block);
            self.delta.blocks -= 1;
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

    /// Takes the pair in the highest slot of a block.
    fn take_highest(&mut self, block: ObjectId) -> Pair {
        let mut view = self.layout.block(self.tx.payload_mut(block));
        let (next, occupied) = (view.next(), view.occupied());
        let slot = occupied
            .checked_ilog2()
            .expect("a block of a chain holds a pair") as usize;
        let pair = Pair::from_slice(view.pair(slot));
        view.set_tail(next, occupied & !(1 << slot));
        pair
    }

    /// Gives a block a new incarnation, and the pointer to it as it is then.
    fn rename(&mut self, link: Link) -> Next {
        self.tx.increment_incarnation(link.block);
        Next::new(link.address, self.tx.incarnation(link.block))
    }

    fn free_slot_in(&self, block: ObjectId) -> Option<usize> {
        let free = !self.layout.block(self.tx.payload(block)).occupied() & ((1 << BLOCK_SLOTS) - 1);
        (free != 0).then(|| free.trailing_zeros() as usize)
    }

    fn put_in_block(&mut self, block: ObjectId, slot: usize, pair: &[u8]) {
        let mut view = self.layout.block(self.tx.payload_mut(block));
        view.put(slot, pair);
        let (next, occupied) = (view.next(), view.occupied() | 1 << slot);
        view.set_tail(next, occupied);
    }

    fn set_next_of_block(&mut self, block: ObjectId, next: Option<Next>) {
        let mut view = self.layout.block(self.tx.payload_mut(block));
        let occupied = view.occupied();
        view.set_tail(next, occupied);
    }

    fn set_chain(&mut self, bucket: u32, chain: Option<Next>) -> Result<(), TxError> {
        let object = self.write(bucket)?;
        self.layout
            .bucket(self.tx.payload_mut(object))
            .set_next(chain);
        Ok(())
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
        let taken = self.take_last(chain)?.expect("the chain is not empty");
        self.put_in(bucket, slot, &taken, native)
    }
}

/// A block of a chain.
#[derive(Clone, Copy)]
struct Link {
    block: ObjectId,
    address: Address,
}

/// The first two blocks of a chain, of which the later one is the one that may have a free slot.
#[derive(Clone, Copy)]
struct Chain {
    first: Option<Link>,
    second: Option<Link>,
}

impl Chain {
    /// The block that grows and shrinks.
    fn last(&self) -> Option<Link> {
        self.second.or(self.first)
    }
}

/// Counts of a shard, as [`crate::ops::check`] found them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardFacts {
    /// Pairs in buckets and chains.
    pub pairs: u64,
    /// Pairs in chains.
    pub chained: u64,
    /// Overflow blocks.
    pub blocks: u64,
}

impl Editor<'_> {
    /// Walks the whole shard and holds it against its invariants; `home_of` gives a key's bucket.
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
                        "slot {slot} of bucket {bucket} holds a pair of bucket {}",
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
                    "a block of bucket {bucket}'s chain has slots {occupied:#b}"
                )));
            }
            for slot in (0..BLOCK_SLOTS).filter(|slot| occupied & 1 << slot != 0) {
                let key: &Key = view.pair(slot)[..KEY_BYTES].try_into().expect("a key");
                if home_of(key) != bucket {
                    return Ok(Err(format!(
                        "bucket {bucket}'s chain holds a pair of bucket {}",
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
