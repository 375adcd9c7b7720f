//! [`ops`](crate::ops) for tasks: operations on the graph as `async` functions, each of which takes effect at one moment.

use std::marker::PhantomData;

use farm_core::object::FatPointer;
use farm_core::worker::Worker;
use farm_txn::tasks::Answer;
use farm_txn::{Handle, TxError};

use super::{OwnedAssoc, OwnedNode, SlotOf, assocs_copied, ended, is_open, node_copied};
use crate::ids::Place;
use crate::op::{Count, NewNode, Node};
use crate::tx::{Deletion, Range};
use crate::{Assoc, GraphSpec, NodeData, Put, TimeBounds};

/// Makes a call for an operation.
async fn call<T: 'static>(
    farm: &Handle,
    begin: impl FnOnce(&mut Worker, SlotOf<T>) + Send + 'static,
) -> Result<T, TxError> {
    let start = move |worker: &mut Worker, slot| {
        if is_open(worker, slot) {
            begin(worker, SlotOf(slot, PhantomData));
        }
    };
    farm.call(start, Answer::take_value).await
}

/// Opens the graph on the worker: see [`crate::open`].
///
/// # Errors
/// A [`crate::GraphError`], as a [`TxError`].
pub async fn open(farm: &Handle, spec: GraphSpec) -> Result<(), TxError> {
    let begin = move |worker: &mut Worker, slot| {
        let slot: SlotOf<()> = SlotOf(slot, PhantomData);
        crate::open(worker, spec, ended(slot));
    };
    farm.call(begin, Answer::take_value).await
}

/// Adds a node: see [`crate::ops::obj_add`].
///
/// # Errors
/// A [`crate::GraphError`], as a [`TxError`].
pub async fn obj_add(farm: &Handle, place: Place, new: NodeData<'_>) -> Result<NewNode, TxError> {
    let new = OwnedNode::from(Node { id: 0, data: new });
    let begin = move |worker: &mut Worker, slot| {
        let cont = ended(slot);
        crate::ops::obj_add(worker, place, new.properties(), cont);
    };
    call(farm, begin).await
}

/// Returns the pointer of a node by its id: see [`crate::ids::find`].
///
/// # Errors
/// As [`obj_add`].
pub async fn obj_find(farm: &Handle, id: u64) -> Result<Option<FatPointer>, TxError> {
    let begin = move |worker: &mut Worker, slot| {
        let cont = ended(slot);
        crate::ids::find(worker, id, cont);
    };
    call(farm, begin).await
}

/// Reads a node: see [`crate::ops::obj_get`].
///
/// # Errors
/// As [`obj_add`].
pub async fn obj_get(farm: &Handle, node: FatPointer) -> Result<Option<OwnedNode>, TxError> {
    let begin = move |worker: &mut Worker, slot| {
        let cont = node_copied(slot);
        crate::ops::obj_get(worker, node, cont);
    };
    call(farm, begin).await
}

/// Replaces the properties of a node: see [`crate::ops::obj_update`].
///
/// # Errors
/// As [`obj_add`].
pub async fn obj_update(
    farm: &Handle,
    node: FatPointer,
    new: NodeData<'_>,
) -> Result<bool, TxError> {
    let new = OwnedNode::from(Node { id: 0, data: new });
    let begin = move |worker: &mut Worker, slot| {
        let cont = ended(slot);
        crate::ops::obj_update(worker, node, new.properties(), cont);
    };
    call(farm, begin).await
}

/// Reserves a node: see [`crate::ops::obj_reserve`].
///
/// # Errors
/// As [`obj_add`].
pub async fn obj_reserve(farm: &Handle, place: Place, node_type: u32) -> Result<NewNode, TxError> {
    let begin = move |worker: &mut Worker, slot| {
        let cont = ended(slot);
        crate::ops::obj_reserve(worker, place, node_type, cont);
    };
    call(farm, begin).await
}

/// Makes a node exist again: see [`crate::ops::obj_restore`].
///
/// # Errors
/// As [`obj_add`].
pub async fn obj_restore(
    farm: &Handle,
    node: FatPointer,
    new: NodeData<'_>,
) -> Result<bool, TxError> {
    let new = OwnedNode::from(Node { id: 0, data: new });
    let begin = move |worker: &mut Worker, slot| {
        let cont = ended(slot);
        crate::ops::obj_restore(worker, node, new.properties(), cont);
    };
    call(farm, begin).await
}

/// Deletes a node: see [`crate::ops::obj_delete`].
///
/// # Errors
/// As [`obj_add`].
pub async fn obj_delete(farm: &Handle, node: FatPointer) -> Result<bool, TxError> {
    let begin = move |worker: &mut Worker, slot| {
        let cont = ended(slot);
        crate::ops::obj_delete(worker, node, cont);
    };
    call(farm, begin).await
}

/// Adds or replaces an association: see [`crate::ops::assoc_add`].
///
/// # Errors
/// As [`obj_add`].
pub async fn assoc_add(
    farm: &Handle,
    node: FatPointer,
    assoc_type: u32,
    assoc: Assoc<'_>,
    now: u64,
) -> Result<Put, TxError> {
    let assoc = OwnedAssoc::from(assoc);
    let begin = move |worker: &mut Worker, slot| {
        let cont = ended(slot);
        crate::ops::assoc_add(worker, node, assoc_type, assoc.as_assoc(), now, cont);
    };
    call(farm, begin).await
}

/// Deletes an association: see [`crate::ops::assoc_delete`].
///
/// # Errors
/// As [`obj_add`].
pub async fn assoc_delete(
    farm: &Handle,
    node: FatPointer,
    assoc: (u32, u64),
    deletion: Deletion,
    now: u64,
) -> Result<bool, TxError> {
    let begin = move |worker: &mut Worker, slot| {
        let cont = ended(slot);
        crate::ops::assoc_delete(worker, node, assoc, deletion, now, cont);
    };
    call(farm, begin).await
}

/// Changes the type of an association: see [`crate::ops::assoc_change_type`].
///
/// # Errors
/// As [`obj_add`].
pub async fn assoc_change_type(
    farm: &Handle,
    node: FatPointer,
    types: (u32, u32),
    id2: u64,
    now: u64,
) -> Result<bool, TxError> {
    let begin = move |worker: &mut Worker, slot| {
        let cont = ended(slot);
        crate::ops::assoc_change_type(worker, node, types, id2, now, cont);
    };
    call(farm, begin).await
}

/// Returns associations by the ids to which they point: see [`crate::ops::assoc_get`].
///
/// # Errors
/// As [`obj_add`].
pub async fn assoc_get(
    farm: &Handle,
    node: FatPointer,
    assoc_type: u32,
    ids: &[u64],
    bounds: TimeBounds,
) -> Result<Vec<OwnedAssoc>, TxError> {
    let ids = ids.to_vec();
    let begin = move |worker: &mut Worker, slot| {
        let cont = assocs_copied(slot);
        crate::ops::assoc_get(worker, node, assoc_type, &ids, bounds, cont);
    };
    call(farm, begin).await
}

/// Returns the number of visible associations: see [`crate::ops::assoc_count`].
///
/// # Errors
/// As [`obj_add`].
pub async fn assoc_count(
    farm: &Handle,
    node: FatPointer,
    assoc_type: u32,
) -> Result<Count, TxError> {
    let begin = move |worker: &mut Worker, slot| {
        let cont = ended(slot);
        crate::ops::assoc_count(worker, node, assoc_type, cont);
    };
    call(farm, begin).await
}

/// Returns visible associations, the newest first: see [`crate::ops::assoc_range`].
///
/// # Errors
/// As [`obj_add`].
pub async fn assoc_range(
    farm: &Handle,
    node: FatPointer,
    assoc_type: u32,
    range: Range,
) -> Result<Vec<OwnedAssoc>, TxError> {
    let begin = move |worker: &mut Worker, slot| {
        let cont = assocs_copied(slot);
        crate::ops::assoc_range(worker, node, assoc_type, range, cont);
    };
    call(farm, begin).await
}
