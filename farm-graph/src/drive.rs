//! Makes operations in transactions, and adds the objects that they need, from any machine.

use farm_core::object::FatPointer;
use farm_core::worker::{AddressError, Cont, Worker};
use farm_kv::Change;
use farm_kv::shard::Changed;
use farm_txn::{Abort, ObjectId, Tx, TxError, TxHandle, api, retry};

use crate::bytes::pointer_bytes;
use crate::edit::{EditError, Missing};
use crate::ids::key as id_key;
use crate::op::{NewNode, Op, Outcome};
use crate::pending::{AnyCont, Buffers, Pending};
use crate::state::graph;
use crate::wire::Reply;
use crate::{GraphError, node};

/// Begins an operation, or its refusal.
pub(crate) fn begin(
    worker: &mut Worker,
    tx: TxHandle,
    node: FatPointer,
    op: Result<Op<'_>, GraphError>,
    cont: AnyCont,
) {
    let mut buffers = graph(worker).take_buffers();
    let refused = op.map(|op| op.encode(&mut buffers.body)).err();
    begin_encoded(worker, tx, node, buffers, refused, cont);
}

/// Begins the operation that is encoded in its buffers.
pub(crate) fn begin_encoded(
    worker: &mut Worker,
    tx: TxHandle,
    node: FatPointer,
    buffers: Buffers,
    refused: Option<GraphError>,
    cont: AnyCont,
) {
    let key = graph(worker).in_tx.insert(Pending {
        tx,
        node,
        buffers,
        cont,
        refused,
    });
    worker.defer(Cont::new(run, key));
}

/// Attempts an operation with the objects that the transaction has.
fn run(worker: &mut Worker, key: usize, (): ()) {
    let pending = &mut graph(worker).in_tx[key];
    if let Some(error) = pending.refused.take() {
        return end(worker, key, Err(error));
    }
    let tx = pending.tx;
    let tried = api::with(worker, tx, |tx, worker| attempt(worker, tx, key));
    match tried.unwrap_or_else(|error| Err(error.into())) {
        Ok(()) => finish(worker, key),
        Err(EditError::Missing(Missing::Object(pointer))) => {
            api::read_pointer(worker, tx, pointer, Cont::new(fetched, key));
        }
        Err(EditError::Missing(Missing::New(bytes, near))) => {
            let near = Some(near).filter(|near| !near.is_null());
            api::alloc(worker, tx, bytes, near, Cont::new(allocated, key));
        }
        Err(EditError::Failed(error)) => end(worker, key, Err(error)),
    }
}

fn fetched(worker: &mut Worker, key: usize, result: Result<ObjectId, TxError>) {
    match result {
        Ok(_) => run(worker, key, ()),
        Err(error) => end(worker, key, Err(error.into())),
    }
}

fn allocated(worker: &mut Worker, key: usize, result: Result<ObjectId, TxError>) {
    match result {
        Ok(object) => {
            graph(worker).in_tx[key].buffers.work.add_spare(object);
            run(worker, key, ());
        }
        Err(error) => end(worker, key, Err(error.into())),
    }
}

fn attempt(worker: &mut Worker, tx: &mut Tx, key: usize) -> Result<(), EditError> {
    let state = graph(worker);
    let (schema, limits) = (state.schema.clone(), state.limits);
    let pending = &mut state.in_tx[key];
    let (node, mut buffers) = (pending.node, std::mem::take(&mut pending.buffers));
    let made = complete(worker, tx, |tx| {
        let op = Op::decode(&buffers.body).expect("the operation was encoded by this worker");
        let mut edit = buffers.work.begin(tx, node.address);
        op.make(&mut edit, (&schema, limits), node, &mut buffers.reply)
    });
    if made.is_ok() {
        buffers.work.apply(tx);
    }
    graph(worker).in_tx[key].buffers = buffers;
    made
}

/// Makes an edit, and adds the objects of this machine that it lacks to the transaction.
fn complete(
    worker: &mut Worker,
    tx: &mut Tx,
    mut make: impl FnMut(&Tx) -> Result<(), EditError>,
) -> Result<(), EditError> {
    loop {
        let missing = make(tx);
        let Err(EditError::Missing(Missing::Object(pointer))) = missing else {
            return missing;
        };
        match tx.read_pointer(worker, pointer) {
            Ok(_) => {}
            // The object is on another machine, or locked for now.
            Err(
                TxError::Address(AddressError::Elsewhere { .. }) | TxError::Abort(Abort::Locked(_)),
            ) => return missing,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Ends an operation: calls its continuation with its result.
fn end(worker: &mut Worker, key: usize, result: Result<(), GraphError>) {
    let Pending {
        tx,
        mut buffers,
        cont,
        ..
    } = graph(worker).in_tx.remove(key);
    if result.is_err() {
        let work = &mut buffers.work;
        // Fails if the transaction has ended, which has freed its new objects.
        if api::with(worker, tx, |tx, _| work.abandon(tx)).is_err() {
            work.forget();
        }
    }
    let reply = &mut buffers.reply;
    match cont {
        AnyCont::Solo(solo) => end_attempt(worker, solo, tx, result, reply),
        cont => {
            let outcome = result.and_then(|()| Outcome::decode(reply.bytes()));
            cont.resume(worker, outcome);
        }
    }
    graph(worker).buffers.push(buffers);
}

/// Ends an attempt of an operation that is a transaction of its own.
fn end_attempt(
    worker: &mut Worker,
    key: usize,
    tx: TxHandle,
    result: Result<(), GraphError>,
    reply: &mut Reply,
) {
    match result {
        Ok(()) => {
            std::mem::swap(&mut graph(worker).solos[key].reply, reply);
            retry::commit(worker, tx);
        }
        Err(error) => retry::fail(worker, tx, error.into()),
    }
}

/// Ends an operation that was made. Maps the id of a new node first.
fn finish(worker: &mut Worker, key: usize) {
    let pending = &graph(worker).in_tx[key];
    let tx = pending.tx;
    let Ok(Outcome::Added(NewNode { id, node })) = Outcome::decode(pending.buffers.reply.bytes())
    else {
        return end(worker, key, Ok(()));
    };
    let ids = graph(worker).ids;
    let bytes = pointer_bytes(node);
    let insert = Change::Insert(&bytes);
    let cont = Cont::new(mapped, key);
    if let Err(error) = farm_kv::tx::change(worker, tx, ids, &id_key(id), insert, cont) {
        take_back(worker, key, error.into());
    }
}

fn mapped(worker: &mut Worker, key: usize, result: Result<Changed, TxError>) {
    match result {
        Ok(Changed::Inserted) => end(worker, key, Ok(())),
        Ok(_) => {
            let reply = &graph(worker).in_tx[key].buffers.reply;
            let id = match Outcome::decode(reply.bytes()) {
                Ok(Outcome::Added(new)) => new.id,
                _ => 0,
            };
            take_back(worker, key, GraphError::IdTaken(id));
        }
        Err(error) => take_back(worker, key, error.into()),
    }
}

/// Ends an operation whose new node cannot have its id. Frees the node.
fn take_back(worker: &mut Worker, key: usize, error: GraphError) {
    let pending = &mut graph(worker).in_tx[key];
    let (tx, mut buffers) = (pending.tx, std::mem::take(&mut pending.buffers));
    if let Ok(Outcome::Added(new)) = Outcome::decode(buffers.reply.bytes()) {
        // Fails only if the transaction has ended.
        let _ = api::with(worker, tx, |tx, _| {
            let mut edit = buffers.work.begin(tx, new.node.address);
            let freed = node::delete(&mut edit, new.node).and_then(|_| edit.free(new.node));
            match freed {
                Ok(()) => buffers.work.apply(tx),
                Err(_) => buffers.work.abandon(tx),
            }
        });
    }
    graph(worker).in_tx[key].buffers = buffers;
    end(worker, key, Err(error));
}
