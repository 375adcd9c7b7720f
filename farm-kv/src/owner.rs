//! Changes of keys that are requested outside of transactions. Every shard has one owner, a worker of its machine, which makes all of
//! them. Other workers send them to it ([`ship`]).
//!
//! [`queue`] determines which changes form a batch, which is one transaction. This file runs the batches: it makes the
//! changes of a batch in a transaction context, commits the transaction, and reports the outcomes to the requesters.
//! Batches of different buckets run at the same time.

mod far;
pub(crate) mod queue;
mod ship;

use std::time::Duration;

use farm_core::alloc::AllocError;
use farm_core::ids::{MachineId, WorkerRef};
use farm_core::messaging::Request;
use farm_core::worker::{Cont, Worker};
use farm_core::{marks, mutants};
use farm_txn::{Abort, Tx, TxError, TxLimits};

use crate::KvError;
use crate::change::{Order, PUTS, REMOVE, encode, parse, table_of};
use crate::open::when_open;
use crate::owners::owner_of;
use crate::refusals::LOOK_AGAIN;
use crate::shard::{Changed, EditError, Editor, Incomplete, ShardPlace, complete};
use crate::state::kv;
pub use queue::ChangeCounters;
pub(crate) use queue::Waiter;
use queue::{BatchId, Changes, List, MAX_CONFLICTS, MAX_CONFLICTS_OF_A_LOSS, QueuedChange, Retry};
use ship::redirect;
pub(crate) use ship::{CHANGE, send};

/// The wait before a batch is retried that has had several conflicts with other transactions.
const AGAIN_AFTER: Duration = Duration::from_micros(5);

/// Returns the counts of the changes that this worker made to its own shards so far.
pub fn change_counters(worker: &mut Worker) -> ChangeCounters {
    kv(worker).change_counters
}

/// Returns whether a worker makes the changes to the shards of `owner` itself.
#[inline]
pub(crate) fn makes_changes(worker: WorkerRef, owner: WorkerRef) -> bool {
    owner == worker || owner.machine == worker.machine && mutants::is_on("two workers own a shard")
}

/// Handles a change that another worker requests.
pub(crate) fn handle(worker: &mut Worker, request: Request, body: &[u8]) {
    when_open(worker, table_of(body), (request, body), handle_now);
}

fn handle_now(worker: &mut Worker, request: Request, body: &[u8]) {
    let mut own = kv(worker).bodies.pop().unwrap_or_default();
    own.clear();
    own.extend_from_slice(body);
    queue(worker, Waiter::Other(request), own);
}

/// Queues a change. Its transaction begins only after the event loop has handled the messages of this turn, so that
/// changes of one key are combined.
pub(crate) fn queue(worker: &mut Worker, waiter: Waiter, body: Vec<u8>) {
    if kv(worker).owner.push(QueuedChange::new(waiter, body)) {
        worker.defer(Cont::new(begin_ready, ()));
    }
}

/// Begins the transactions of all batches that are ready.
fn begin_ready(worker: &mut Worker, (): (), (): ()) {
    while let Some(id) = kv(worker).owner.next_ready() {
        attempt(worker, id, ());
    }
}

/// Makes the changes of a batch in a transaction context, and begins its commit.
fn attempt(worker: &mut Worker, id: BatchId, (): ()) {
    let owner = &mut kv(worker).owner;
    let list = owner.batch(id).changes;
    // The changes are taken out of the state while the editor works. The editor does not use the queue.
    let mut changes = std::mem::take(&mut owner.changes);
    let body = &changes
        .first(list)
        .expect("a batch contains at least one change")
        .body;
    let target = target(worker, body);
    let edited = target.map(|target| {
        let mut tx = farm_txn::checkout(worker);
        // A change that exceeds these default limits, because its chain is too long, is refused, whatever limits of
        // transactions are configured.
        tx.set_limits(TxLimits::default());
        let made = edit_all(worker, &mut tx, &target, &mut changes, list);
        (tx, made)
    });
    let machine = worker.me().machine;
    kv(worker).owner.changes = changes;
    match edited {
        // Its commit would only write records and fail.
        Ok((tx, Ok(_))) if tx.is_locked_out(worker) => {
            marks::mark("kv: an object of a change is locked");
            farm_txn::checkin(worker, tx);
            count_conflict(worker, id);
        }
        Ok((tx, Ok(made))) => {
            kv(worker).owner.batch(id).made = made;
            farm_txn::commit(worker, tx, Cont::new(on_committed, id));
        }
        Ok((tx, Err(incomplete))) if incomplete.is_elsewhere() => {
            farm_txn::checkin(worker, tx);
            far::attempt(worker, id);
        }
        Ok((
            tx,
            Err(Incomplete {
                error: TxError::Abort(why),
                ..
            }),
        )) => {
            farm_txn::checkin(worker, tx);
            retry(worker, id, why);
        }
        // The error is valid only if the reads are of one moment, because workers of other machines may change the
        // shard, too. Therefore the reads are validated first.
        Ok((tx, Err(Incomplete { error, .. }))) => {
            kv(worker).owner.batch(id).refusal = Some(refusal(error, machine));
            farm_txn::validate(worker, tx, Cont::new(on_validated, id));
        }
        Err(error) => refuse(worker, id, error),
    }
}

fn on_committed(worker: &mut Worker, id: BatchId, result: Result<(), TxError>) {
    match result {
        Ok(()) => {
            let state = kv(worker);
            let made = state.owner.batch(id).made;
            if made > 1 {
                marks::mark("kv: changes combined");
            }
            state.change_counters.transactions += 1;
            state.change_counters.changes += made;
            end(worker, id, None);
        }
        Err(TxError::Abort(why)) => retry(worker, id, why),
        Err(TxError::InDoubt(machine)) => end(worker, id, Some(&KvError::InDoubt(machine))),
        Err(error) => {
            let machine = worker.me().machine;
            refuse(worker, id, refusal(error, machine));
        }
    }
}

/// Handles the end of the validation of an attempt that failed.
fn on_validated(worker: &mut Worker, id: BatchId, result: Result<(), TxError>) {
    let refusal = kv(worker).owner.batch(id).refusal.take();
    match result {
        Ok(()) => refuse(
            worker,
            id,
            refusal.expect("an attempt that fails stores its error before it validates its reads"),
        ),
        Err(TxError::Abort(why)) => retry(worker, id, why),
        Err(_) => count_conflict(worker, id),
    }
}

/// Returns the number of conflicts of a batch after which its changes fail.
fn most_conflicts(worker: &Worker) -> u32 {
    match worker.survives() {
        // Objects stay locked from the loss of a machine until the transactions of the configuration are recovered.
        true => MAX_CONFLICTS_OF_A_LOSS,
        false => MAX_CONFLICTS,
    }
}

/// Handles the abort of a batch's transaction.
fn retry(worker: &mut Worker, id: BatchId, why: Abort) {
    match why {
        // It is not known how long the change of the configuration takes.
        Abort::Reconfigured => worker.set_timer(LOOK_AGAIN, Cont::new(attempt, id)),
        _ => count_conflict(worker, id),
    }
}

/// Handles a conflict of a batch with another transaction: retries the batch, or ends it after too many conflicts.
fn count_conflict(worker: &mut Worker, id: BatchId) {
    marks::mark("kv: transaction retried");
    let most = most_conflicts(worker);
    match kv(worker).owner.on_conflict(id, most) {
        Retry::AtOnce => worker.defer(Cont::new(attempt, id)),
        Retry::AfterAdjacent => marks::mark("kv: change waits for one of an adjacent bucket"),
        Retry::Later => {
            marks::mark("kv: change tried again later");
            worker.set_timer(AGAIN_AFTER, Cont::new(attempt, id));
        }
        Retry::Never => end(worker, id, Some(&KvError::Conflict)),
    }
}

/// Handles a batch whose changes cannot be made together. A single change ends with the error. Several changes are
/// retried, each in a transaction of its own.
fn refuse(worker: &mut Worker, id: BatchId, error: KvError) {
    let owner = &mut kv(worker).owner;
    if owner.split(id) {
        marks::mark("kv: change refused");
        return end(worker, id, Some(&error));
    }
    worker.defer(Cont::new(begin_ready, ()));
}

/// Ends a batch: reports to the requesters, in the order in which their changes arrived, the outcome of each change, or
/// `error` for all changes.
fn end(worker: &mut Worker, id: BatchId, error: Option<&KvError>) {
    while let Some(mut change) = kv(worker).owner.next_ended(id) {
        if let Some(error) = error {
            change.outcome = Some(Err(error.clone()));
        }
        report(worker, change);
    }
    let owner = &mut kv(worker).owner;
    owner.finish(id);
    if owner.has_ready() {
        worker.defer(Cont::new(begin_ready, ()));
    }
}

fn report(worker: &mut Worker, change: QueuedChange) {
    let outcome = change
        .outcome
        .expect("every change of a batch that has ended has an outcome");
    if let (Waiter::Own(cont), Err(KvError::Moved(_))) = (&change.waiter, &outcome) {
        return redirect(worker, change.body, *cont);
    }
    kv(worker).bodies.push(change.body);
    match change.waiter {
        Waiter::Other(request) => {
            if let Err(error @ (KvError::Damaged(_) | KvError::Full(_))) = &outcome {
                tracing::warn!(from = %request.from, %error, "refusing a change that another worker requested");
            }
            worker.reply(request, &[&[encode(&outcome)]]);
        }
        Waiter::Own(cont) => cont.resume(worker, outcome),
    }
}

/// Returns the shard of a change, which this worker owns.
fn target(worker: &mut Worker, body: &[u8]) -> Result<ShardPlace, KvError> {
    let me = worker.me();
    let damaged = |why: &str| KvError::Damaged(format!("{me} received a change that {why}"));
    let order = parse(body).ok_or_else(|| damaged("is too short"))?;
    let table = kv(worker)
        .tables
        .get(&order.table)
        .ok_or_else(|| damaged("names a table that is not open"))?;
    let shard = table.shards.get(order.shard as usize);
    let first = shard.ok_or_else(|| damaged("names a shard that does not exist"))?;
    let first = first.first;
    let place = table.place(order.shard);
    let layout = place.layout;
    let whole = order.key_bytes == layout.key_bytes
        && (order.code == REMOVE || order.pair.len() == layout.pair_bytes());
    let at_home = table.locate(order.key()) == (order.shard, order.bucket);
    if !whole || !at_home || !(PUTS.contains(&order.code) || order.code == REMOVE) {
        return Err(damaged("does not match the layout of the table"));
    }
    if !makes_changes(me, owner_of(worker, first, order.shard)) {
        return Err(KvError::Moved(me.machine));
    }
    Ok(place)
}

/// Makes changes of one key in a transaction context, in their order, and stores the outcome of each. Returns their number.
fn edit_all(
    worker: &mut Worker,
    tx: &mut Tx,
    target: &ShardPlace,
    changes: &mut Changes,
    list: List,
) -> Result<u64, Incomplete> {
    let mut editor = Editor::new(tx, *target);
    let mut only_updates = true;
    let count = changes.try_for_each(list, |change| {
        let order = parse(&change.body)
            .expect("each change of a batch is as long as the first, which was parsed");
        let changed = complete(worker, &mut editor, |editor| edit(editor, &order))?;
        only_updates &= changed == Changed::Updated;
        change.outcome = Some(Ok(changed));
        Ok::<_, Incomplete>(())
    })?;
    editor.finish();
    // The table contains a key at most once. While the object that contains the pair does not change, the pair is not moved, and
    // the objects through which it was found may change.
    if only_updates {
        tx.ignore_reads();
    }
    Ok(count)
}

fn edit(editor: &mut Editor<'_>, order: &Order<'_>) -> Result<Changed, EditError> {
    match order.code {
        REMOVE => editor.remove(order.bucket, order.key()),
        code => editor.put(order.bucket, order.pair, code != 2, code != 1),
    }
}

fn refusal(error: TxError, machine: MachineId) -> KvError {
    match error {
        TxError::Alloc(AllocError::OutOfMemory { .. } | AllocError::NoRegion(_)) => {
            marks::mark("kv: table full");
            KvError::Full(machine)
        }
        TxError::Limit { .. } => KvError::Crowded(machine),
        other => KvError::Damaged(other.to_string()),
    }
}

#[cfg(test)]
mod tests;
