//! Operations inside of a caller's transaction, on nodes of any machine: they take effect together with all other
//! operations of the transaction, or not at all.
//!
//! No function calls its continuation before it returns. An operation that fails has changed nothing in the transaction.
//! What an operation reads is validated when the transaction commits.

use farm_core::object::FatPointer;
use farm_core::worker::{Cont, Worker};
use farm_kv::tx::ValueRef;
use farm_txn::{TxError, TxHandle};

use crate::assoc::Assoc;
use crate::batch::{Encoded, Read, ResultsCont};
use crate::bytes::pointer;
use crate::drive::begin;
use crate::ids::{NOWHERE, Place, key, new_node, reserved_node};
use crate::list::TimeBounds;
use crate::node::NodeData;
use crate::op::Op;
pub use crate::op::{Deletion, Range};
use crate::pending::{
    AddedCont, AnyCont, AssocsCont, ChangedCont, CountCont, FoundCont, NodeCont, PutCont, Search,
};
use crate::state::graph;
use crate::{GraphError, many};

/// Reads a node. The continuation receives `None` if it was deleted.
pub fn obj_get(worker: &mut Worker, tx: TxHandle, node: FatPointer, cont: NodeCont) {
    begin(worker, tx, node, Ok(Op::GetNode), AnyCont::Node(cont));
}

/// Replaces the properties of a node. The continuation receives whether the node exists.
pub fn obj_update(
    worker: &mut Worker,
    tx: TxHandle,
    node: FatPointer,
    new: NodeData<'_>,
    cont: ChangedCont,
) {
    let op = graph(worker).set_op(new);
    begin(worker, tx, node, op, AnyCont::Changed(cont));
}

/// Deletes a node. Its associations remain, as do the associations to it; associations cannot be added to it any more.
/// The continuation receives whether the node existed.
pub fn obj_delete(worker: &mut Worker, tx: TxHandle, node: FatPointer, cont: ChangedCont) {
    begin(worker, tx, node, Ok(Op::DeleteNode), AnyCont::Changed(cont));
}

/// Adds an association of a node, or replaces the one with the same `id2`. `now` is the time of the change of the
/// count. If the type has an inverse, `assoc.target` must be set, and its node gets the inverse association.
pub fn assoc_add(
    worker: &mut Worker,
    tx: TxHandle,
    node: FatPointer,
    assoc_type: u32,
    assoc: Assoc<'_>,
    now: u64,
    cont: PutCont,
) {
    let op = graph(worker).put_op(assoc_type, assoc, now);
    begin(worker, tx, node, op, AnyCont::Put(cont));
}

/// Deletes an association, and its inverse if there is one. The continuation receives whether it was visible
/// ([`Deletion::Hide`]), or whether it existed ([`Deletion::Remove`]).
pub fn assoc_delete(
    worker: &mut Worker,
    tx: TxHandle,
    node: FatPointer,
    assoc: (u32, u64),
    deletion: Deletion,
    now: u64,
    cont: ChangedCont,
) {
    let op = graph(worker).delete_op(assoc, deletion, now);
    begin(worker, tx, node, op, AnyCont::Changed(cont));
}

/// Changes the type of a visible association from the first of `types` to the second. An association of the new type to the same node is
/// replaced. The continuation receives whether there was such an association.
pub fn assoc_change_type(
    worker: &mut Worker,
    tx: TxHandle,
    node: FatPointer,
    types: (u32, u32),
    id2: u64,
    now: u64,
    cont: ChangedCont,
) {
    let op = graph(worker).change_op(types, id2, now);
    begin(worker, tx, node, op, AnyCont::Changed(cont));
}

/// Returns the associations to `ids` within the bounds, including hidden ones, in the order of `ids`.
pub fn assoc_get(
    worker: &mut Worker,
    tx: TxHandle,
    node: FatPointer,
    assoc_type: u32,
    ids: &[u64],
    bounds: TimeBounds,
    cont: AssocsCont,
) {
    let ids: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let op = graph(worker).get_op(assoc_type, &ids, bounds);
    begin(worker, tx, node, op, AnyCont::Assocs(cont));
}

/// Returns the number of visible associations of a type.
pub fn assoc_count(
    worker: &mut Worker,
    tx: TxHandle,
    node: FatPointer,
    assoc_type: u32,
    cont: CountCont,
) {
    let known = graph(worker).schema.assoc(assoc_type).map(|_| ());
    let op = known.map(|()| Op::Count { assoc_type });
    begin(worker, tx, node, op, AnyCont::Count(cont));
}

/// Returns visible associations, the newest first.
pub fn assoc_range(
    worker: &mut Worker,
    tx: TxHandle,
    node: FatPointer,
    assoc_type: u32,
    range: Range,
    cont: AssocsCont,
) {
    let op = graph(worker).range_op(assoc_type, range).map(Op::Range);
    begin(worker, tx, node, op, AnyCont::Assocs(cont));
}

/// Reads several nodes, counts and lists at the same time. The continuation receives the results in the order of the
/// reads.
pub fn read_all(
    worker: &mut Worker,
    tx: TxHandle,
    reads: &[(FatPointer, Read<'_>)],
    cont: ResultsCont,
) {
    many::begin(worker, tx, Encoded::new(reads), cont);
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
    let op = new_node(worker, place, new);
    add(worker, tx, op, cont);
}

/// Reserves a node: it has an id and a name, but does not exist until [`obj_restore`] sets its properties. Until then it
/// can only have associations of types that are [`dangling`](crate::AssocType::dangling). It has room for the lists of
/// a node of type `node_type`. The continuation receives its id and its name.
pub fn obj_reserve(
    worker: &mut Worker,
    tx: TxHandle,
    place: Place,
    node_type: u32,
    cont: AddedCont,
) {
    let op = reserved_node(worker, place, node_type);
    add(worker, tx, op, cont);
}

/// Sets the properties of a node that was reserved or deleted, so that it exists. It keeps its id, its name and its
/// associations. The continuation receives whether the node did not exist; otherwise nothing is changed.
pub fn obj_restore(
    worker: &mut Worker,
    tx: TxHandle,
    node: FatPointer,
    new: NodeData<'_>,
    cont: ChangedCont,
) {
    let op = graph(worker).restore_op(new);
    begin(worker, tx, node, op, AnyCont::Changed(cont));
}

fn add(
    worker: &mut Worker,
    tx: TxHandle,
    op: Result<(FatPointer, Op<'_>), GraphError>,
    cont: AddedCont,
) {
    let (near, op) = op.map_or_else(|error| (NOWHERE, Err(error)), |(near, op)| (near, Ok(op)));
    begin(worker, tx, near, op, AnyCont::Added(cont));
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
