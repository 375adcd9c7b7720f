//! Displacement: moving a free slot from bucket to bucket, by moving pairs between their two possible buckets.

use std::cmp::Ordering;

use farm_core::{marks, mutants};

use super::{EditError, Editor, Pair};

/// Number of buckets, from the home bucket on, that are searched for a free slot. The search ends early at a bucket
/// without a pair that can be moved. At 90 % occupancy it visits three buckets on average, and more than sixteen have
/// no benefit.
const FORWARD: u32 = 16;
/// Number of buckets before the home bucket that are searched.
const BACKWARD: u32 = 4;
/// Number of buckets by which a free slot is moved to reach a chain.
const REACH: u32 = 2;

/// A chain whose last pair can be moved into a bucket.
#[derive(Clone, Copy)]
pub(super) struct Refill {
    /// Bucket of the chain: the home of its pairs.
    chain: u32,
    /// Bucket that receives the pair.
    to: u32,
    /// Whether the pair is native there.
    native: bool,
}

impl Refill {
    /// Creates the refill that moves a pair from a bucket's chain into that bucket.
    fn native(bucket: u32) -> Self {
        Self {
            chain: bucket,
            to: bucket,
            native: true,
        }
    }

    /// Creates the refill that moves a pair into a bucket from the chain of the previous bucket.
    fn foreign(bucket: u32) -> Self {
        Self {
            chain: bucket - 1,
            to: bucket,
            native: false,
        }
    }
}

impl Editor<'_> {
    /// Stores a new pair in a bucket or in the chain.
    pub(super) fn place(&mut self, home: u32, pair: &[u8]) -> Result<(), EditError> {
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

    /// Finds a free slot after bucket `home + 1` that can be moved to that bucket: every bucket from there up to the
    /// slot has a native pair that can be moved forward.
    fn hole_after(&self, home: u32) -> Result<Option<(u32, usize)>, EditError> {
        let mut bucket = home + 1;
        while self.slot_of(bucket, true)?.is_some()
            && bucket < self.shard.buckets
            && bucket + 1 - home < FORWARD
        {
            bucket += 1;
            if let Some(slot) = self.free_slot(bucket)? {
                return Ok(Some((bucket, slot)));
            }
        }
        Ok(None)
    }

    /// Finds a free slot before bucket `home` that can be moved to that bucket: every bucket after the slot, up to
    /// `home`, has a foreign pair that can return to its home.
    fn hole_before(&self, home: u32) -> Result<Option<(u32, usize)>, EditError> {
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
    ) -> Result<usize, EditError> {
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
    ) -> Result<usize, EditError> {
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
    ) -> Result<usize, EditError> {
        let slot = self
            .slot_of(from, native)?
            .expect("the search found a pair that can be moved");
        let object = self.bucket(from)?;
        let pair = Pair::from_slice(self.shard.layout.bucket(self.tx.payload(object)).pair(slot));
        if !mutants::is_on("displacement leaves the pair in neither bucket") {
            self.put_in(to, to_slot, &pair, !native)?;
        }
        self.clear(from, slot)?;
        Ok(slot)
    }

    /// Finds a chain that may use a slot of a bucket once that slot is free: the chain of the bucket or of the previous
    /// bucket, or a chain to which the slot can be moved.
    pub(super) fn find_refill(&self, bucket: u32) -> Result<Option<Refill>, EditError> {
        let found = match self.refill_here(bucket)? {
            None => self.refill_nearby(bucket)?,
            here => here,
        };
        if let Some(refill) = found {
            self.chain(refill.chain)?;
        }
        Ok(found)
    }

    fn refill_here(&self, bucket: u32) -> Result<Option<Refill>, EditError> {
        if bucket < self.shard.buckets && self.has_chain(bucket)? {
            return Ok(Some(Refill::native(bucket)));
        }
        if bucket > 0 && self.has_chain(bucket - 1)? {
            return Ok(Some(Refill::foreign(bucket)));
        }
        Ok(None)
    }

    fn refill_nearby(&self, bucket: u32) -> Result<Option<Refill>, EditError> {
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
                return Ok(Some(Refill::foreign(to)));
            }
            ahead = match ahead {
                Some(at) if at < self.shard.buckets && self.slot_of(at + 1, false)?.is_some() => {
                    Some(at + 1)
                }
                _ => None,
            };
            if let Some(to) = ahead
                && to < self.shard.buckets
                && self.has_chain(to)?
            {
                return Ok(Some(Refill::native(to)));
            }
        }
        Ok(None)
    }

    /// Moves a free slot to the bucket where the last pair of a chain can use it, and moves that pair there.
    pub(super) fn refill(
        &mut self,
        bucket: u32,
        slot: usize,
        refill: Refill,
    ) -> Result<(), EditError> {
        let slot = match refill.to.cmp(&bucket) {
            Ordering::Less => self.move_hole_back(bucket, slot, refill.to)?,
            Ordering::Equal => slot,
            Ordering::Greater => self.move_hole_forward(bucket, slot, refill.to)?,
        };
        marks::mark("kv: chain pulled from");
        let taken = self
            .take_last(refill.chain)?
            .expect("a refill takes pairs only from a chain that is not empty");
        self.put_in(refill.to, slot, &taken, refill.native)
    }
}
