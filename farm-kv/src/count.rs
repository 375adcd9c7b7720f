//! The number of pairs of a table: the owners of its shards read their buckets.
//!
//! No worker counts pairs while it changes them. A count beside the pairs would be wrong for ever when a machine is lost between
//! the commit of a transaction and the message to the owner, and a count that is part of each transaction would make all changes
//! of a shard conflict.

use std::collections::BTreeMap;

use farm_core::alloc::SizeClass;
use farm_core::fabric::Slot as Room;
use farm_core::ids::{Address, WorkerRef};
use farm_core::messaging::{MessageId, Request};
use farm_core::object::Incarnation;
use farm_core::worker::{Cont, EpochGuard, ReadRequest, ReadResult, Worker};
use farm_txn::tasks::{Answer, Slot, answer};
use farm_txn::{Handle, TxError, spawn};
use futures_util::future::try_join_all;

use crate::KvError;
use crate::calls::{at_once, call};
use crate::layout::{Layout, Next};
use crate::open::when_open;
use crate::owners::{look_up_again, look_up_all};
use crate::refusals::Refusals;
use crate::shard::ShardPlace;
use crate::state::kv;
use crate::table::TableId;

/// Message id of the request for the number of pairs of a shard. The body names the table and the shard. The reply is the number,
/// or [`MOVED`], or empty if the table is not open or its shard cannot be read.
pub(crate) const PAIRS: MessageId = MessageId(MessageId::KV + 3);
/// Bytes of a request, and the most bytes of a reply.
const REQUEST_BYTES: usize = 6;
const REPLY_BYTES: usize = 8;
/// The reply of a worker that does not own the shard.
const MOVED: &[u8] = &[0];
/// Maximum number of blocks of a chain: as many as a transaction can have objects. A chain in damaged memory may be a cycle.
const MOST_BLOCKS: u64 = 1 << 24;
/// Number of times that a bucket is read again because its chain was changed, or that objects stay locked, before the count fails.
const MOST_TRIES: u32 = 1000;
/// Bytes of buckets that are read at a time.
const READ_BYTES: usize = 16 << 10;

/// Counts the pairs of a table. The continuation is called from the event loop.
///
/// It reads all buckets. Each is read at a moment of its own, so the number is exact if nothing changes the table meanwhile.
///
/// The continuation receives [`KvError::NotOpen`]; [`KvError::Conflict`] if objects stay locked, or chains change all the time;
/// [`KvError::Catalog`] if another owner cannot open the table or read its shard; [`KvError::Moved`]; [`KvError::PeerLost`].
pub fn count(worker: &mut Worker, table: TableId, cont: Cont<Result<u64, KvError>>) {
    spawn(worker, move |farm| async move {
        let pairs = count_all(&farm, table).await;
        at_once(&farm, |worker| cont.resume(worker, pairs));
    });
}

async fn count_all(farm: &Handle, table: TableId) -> Result<u64, KvError> {
    let by_owner = at_once(farm, |worker| {
        look_up_all(worker, table.0);
        let mut by_owner = BTreeMap::<WorkerRef, Vec<u32>>::new();
        for (shard, known) in (0..).zip(&kv(worker).tables.open(table)?.shards) {
            by_owner.entry(known.owner).or_default().push(shard);
        }
        Ok::<_, KvError>(by_owner)
    })?;
    // All owners count at the same time, each one shard after another.
    let sums = by_owner.into_values().map(|shards| async {
        let mut pairs = 0;
        for shard in shards {
            pairs += count_shard(farm, table, shard).await?;
        }
        Ok::<u64, KvError>(pairs)
    });
    Ok(try_join_all(sums).await?.into_iter().sum())
}

/// Has a shard counted by its owner, whichever worker that is.
async fn count_shard(farm: &Handle, table: TableId, shard: u32) -> Result<u64, KvError> {
    let body = encode(table.0, shard);
    let mut refusals = Refusals::default();
    loop {
        let (owner, place) = at_once(farm, |worker| owner_and_place(worker, table, shard));
        if owner == farm.me() {
            return Ok(read_shard(farm, &place, u32::MAX).await?.pairs);
        }
        let refused = match call(farm, owner, PAIRS, &body, REPLY_BYTES).await {
            Ok(reply) if reply == MOVED => KvError::Moved(owner.machine),
            Ok(reply) => {
                let pairs = <[u8; REPLY_BYTES]>::try_from(reply).map(u64::from_le_bytes);
                return pairs.map_err(|_| {
                    KvError::Catalog(format!(
                        "worker {owner} could not count the pairs of a shard; see the log of its machine for the reason"
                    ))
                });
            }
            Err(error) => error,
        };
        let wait = at_once(farm, |worker| refusals.next_wait(worker, &refused));
        farm.sleep(wait.ok_or(refused)?).await;
    }
}

/// Replies to a request for the number of pairs of a shard.
pub(crate) fn handle(worker: &mut Worker, request: Request, body: &[u8]) {
    let table = decode(body).map(|asked| asked.0);
    when_open(worker, table, (request, body), handle_now);
}

fn handle_now(worker: &mut Worker, request: Request, body: &[u8]) {
    let mut open = |table: u16| kv(worker).tables.get(&table).map(|open| open.spec.shards);
    let asked = decode(body).filter(|asked| open(asked.0).is_some_and(|shards| asked.1 < shards));
    let Some((table, shard)) = asked.map(|(table, shard)| (TableId(table), shard)) else {
        tracing::warn!(from = %request.from, "refusing to count the pairs of a shard: it does not exist, or its table is not open");
        return worker.reply(request, &[]);
    };
    let (owner, place) = owner_and_place(worker, table, shard);
    if owner != worker.me() {
        return worker.reply(request, &[MOVED]);
    }
    spawn(worker, move |farm| async move {
        let read = read_shard(&farm, &place, u32::MAX).await;
        at_once(&farm, |worker| match read {
            Ok(found) => worker.reply(request, &[&found.pairs.to_le_bytes()]),
            Err(error) => {
                tracing::warn!(table = table.0, shard, %error, "cannot count the pairs of a shard");
                worker.reply(request, &[]);
            }
        });
    });
}

fn owner_and_place(worker: &mut Worker, table: TableId, shard: u32) -> (WorkerRef, ShardPlace) {
    let owner = look_up_again(worker, table.0, shard);
    (owner, kv(worker).tables[&table.0].place(shard))
}

/// Encodes a request.
pub(crate) fn encode(table: u16, shard: u32) -> [u8; REQUEST_BYTES] {
    let mut body = [0; REQUEST_BYTES];
    body[..2].copy_from_slice(&table.to_le_bytes());
    body[2..].copy_from_slice(&shard.to_le_bytes());
    body
}

/// Decodes a request: the numbers of a table and of a shard.
pub(crate) fn decode(body: &[u8]) -> Option<(u16, u32)> {
    let [low, high, shard @ ..] = *<&[u8; REQUEST_BYTES]>::try_from(body).ok()?;
    Some((u16::from_le_bytes([low, high]), u32::from_le_bytes(shard)))
}

/// What buckets and their chains contain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) pairs: u64,
    pub(crate) blocks: u64,
}

impl Contents {
    fn add(&mut self, more: Self) {
        self.pairs += more.pairs;
        self.blocks += more.blocks;
    }
}

/// Reads the pairs and blocks of a shard, of any machine. If it has more than `most` buckets, this many are read, at equal
/// distances, and the result is the estimate for the whole shard.
pub(crate) async fn read_shard(
    farm: &Handle,
    place: &ShardPlace,
    most: u32,
) -> Result<Contents, KvError> {
    // With the spare one.
    let all = place.buckets + 1;
    if all <= most {
        return read_buckets(farm, place, 0, all).await;
    }
    let mut sum = Contents::default();
    for sample in 0..most {
        let bucket = u64::from(all) * u64::from(sample) / u64::from(most);
        sum.add(read_buckets(farm, place, bucket as u32, 1).await?);
    }
    let of_all = |count: u64| {
        let scaled = u128::from(count) * u128::from(all);
        (scaled / u128::from(most.max(1))) as u64
    };
    Ok(Contents {
        pairs: of_all(sum.pairs),
        blocks: of_all(sum.blocks),
    })
}

/// Reads the pairs and blocks of adjacent buckets.
async fn read_buckets(
    farm: &Handle,
    place: &ShardPlace,
    first: u32,
    count: u32,
) -> Result<Contents, KvError> {
    let bytes = place.layout.bucket_bytes();
    let in_one_read = (READ_BYTES / bytes).clamp(1, count.max(1) as usize) as u32;
    let mut sum = Contents::default();
    for from in (first..first + count).step_by(in_one_read as usize) {
        // The blocks of a chain must not become other objects until they are read.
        let _epoch = Pinned::new(farm);
        sum.add(read_some(farm, place, from, in_one_read.min(first + count - from)).await?);
    }
    Ok(sum)
}

/// An open epoch of the worker of a task. It ends when this is dropped, also with a task that is given up.
struct Pinned<'f> {
    farm: &'f Handle,
    guard: Option<EpochGuard>,
}

impl<'f> Pinned<'f> {
    fn new(farm: &'f Handle) -> Self {
        let guard = Some(at_once(farm, Worker::pin));
        Self { farm, guard }
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            // Tasks that a worker drops when it stops are not polled any more.
            let _ = self.farm.at_once(|worker| worker.unpin(guard));
        }
    }
}

/// Reads the pairs and blocks of as many buckets as one read has.
async fn read_some(
    farm: &Handle,
    place: &ShardPlace,
    first: u32,
    count: u32,
) -> Result<Contents, KvError> {
    let layout = place.layout;
    let objects = read(farm, place.address(first), layout.bucket_class, count).await?;
    let mut sum = Contents::default();
    for (bucket, object) in (first..).zip(objects.chunks_exact(layout.bucket_bytes())) {
        sum.pairs += u64::from(layout.meta_of_bucket(object).occupied.count_ones());
        let mut chain = read_chain(farm, &layout, layout.next_of_bucket(object)).await?;
        let mut tries = 0;
        while chain.is_none() {
            farm_core::marks::mark("kv: a chain changed while it was counted");
            tries += 1;
            if tries > MOST_TRIES {
                return Err(KvError::Conflict);
            }
            let again = read(farm, place.address(bucket), layout.bucket_class, 1).await?;
            chain = read_chain(farm, &layout, layout.next_of_bucket(&again)).await?;
        }
        sum.add(chain.unwrap_or_default());
    }
    Ok(sum)
}

/// Reads the pairs and blocks of a chain. Returns `None` if it was changed meanwhile.
async fn read_chain(
    farm: &Handle,
    layout: &Layout,
    mut next: Option<Next>,
) -> Result<Option<Contents>, KvError> {
    let mut sum = Contents::default();
    while let Some(pointer) = next {
        let object = match read(farm, pointer.address, layout.block_class, 1).await {
            Ok(object) => object,
            // The block was freed.
            Err(KvError::Damaged(_) | KvError::Conflict) => return Ok(None),
            Err(error) => return Err(error),
        };
        let header = object[8..]
            .first_chunk()
            .map(|word| u64::from_le_bytes(*word));
        let is_meant = header.is_some_and(|word| pointer.names(Incarnation(word)));
        if !is_meant || sum.blocks == MOST_BLOCKS {
            return Ok(None);
        }
        let (after, occupied) = layout.next_of_block(&object);
        sum.pairs += u64::from(occupied.count_ones());
        sum.blocks += 1;
        next = after;
    }
    Ok(Some(sum))
}

/// Reads adjacent objects, each as it was at one moment, with headers and line versions.
///
/// # Errors
/// Those of a lookup: [`KvError::Damaged`] if there are no such objects, [`KvError::Conflict`] if one stays locked, [`KvError::PeerLost`].
async fn read(
    farm: &Handle,
    first: Address,
    class: SizeClass,
    count: u32,
) -> Result<Vec<u8>, KvError> {
    let bytes = class.object_bytes() * count as usize;
    let request = ReadRequest::objects(first, class, count);
    loop {
        let start = move |worker: &mut Worker, slot: Slot| {
            if worker
                .read_lock_free(request, Cont::new(came, slot))
                .is_err()
            {
                answer(worker, slot, |answer| answer.fail(TxError::Busy));
            }
        };
        let take = |answer: &mut Answer| Ok(std::mem::take(&mut answer.ok()?.bytes));
        match farm.call(start, take).await {
            Err(TxError::Busy) => room(farm, bytes).await,
            objects => {
                let mut objects: Vec<u8> = objects.map_err(KvError::of_catalog)?;
                objects.truncate(bytes);
                return Ok(objects);
            }
        }
    }
}

/// Waits until there may be room for a read of this many bytes.
async fn room(farm: &Handle, bytes: usize) {
    let start = move |worker: &mut Worker, slot: Slot| {
        let room = |worker: &mut Worker, slot, ()| answer(worker, slot, |_| ());
        worker.when_slot(bytes, Cont::new(room, slot));
    };
    farm.call(start, |_| ()).await;
}

fn came(worker: &mut Worker, slot: Slot, result: ReadResult) {
    match result {
        Ok(room) => copy(worker, slot, room),
        Err(error) => {
            let error = TxError::from(KvError::from(error));
            answer(worker, slot, |answer| answer.fail(error));
        }
    }
}

fn copy(worker: &mut Worker, slot: Slot, room: Room) {
    let arena = worker.arena();
    let bytes = bytemuck::cast_slice(arena.words(&room)).to_vec();
    arena.give(room);
    answer(worker, slot, |answer| answer.bytes = bytes);
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::future::select;

    use super::*;
    use crate::blocking;
    use crate::table::TableSpec;
    use crate::testing::cluster;

    /// Regression test: a count that was given up, as by `farm status` after a second, kept its epoch open, so that no freed
    /// memory of the machine was used again.
    #[test]
    fn a_count_that_is_given_up_ends_its_epoch() {
        let cluster = cluster("count-given-up", 2);
        let spec = TableSpec::sized(1, 4, 8, 2, 1000, 0.5).unwrap();
        let table = blocking::open(&cluster.machines, spec).unwrap();
        for machine in &cluster.machines {
            let given_up = farm_txn::block_on(machine, 0, async move |farm: Handle| {
                let reads = pin!(crate::ops::own_shards(&farm, table, u32::MAX));
                select(reads, pin!(farm.let_others_run())).await;
            });
            given_up.unwrap();
        }
        for machine in 0..2 {
            let is_at_rest = |worker: &mut Worker| worker.check_at_rest().is_ok();
            while !cluster.on(machine, 0, is_at_rest) {
                std::thread::yield_now();
            }
        }
        cluster.stop();
    }
}
