//! The owner's side of operations that were sent to the machine of their node.
//!
//! Operations on one node that arrive while a transaction of the node is in flight wait, and are then made together in
//! one transaction. So writers of one node do not conflict with each other, and share the cost of a commit.

use std::time::Duration;

use farm_core::marks::mark;
use farm_core::mutants;
use farm_core::worker::{AddressError, Cont, Worker};
use farm_txn::{Tx, TxError, TxLimits};

use crate::GraphError;
use crate::complete::complete;
use crate::op::Outcome;
use crate::queue::{Queued, Waiter};
use crate::solo::make_here;
use crate::state::graph;
use crate::wire::{most_reply, node_of, op_of};

/// Maximum number of operations in one transaction.
const MAX_BATCH: usize = 64;
/// Number of conflicts of a batch after which it is retried after a wait, and no longer at once.
const CONFLICTS_AT_ONCE: u32 = 20;
/// The wait after the first of the later conflicts. It grows with their number, up to [`LONGEST_WAIT`].
const WAIT: Duration = Duration::from_micros(5);
const LONGEST_WAIT: Duration = Duration::from_millis(1);

/// Queues an operation. Its transaction begins only after the event loop has handled the messages of this turn, so that
/// operations on one node are combined.
pub(crate) fn queue(worker: &mut Worker, waiter: Waiter, body: Vec<u8>) {
    let state = graph(worker);
    let node = node_of(&body).expect("the message was checked");
    let address = node.address.to_bits();
    let reply = state.replies.pop().unwrap_or_default();
    let owner = &mut state.owner;
    let key = owner.all.insert(Queued {
        waiter,
        body,
        reply,
    });
    let queues = &mut owner.queues;
    let queue = owner.nodes.entry(address);
    let queue = queue.or_insert_with(|| queues.pop().unwrap_or_default());
    queue.waiting.push_back(key);
    if !std::mem::replace(&mut queue.busy, true) {
        owner.ready.push_back(address);
        if owner.ready.len() == 1 {
            worker.defer(Cont::new(begin_ready, ()));
        }
    }
}

fn begin_ready(worker: &mut Worker, (): (), (): ()) {
    while let Some(node) = graph(worker).owner.ready.pop_front() {
        let owner = &mut graph(worker).owner;
        let queue = owner
            .nodes
            .get_mut(&node)
            .expect("a ready node has operations");
        let most = queue.waiting.len().min(MAX_BATCH);
        queue.batch.extend(queue.waiting.drain(..most));
        attempt(worker, node, ());
    }
}

/// Makes the operations of a batch in a transaction, and begins its commit.
fn attempt(worker: &mut Worker, node: u64, (): ()) {
    let mut tx = farm_txn::checkout(worker);
    tx.set_limits(TxLimits::default());
    let mut done = 0;
    while let Some(&key) = graph(worker).owner.nodes[&node].batch.get(done) {
        match make(worker, &mut tx, key) {
            Ok(()) => {}
            Err(GraphError::Tx(TxError::Abort(_))) => {
                farm_txn::checkin(worker, tx);
                return retry(worker, node);
            }
            // The transaction may be too large. Operations before this one commit without it.
            Err(GraphError::Tx(_)) if done > 0 => {
                mark("graph: operation left out of a batch");
                break;
            }
            // Its objects were made on one machine, and their copies became primaries on several.
            Err(GraphError::Tx(TxError::Address(AddressError::Elsewhere { .. }))) => {
                graph(worker).owner.all[key].reply.leave_to_requester();
            }
            Err(error) => graph(worker).owner.all[key].reply.refused(&error),
        }
        done += 1;
    }
    let queue = graph(worker)
        .owner
        .nodes
        .get_mut(&node)
        .expect("the node has a batch");
    for key in queue.batch.drain(done..).rev() {
        queue.waiting.push_front(key);
    }
    farm_txn::commit(worker, tx, Cont::new(on_committed, node));
}

/// Makes one operation in a transaction.
fn make(worker: &mut Worker, tx: &mut Tx, key: usize) -> Result<(), GraphError> {
    let state = graph(worker);
    let (schema, limits) = (state.schema.clone(), state.limits);
    let mut work = std::mem::take(&mut state.owner_work);
    let queued = &mut state.owner.all[key];
    let (body, mut reply) = (
        std::mem::take(&mut queued.body),
        std::mem::take(&mut queued.reply),
    );
    let node = node_of(&body).expect("the message was checked");
    let op = op_of(&body).expect("the message was checked");
    let made = complete(worker, tx, &mut work, node.address, |edit| {
        op.make(edit, (&schema, limits), node, &mut reply)
    });
    if made.is_err() {
        work.abandon(tx);
    }
    let state = graph(worker);
    state.owner_work = work;
    let queued = &mut state.owner.all[key];
    (queued.body, queued.reply) = (body, reply);
    made.map_err(|incomplete| incomplete.error)
}

fn on_committed(worker: &mut Worker, node: u64, result: Result<(), TxError>) {
    match result {
        Ok(()) => end(worker, node, None),
        Err(TxError::Abort(_)) if mutants::is_on("batch acknowledged before its commit") => {
            end(worker, node, None);
        }
        Err(TxError::Abort(_)) => retry(worker, node),
        Err(error) => end(worker, node, Some(&error.into())),
    }
}

/// Handles a conflict of a batch with another transaction: retries it, until conflicts have lasted for
/// `transactions.patience_ms` of the configuration. Then probably a machine died with a lock.
fn retry(worker: &mut Worker, node: u64) {
    let now = worker.now();
    let patience = farm_txn::retry::patience(worker);
    let owner = &mut graph(worker).owner;
    mark("graph: batch retried");
    owner.counters.conflicts += 1;
    let queue = owner.nodes.get_mut(&node).expect("the node has a batch");
    if queue.conflicts == 0 {
        queue.conflicts_since = now;
    }
    queue.conflicts += 1;
    let again = Cont::new(attempt, node);
    if queue.conflicts <= CONFLICTS_AT_ONCE {
        worker.defer(again);
    } else if now.since(queue.conflicts_since) < patience {
        let wait = WAIT.saturating_mul(queue.conflicts - CONFLICTS_AT_ONCE);
        worker.set_timer(wait.min(LONGEST_WAIT), again);
    } else {
        end(worker, node, Some(&GraphError::Conflict));
    }
}

/// Ends a batch: reports the result of each operation, or `error` for all.
fn end(worker: &mut Worker, node: u64, error: Option<&GraphError>) {
    let owner = &mut graph(worker).owner;
    let queue = owner.nodes.get_mut(&node).expect("the node has a batch");
    queue.conflicts = 0;
    if queue.batch.len() > 1 {
        mark("graph: operations combined");
    }
    let mut batch = std::mem::take(&mut queue.batch);
    owner.counters.transactions += 1;
    owner.counters.operations += batch.len() as u64;
    for key in batch.drain(..) {
        let mut queued = graph(worker).owner.all.remove(key);
        if let Some(error) = error {
            queued.reply.refused(error);
        }
        report(worker, queued);
    }
    let owner = &mut graph(worker).owner;
    let queue = owner
        .nodes
        .get_mut(&node)
        .expect("the node has a queue until its batch has ended");
    queue.batch = batch;
    if queue.waiting.is_empty() {
        queue.busy = false;
        owner.queues.extend(owner.nodes.remove(&node));
        return;
    }
    owner.ready.push_back(node);
    if owner.ready.len() == 1 {
        worker.defer(Cont::new(begin_ready, ()));
    }
}

fn report(worker: &mut Worker, queued: Queued) {
    let reply = queued.reply.bytes();
    match queued.waiter {
        // A reply that would be too long is empty, too: the requester makes the operation itself.
        Waiter::Other(request) => match reply.len() <= most_reply(&queued.body) {
            true => worker.reply(request, &[reply]),
            false => worker.reply(request, &[]),
        },
        Waiter::Own(cont) if reply.is_empty() => return make_here(worker, queued.body, cont),
        Waiter::Own(cont) => cont.resume(worker, Outcome::decode(reply)),
    }
    let state = graph(worker);
    state.bodies.push(queued.body);
    state.replies.push(queued.reply);
}
