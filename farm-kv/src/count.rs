//! The number of pairs of a table: the sum of what the owners of its shards count.

use std::collections::BTreeSet;

use farm_core::ids::WorkerRef;
use farm_core::messaging::{CallError, MessageId, ReplyCont, Request};
use farm_core::worker::{Cont, Worker};

use crate::KvError;
use crate::open::when_open;
use crate::ops::own_shards;
use crate::pending::Counting;
use crate::state::kv;
use crate::table::TableId;

/// Message id of the request for the number of pairs in the shards that a worker owns, of the table in the body.
pub(crate) const PAIRS: MessageId = MessageId(MessageId::KV + 3);
/// Bytes of a reply; a reply without bytes means that the table is not open.
const REPLY_BYTES: usize = 8;

/// Counts the pairs of a table. The continuation is called from the event loop.
///
/// Each owner counts its shards at a moment of its own. Changes that are part of callers' transactions are counted a short
/// time after their commit.
///
/// The continuation receives [`KvError::NotOpen`], or [`KvError::PeerLost`].
pub fn count(worker: &mut Worker, table: TableId, cont: Cont<Result<u64, KvError>>) {
    let me = worker.me();
    let (owners, pairs, failed) = match own_shards(worker, table) {
        Ok(own) => {
            let shards = kv(worker).tables[&table.0].shards.iter();
            let all: BTreeSet<_> = shards.map(|shard| shard.owner).collect();
            let others: Vec<_> = all.into_iter().filter(|owner| *owner != me).collect();
            (others, own.pairs, None)
        }
        Err(error) => (Vec::new(), 0, Some(error)),
    };
    let key = kv(worker).counting.insert(Counting {
        table,
        waiting: owners.len(),
        pairs,
        failed,
        cont,
    });
    if owners.is_empty() {
        return worker.defer(Cont::new(end, key as u64));
    }
    for owner in owners {
        ask(worker, context(key, owner), ());
    }
}

fn context(key: usize, owner: WorkerRef) -> u64 {
    (key as u64) << 32 | u64::from(owner.to_bits())
}

/// Returns the key of a count and the owner that is asked.
fn parts(context: u64) -> (usize, WorkerRef) {
    let owner = WorkerRef::from_bits(context as u32);
    let owner = owner.expect("the context contains the bits of a worker");
    ((context >> 32) as usize, owner)
}

fn ask(worker: &mut Worker, context: u64, (): ()) {
    let (key, owner) = parts(context);
    let table = kv(worker).counting[key].table.0.to_le_bytes();
    let cont = ReplyCont::new(told, context);
    match worker.call(owner, PAIRS, &[&table], REPLY_BYTES, cont) {
        Ok(()) => {}
        Err(CallError::Busy) => worker.when_room(Cont::new(ask, context)),
        Err(_) => arrived(worker, key, Err(KvError::PeerLost(owner.machine))),
    }
}

fn told(worker: &mut Worker, context: u64, reply: Result<&[u8], CallError>) {
    let (key, owner) = parts(context);
    let pairs = match reply.map(<[u8; REPLY_BYTES]>::try_from) {
        Ok(Ok(bytes)) => Ok(u64::from_le_bytes(bytes)),
        Ok(Err(_)) => Err(KvError::NotOpen(kv(worker).counting[key].table.0)),
        Err(_) => Err(KvError::PeerLost(owner.machine)),
    };
    arrived(worker, key, pairs);
}

fn arrived(worker: &mut Worker, key: usize, pairs: Result<u64, KvError>) {
    let counting = &mut kv(worker).counting[key];
    match pairs {
        Ok(pairs) => counting.pairs = counting.pairs.saturating_add(pairs),
        Err(error) => _ = counting.failed.get_or_insert(error),
    }
    counting.waiting -= 1;
    if counting.waiting == 0 {
        // A call that fails at once must not end the count within `count`.
        worker.defer(Cont::new(end, key as u64));
    }
}

fn end(worker: &mut Worker, key: u64, (): ()) {
    let counting = kv(worker).counting.remove(key as usize);
    let result = counting.failed.map_or(Ok(counting.pairs), Err);
    counting.cont.resume(worker, result);
}

/// Replies to a request for the number of pairs in the shards that this worker owns.
pub(crate) fn answer(worker: &mut Worker, request: Request, body: &[u8]) {
    let table = body.try_into().map(u16::from_le_bytes).ok();
    when_open(worker, table, (request, body), answer_now);
}

fn answer_now(worker: &mut Worker, request: Request, body: &[u8]) {
    let table = body.try_into().map(u16::from_le_bytes);
    let own = table
        .ok()
        .and_then(|id| own_shards(worker, TableId(id)).ok());
    let pairs = own.map(|own| own.pairs.to_le_bytes());
    worker.reply(request, &[pairs.as_ref().map_or(&[], |bytes| &bytes[..])]);
}
