//! The ids of nodes, and the table that maps them to the nodes' pointers.
//!
//! An id that the store gives contains the number of the worker that gave it, so that workers need not agree on ids:
//! the number of the machine (16 bits), of the worker (8 bits), and a count (40 bits).

use farm_core::ids::{Address, WorkerRef};
use farm_core::object::{FatPointer, Incarnation};
use farm_core::worker::{Cont, Worker};
use farm_kv::tx::ValueRef;
use farm_kv::{Change, GetCont, Key, KvError};
use farm_txn::{TxError, TxHandle, api};

use crate::node::NodeData;
use crate::op::{NewNode, Op, Outcome};
use crate::pending::{AddedCont, AnyCont};
use crate::state::graph;
use crate::tree::{pointer, pointer_bytes};
use crate::tx::{begin, end};
use crate::{GraphError, node};

/// The continuation that receives the pointer of a node, or `None` if no node has the id.
pub type FoundCont = Cont<Result<Option<FatPointer>, GraphError>>;

/// Bits of the count in an id.
const COUNT_BITS: u32 = 40;

/// A pointer to no object.
const NOWHERE: FatPointer = FatPointer::new(Address::NULL, Incarnation(0));

/// Returns the key of an id.
fn key(id: u64) -> Key {
    let mut key = [0; farm_kv::KEY_BYTES];
    key[..8].copy_from_slice(&id.to_le_bytes());
    key
}

/// Returns the id number `count` of a worker.
fn id_of(worker: WorkerRef, count: u64) -> u64 {
    let (machine, worker) = (worker.machine.get(), worker.worker.get());
    (u64::from(machine) << 8 | u64::from(worker)) << COUNT_BITS | count
}

/// The place and the id of a new node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Id of the node; `None` for an id that the store gives.
    pub id: Option<u64>,
    /// The node is on the machine of this address, and near it if possible; `None` for this machine.
    pub near: Option<Address>,
}

/// Adds a node. The continuation receives its id and its name; others find it by its id once the transaction has
/// committed.
pub fn obj_add(
    worker: &mut Worker,
    tx: TxHandle,
    place: Place,
    new: NodeData<'_>,
    cont: AddedCont,
) {
    let (near, op) = match new_node(worker, place, new) {
        Ok((near, op)) => (near, Ok(op)),
        Err(error) => (NOWHERE, Err(error)),
    };
    begin(worker, tx, near, op, AnyCont::Added(cont));
}

/// Returns the operation that adds a node, and a pointer near which it creates the node.
pub(crate) fn new_node<'a>(
    worker: &mut Worker,
    place: Place,
    new: NodeData<'a>,
) -> Result<(FatPointer, Op<'a>), GraphError> {
    let me = worker.me();
    let state = graph(worker);
    state.check_node(&new)?;
    let id = place.id.unwrap_or_else(|| {
        state.ids_given += 1;
        id_of(me, state.ids_given)
    });
    let near = FatPointer::new(place.near.unwrap_or(Address::NULL), Incarnation(0));
    Ok((near, Op::AddNode { id, new }))
}

/// Ends an operation that was made. Maps the id of a new node first.
pub(crate) fn finish(worker: &mut Worker, key: usize) {
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
    if let Err(error) = farm_kv::tx::change(worker, tx, ids, &self::key(id), insert, cont) {
        take_back(worker, key, error.into());
    }
}

fn mapped(worker: &mut Worker, key: usize, result: Result<farm_kv::shard::Changed, TxError>) {
    match result {
        Ok(farm_kv::shard::Changed::Inserted) => end(worker, key, Ok(())),
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

/// A search for a node in a transaction.
#[derive(Clone, Copy)]
pub(crate) struct Search {
    tx: TxHandle,
    cont: FoundCont,
}

/// Returns the pointer of a node by its id, in a transaction.
pub fn obj_find(worker: &mut Worker, tx: TxHandle, id: u64, cont: FoundCont) {
    let state = graph(worker);
    let ids = state.ids;
    let search = state.searches.insert(Search { tx, cont });
    farm_kv::tx::get(worker, tx, ids, &key(id), Cont::new(found_in_tx, search));
}

fn found_in_tx(worker: &mut Worker, search: usize, found: Result<Option<ValueRef>, TxError>) {
    let Search { tx, cont } = graph(worker).searches.remove(search);
    let found = found.and_then(|found| match found {
        None => Ok(None),
        Some(found) => Ok(Some(farm_kv::tx::value(worker, tx, found).map(pointer)?)),
    });
    cont.resume(
        worker,
        found.map_err(GraphError::from).and_then(Option::transpose),
    );
}

/// Returns the pointer of a node by its id, by a lookup without a transaction.
///
/// # Errors
/// [`KvError`] of the lookup: nothing was started.
pub fn find(worker: &mut Worker, id: u64, cont: FoundCont) -> Result<(), KvError> {
    let state = graph(worker);
    let ids = state.ids;
    let lookup = state.lookups.insert(cont);
    let started = farm_kv::get(worker, ids, &key(id), GetCont::new(found, lookup));
    if started.is_err() {
        graph(worker).lookups.remove(lookup);
    }
    started
}

fn found(worker: &mut Worker, lookup: usize, value: Result<Option<&[u8]>, &KvError>) {
    let cont = graph(worker).lookups.remove(lookup);
    let found = match value {
        Ok(value) => value.map(pointer).transpose(),
        Err(error) => Err(error.clone().into()),
    };
    cont.resume(worker, found);
}
