//! Sends operations on a node to the worker that owns it.
//!
//! Every node has an owner, a worker of the primary of its region. All changes of the node that are requested outside of transactions
//! are made there, so that many writers of one node do not conflict with each other ([`crate::owner`]).

use farm_core::ids::{WorkerId, WorkerRef};
use farm_core::marks::mark;
use farm_core::messaging::{CallError, MessageId, ReplyCont, Request};
use farm_core::object::FatPointer;
use farm_core::worker::{Cont, Worker};
use farm_txn::{Abort, TxError};

use crate::GraphError;
use crate::bytes::pointer_bytes;
use crate::op::{Op, Outcome};
use crate::owner;
use crate::pending::{AnyCont, Shipped};
use crate::queue::Waiter;
use crate::refuse::refuse;
use crate::solo;
use crate::state::{Graph, graph};
use crate::wire::{MESSAGE_HEADER_BYTES, node_of, op_of};

/// Message id of an operation, sent to the owner of its node.
pub(crate) const OPERATION: MessageId = MessageId(MessageId::GRAPH);
/// Maximum length of the reply to a change. The reply with the text of an error is longer, so the requester makes the
/// operation itself and gets the same error.
const CHANGE_REPLY_BYTES: usize = 16;
/// Length that is reserved in a reply for each association that is looked up.
const ASSOC_REPLY_BYTES: usize = 320;

/// Number of bytes by which the longest reply is shorter than the longest message.
const REPLY_OVERHEAD_BYTES: usize = 64;

/// Returns the worker that owns a node.
pub(crate) fn owner_of(worker: &Worker, node: FatPointer) -> WorkerRef {
    let machine = worker.machine_of(node.address.region());
    let mut machines = worker.machines().iter();
    let workers = machines.find(|one| one.0 == machine).map_or(1, |one| one.1);
    // Objects start at lines of 64 bytes, and nodes have several.
    let mixed = node.address.to_bits().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let index = (mixed * workers as u64) >> 32;
    let index = WorkerId::new(index as u16);
    WorkerRef::new(
        machine,
        index.expect("a machine has no more workers than there are ids"),
    )
}

/// Sends an operation to the owner of its node. The operation must concern only this node.
pub(crate) fn ship(worker: &mut Worker, node: FatPointer, op: &Op<'_>, cont: AnyCont) {
    let to = owner_of(worker, node);
    let most = worker.max_message_body();
    let most_reply = match op {
        Op::Get { ids, .. } => CHANGE_REPLY_BYTES + ids.len() / 8 * ASSOC_REPLY_BYTES,
        _ => CHANGE_REPLY_BYTES,
    };
    let most_reply = most_reply.min(most - REPLY_OVERHEAD_BYTES.min(most));
    let mut body = graph(worker).bodies.pop().unwrap_or_default();
    body.clear();
    body.extend_from_slice(&pointer_bytes(node));
    body.extend_from_slice(&(most_reply as u32).to_le_bytes());
    op.encode(&mut body);
    if to == worker.me() {
        return owner::queue(worker, Waiter::Own(cont), body);
    }
    if body.len() > most {
        mark("graph: operation too long for a message");
        let op = body.split_off(MESSAGE_HEADER_BYTES);
        return solo::begin(worker, node, op, cont);
    }
    let key = graph(worker).shipped.insert(Shipped {
        to,
        body,
        most_reply,
        cont,
    });
    if !graph(worker).unsent.is_empty() || !try_send(worker, key) {
        let unsent = &mut graph(worker).unsent;
        unsent.push_back(key);
        mark("graph: operation waits for room");
        if unsent.len() == 1 {
            worker.when_room(Cont::new(send_unsent, ()));
        }
    }
}

fn send_unsent(worker: &mut Worker, (): (), (): ()) {
    while let Some(&key) = graph(worker).unsent.front() {
        if !try_send(worker, key) {
            return worker.when_room(Cont::new(send_unsent, ()));
        }
        graph(worker).unsent.pop_front();
    }
}

/// Sends an operation. Returns false if there is no room now.
fn try_send(worker: &mut Worker, key: usize) -> bool {
    let shipped = &mut graph(worker).shipped[key];
    let (to, most_reply) = (shipped.to, shipped.most_reply);
    let body = std::mem::take(&mut shipped.body);
    let cont = ReplyCont::new(answered, key);
    let sent = worker.call(to, OPERATION, &[&body], most_reply, cont);
    let unable = match sent {
        Err(CallError::TooLarge { .. }) => Some("graph: no room for so long a reply"),
        Err(CallError::PeerLost(_)) if worker.survives() => Some("graph: the owner is lost"),
        _ => None,
    };
    if let Some(why) = unable {
        mark(why);
        // This worker makes the operation itself.
        let shipped = graph(worker).shipped.remove(key);
        solo::make_here(worker, body, shipped.cont);
        return true;
    }
    let error = match sent {
        Ok(()) | Err(CallError::Busy) => {
            graph(worker).shipped[key].body = body;
            return sent.is_ok();
        }
        Err(CallError::PeerLost(machine)) => TxError::from(Abort::Lost(machine)).into(),
        Err(error) => GraphError::Refused(error.to_string()),
    };
    let cont = graph(worker).shipped.remove(key).cont;
    refuse(worker, cont, error);
    true
}

fn answered(worker: &mut Worker, key: usize, reply: Result<&[u8], CallError>) {
    let shipped = graph(worker).shipped.remove(key);
    match reply {
        // The result is too long for a message, or the worker is not the owner, or has not opened the graph yet.
        Ok([]) => {
            mark("graph: result too long for a reply");
            return solo::make_here(worker, shipped.body, shipped.cont);
        }
        Ok(reply) => shipped.cont.resume(worker, Outcome::decode(reply)),
        Err(CallError::PeerLost(_)) if worker.survives() && only_reads(&shipped.body) => {
            mark("graph: read at an owner that was lost");
            return solo::make_here(worker, shipped.body, shipped.cont);
        }
        Err(CallError::PeerLost(machine)) => {
            let error = TxError::InDoubt(machine).into();
            shipped.cont.resume(worker, Err(error));
        }
        Err(error) => {
            let error = GraphError::Refused(error.to_string());
            shipped.cont.resume(worker, Err(error));
        }
    }
    graph(worker).bodies.push(shipped.body);
}

fn only_reads(body: &[u8]) -> bool {
    op_of(body).is_some_and(|op| op.only_reads())
}

/// Handles an operation that another worker has sent.
pub(crate) fn handle(worker: &mut Worker, request: Request, body: &[u8]) {
    let me = worker.me();
    let (Some(node), Some(op)) = (node_of(body), op_of(body)) else {
        return distrust(worker, request);
    };
    if worker.layer::<Graph>().is_none() || owner_of(worker, node) != me {
        // The sender has opened the graph before this worker, or knows another primary of the node. It makes the operation
        // itself.
        return worker.reply(request, &[]);
    }
    if !graph(worker).is_of_one_node(&op) {
        return distrust(worker, request);
    }
    let mut own = graph(worker).bodies.pop().unwrap_or_default();
    own.clear();
    own.extend_from_slice(body);
    owner::queue(worker, Waiter::Other(request), own);
}

fn distrust(worker: &mut Worker, request: Request) {
    let from = request.from;
    let why = format!("{from} sent an operation on the graph that is not valid");
    worker.distrust(from.machine, why);
}
