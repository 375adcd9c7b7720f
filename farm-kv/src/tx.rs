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
//! incarnations (`FaRM'14 §3.6`).

use farm_core::marks;
use farm_core::worker::{Cont, Worker};
use farm_txn::{ObjectId, Tx, TxError, TxHandle, api};

use crate::KvError;
use crate::change::Change;
pub use crate::pending::{ChangedCont, FoundCont, ValueRef};
use crate::pending::{PendingTxOp, TxOpKind};
use crate::shard::{Changed, EditError, Editor, Incomplete, Missing, complete};
use crate::state::kv;
use crate::table::TableId;

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
    let place = open.place(shard);
    let mut editor = Editor::new(tx, place);
    let found = complete(worker, &mut editor, |editor| editor.value(home, key));
    let found = found.map_err(|incomplete| incomplete.error)?;
    Ok(found.map(|(object, at)| ValueRef::new(object, at, &place.layout)))
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
    let place = state.tables[&table.0].place(shard);
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
        editor.finish();
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
    ];
    let (what, count) = held.into_iter().find(|(_, count)| *count > 0)?;
    Some(format!(
        "leak on worker {me}: {count} {what}, although every operation should have ended"
    ))
}
