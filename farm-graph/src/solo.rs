//! Operations that are transactions of their own, made by this worker and retried until they commit.

use farm_core::object::FatPointer;
use farm_core::worker::{Cont, Worker};
use farm_txn::{TxError, TxHandle, retry};

use crate::GraphError;
use crate::drive;
use crate::op::Outcome;
use crate::pending::{AnyCont, Solo};
use crate::state::graph;
use crate::wire::Reply;

/// Makes an encoded operation in a transaction of its own.
pub(crate) fn begin(worker: &mut Worker, node: FatPointer, body: Vec<u8>, cont: AnyCont) {
    let key = graph(worker).solos.insert(Solo {
        node,
        body,
        reply: Reply::default(),
        cont,
    });
    retry::run(worker, Cont::new(attempt, key), Cont::new(done, key));
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
    let solo = graph(worker).solos.remove(key);
    let outcome = result.map_err(GraphError::from);
    let outcome = outcome.and_then(|()| Outcome::decode(solo.reply.bytes()));
    solo.cont.resume(worker, outcome);
}
