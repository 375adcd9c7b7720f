//! The owner's side of changes: those that came within one turn are put in order of their keys, and
//! inserts and updates of one key become one transaction, as in flat combining (`FaRM'14 §3.6`).

use std::time::Duration;

use farm_core::alloc::AllocError;
use farm_core::ids::{Address, MachineId, WorkerRef};
use farm_core::messaging::Request;
use farm_core::worker::{Cont, Worker};
use farm_core::{marks, mutants};
use farm_txn::{Tx, TxError, TxLimits};

use crate::layout::Layout;
use crate::ops::HEADER_BYTES;
use crate::shard::{Changed, Editor};
use crate::state::kv;
use crate::{KEY_BYTES, Key, KvError};

/// Tries against transactions of other workers at one time.
const TRIES: u32 = 20;
/// Times at which it is tried again before a change is given up: a transaction over several machines
/// holds its locks for round trips, may wait for this very worker, and does for as long as its thread has no
/// core.
const MAX_TIMES: u32 = 20_000;
/// The wait between them.
const AGAIN_AFTER: Duration = Duration::from_micros(5);
/// The codes of inserts, updates and upserts, which are combined; removes are not.
const PUTS: std::ops::RangeInclusive<u8> = 1..=3;
const REMOVE: u8 = 4;

/// Who waits for a change.
#[derive(Clone, Copy)]
pub(crate) enum Waiter {
    /// Another worker.
    Other(Request),
    /// A change of this worker.
    Own(usize),
}

/// A change that waits for the end of the turn.
pub(crate) struct Arrived {
    waiter: Waiter,
    /// As its message has it.
    body: Vec<u8>,
    /// Times that others stood in its way.
    times: u32,
    /// What it did, once it was made.
    outcome: Option<Result<Changed, KvError>>,
}

/// Changes that a worker made to its own shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeCounters {
    /// Changes.
    pub changes: u64,
    /// Transactions that made them: fewer, where several were of one key.
    pub transactions: u64,
}

/// Changes that this worker made to its own shards so far.
pub fn change_counters(worker: &mut Worker) -> ChangeCounters {
    kv(worker).change_counters
}

/// Whether a worker makes the changes to the shards of `owner` itself.
#[inline]
pub(crate) fn makes_changes(worker: WorkerRef, owner: WorkerRef) -> bool {
    owner == worker || owner.machine == worker.machine && mutants::is_on("two workers own a shard")
}

/// A change came from another worker.
pub(crate) fn handle(worker: &mut Worker, request: Request, body: &[u8]) {
    let mut own = kv(worker).bodies.pop().unwrap_or_default();
    own.clear();
    own.extend_from_slice(body);
    arrive(worker, Waiter::Other(request), own);
}

/// Keeps a change until everything that this turn brings is there.
pub(crate) fn arrive(worker: &mut Worker, waiter: Waiter, body: Vec<u8>) {
    let arrived = &mut kv(worker).arrived;
    let first = arrived.is_empty();
    arrived.push(Arrived {
        waiter,
        body,
        times: 0,
        outcome: None,
    });
    if first {
        worker.defer(Cont::new(make_all, 0));
    }
}

/// Makes the changes that have come, and tells who waits for them in the order in which they came.
fn make_all(worker: &mut Worker, _: u64, (): ()) {
    let state = kv(worker);
    let mut arrived = std::mem::take(&mut state.making);
    std::mem::swap(&mut arrived, &mut state.arrived);
    let mut by_key = std::mem::take(&mut state.by_key);
    make_in_order(&mut arrived, &mut by_key, |arrived, group| {
        apply(worker, arrived, group)
    });
    // Before whatever came meanwhile: changes of one key keep their order.
    let mut again = 0;
    for mut change in arrived.drain(..) {
        if change.outcome == Some(Err(KvError::Conflict)) && change.times < MAX_TIMES {
            (change.outcome, change.times) = (None, change.times + 1);
            kv(worker).arrived.insert(again, change);
            again += 1;
        } else {
            tell(worker, change);
        }
    }
    if again > 0 {
        marks::mark("kv: change tried again later");
        worker.set_timer(AGAIN_AFTER, Cont::new(make_all, 0));
    }
    by_key.clear();
    let state = kv(worker);
    (state.making, state.by_key) = (arrived, by_key);
}

/// Makes changes, those of one bucket in the order in which they came. Where others stand in the way, the
/// outcome is [`KvError::Conflict`].
fn make_in_order(
    arrived: &mut [Arrived],
    by_key: &mut Vec<(u64, u32)>,
    mut make: impl FnMut(&mut [Arrived], &[(u64, u32)]) -> Result<(), KvError>,
) {
    let all = (0..).zip(&*arrived);
    by_key.extend(all.map(|(index, change)| (position(&change.body), index)));
    // Of one bucket in the order in which they came.
    by_key.sort_unstable();
    // A bucket of which a change has to wait: those after it wait, too.
    let mut stuck = None;
    let mut rest = &by_key[..];
    while let Some((at, first)) = rest.first() {
        let first = &arrived[*first as usize].body;
        let more = rest[1..].iter().take_while(|(other, index)| {
            other == at && goes_with(first, &arrived[*index as usize].body)
        });
        let more = more.count();
        let (group, others) = rest.split_at(1 + more);
        let ended = match stuck == Some(*at) {
            true => 0,
            false => make_group(arrived, group, &mut make),
        };
        for (_, index) in &group[ended..] {
            stuck = Some(*at);
            arrived[*index as usize].outcome = Some(Err(KvError::Conflict));
        }
        rest = others;
    }
}

/// The shard and the bucket that a body names, as one number.
fn position(body: &[u8]) -> u64 {
    let named = body.get(4..HEADER_BYTES).and_then(<[u8]>::first_chunk);
    named.map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes))
}

/// Whether two changes can be one transaction: puts of the same key, of the same length.
fn goes_with(first: &[u8], next: &[u8]) -> bool {
    let put = |body: &[u8]| body.first().is_some_and(|code| PUTS.contains(code));
    put(first)
        && put(next)
        && first.len() == next.len()
        && first.len() >= HEADER_BYTES + KEY_BYTES
        // Table, shard, bucket and key.
        && first[2..HEADER_BYTES + KEY_BYTES] == next[2..HEADER_BYTES + KEY_BYTES]
}

/// Makes changes of one key in one transaction, or, where that is refused, each in its own. Returns how many
/// were made or refused: others stood in the way of the next one, and those after it wait for it.
fn make_group(
    arrived: &mut [Arrived],
    group: &[(u64, u32)],
    make: &mut impl FnMut(&mut [Arrived], &[(u64, u32)]) -> Result<(), KvError>,
) -> usize {
    if group.len() > 1 {
        match make(arrived, group) {
            Ok(()) => {
                marks::mark("kv: changes combined");
                return group.len();
            }
            Err(KvError::Conflict) => return 0,
            Err(_) => {}
        }
    }
    for (place, change) in group.iter().enumerate() {
        match make(arrived, std::slice::from_ref(change)) {
            Ok(()) => {}
            Err(KvError::Conflict) => return place,
            Err(error) => {
                marks::mark("kv: change refused");
                arrived[change.1 as usize].outcome = Some(Err(error));
            }
        }
    }
    group.len()
}

fn tell(worker: &mut Worker, change: Arrived) {
    let outcome = change.outcome.expect("every change was made");
    kv(worker).bodies.push(change.body);
    match change.waiter {
        Waiter::Other(request) => {
            if let Err(error @ (KvError::Damaged(_) | KvError::Full(_))) = &outcome {
                tracing::warn!(from = %request.from, %error, "refusing a change");
            }
            worker.reply(request, &[&[encode(&outcome)]]);
        }
        Waiter::Own(pending) => crate::ops::end(worker, pending, outcome),
    }
}

fn encode(outcome: &Result<Changed, KvError>) -> u8 {
    match outcome {
        Ok(Changed::Inserted) => 0,
        Ok(Changed::Updated) => 1,
        Ok(Changed::Removed) => 2,
        Ok(Changed::Exists) => 3,
        Ok(Changed::Absent) => 4,
        Err(KvError::Full(_)) => 5,
        Err(KvError::Conflict) => 6,
        Err(KvError::Crowded(_)) => 7,
        Err(_) => 8,
    }
}

/// A change as its message has it, validated.
struct Order<'a> {
    code: u8,
    table: u16,
    shard: u32,
    bucket: u32,
    pair: &'a [u8],
}

fn parse(body: &[u8]) -> Option<Order<'_>> {
    if body.len() < HEADER_BYTES + KEY_BYTES {
        return None;
    }
    let (header, pair) = body.split_at(HEADER_BYTES);
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
    let table = u16::from_le_bytes([header[2], header[3]]);
    Some(Order {
        code: header[0],
        table,
        shard: word(4),
        bucket: word(8),
        pair,
    })
}

/// What a change is of, found to be of a shard of this worker.
#[derive(Clone, Copy)]
struct Target {
    table: u16,
    shard: u32,
    first: Address,
    buckets: u32,
    layout: Layout,
}

fn target(worker: &mut Worker, body: &[u8]) -> Result<Target, KvError> {
    let me = worker.me();
    let damaged = |why: &str| KvError::Damaged(format!("a change that came to {me} {why}"));
    let order = parse(body).ok_or_else(|| damaged("is too short"))?;
    let table = kv(worker)
        .tables
        .get(&order.table)
        .ok_or_else(|| damaged("names no open table"))?;
    let shard = table
        .shards
        .get(order.shard as usize)
        .filter(|shard| makes_changes(me, shard.owner) && !shard.first.is_null());
    let first = shard
        .ok_or_else(|| damaged("is of a shard that is not its own"))?
        .first;
    let (layout, buckets) = (table.layout, table.spec.buckets);
    let whole = order.code == REMOVE || order.pair.len() == layout.pair_bytes();
    let key: &Key = order.pair[..KEY_BYTES]
        .try_into()
        .expect("parsing found a whole key");
    let at_home = table.locate(key) == (order.shard, order.bucket);
    if !whole || !at_home || !(PUTS.contains(&order.code) || order.code == REMOVE) {
        return Err(damaged("does not fit the table"));
    }
    Ok(Target {
        table: order.table,
        shard: order.shard,
        first,
        buckets,
        layout,
    })
}

/// Makes changes of one key in one transaction, in their order, and notes what each did.
///
/// # Errors
/// None of them was made.
fn apply(
    worker: &mut Worker,
    arrived: &mut [Arrived],
    group: &[(u64, u32)],
) -> Result<(), KvError> {
    let target = target(worker, &arrived[group[0].1 as usize].body)?;
    let mut tx = farm_txn::take(worker);
    // It runs within one turn: a chain that is longer than this is refused, whatever transactions may hold.
    tx.set_limits(TxLimits::default());
    let mut made = Err(KvError::Conflict);
    for _ in 0..TRIES {
        match attempt(worker, &mut tx, &target, arrived, group) {
            Ok(()) => {
                made = Ok(());
                break;
            }
            Err(TxError::Abort(_)) => {
                marks::mark("kv: transaction retried");
                tx.abort(worker);
            }
            // True only if what was read of the shard is of one moment: workers of other machines, too, change it.
            Err(error) => {
                if tx.validate(worker).is_ok() {
                    made = Err(refusal(error, worker.me().machine));
                    break;
                }
                marks::mark("kv: transaction retried");
            }
        }
    }
    farm_txn::give(worker, tx);
    made
}

fn attempt(
    worker: &mut Worker,
    tx: &mut Tx,
    target: &Target,
    arrived: &mut [Arrived],
    group: &[(u64, u32)],
) -> Result<(), TxError> {
    let mut editor = Editor::new(worker, tx, target.layout, target.first, target.buckets);
    for (_, index) in group {
        let change = &mut arrived[*index as usize];
        let order =
            parse(&change.body).expect("the first of a group was, and the others are alike");
        change.outcome = Some(Ok(edit(&mut editor, &order)?));
    }
    editor.finish()?;
    let delta = editor.delta;
    tx.commit(worker)?;
    let state = kv(worker);
    state.change_counters.transactions += 1;
    state.change_counters.changes += group.len() as u64;
    let table = state.tables.get_mut(&target.table);
    table.expect("it was open above").shards[target.shard as usize].add(delta);
    Ok(())
}

fn edit(editor: &mut Editor<'_>, order: &Order<'_>) -> Result<Changed, TxError> {
    match order.code {
        REMOVE => {
            let key = order.pair[..KEY_BYTES].try_into().expect("a key");
            editor.remove(order.bucket, key)
        }
        code => editor.put(order.bucket, order.pair, code != 2, code != 1),
    }
}

fn refusal(error: TxError, machine: MachineId) -> KvError {
    match error {
        TxError::Alloc(AllocError::OutOfMemory { .. } | AllocError::NoRegion(_)) => {
            marks::mark("kv: table full");
            KvError::Full(machine)
        }
        TxError::Abort(_) => KvError::Conflict,
        TxError::Limit { .. } => KvError::Crowded(machine),
        other => KvError::Damaged(other.to_string()),
    }
}

#[cfg(test)]
mod tests;
