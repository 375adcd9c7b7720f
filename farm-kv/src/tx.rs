//! Operations on tables inside of a caller's transaction, on any machine: they take effect together with all other
//! operations of the transaction, or not at all.
//!
//! An operation is the edit that the owner would make (`shard`), on objects of the transaction. For a shard of another
//! machine, the objects must be read first. The edit is attempted and reports the first missing object, before it has
//! written anything. The object is read (or a block is allocated on that machine), and the edit is attempted again. The
//! key's home bucket, which contains most pairs, is read before the first attempt. No unneeded objects are read: every
//! read is validated, so another transaction's change of it would be a conflict.
//!
//! Lock-free lookups detect such transactions in the same way as the transactions of the owner: by joint versions and
//! incarnations (`FaRM'14 §3.6`). Only the owner counts the pairs of its shard. Changes of the counts by other workers
//! are sent to it with a short delay.

use std::time::Duration;

use farm_core::messaging::{CallError, MessageId, Request};
use farm_core::worker::{Cont, Worker};
use farm_core::{marks, mutants};
use farm_txn::{ObjectId, Tx, TxError, TxHandle, api};

use crate::KvError;
use crate::change::Change;
use crate::open::when_open;
use crate::owners::look_up_again;
pub use crate::pending::{ChangedCont, FoundCont, ValueRef};
use crate::pending::{PendingTxOp, TxOpKind};
use crate::shard::{Changed, Delta, EditError, Editor, Incomplete, Missing, ShardPlace, complete};
use crate::state::kv;
use crate::table::TableId;

/// Message id of the effect of committed transactions on a shard's counts, sent to the shard's owner.
pub(crate) const COUNTS: MessageId = MessageId(MessageId::KV + 2);
/// Bytes of the message: table, shard, pairs and blocks.
const COUNTS_BYTES: usize = 22;
/// Time for which changes of counts are gathered before they are sent.
const SEND_AFTER: Duration = Duration::from_micros(100);

#[derive(Clone, Copy)]
enum Outcome {
    Found(FoundCont, Option<ValueRef>),
    Changed(ChangedCont, Changed),
}

/// Looks up a key. The continuation is called from the event loop.
///
/// The absence of a key is a read like any other: it is validated when the transaction commits.
///
/// The continuation receives a [`KvError`] as a [`TxError`] if the table is not open on this worker, or its keys have another
/// length.
pub fn get(worker: &mut Worker, tx: TxHandle, table: TableId, key: &[u8], cont: FoundCont) {
    begin(worker, tx, table, key, &[], TxOpKind::Get(cont));
}

/// Looks up a key in a shard of this machine, as [`get`] does, but returns the result at once.
///
/// # Errors
/// The errors of [`Tx::read`], including that of an object of another machine; a [`KvError`] as a [`TxError`] if the table is not
/// open on this worker.
pub fn get_here(
    worker: &mut Worker,
    tx: &mut Tx,
    table: TableId,
    key: &[u8],
) -> Result<Option<ValueRef>, TxError> {
    let open = kv(worker).tables.open(table).map_err(TxError::from)?;
    open.check_key(key).map_err(TxError::from)?;
    let (shard, home) = open.locate(key);
    let (layout, buckets) = (open.layout, open.spec.buckets);
    let first = open.shards[shard as usize].first;
    let place = ShardPlace {
        layout,
        first,
        buckets,
    };
    let mut editor = Editor::new(tx, place);
    let found = complete(worker, &mut editor, |editor| editor.value(home, key));
    let found = found.map_err(|incomplete| incomplete.error)?;
    Ok(found.map(|(object, at)| ValueRef::new(object, at, &layout)))
}

/// Returns the value that a lookup found.
///
/// # Errors
/// [`TxError::Ended`].
pub fn value(worker: &mut Worker, tx: TxHandle, found: ValueRef) -> Result<&[u8], TxError> {
    let (object, bytes) = found.place();
    Ok(&api::payload(worker, tx, object)?[bytes])
}

/// Changes a table when the transaction commits. The transaction itself sees the change at once. The continuation is
/// called from the event loop.
///
/// # Errors
/// [`KvError::NotOpen`], [`KvError::KeyLength`] and [`KvError::ValueLength`]: nothing was started.
pub fn change(
    worker: &mut Worker,
    tx: TxHandle,
    table: TableId,
    key: &[u8],
    change: Change<'_>,
    cont: ChangedCont,
) -> Result<(), KvError> {
    let open = kv(worker).tables.open(table)?;
    open.check_key(key)?;
    change.check_length(open.spec.value_bytes)?;
    let (insert, update) = match change {
        Change::Insert(_) => (true, false),
        Change::Update(_) => (false, true),
        Change::Upsert(_) => (true, true),
        Change::Remove => (false, false),
    };
    let kind = TxOpKind::Change(insert, update, cont);
    begin(worker, tx, table, key, change.value(), kind);
    Ok(())
}

fn begin(
    worker: &mut Worker,
    tx: TxHandle,
    table: TableId,
    key: &[u8],
    value: &[u8],
    kind: TxOpKind,
) {
    let state = kv(worker);
    let target = state.tables.open(table).and_then(|open| {
        open.check_key(key)?;
        let (shard, home) = open.locate(key);
        let machine = open.shards[shard as usize].owner.machine;
        let missing = Missing::Object(open.bucket(shard, home), open.layout.bucket_class);
        Ok((shard, home, machine, missing))
    });
    let (shard, home) = target.as_ref().map_or((0, 0), |it| (it.0, it.1));
    let mut pair = state.bodies.pop().unwrap_or_default();
    pair.clear();
    pair.extend_from_slice(key);
    pair.extend_from_slice(value);
    let under = state.in_tx.insert(PendingTxOp {
        tx,
        table,
        shard,
        home,
        kind,
        pair,
        spare: None,
        refusal: None,
    });
    match target {
        Err(error) => {
            state.in_tx[under].refusal = Some(error);
            worker.defer(Cont::new(refuse, under as u64));
        }
        Ok((_, _, machine, _)) if machine == worker.me().machine => {
            worker.defer(Cont::new(run, under as u64));
        }
        Ok((_, _, _, missing)) => fetch(worker, under, missing),
    }
}

/// Ends an operation that was refused at its start.
#[cold]
fn refuse(worker: &mut Worker, under: u64, (): ()) {
    let under = under as usize;
    let refusal = kv(worker).in_tx[under].refusal.take();
    let refusal = refusal.expect("an operation that is refused at its start has the reason");
    end(worker, under, Err(refusal.into()));
}

/// Adds the object or block that an edit needs to the transaction.
fn fetch(worker: &mut Worker, under: usize, missing: Missing) {
    let entry = &kv(worker).in_tx[under];
    let (tx, table) = (entry.tx, entry.table);
    let context = under as u64;
    match missing {
        Missing::Object(address, class) => {
            api::read_class(worker, tx, address, class, Cont::new(fetched, context));
        }
        Missing::Block(near) => {
            marks::mark("kv: a block allocated on another machine");
            let bytes = kv(worker).tables[&table.0].layout.block_payload_bytes();
            api::alloc(worker, tx, bytes, Some(near), Cont::new(allocated, context));
        }
    }
}

fn fetched(worker: &mut Worker, under: u64, result: Result<ObjectId, TxError>) {
    match result {
        // If the object is absent, the edit detects that, too.
        Ok(_) | Err(TxError::NotAllocated(_)) => run(worker, under, ()),
        Err(error) => end(worker, under as usize, Err(error)),
    }
}

fn allocated(worker: &mut Worker, under: u64, result: Result<ObjectId, TxError>) {
    match result {
        Ok(block) => {
            kv(worker).in_tx[under as usize].spare = Some(block);
            run(worker, under, ());
        }
        Err(error) => end(worker, under as usize, Err(error)),
    }
}

/// Attempts the operation with the objects that the transaction has.
fn run(worker: &mut Worker, under: u64, (): ()) {
    let under = under as usize;
    let tx = kv(worker).in_tx[under].tx;
    let tried = api::with(worker, tx, |tx, worker| attempt(worker, tx, under));
    let ended = |error| {
        let missing = None;
        Err(Incomplete { error, missing })
    };
    match tried.unwrap_or_else(ended) {
        Ok(outcome) => end(worker, under, Ok(outcome)),
        Err(Incomplete {
            missing: Some(missing),
            ..
        }) => {
            marks::mark("kv: an edit waits for what it misses");
            fetch(worker, under, missing);
        }
        Err(Incomplete { error, .. }) => end(worker, under, Err(error)),
    }
}

fn end(worker: &mut Worker, under: usize, outcome: Result<Outcome, TxError>) {
    let state = kv(worker);
    let entry = state.in_tx.remove(under);
    state.bodies.push(entry.pair);
    // The new block is not linked. Free it, so that it does not exist after a commit of the transaction.
    if let (Err(_), Some(block)) = (&outcome, entry.spare) {
        let _ = api::free(worker, entry.tx, block);
    }
    match (outcome, entry.kind) {
        (Ok(Outcome::Found(cont, found)), _) => cont.resume(worker, Ok(found)),
        (Ok(Outcome::Changed(cont, changed)), _) => cont.resume(worker, Ok(changed)),
        (Err(error), TxOpKind::Get(cont)) => cont.resume(worker, Err(error)),
        (Err(error), TxOpKind::Change(_, _, cont)) => cont.resume(worker, Err(error)),
    }
}

fn attempt(worker: &mut Worker, tx: &mut Tx, under: usize) -> Result<Outcome, Incomplete> {
    let state = kv(worker);
    let entry = &mut state.in_tx[under];
    let pair = std::mem::take(&mut entry.pair);
    let (kind, table, shard, home) = (entry.kind, entry.table, entry.shard, entry.home);
    let spare = entry.spare;
    let open = &state.tables[&table.0];
    let place = ShardPlace {
        layout: open.layout,
        first: open.shards[shard as usize].first,
        buckets: open.spec.buckets,
    };
    let mut editor = Editor::new(tx, place);
    editor.set_spare(spare);
    let outcome = match kind {
        TxOpKind::Get(cont) => {
            // The stored pair of a lookup is only its key.
            let key = &pair[..];
            let found = complete(worker, &mut editor, |editor| editor.value(home, key));
            let value_at = |(object, at)| ValueRef::new(object, at, &place.layout);
            found.map(|found| Outcome::Found(cont, found.map(value_at)))
        }
        TxOpKind::Change(insert, update, cont) => {
            let change = |editor: &mut Editor<'_>| edit(editor, home, &pair, (insert, update));
            complete(worker, &mut editor, change).map(|changed| Outcome::Changed(cont, changed))
        }
    };
    let spare = editor.spare();
    if let Ok(Outcome::Changed(..)) = outcome {
        let delta = editor.finish();
        if delta != Delta::default() {
            tx.when_committed(Cont::new(committed, pack(table, shard, delta)));
        }
    }
    let entry = &mut kv(worker).in_tx[under];
    (entry.pair, entry.spare) = (pair, spare);
    outcome
}

fn edit(
    editor: &mut Editor<'_>,
    home: u32,
    pair: &[u8],
    (insert, update): (bool, bool),
) -> Result<Changed, EditError> {
    if insert || update {
        return editor.put(home, pair, insert, update);
    }
    // The stored pair of a remove is only its key.
    editor.remove(home, pair)
}

/// Encodes a change of counts as the context of a continuation.
fn pack(table: TableId, shard: u32, delta: Delta) -> u64 {
    let [pairs, blocks] = [delta.pairs, delta.blocks].map(|count| count as i8 as u8);
    u64::from(table.0) << 48 | u64::from(shard) << 16 | u64::from(pairs) << 8 | u64::from(blocks)
}

fn unpack(word: u64) -> (TableId, u32, Delta) {
    let [pairs, blocks] = [word >> 8, word].map(|count| i64::from(count as u8 as i8));
    let delta = Delta { pairs, blocks };
    (TableId((word >> 48) as u16), (word >> 16) as u32, delta)
}

/// Records the change of a shard's counts by a transaction that has committed.
fn committed(worker: &mut Worker, word: u64, (): ()) {
    let (table, shard, delta) = unpack(word);
    add_counts(worker, table, shard, delta);
}

/// Adds a change of counts to a shard of this worker, or sends it to the owner.
fn add_counts(worker: &mut Worker, table: TableId, shard: u32, delta: Delta) {
    let me = worker.me();
    let state = kv(worker);
    let open = state.tables.get_mut(&table.0).expect(
        "the table of a transaction was open when it was used, and tables are never closed",
    );
    let known = &mut open.shards[shard as usize];
    if known.owner == me {
        return known.add(delta);
    }
    if mutants::is_on("counts not told to the owner") {
        return;
    }
    let first = state.unsent_counts.is_empty();
    let mut unsent_counts = state.unsent_counts.iter_mut();
    match unsent_counts.find(|unsent_counts| (unsent_counts.0, unsent_counts.1) == (table, shard)) {
        Some((.., sum)) => {
            sum.pairs += delta.pairs;
            sum.blocks += delta.blocks;
        }
        None => state.unsent_counts.push((table, shard, delta)),
    }
    if first {
        worker.set_timer(SEND_AFTER, Cont::new(send_counts, 0));
    }
}

/// Sends changes of counts to the owners, the last one first, while there is room.
fn send_counts(worker: &mut Worker, _: u64, (): ()) {
    while let Some(&(table, shard, delta)) = kv(worker).unsent_counts.last() {
        let owner = look_up_again(worker, table.0, shard);
        let mut body = [0; COUNTS_BYTES];
        body[..2].copy_from_slice(&table.0.to_le_bytes());
        body[2..6].copy_from_slice(&shard.to_le_bytes());
        body[6..14].copy_from_slice(&delta.pairs.to_le_bytes());
        body[14..].copy_from_slice(&delta.blocks.to_le_bytes());
        match worker.send(owner, COUNTS, &[&body]) {
            Err(CallError::Busy) => {
                marks::mark("kv: counts wait for room");
                return worker.when_room(Cont::new(send_counts, 0));
            }
            // If the owner's machine is lost, so are its counts.
            _ => _ = kv(worker).unsent_counts.pop(),
        }
    }
}

/// Describes the changes of counts that were not sent to the owners; `None` if all were sent. A machine must not leave before: the
/// owners would count wrong for ever.
pub(crate) fn unsent_counts(worker: &mut Worker) -> Option<String> {
    if mutants::is_on("a machine leaves before it has sent its counts") {
        return None;
    }
    let unsent = kv(worker).unsent_counts.len();
    (unsent > 0).then(|| format!("{unsent} changes of counts"))
}

/// Adds the changes of counts that another worker has made to a shard of this worker. If this worker does not own the shard, it
/// passes them on to the owner.
pub(crate) fn handle_counts(worker: &mut Worker, request: Request, body: &[u8]) {
    let table = decode(body).map(|counts| counts.0);
    when_open(worker, table, (request, body), handle_counts_now);
}

fn handle_counts_now(worker: &mut Worker, request: Request, body: &[u8]) {
    let counts = decode(body).map(|(table, shard, delta)| {
        let open = kv(worker).tables.get(&table);
        (table, shard, delta, open.map(|open| open.spec.shards))
    });
    match counts {
        // The table cannot be opened now, and the reason was logged.
        Some((.., None)) => {}
        Some((table, shard, delta, Some(shards))) if shard < shards => {
            look_up_again(worker, table, shard);
            add_counts(worker, TableId(table), shard, delta);
        }
        _ => {
            let from = request.from;
            let why = format!("{from} sent a COUNTS message for a shard that does not exist");
            worker.distrust(request.from.machine, why);
        }
    }
}

fn decode(body: &[u8]) -> Option<(u16, u32, Delta)> {
    let body: &[u8; COUNTS_BYTES] = body.try_into().ok()?;
    let table = u16::from_le_bytes([body[0], body[1]]);
    let shard = u32::from_le_bytes(body[2..6].try_into().ok()?);
    let count = |at: usize| Some(i64::from_le_bytes(body[at..at + 8].try_into().ok()?));
    let delta = Delta {
        pairs: count(6)?,
        blocks: count(14)?,
    };
    Some((table, shard, delta))
}

/// Returns a description of operations that this worker has not ended. Call it when no operation is in flight: such
/// operations are then a leak. Returns `None` if there are none.
pub fn left_over(worker: &mut Worker) -> Option<String> {
    let (me, state) = (worker.me(), kv(worker));
    let held = [
        ("operations in transactions", state.in_tx.len()),
        ("lookups that wait for room", state.waiting_lookups.len()),
        ("openings of tables", state.openings.len()),
        ("creations of tables", state.creations.len()),
        (
            "batches of changes to shards of this worker",
            state.owner.len(),
        ),
        (
            "changes of counts that were not sent to the owners of the shards",
            state.unsent_counts.len(),
        ),
    ];
    let (what, count) = held.into_iter().find(|(_, count)| *count > 0)?;
    Some(format!(
        "leak on worker {me}: {count} {what}, although every operation should have ended"
    ))
}
