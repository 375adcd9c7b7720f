//! Makes operations in transactions, and adds the objects that they need, from any machine.

use farm_core::marks::mark;
use farm_core::object::FatPointer;
use farm_core::worker::{Cont, Worker};
use farm_kv::Change;
use farm_kv::shard::Changed;
use farm_txn::{ObjectId, Tx, TxError, TxHandle, api, retry};

use crate::bytes::pointer_bytes;
use crate::complete::{Incomplete, complete};
use crate::edit::Missing;
use crate::ids::{key as id_key, on_taken};
use crate::op::{NewNode, Op, Outcome};
use crate::pending::{AnyCont, Buffers, Pending};
use crate::refuse::refuse;
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
    match op {
        Ok(op) => {
            let mut buffers = graph(worker).take_buffers();
            op.encode(&mut buffers.body);
            begin_encoded(worker, tx, node, buffers, cont);
        }
        Err(error) => refuse(worker, cont, error),
    }
}

/// Begins the operation that is encoded in its buffers.
pub(crate) fn begin_encoded(
    worker: &mut Worker,
    tx: TxHandle,
    node: FatPointer,
    buffers: Buffers,
    cont: AnyCont,
) {
    let key = graph(worker).in_tx.insert(Pending {
        tx,
        node,
        buffers,
        cont,
        fetching: 0,
        failed: None,
    });
    worker.defer(Cont::new(run, key));
}

/// Attempts an operation with the objects that the transaction has.
fn run(worker: &mut Worker, key: usize, (): ()) {
    let tx = graph(worker).in_tx[key].tx;
    let tried = api::with(worker, tx, |tx, worker| attempt(worker, tx, key));
    let ended = |error: TxError| {
        Err(Incomplete {
            error: error.into(),
            missing: None,
        })
    };
    match tried.unwrap_or_else(ended) {
        Ok(()) => finish(worker, key),
        Err(Incomplete {
            missing: Some(Missing::Objects(pointers)),
            ..
        }) => {
            graph(worker).in_tx[key].fetching = pointers.len();
            for pointer in pointers {
                api::read_pointer(worker, tx, pointer, Cont::new(fetched, key));
            }
        }
        Err(Incomplete {
            missing: Some(Missing::New(bytes, near)),
            ..
        }) => api::alloc(worker, tx, bytes, Some(near), Cont::new(allocated, key)),
        Err(Incomplete { error, .. }) => end(worker, key, Err(error)),
    }
}

fn fetched(worker: &mut Worker, key: usize, result: Result<ObjectId, TxError>) {
    let pending = &mut graph(worker).in_tx[key];
    pending.fetching -= 1;
    if let Err(error) = result {
        pending.failed.get_or_insert(error.into());
    }
    if pending.fetching > 0 {
        return;
    }
    match pending.failed.take() {
        None => run(worker, key, ()),
        Some(error) => end(worker, key, Err(error)),
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

fn attempt(worker: &mut Worker, tx: &mut Tx, key: usize) -> Result<(), Incomplete> {
    let state = graph(worker);
    let (schema, limits) = (state.schema.clone(), state.limits);
    let pending = &mut state.in_tx[key];
    let (node, mut buffers) = (pending.node, std::mem::take(&mut pending.buffers));
    let Buffers { body, reply, work } = &mut buffers;
    let op = Op::decode(body).expect("the operation was encoded by this worker");
    let made = complete(worker, tx, work, node.address, |edit| {
        op.make(edit, (&schema, limits), node, reply)
    });
    graph(worker).in_tx[key].buffers = buffers;
    made
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
            on_taken(worker, id);
            take_back(worker, key, GraphError::IdTaken(id));
        }
        Err(error) => take_back(worker, key, error.into()),
    }
}

/// Ends an operation whose new node cannot have its id. Frees the node.
fn take_back(worker: &mut Worker, key: usize, error: GraphError) {
    mark("graph: node whose id is taken");
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
