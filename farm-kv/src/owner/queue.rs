//! The changes that an owner must make, as a value that determines which changes form one transaction, and which
//! changes wait.
//!
//! A batch is a list of changes that form one transaction. A bucket has at most one batch at a time. Changes of the
//! bucket that arrive while its batch is in flight wait in their order. The first of them, with the changes after it
//! that can be combined with it, becomes the next batch (flat combining, `FaRM'14 §3.6`; docs/decisions/0006). Batches
//! of different buckets are in flight at the same time.
//!
//! A pair is in the bucket of its key or in the next one, so batches of adjacent buckets may write the same bucket. A batch that
//! meets a conflict waits for the end of the batch of an adjacent bucket, if that is in flight, and then begins before the next
//! batch of that bucket. A batch waits only for batches that do not wait themselves, so no two wait for each other.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

use farm_core::messaging::Request;
use farm_core::worker::Context;
use farm_txn::TxHandle;
use slab::Slab;
use smallvec::SmallVec;

use crate::KvError;
use crate::change::{HEADER_BYTES, PUTS, key_bytes};
use crate::pending::ChangeCont;
use crate::shard::Changed;

/// Number of conflicts of a batch after which it is retried after a wait, and no longer at once.
const CONFLICTS_AT_ONCE: u32 = 20;
/// Number of conflicts of a batch after which its changes fail. The number is large, because a transaction over several
/// machines may hold its locks for a long time: for several round trips, while it waits for this very worker, or while
/// its thread has no core.
pub(super) const MAX_CONFLICTS: u32 = 20_000;
/// The same, if the machines survive the loss of one of them: 2 s or more.
pub(super) const MAX_CONFLICTS_OF_A_LOSS: u32 = 20 * MAX_CONFLICTS;

/// Difference of the positions of two adjacent buckets of a shard.
const NEXT_BUCKET: u64 = 1 << 32;

/// Number of changes for which memory is allocated in advance.
const EXPECTED: usize = 1024;

/// Counts of the changes that a worker made to its own shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeCounters {
    /// Number of changes.
    pub changes: u64,
    /// Number of transactions that made the changes. It is smaller than `changes` if changes of one key were combined.
    pub transactions: u64,
}

/// The requester of a change.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiter {
    /// Another worker.
    Other(Request),
    /// This worker.
    Own(ChangeCont),
}

/// A change that is not made yet.
#[derive(Debug)]
pub(crate) struct QueuedChange {
    pub(super) waiter: Waiter,
    /// The body of the change's message.
    pub(super) body: Vec<u8>,
    /// The outcome, once an attempt has made the change. It is final when that attempt has committed.
    pub(super) outcome: Option<Result<Changed, KvError>>,
    /// Whether the change must be a transaction of its own, because a transaction that combined it with others was
    /// refused.
    alone: bool,
}

impl QueuedChange {
    pub(super) fn new(waiter: Waiter, body: Vec<u8>) -> Self {
        Self {
            waiter,
            body,
            outcome: None,
            alone: false,
        }
    }

    /// Returns the shard and the bucket of the change, as one number.
    fn position(&self) -> u64 {
        let named = self.body.get(4..HEADER_BYTES);
        let named = named.and_then(<[u8]>::first_chunk);
        named.map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Returns whether a later change can be part of the same transaction: both put the same key, with values of the
    /// same length.
    fn combines_with(&self, next: &Self) -> bool {
        let put = |body: &[u8]| body.first().is_some_and(|code| PUTS.contains(code));
        let (first, next_body) = (&self.body, &next.body);
        !self.alone
            && !next.alone
            && put(first)
            && put(next_body)
            && first.len() == next_body.len()
            // Length of the key, table, shard, bucket and key.
            && key_bytes(first).is_some_and(|key_bytes| {
                let named = 1..HEADER_BYTES + key_bytes;
                first[named.clone()] == next_body[named]
            })
    }
}

/// Changes in the order in which they arrived, linked through [`Changes`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct List {
    /// The slots of the first and the last change; `None` if the list is empty.
    ends: Option<(u32, u32)>,
}

/// All changes that have not ended. A list of changes consists of links between slots, so that a list needs no memory
/// of its own.
#[derive(Debug, Default)]
pub(super) struct Changes {
    slots: Slab<(QueuedChange, Option<u32>)>,
}

impl Changes {
    fn push_back(&mut self, list: &mut List, change: QueuedChange) {
        let slot = self.slots.insert((change, None)) as u32;
        list.ends = match list.ends {
            None => Some((slot, slot)),
            Some((first, last)) => {
                self.slots[last as usize].1 = Some(slot);
                Some((first, slot))
            }
        };
    }

    /// Appends a list to another.
    fn append(&mut self, list: &mut List, other: List) {
        list.ends = match (list.ends, other.ends) {
            (ends, None) | (None, ends) => ends,
            (Some((first, last)), Some((next, end))) => {
                self.slots[last as usize].1 = Some(next);
                Some((first, end))
            }
        };
    }

    /// Unlinks the first change of a list. Returns its slot.
    fn unlink_first(&mut self, list: &mut List) -> Option<u32> {
        let (first, last) = list.ends?;
        let next = self.slots[first as usize].1.take();
        list.ends = next.map(|next| (next, last));
        Some(first)
    }

    /// Returns the first change of a list.
    pub(super) fn first(&self, list: List) -> Option<&QueuedChange> {
        let (first, _) = list.ends?;
        Some(&self.slots[first as usize].0)
    }

    /// Calls `work` with each change of a list, until it fails.
    pub(super) fn try_for_each<E>(
        &mut self,
        list: List,
        mut work: impl FnMut(&mut QueuedChange) -> Result<(), E>,
    ) -> Result<u64, E> {
        let (mut count, mut at) = (0, list.ends.map(|ends| ends.0));
        while let Some(slot) = at {
            let (change, next) = &mut self.slots[slot as usize];
            work(change)?;
            (count, at) = (count + 1, *next);
        }
        Ok(count)
    }
}

/// Identifies a batch of this worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchId(u32);

impl Context for BatchId {
    fn to_word(self) -> u64 {
        self.0.into()
    }

    fn from_word(word: u64) -> Self {
        Self(word as u32)
    }
}

/// Changes that are one transaction.
#[derive(Debug, Default)]
pub(super) struct Batch {
    position: u64,
    pub(super) changes: List,
    /// Whether the transaction of the batch has begun. If so, no further change can join the batch.
    begun: bool,
    /// Whether the batch waits for the end of another one.
    waits: bool,
    /// Batches that wait for the end of this one.
    waiting: SmallVec<[BatchId; 2]>,
    conflicts: u32,
    /// Number of changes of the attempt that is being committed.
    pub(super) made: u64,
    /// The transaction in which a change is being made that reaches objects of other machines.
    pub(super) far: Option<TxHandle>,
    /// The error of the attempt whose reads are being validated.
    pub(super) refusal: Option<KvError>,
}

/// The handling of a batch after a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    AtOnce,
    Later,
    /// When the batch of an adjacent bucket has ended: the batch becomes [ready](ChangeQueue::next_ready) then.
    AfterAdjacent,
    /// The changes of the batch fail.
    Never,
}

/// A bucket with a batch.
#[derive(Debug)]
struct Bucket {
    batch: BatchId,
    /// Changes that wait for the end of the batch.
    waiting: List,
}

/// Buckets by position. The hash is the same in every run, and nothing iterates over the map.
#[expect(
    clippy::disallowed_types,
    reason = "nothing iterates over the map, so its order has no effect"
)]
type Buckets = std::collections::HashMap<u64, Bucket, BuildHasherDefault<Multiply>>;

/// The changes that an owner must make; see the [module](self).
#[derive(Debug)]
pub(crate) struct ChangeQueue {
    pub(super) changes: Changes,
    batches: Slab<Batch>,
    buckets: Buckets,
    /// Batches whose transaction is to begin.
    ready: VecDeque<BatchId>,
}

impl Default for ChangeQueue {
    fn default() -> Self {
        Self {
            changes: Changes {
                slots: Slab::with_capacity(EXPECTED),
            },
            batches: Slab::with_capacity(EXPECTED),
            buckets: Buckets::with_capacity_and_hasher(EXPECTED, BuildHasherDefault::default()),
            ready: VecDeque::with_capacity(EXPECTED),
        }
    }
}

impl ChangeQueue {
    /// Adds a change. Returns whether [`ChangeQueue::next_ready`] has a batch now, and had none before.
    pub(super) fn push(&mut self, change: QueuedChange) -> bool {
        let position = change.position();
        match self.buckets.entry(position) {
            Entry::Vacant(bucket) => {
                let mut batch = Batch {
                    position,
                    ..Batch::default()
                };
                self.changes.push_back(&mut batch.changes, change);
                let batch = BatchId(self.batches.insert(batch) as u32);
                let waiting = List::default();
                bucket.insert(Bucket { batch, waiting });
                self.ready.push_back(batch);
                return self.ready.len() == 1;
            }
            Entry::Occupied(mut bucket) => {
                let Bucket { batch, waiting } = bucket.get_mut();
                let batch = &mut self.batches[batch.0 as usize];
                let first = self.changes.first(batch.changes);
                let joins = !batch.begun
                    && waiting.ends.is_none()
                    && first.is_some_and(|first| first.combines_with(&change));
                let list = match joins {
                    true => &mut batch.changes,
                    false => waiting,
                };
                self.changes.push_back(list, change);
            }
        }
        false
    }

    /// Removes the first batch whose transaction is to begin.
    pub(super) fn next_ready(&mut self) -> Option<BatchId> {
        let id = self.ready.pop_front()?;
        self.batch(id).begun = true;
        Some(id)
    }

    pub(super) fn batch(&mut self, id: BatchId) -> &mut Batch {
        &mut self.batches[id.0 as usize]
    }

    /// Returns the first change of a batch that has not ended.
    pub(super) fn first_of(&mut self, id: BatchId) -> &mut QueuedChange {
        let ends = self.batches[id.0 as usize].changes.ends;
        let (first, _) = ends.expect("a batch contains at least one change until it ends");
        &mut self.changes.slots[first as usize].0
    }

    /// Counts a conflict of a batch with another transaction. Returns when to retry the batch; never after `most` conflicts.
    pub(super) fn on_conflict(&mut self, id: BatchId, most: u32) -> Retry {
        let batch = self.batch(id);
        batch.conflicts += 1;
        let (conflicts, position) = (batch.conflicts, batch.position);
        if conflicts < most
            && let Some(adjacent) = self.adjacent_in_flight(position)
        {
            self.batch(adjacent).waiting.push(id);
            self.batch(id).waits = true;
            return Retry::AfterAdjacent;
        }
        match conflicts {
            0..=CONFLICTS_AT_ONCE => Retry::AtOnce,
            _ if conflicts >= most => Retry::Never,
            _ => Retry::Later,
        }
    }

    /// Returns the batch of an adjacent bucket whose transaction has begun, and which does not wait.
    fn adjacent_in_flight(&self, position: u64) -> Option<BatchId> {
        let adjacent = [
            position.wrapping_sub(NEXT_BUCKET),
            position.wrapping_add(NEXT_BUCKET),
        ];
        let mut batches = adjacent
            .iter()
            .filter_map(|at| Some(self.buckets.get(at)?.batch));
        batches.find(|id| {
            let batch = &self.batches[id.0 as usize];
            batch.begun && !batch.waits
        })
    }

    /// Returns whether a batch has a single change. If it has several, removes the batch; each of its changes becomes a batch of its
    /// own.
    pub(super) fn split(&mut self, id: BatchId) -> bool {
        let Self {
            changes,
            batches,
            buckets,
            ..
        } = self;
        let batch = &mut batches[id.0 as usize];
        if batch.changes.ends.is_none_or(|(first, last)| first == last) {
            return true;
        }
        let alone = changes.try_for_each(batch.changes, |change| {
            change.alone = true;
            Ok::<_, std::convert::Infallible>(())
        });
        let Ok(_) = alone;
        let mut waiting = std::mem::take(&mut batch.changes);
        let bucket = buckets.get_mut(&batch.position);
        let bucket = bucket.expect("a bucket stays in the map while a batch changes it");
        changes.append(&mut waiting, bucket.waiting);
        bucket.waiting = waiting;
        self.finish(id);
        false
    }

    /// Removes the first change of a batch that has ended.
    pub(super) fn next_ended(&mut self, id: BatchId) -> Option<QueuedChange> {
        let batch = &mut self.batches[id.0 as usize];
        let slot = self.changes.unlink_first(&mut batch.changes)?;
        Some(self.changes.slots.remove(slot as usize).0)
    }

    /// Removes a batch that has ended and has no change left. The first changes that wait for its bucket become the
    /// next batch.
    pub(super) fn finish(&mut self, id: BatchId) {
        let Batch {
            position, waiting, ..
        } = self.batches.remove(id.0 as usize);
        for id in waiting {
            self.batch(id).waits = false;
            self.ready.push_back(id);
        }
        let Entry::Occupied(mut bucket) = self.buckets.entry(position) else {
            unreachable!("a bucket stays in the map while a batch changes it");
        };
        let waiting = &mut bucket.get_mut().waiting;
        let Some(first) = self.changes.unlink_first(waiting) else {
            bucket.remove();
            return;
        };
        let mut list = List {
            ends: Some((first, first)),
        };
        let combines = |changes: &Changes, next| {
            let first = &changes.slots[first as usize].0;
            changes
                .first(next)
                .is_some_and(|next| first.combines_with(next))
        };
        while combines(&self.changes, *waiting) {
            let next = self.changes.unlink_first(waiting);
            let next = next.map(|next| (next, next));
            self.changes.append(&mut list, List { ends: next });
        }
        let next = Batch {
            position,
            changes: list,
            ..Batch::default()
        };
        let next = BatchId(self.batches.insert(next) as u32);
        bucket.get_mut().batch = next;
        self.ready.push_back(next);
    }

    /// Returns whether a batch is ready.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns the number of batches that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.batches.len()
    }
}

/// A hasher for the position of a bucket, which is one number: Fibonacci hashing, with the high half folded onto the
/// low half.
#[derive(Default)]
struct Multiply(u64);

impl Hasher for Multiply {
    fn write(&mut self, _: &[u8]) {
        unreachable!("the keys of the map of buckets are u64 numbers");
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        let product = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = product ^ product >> 32;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
