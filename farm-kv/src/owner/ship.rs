//! Sends changes of tables to the owners of their shards.

use farm_core::messaging::{CallError, MessageId, ReplyCont};
use farm_core::worker::{Cont, Worker};

use super::{Waiter, makes_changes, queue};
use crate::KvError;
use crate::change::{decode, parse};
use crate::owners::look_up_again;
use crate::pending::{ChangeCont, PendingChange};
use crate::state::kv;

/// Message id of a change, sent to the owner of its shard.
pub(crate) const CHANGE: MessageId = MessageId(MessageId::KV + 1);

/// Sends a change of this worker to the owner of its shard, which is another worker than expected.
pub(crate) fn redirect(worker: &mut Worker, body: Vec<u8>, cont: ChangeCont) {
    let order = parse(&body).expect("the message was encoded by this worker");
    let place = (order.table, order.shard);
    let pending = PendingChange::new(place, worker.me().machine, body, cont);
    let pending = kv(worker).changes.insert(pending);
    look_up_and_send(worker, pending as u64, ());
}

/// Looks up the owner of a change's shard, and sends it the change. If this worker has become the owner, it makes the change.
fn look_up_and_send(worker: &mut Worker, pending: u64, (): ()) {
    let entry = &kv(worker).changes[pending as usize];
    let (table, shard) = (entry.table, entry.shard);
    let owner = look_up_again(worker, table, shard);
    if !makes_changes(worker.me(), owner) {
        return send(worker, pending as usize);
    }
    let entry = kv(worker).changes.remove(pending as usize);
    queue(worker, Waiter::Own(entry.cont), entry.body);
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
    entry.asked = owner.machine;
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
            let error = match error {
                CallError::PeerLost(machine) => KvError::PeerLost(machine),
                other => KvError::Spec(other.to_string()),
            };
            not_made(worker, pending as u64, error);
        }
    }
    true
}

/// Handles that a change was not made: it is sent to the next owner, or fails.
fn not_made(worker: &mut Worker, pending: u64, error: KvError) {
    let mut refusals = kv(worker).changes[pending as usize].refusals;
    let wait = refusals.next_wait(worker, &error);
    let entry = &mut kv(worker).changes[pending as usize];
    entry.refusals = refusals;
    match wait {
        Some(wait) => worker.set_timer(wait, Cont::new(look_up_and_send, pending)),
        None => {
            entry.outcome = Some(Err(error));
            worker.defer(Cont::new(report, pending));
        }
    }
}

fn report(worker: &mut Worker, pending: u64, (): ()) {
    let entry = take_back(worker, pending);
    let outcome = entry
        .outcome
        .expect("a change that was not made has an outcome");
    entry.cont.resume(worker, outcome);
}

fn answered(worker: &mut Worker, pending: u64, reply: Result<&[u8], CallError>) {
    let machine = kv(worker).changes[pending as usize].asked;
    let outcome = match reply {
        Ok([code]) => decode(*code, machine),
        Ok(_) => Err(KvError::Damaged(format!(
            "machine {machine} replied to a change without an outcome"
        ))),
        Err(_) => Err(KvError::InDoubt(machine)),
    };
    if let Err(moved @ KvError::Moved(_)) = outcome {
        return not_made(worker, pending, moved);
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
