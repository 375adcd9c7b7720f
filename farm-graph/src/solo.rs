//! Operations that are transactions of their own, made by this worker and retried until they commit.

use farm_core::object::FatPointer;
use farm_core::worker::{Cont, Worker};
use farm_txn::{TxError, TxHandle, retry};

use crate::GraphError;
use crate::drive;
use crate::op::Outcome;
use crate::pending::{AnyCont, MAX_READS, Solo};
use crate::state::graph;
use crate::wire::{MESSAGE_HEADER_BYTES, Reply, node_of};

/// Makes an encoded operation in a transaction of its own.
pub(crate) fn begin(worker: &mut Worker, node: FatPointer, body: Vec<u8>, cont: AnyCont) {
    let key = insert(worker, false, node, body, cont);
    run(worker, key);
}

/// Makes the operation of a message in a transaction of this worker.
pub(crate) fn make_here(worker: &mut Worker, mut body: Vec<u8>, cont: AnyCont) {
    let node = node_of(&body);
    let node = node.expect("the message was encoded by this worker");
    let op = body.split_off(MESSAGE_HEADER_BYTES);
    begin(worker, node, op, cont);
}

/// As [`begin`], for a read. A limited number of reads runs at a time ([`MAX_READS`]); others wait for their end.
pub(crate) fn begin_read(worker: &mut Worker, node: FatPointer, body: Vec<u8>, cont: AnyCont) {
    let key = insert(worker, true, node, body, cont);
    let concurrency = worker.transactions_config().concurrency as usize;
    let most = (concurrency / 4).clamp(1, MAX_READS);
    let reads = &mut graph(worker).solo_reads;
    if reads.running >= most {
        return reads.waiting.push_back(key);
    }
    reads.running += 1;
    run(worker, key);
}

fn run(worker: &mut Worker, key: usize) {
    retry::run(worker, Cont::new(attempt, key), Cont::new(done, key));
}

fn insert(
    worker: &mut Worker,
    is_read: bool,
    node: FatPointer,
    body: Vec<u8>,
    cont: AnyCont,
) -> usize {
    graph(worker).solos.insert(Solo {
        is_read,
        node,
        body,
        reply: Reply::default(),
        cont,
    })
}

fn attempt(worker: &mut Worker, key: usize, tx: TxHandle) {
    let state = graph(worker);
    let mut buffers = state.take_buffers();
    let solo = &state.solos[key];
    buffers.body.extend_from_slice(&solo.body);
    let node = solo.node;
    drive::begin_encoded(worker, tx, node, buffers, AnyCont::Solo(key));
}

fn done(worker: &mut Worker, key: usize, result: Result<(), TxError>) {
    let state = graph(worker);
    let solo = state.solos.remove(key);
    if solo.is_read {
        match state.solo_reads.waiting.pop_front() {
            Some(next) => run(worker, next),
            None => state.solo_reads.running -= 1,
        }
    }
    let outcome = result.map_err(GraphError::from);
    let outcome = outcome.and_then(|()| Outcome::decode(solo.reply.bytes()));
    solo.cont.resume(worker, outcome);
}
