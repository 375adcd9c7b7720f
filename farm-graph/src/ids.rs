//! The ids of nodes, and the table that maps them to the nodes' pointers.
//!
//! An id that the store gives contains the number of the worker that gave it, so that workers need not agree on ids:
//! 1 (1 bit), the number of the machine (16 bits), of the worker (8 bits), and a count (39 bits). So applications can
//! choose ids below 2^63. Each process of a machine counts from a place of its own, because it does not know how far the earlier ones
//! have counted.

use farm_core::ids::{Address, WorkerRef};
use farm_core::object::{FatPointer, Incarnation};
use farm_core::worker::{Cont, Worker};
use farm_kv::{GetCont, Key, KvError};
use xxhash_rust::xxh3::xxh3_64;

use crate::GraphError;
use crate::bytes::pointer;
use crate::node::NodeData;
use crate::op::Op;
use crate::pending::FoundCont;
use crate::state::graph;

/// Bits of the count in an id.
const COUNT_BITS: u32 = 39;
/// The bit of the ids that the store gives.
const GIVEN: u64 = 1 << 63;

/// A pointer to no object.
pub(crate) const NOWHERE: FatPointer = FatPointer::new(Address::NULL, Incarnation(0));

/// Returns the key of an id.
pub(crate) fn key(id: u64) -> Key {
    let mut key = [0; farm_kv::KEY_BYTES];
    key[..8].copy_from_slice(&id.to_le_bytes());
    key
}

/// Returns the id with a count of a worker, modulo the greatest one.
fn id_of(worker: WorkerRef, count: u64) -> u64 {
    let (machine, worker) = (worker.machine.get(), worker.worker.get());
    let count = count & ((1 << COUNT_BITS) - 1);
    GIVEN | (u64::from(machine) << 8 | u64::from(worker)) << COUNT_BITS | count
}

/// Handles that a node has an id that was to be given to another one. If it was one that the store gives, the worker goes on counting
/// from another place: an earlier process of its machine has counted here.
pub(crate) fn on_taken(worker: &mut Worker, id: u64) {
    if id & GIVEN != 0 {
        graph(worker).ids_given = xxh3_64(&id.to_le_bytes());
    }
}

/// Returns the place from which a worker of this process counts.
pub(crate) fn first_count(worker: &Worker) -> u64 {
    xxh3_64(&worker.boot().to_le_bytes())
}

/// The place and the id of a new node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Id of the node, below 2^63; `None` for an id that the store gives.
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
    add_op(worker, place, lists, Some(new))
}

/// Returns the operation that reserves a node of a type, and a pointer near which it creates the node.
pub(crate) fn reserved_node(
    worker: &mut Worker,
    place: Place,
    node_type: u32,
) -> Result<(FatPointer, Op<'static>), GraphError> {
    let lists = graph(worker).schema.node(node_type)?.lists;
    add_op(worker, place, lists, None)
}

fn add_op<'a>(
    worker: &mut Worker,
    place: Place,
    lists: u8,
    new: Option<NodeData<'a>>,
) -> Result<(FatPointer, Op<'a>), GraphError> {
    let me = worker.me();
    let state = graph(worker);
    if let Some(id) = place.id.filter(|id| id & GIVEN != 0) {
        return Err(GraphError::Id(id));
    }
    let id = place.id.unwrap_or_else(|| {
        state.ids_given = state.ids_given.wrapping_add(1);
        id_of(me, state.ids_given)
    });
    let near = FatPointer::new(place.near.unwrap_or(Address::NULL), Incarnation(0));
    Ok((near, Op::AddNode { id, lists, new }))
}

/// Returns the pointer of a node by its id, by a lookup without a transaction: usually one one-sided read.
pub fn find(worker: &mut Worker, id: u64, cont: FoundCont) {
    let lookup = graph(worker).lookups.insert((id, cont));
    look_up(worker, lookup, ());
}

fn look_up(worker: &mut Worker, lookup: usize, (): ()) {
    let state = graph(worker);
    let (ids, id) = (state.ids, state.lookups[lookup].0);
    match farm_kv::get(worker, ids, &key(id), GetCont::new(found, lookup)) {
        Ok(()) => {}
        Err(KvError::Busy) => farm_kv::when_slot(worker, ids, Cont::new(look_up, lookup)),
        Err(error) => {
            let refused = Cont::new(not_started, lookup);
            graph(worker).lookup_errors.push_back(error);
            worker.defer(refused);
        }
    }
}

fn not_started(worker: &mut Worker, lookup: usize, (): ()) {
    let error = graph(worker).lookup_errors.pop_front();
    let error = error.expect("the error was stored when the lookup was refused");
    found(worker, lookup, Err(&error));
}

fn found(worker: &mut Worker, lookup: usize, value: Result<Option<&[u8]>, &KvError>) {
    let found = match value {
        Ok(value) => value.map(pointer).transpose(),
        Err(KvError::Busy) => return worker.when_room(Cont::new(look_up, lookup)),
        Err(error) => Err(error.clone().into()),
    };
    let (_, cont) = graph(worker).lookups.remove(lookup);
    cont.resume(worker, found);
}
