//! Operations on tables inside a caller's transaction, on any machine: they take effect with everything
//! else that the transaction does, or not at all.
//!
//! An operation is the owner's edit of the shard (`shard`), over the objects that the transaction has. Of
//! another machine's shard those are brought in first: the edit is tried, and says what it misses; what it
//! did is taken back, that is read, or allocated there, and the edit is tried again. The key's own bucket,
//! where most pairs are, is asked for at the beginning, and nothing that is not needed: what is read is
//! validated, and may have been changed by somebody.
//!
//! Lock-free lookups see such a transaction as they see the owner's: the same joint versions and
//! incarnations tell them (`FaRM'14 §3.6`). The owner alone counts its shard's pairs, and hears of
//! changes by others a little later.

use std::time::Duration;

use farm_core::ids::Address;
use farm_core::messaging::{CallError, MessageId, Request};
use farm_core::object::payload_capacity;
use farm_core::worker::{Cont, Worker};
use farm_core::{marks, mutants};
use farm_txn::{ObjectId, Tx, TxError, TxHandle, api};

use crate::layout::Layout;
use crate::ops::Change;
use crate::shard::{Changed, Delta, Editor, Missing};
use crate::state::kv;
use crate::table::TableId;
use crate::{KEY_BYTES, Key, KvError};

/// Tells an owner how committed transactions moved its shard's counts.
pub(crate) const COUNTS: MessageId = MessageId(MessageId::KV + 2);
/// Table, shard, pairs, blocks.
const COUNTS_BYTES: usize = 22;
/// Changes of counts are gathered for so long.
const TELL_AFTER: Duration = Duration::from_micros(100);

/// Where a value lies in a transaction: good until the transaction changes the table again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueRef {
    object: ObjectId,
    at: u32,
    len: u32,
}

impl ValueRef {
    fn new(object: ObjectId, at: usize, layout: &Layout) -> Self {
        Self {
            object,
            at: at as u32,
            len: layout.value_bytes as u32,
        }
    }

    /// The object that holds it, and where in its payload.
    pub(crate) fn place(self) -> (ObjectId, std::ops::Range<usize>) {
        let at = self.at as usize;
        (self.object, at..at + self.len as usize)
    }

    /// The value, in the context of the transaction that looked it up.
    pub fn of(self, tx: &Tx) -> &[u8] {
        let (object, bytes) = self.place();
        &tx.payload(object)[bytes]
    }
}

/// Hears what a lookup found.
pub type FoundCont = Cont<Result<Option<ValueRef>, TxError>>;
/// Hears what a change did.
pub type ChangedCont = Cont<Result<Changed, TxError>>;

#[derive(Clone, Copy)]
enum What {
    Get(FoundCont),
    /// May it insert, may it update; neither is a remove.
    Change(bool, bool, ChangedCont),
}

#[derive(Clone, Copy)]
enum Outcome {
    Found(FoundCont, Option<ValueRef>),
    Changed(ChangedCont, Changed),
}

/// An operation under way.
pub(crate) struct Under {
    tx: TxHandle,
    table: TableId,
    shard: u32,
    home: u32,
    what: What,
    /// The key, and the value of a change.
    pair: Vec<u8>,
    /// A block that was allocated for it.
    spare: Option<ObjectId>,
}

/// Looks a key up. The continuation is called from the event loop.
///
/// That the key is not there is a read like any other: it still holds when the transaction commits.
///
/// The continuation gets [`TxError::Refused`] if the table is not open on this worker.
pub fn get(worker: &mut Worker, tx: TxHandle, table: TableId, key: &Key, cont: FoundCont) {
    begin(worker, tx, table, key, &[], What::Get(cont));
}

/// The error of a transaction that uses a table which is not open here.
fn not_open(error: KvError) -> TxError {
    TxError::Refused(error.to_string())
}

/// As [`get`], of a shard of this machine, at once.
///
/// # Errors
/// Those of [`Tx::read`], of an object of another machine too; [`TxError::Refused`] if the table is not open
/// on this worker.
pub fn get_here(
    worker: &mut Worker,
    tx: &mut Tx,
    table: TableId,
    key: &Key,
) -> Result<Option<ValueRef>, TxError> {
    let open = kv(worker).tables.open(table).map_err(not_open)?;
    let (shard, home) = open.locate(key);
    let (layout, buckets) = (open.layout, open.spec.buckets);
    let first = open.shards[shard as usize].first;
    let mut editor = Editor::new(worker, tx, layout, first, buckets);
    let found = editor.value(home, key)?;
    Ok(found.map(|(object, at)| ValueRef::new(object, at, &layout)))
}

/// The value that a lookup found.
///
/// # Errors
/// [`TxError::Ended`].
pub fn value(worker: &mut Worker, tx: TxHandle, found: ValueRef) -> Result<&[u8], TxError> {
    let (object, bytes) = found.place();
    Ok(&api::payload(worker, tx, object)?[bytes])
}

/// Changes a table when the transaction commits; it sees the change at once. The continuation is called
/// from the event loop.
///
/// # Errors
/// [`KvError::NotOpen`] and [`KvError::ValueLength`]: nothing was started.
pub fn change(
    worker: &mut Worker,
    tx: TxHandle,
    table: TableId,
    key: &Key,
    change: Change<'_>,
    cont: ChangedCont,
) -> Result<(), KvError> {
    let open = kv(worker).tables.open(table)?;
    change.check_length(open.spec.value_bytes)?;
    let (insert, update) = match change {
        Change::Insert(_) => (true, false),
        Change::Update(_) => (false, true),
        Change::Upsert(_) => (true, true),
        Change::Remove => (false, false),
    };
    let what = What::Change(insert, update, cont);
    begin(worker, tx, table, key, change.value(), what);
    Ok(())
}

fn begin(worker: &mut Worker, tx: TxHandle, table: TableId, key: &Key, value: &[u8], what: What) {
    let state = kv(worker);
    let target = state.tables.open(table).map(|open| {
        let (shard, home) = open.locate(key);
        let machine = open.shards[shard as usize].owner.machine;
        let missing = Missing::Object(open.bucket(shard, home), open.layout.bucket_class);
        (shard, home, machine, missing)
    });
    let (shard, home) = target.as_ref().map_or((0, 0), |it| (it.0, it.1));
    let mut pair = state.bodies.pop().unwrap_or_default();
    pair.clear();
    pair.extend_from_slice(key);
    pair.extend_from_slice(value);
    let under = state.in_tx.insert(Under {
        tx,
        table,
        shard,
        home,
        what,
        pair,
        spare: None,
    });
    match target {
        Err(_) => worker.defer(Cont::new(refuse, under as u64)),
        Ok((_, _, machine, _)) if machine == worker.me().machine => {
            worker.defer(Cont::new(run, under as u64));
        }
        Ok((_, _, _, missing)) => fetch(worker, under, missing),
    }
}

/// Ends an operation on a table that was not open when it began.
#[cold]
fn refuse(worker: &mut Worker, under: u64, (): ()) {
    let under = under as usize;
    let table = kv(worker).in_tx[under].table;
    let error = not_open(KvError::NotOpen(table.0));
    end(worker, under, Err(error));
}

/// Brings in what an edit misses.
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
            let bytes = payload_capacity(kv(worker).tables[&table.0].layout.block_bytes());
            api::alloc(worker, tx, bytes, Some(near), Cont::new(allocated, context));
        }
    }
}

fn fetched(worker: &mut Worker, under: u64, result: Result<ObjectId, TxError>) {
    match result {
        // That it is gone the edit finds, too.
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

/// Tries the operation with what the transaction has.
fn run(worker: &mut Worker, under: u64, (): ()) {
    let under = under as usize;
    let tx = kv(worker).in_tx[under].tx;
    let tried = api::with(worker, tx, |tx, worker| attempt(worker, tx, under));
    match tried.unwrap_or_else(|ended| Err((ended, None))) {
        Ok(outcome) => end(worker, under, Ok(outcome)),
        Err((_, Some(missing))) => {
            marks::mark("kv: an edit waits for what it misses");
            fetch(worker, under, missing);
        }
        Err((error, None)) => end(worker, under, Err(error)),
    }
}

fn end(worker: &mut Worker, under: usize, outcome: Result<Outcome, TxError>) {
    let state = kv(worker);
    let entry = state.in_tx.remove(under);
    state.bodies.push(entry.pair);
    // A block that nothing links must not come to be, should the transaction commit all the same.
    if let (Err(_), Some(block)) = (&outcome, entry.spare) {
        let _ = api::free(worker, entry.tx, block);
    }
    match (outcome, entry.what) {
        (Ok(Outcome::Found(cont, found)), _) => cont.resume(worker, Ok(found)),
        (Ok(Outcome::Changed(cont, changed)), _) => cont.resume(worker, Ok(changed)),
        (Err(error), What::Get(cont)) => cont.resume(worker, Err(error)),
        (Err(error), What::Change(_, _, cont)) => cont.resume(worker, Err(error)),
    }
}

/// Why it did not succeed, and what it misses, if that is why.
type Failed = (TxError, Option<Missing>);

fn attempt(worker: &mut Worker, tx: &mut Tx, under: usize) -> Result<Outcome, Failed> {
    let machine = worker.me().machine;
    let state = kv(worker);
    let entry = &mut state.in_tx[under];
    let pair = std::mem::take(&mut entry.pair);
    let open = &state.tables[&entry.table.0];
    let shard = &open.shards[entry.shard as usize];
    let target = Target {
        first: shard.first,
        buckets: open.spec.buckets,
        layout: open.layout,
        home: entry.home,
        spare: entry.spare,
        elsewhere: shard.owner.machine != machine,
    };
    let (what, table, shard) = (entry.what, entry.table, entry.shard);
    let outcome = match what {
        What::Get(cont) => look(worker, tx, &target, &pair, cont),
        What::Change(insert, update, cont) => {
            let edited = tx.all_or_nothing(worker, |tx, worker| {
                edit(worker, tx, &target, &pair, (insert, update))
            });
            edited.map(|(changed, delta)| {
                if delta != Delta::default() {
                    tx.when_committed(Cont::new(committed, pack(table, shard, delta)));
                }
                Outcome::Changed(cont, changed)
            })
        }
    };
    kv(worker).in_tx[under].pair = pair;
    outcome
}

/// What an operation is on.
struct Target {
    first: Address,
    buckets: u32,
    layout: Layout,
    home: u32,
    spare: Option<ObjectId>,
    elsewhere: bool,
}

impl Target {
    fn editor<'a>(&self, worker: &'a mut Worker, tx: &'a mut Tx) -> Editor<'a> {
        Editor {
            elsewhere: self.elsewhere,
            spare: self.spare,
            ..Editor::new(worker, tx, self.layout, self.first, self.buckets)
        }
    }
}

fn look(
    worker: &mut Worker,
    tx: &mut Tx,
    target: &Target,
    key: &[u8],
    cont: FoundCont,
) -> Result<Outcome, Failed> {
    let key: &Key = key.try_into().expect("a lookup has a key");
    let mut editor = target.editor(worker, tx);
    let found = editor.value(target.home, key);
    let found = found.map_err(|error| (error, editor.missing))?;
    let value = found.map(|(object, at)| ValueRef::new(object, at, &target.layout));
    Ok(Outcome::Found(cont, value))
}

fn edit(
    worker: &mut Worker,
    tx: &mut Tx,
    target: &Target,
    pair: &[u8],
    (insert, update): (bool, bool),
) -> Result<(Changed, Delta), Failed> {
    let mut editor = target.editor(worker, tx);
    let edited = match insert || update {
        true => editor.put(target.home, pair, insert, update),
        false => {
            let key = pair[..KEY_BYTES].try_into().expect("a key");
            editor.remove(target.home, key)
        }
    };
    let edited = edited.and_then(|changed| editor.finish().map(|()| changed));
    let changed = edited.map_err(|error| (error, editor.missing))?;
    let (delta, unused) = (editor.delta, editor.spare);
    if let Some(block) = unused {
        tx.free(block);
    }
    Ok((changed, delta))
}

/// A change of counts, as the context of a continuation.
fn pack(table: TableId, shard: u32, delta: Delta) -> u64 {
    let [pairs, blocks] = [delta.pairs, delta.blocks].map(|count| count as i8 as u8);
    u64::from(table.0) << 48 | u64::from(shard) << 16 | u64::from(pairs) << 8 | u64::from(blocks)
}

fn unpack(word: u64) -> (TableId, u32, Delta) {
    let [pairs, blocks] = [word >> 8, word].map(|count| i64::from(count as u8 as i8));
    let delta = Delta { pairs, blocks };
    (TableId((word >> 48) as u16), (word >> 16) as u32, delta)
}

/// A transaction has committed that changed the number of a shard's pairs or blocks.
fn committed(worker: &mut Worker, word: u64, (): ()) {
    let me = worker.me();
    let (table, shard, delta) = unpack(word);
    let state = kv(worker);
    let open = state.tables.get_mut(&table.0).expect("it was open before");
    let known = &mut open.shards[shard as usize];
    if known.owner == me {
        return known.add(delta);
    }
    if mutants::is_on("counts not told to the owner") {
        return;
    }
    let first = state.untold.is_empty();
    let mut untold = state.untold.iter_mut();
    match untold.find(|untold| (untold.0, untold.1) == (table, shard)) {
        Some((.., sum)) => {
            sum.pairs += delta.pairs;
            sum.blocks += delta.blocks;
        }
        None => state.untold.push((table, shard, delta)),
    }
    if first {
        worker.set_timer(TELL_AFTER, Cont::new(tell, 0));
    }
}

/// Tells owners of counts, the last first, for as long as there is room.
fn tell(worker: &mut Worker, _: u64, (): ()) {
    while let Some(&(table, shard, delta)) = kv(worker).untold.last() {
        let owner = kv(worker).tables[&table.0].shards[shard as usize].owner;
        let mut body = [0; COUNTS_BYTES];
        body[..2].copy_from_slice(&table.0.to_le_bytes());
        body[2..6].copy_from_slice(&shard.to_le_bytes());
        body[6..14].copy_from_slice(&delta.pairs.to_le_bytes());
        body[14..].copy_from_slice(&delta.blocks.to_le_bytes());
        match worker.send(owner, COUNTS, &[&body]) {
            Err(CallError::Busy) => {
                marks::mark("kv: counts wait for room");
                return worker.when_room(Cont::new(tell, 0));
            }
            // The counts of a lost machine are lost with it.
            _ => _ = kv(worker).untold.pop(),
        }
    }
}

/// Others have changed a shard of this worker.
pub(crate) fn hear(worker: &mut Worker, request: Request, body: &[u8]) {
    let me = worker.me();
    let counts = decode(body).and_then(|(table, shard, delta)| {
        let open = kv(worker).tables.get_mut(&table)?;
        let shard = open.shards.get_mut(shard as usize);
        Some((shard.filter(|shard| shard.owner == me)?, delta))
    });
    match counts {
        Some((shard, delta)) => shard.add(delta),
        None => {
            let why = "it tells counts of a shard that is not here".into();
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

/// What a worker at rest still has of operations in transactions: a leak, or `None`.
pub fn left_over(worker: &mut Worker) -> Option<String> {
    let (me, state) = (worker.me(), kv(worker));
    let held = [
        ("operations in transactions", state.in_tx.len()),
        ("changes of its own shards", state.owner.len()),
        ("counts to be told", state.untold.len()),
    ];
    let (what, count) = held.into_iter().find(|(_, count)| *count > 0)?;
    Some(format!("worker {me} is at rest and has {count} {what}"))
}
