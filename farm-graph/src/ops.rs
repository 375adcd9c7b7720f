//! Operations on the graph. Each takes effect at one moment. Operations inside of a caller's transaction are
//! in [`crate::tx`], with the same names.
//!
//! Reads of a node, of a number of associations, and of the newest associations are one-sided reads. Other operations
//! are sent to the worker that owns the node, and run there as transactions of one machine; those that write an inverse
//! association or add a node are transactions of this worker. Conflicts are retried.
//!
//! No function calls its continuation before it returns.

use farm_core::object::FatPointer;
use farm_core::worker::Worker;

use crate::assoc::Assoc;
use crate::ids::Place;
use crate::list::TimeBounds;
use crate::node::NodeData;
use crate::op::{Deletion, Op, Range};
use crate::pending::{
    AddedCont, AnyCont, AssocsCont, ChangedCont, CountCont, Goal, NodeCont, PutCont,
};
use crate::read;
use crate::refuse::refuse;
use crate::state::graph;
use crate::{GraphError, ids, ship, solo};

/// Adds a node. The continuation receives its id and its name.
pub fn obj_add(worker: &mut Worker, place: Place, new: NodeData<'_>, cont: AddedCont) {
    let op = ids::new_node(worker, place, new);
    add(worker, op, AnyCont::Added(cont));
}

/// As [`crate::tx::obj_reserve`].
pub fn obj_reserve(worker: &mut Worker, place: Place, node_type: u32, cont: AddedCont) {
    let op = ids::reserved_node(worker, place, node_type);
    add(worker, op, AnyCont::Added(cont));
}

/// As [`crate::tx::obj_restore`].
pub fn obj_restore(worker: &mut Worker, node: FatPointer, new: NodeData<'_>, cont: ChangedCont) {
    let op = graph(worker).restore_op(new);
    make(worker, node, op, AnyCont::Changed(cont));
}

/// Reads a node. The continuation receives `None` if it was deleted.
pub fn obj_get(worker: &mut Worker, node: FatPointer, cont: NodeCont) {
    read::begin(worker, node, Goal::Node, AnyCont::Node(cont));
}

/// As [`crate::tx::obj_update`].
pub fn obj_update(worker: &mut Worker, node: FatPointer, new: NodeData<'_>, cont: ChangedCont) {
    let op = graph(worker).set_op(new);
    make(worker, node, op, AnyCont::Changed(cont));
}

/// As [`crate::tx::obj_delete`].
pub fn obj_delete(worker: &mut Worker, node: FatPointer, cont: ChangedCont) {
    make(worker, node, Ok(Op::DeleteNode), AnyCont::Changed(cont));
}

/// As [`crate::tx::assoc_add`].
pub fn assoc_add(
    worker: &mut Worker,
    node: FatPointer,
    assoc_type: u32,
    assoc: Assoc<'_>,
    now: u64,
    cont: PutCont,
) {
    let op = graph(worker).put_op(assoc_type, assoc, now);
    make(worker, node, op, AnyCont::Put(cont));
}

/// As [`crate::tx::assoc_delete`].
pub fn assoc_delete(
    worker: &mut Worker,
    node: FatPointer,
    assoc: (u32, u64),
    deletion: Deletion,
    now: u64,
    cont: ChangedCont,
) {
    let op = graph(worker).delete_op(assoc, deletion, now);
    make(worker, node, op, AnyCont::Changed(cont));
}

/// As [`crate::tx::assoc_change_type`].
pub fn assoc_change_type(
    worker: &mut Worker,
    node: FatPointer,
    types: (u32, u32),
    id2: u64,
    now: u64,
    cont: ChangedCont,
) {
    let op = graph(worker).change_op(types, id2, now);
    make(worker, node, op, AnyCont::Changed(cont));
}

/// As [`crate::tx::assoc_get`].
pub fn assoc_get(
    worker: &mut Worker,
    node: FatPointer,
    assoc_type: u32,
    ids: &[u64],
    bounds: TimeBounds,
    cont: AssocsCont,
) {
    let ids: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let op = graph(worker).get_op(assoc_type, &ids, bounds);
    make(worker, node, op, AnyCont::Assocs(cont));
}

/// Returns the number of visible associations of a type.
pub fn assoc_count(worker: &mut Worker, node: FatPointer, assoc_type: u32, cont: CountCont) {
    let cont = AnyCont::Count(cont);
    if let Err(error) = graph(worker).schema.assoc(assoc_type).map(|_| ()) {
        return refuse(worker, cont, error);
    }
    read::begin(worker, node, Goal::Count(assoc_type), cont);
}

/// Returns visible associations, the newest first.
pub fn assoc_range(
    worker: &mut Worker,
    node: FatPointer,
    assoc_type: u32,
    range: Range,
    cont: AssocsCont,
) {
    let cont = AnyCont::Assocs(cont);
    match graph(worker).range_op(assoc_type, range) {
        Ok(range) => read::begin(worker, node, Goal::Range(range), cont),
        Err(error) => refuse(worker, cont, error),
    }
}

/// Reads the same range of the lists of several nodes, as [`assoc_range`] for each of them. Each continuation receives the
/// associations of its node. Takes less time than single calls if the cache of first pages is larger than the caches of
/// the processor.
pub fn assoc_ranges(
    worker: &mut Worker,
    assoc_type: u32,
    range: Range,
    lists: &[(FatPointer, AssocsCont)],
) {
    match graph(worker).range_op(assoc_type, range) {
        Ok(range) => read::begin_ranges(worker, range, lists),
        Err(error) => {
            for (_, cont) in lists {
                refuse(worker, AnyCont::Assocs(*cont), error.clone());
            }
        }
    }
}

/// Adds a node in a transaction of this worker, near the pointer.
fn add(worker: &mut Worker, op: Result<(FatPointer, Op<'_>), GraphError>, cont: AnyCont) {
    match op {
        Ok((near, op)) => {
            let mut body = Vec::new();
            op.encode(&mut body);
            solo::begin(worker, near, body, cont);
        }
        Err(error) => refuse(worker, cont, error),
    }
}

/// Makes an operation at the owner of its node, or in a transaction of this worker if it concerns other nodes.
fn make(worker: &mut Worker, node: FatPointer, op: Result<Op<'_>, GraphError>, cont: AnyCont) {
    let op = match op {
        Ok(op) => op,
        Err(error) => return refuse(worker, cont, error),
    };
    if graph(worker).is_of_one_node(&op) {
        return ship::ship(worker, node, &op, cont);
    }
    let mut body = Vec::new();
    op.encode(&mut body);
    solo::begin(worker, node, body, cont);
}
