//! Sends changes of tables to the owners of their shards.

use farm_core::messaging::{CallError, MessageId, ReplyCont};
use farm_core::worker::{Cont, Worker};

use crate::KvError;
use crate::change::{decode, parse};
use crate::owners::{LOOK_AGAIN, look_up_again};
use crate::pending::{ChangeCont, PendingChange};
use crate::state::kv;

/// Message id of a change, sent to the owner of its shard.
pub(crate) const CHANGE: MessageId = MessageId(MessageId::KV + 1);
/// Maximum number of workers that may refuse a change, because they do not own its shard, before it fails.
const MOST_REFUSALS: u32 = 100;

/// Sends a change of this worker to the owner of its shard, which is another worker than expected.
pub(crate) fn redirect(worker: &mut Worker, body: Vec<u8>, cont: ChangeCont) {
    let order = parse(&body).expect("the message was encoded by this worker");
    let pending = PendingChange {
        table: order.table,
        shard: order.shard,
        body,
        refusals: 0,
        outcome: None,
        cont,
    };
    let pending = kv(worker).changes.insert(pending);
    look_up_and_send(worker, pending as u64, ());
}

/// Looks up the owner of a change's shard, and sends it the change.
fn look_up_and_send(worker: &mut Worker, pending: u64, (): ()) {
    let entry = &kv(worker).changes[pending as usize];
    let (table, shard) = (entry.table, entry.shard);
    look_up_again(worker, table, shard);
    send(worker, pending as usize);
}

/// Sends a change, or queues it until there is room. Queued changes keep their order, and later changes cannot take the
/// room before them.
pub(crate) fn send(worker: &mut Worker, pending: usize) {
    if kv(worker).waiting.is_empty() && try_send(worker, pending) {
        return;
    }
    farm_core::marks::mark("kv: change waits for room");
    let state = kv(worker);
    state.waiting.push_back(pending);
    if state.waiting.len() == 1 {
        worker.when_room(Cont::new(send_waiting, 0));
    }
}

fn send_waiting(worker: &mut Worker, _: u64, (): ()) {
    while let Some(&pending) = kv(worker).waiting.front() {
        if !try_send(worker, pending) {
            return worker.when_room(Cont::new(send_waiting, 0));
        }
        kv(worker).waiting.pop_front();
    }
}

/// Sends a change. Returns false if there is no room now.
fn try_send(worker: &mut Worker, pending: usize) -> bool {
    let state = kv(worker);
    let entry = &mut state.changes[pending];
    let owner = state.tables[&entry.table].shards[entry.shard as usize].owner;
    let body = std::mem::take(&mut entry.body);
    let sent = worker.call(
        owner,
        CHANGE,
        &[&body],
        1,
        ReplyCont::new(answered, pending as u64),
    );
    let entry = &mut kv(worker).changes[pending];
    entry.body = body;
    match sent {
        Ok(()) => {}
        Err(CallError::Busy) => return false,
        Err(error) => {
            let outcome = match error {
                CallError::PeerLost(machine) => KvError::PeerLost(machine),
                other => KvError::Spec(other.to_string()),
            };
            entry.outcome = Some(Err(outcome));
            worker.defer(Cont::new(report, pending as u64));
        }
    }
    true
}

fn report(worker: &mut Worker, pending: u64, (): ()) {
    let entry = take_back(worker, pending);
    let outcome = entry
        .outcome
        .expect("a change that failed before it was sent has an outcome");
    entry.cont.resume(worker, outcome);
}

fn answered(worker: &mut Worker, pending: u64, reply: Result<&[u8], CallError>) {
    let state = kv(worker);
    let entry = &mut state.changes[pending as usize];
    let machine = state.tables[&entry.table].shards[entry.shard as usize]
        .owner
        .machine;
    let outcome = match reply {
        Ok([code]) => decode(*code, machine),
        Ok(_) => Err(KvError::Damaged(format!(
            "machine {machine} replied to a change without an outcome"
        ))),
        Err(_) => Err(KvError::PeerLost(machine)),
    };
    if let Err(KvError::Moved(_)) = outcome
        && entry.refusals < MOST_REFUSALS
    {
        entry.refusals += 1;
        return worker.set_timer(LOOK_AGAIN, Cont::new(look_up_and_send, pending));
    }
    let entry = take_back(worker, pending);
    entry.cont.resume(worker, outcome);
}

/// Removes a change that has ended.
fn take_back(worker: &mut Worker, pending: u64) -> PendingChange {
    let state = kv(worker);
    let mut entry = state.changes.remove(pending as usize);
    state.bodies.push(std::mem::take(&mut entry.body));
    entry
}
