//! The ids of nodes, and the table that maps them to the nodes' pointers.
//!
//! An id that the store gives contains the number of the worker that gave it, so that workers need not agree on ids:
//! the number of the machine (16 bits), of the worker (8 bits), and a count (40 bits).

use farm_core::ids::{Address, WorkerRef};
use farm_core::object::{FatPointer, Incarnation};
use farm_core::worker::Worker;
use farm_kv::{GetCont, Key, KvError};

use crate::GraphError;
use crate::bytes::pointer;
use crate::node::NodeData;
use crate::op::Op;
use crate::pending::FoundCont;
use crate::state::graph;

/// Bits of the count in an id.
const COUNT_BITS: u32 = 40;

/// A pointer to no object.
pub(crate) const NOWHERE: FatPointer = FatPointer::new(Address::NULL, Incarnation(0));

/// Returns the key of an id.
pub(crate) fn key(id: u64) -> Key {
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

/// Returns the operation that adds a node, and a pointer near which it creates the node.
pub(crate) fn new_node<'a>(
    worker: &mut Worker,
    place: Place,
    new: NodeData<'a>,
) -> Result<(FatPointer, Op<'a>), GraphError> {
    let lists = graph(worker).check_node(&new)?.lists;
    Ok(add_op(worker, place, lists, Some(new)))
}

/// Returns the operation that reserves a node of a type, and a pointer near which it creates the node.
pub(crate) fn reserved_node(
    worker: &mut Worker,
    place: Place,
    node_type: u32,
) -> Result<(FatPointer, Op<'static>), GraphError> {
    let lists = graph(worker).schema.node(node_type)?.lists;
    Ok(add_op(worker, place, lists, None))
}

fn add_op<'a>(
    worker: &mut Worker,
    place: Place,
    lists: u8,
    new: Option<NodeData<'a>>,
) -> (FatPointer, Op<'a>) {
    let me = worker.me();
    let state = graph(worker);
    let id = place.id.unwrap_or_else(|| {
        state.ids_given += 1;
        id_of(me, state.ids_given)
    });
    let near = FatPointer::new(place.near.unwrap_or(Address::NULL), Incarnation(0));
    (near, Op::AddNode { id, lists, new })
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
