//! [`tx`](crate::tx) for tasks: operations on the graph inside the transactions of `async` functions. Those of
//! [`alone`] are not part of a transaction.

pub mod alone;

use std::marker::PhantomData;

use farm_core::object::FatPointer;
use farm_core::worker::{BorrowCont, Borrowed, Cont, Worker};
use farm_txn::tasks::{Answer, Slot, answer};
use farm_txn::{Transaction, TxError, TxHandle};

use crate::batch::{Encoded, FoundAll, Read, Results};
use crate::ids::Place;
use crate::op::{Count, NewNode, Node};
use crate::pending::{AssocsCont, FoundAssocs, FoundNode, NodeCont};
use crate::state::Graph;
use crate::tx::{Deletion, Range};
use crate::{Assoc, GraphError, NodeData, Put, TimeBounds};

/// A copy of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedNode {
    /// Id of the node.
    pub id: u64,
    /// See [`NodeData::node_type`].
    pub node_type: u32,
    /// See [`NodeData::version`].
    pub version: u64,
    /// See [`NodeData::time`].
    pub time: u64,
    /// See [`NodeData::data`].
    pub data: Vec<u8>,
}

impl From<Node<'_>> for OwnedNode {
    fn from(node: Node<'_>) -> Self {
        let NodeData {
            node_type,
            version,
            time,
            data,
        } = node.data;
        Self {
            id: node.id,
            node_type,
            version,
            time,
            data: data.to_vec(),
        }
    }
}

impl OwnedNode {
    /// Returns the properties of the node.
    pub fn properties(&self) -> NodeData<'_> {
        NodeData {
            node_type: self.node_type,
            version: self.version,
            time: self.time,
            data: &self.data,
        }
    }
}

/// A copy of an association.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedAssoc {
    /// See [`Assoc::id2`].
    pub id2: u64,
    /// See [`Assoc::time`].
    pub time: u64,
    /// See [`Assoc::version`].
    pub version: u32,
    /// See [`Assoc::visible`].
    pub visible: bool,
    /// See [`Assoc::target`].
    pub target: Option<FatPointer>,
    /// See [`Assoc::data`].
    pub data: Vec<u8>,
}

impl From<Assoc<'_>> for OwnedAssoc {
    fn from(assoc: Assoc<'_>) -> Self {
        Self {
            id2: assoc.id2,
            time: assoc.time,
            version: assoc.version,
            visible: assoc.visible,
            target: assoc.target,
            data: assoc.data.to_vec(),
        }
    }
}

impl OwnedAssoc {
    /// Returns the association, which borrows the data.
    pub fn as_assoc(&self) -> Assoc<'_> {
        Assoc {
            id2: self.id2,
            time: self.time,
            version: self.version,
            visible: self.visible,
            target: self.target,
            data: &self.data,
        }
    }
}

/// The slot of a call that is answered with a value of type `T`.
struct SlotOf<T>(Slot, PhantomData<fn() -> T>);

/// Makes a call for an operation inside of a transaction. `begin` receives the handle of the transaction.
async fn call<T: 'static>(
    tx: Transaction<'_>,
    begin: impl FnOnce(&mut Worker, TxHandle, SlotOf<T>) + Send + 'static,
) -> Result<T, TxError> {
    let handle = tx.handle();
    let start = move |worker: &mut Worker, slot| {
        if is_open(worker, slot) {
            begin(worker, handle, SlotOf(slot, PhantomData));
        }
    };
    tx.call(start, Answer::take_value).await
}

/// Returns whether the graph is open on the worker; otherwise the call fails.
fn is_open(worker: &mut Worker, slot: Slot) -> bool {
    let is_open = worker.layer::<Graph>().is_some();
    if !is_open {
        let error = GraphError::NotOpen(worker.me());
        answer(worker, slot, |answer| answer.fail(error.into()));
    }
    is_open
}

/// Answers a call with a result.
fn end<T: Send + 'static>(worker: &mut Worker, slot: Slot, result: Result<T, GraphError>) {
    let store = |answer: &mut Answer, value| answer.value = Some(Box::new(value) as _);
    let result = result.map_err(TxError::from);
    answer(worker, slot, |answer| answer.set(result, store));
}

/// Returns the continuation that answers a call.
fn ended<T: Send + 'static>(slot: SlotOf<T>) -> Cont<Result<T, GraphError>> {
    Cont::new(end, slot.0)
}

/// As [`ended`], for a result that the continuation receives with references. `copy` copies the result.
fn copying<R: Borrowed, T: Send + 'static>(
    slot: SlotOf<T>,
    copy: impl Fn(R::Of<'_>) -> Result<T, GraphError> + Copy + Send + 'static,
) -> BorrowCont<R> {
    let back = move |worker: &mut Worker, slot, result: R::Of<'_>| end(worker, slot, copy(result));
    BorrowCont::new(back, slot.0)
}

fn node_copied(slot: SlotOf<Option<OwnedNode>>) -> NodeCont {
    copying::<FoundNode, _>(slot, |found| match found {
        Ok(node) => Ok(node.map(OwnedNode::from)),
        Err(error) => Err(error.clone()),
    })
}

fn assocs_copied(slot: SlotOf<Vec<OwnedAssoc>>) -> AssocsCont {
    copying::<FoundAssocs, _>(slot, |found| match found {
        Ok(found) => Ok(found.iter().map(OwnedAssoc::from).collect()),
        Err(error) => Err(error.clone()),
    })
}

/// Adds a node: see [`crate::tx::obj_add`].
///
/// # Errors
/// A [`GraphError`], as a [`TxError`].
pub async fn obj_add(
    tx: Transaction<'_>,
    place: Place,
    new: NodeData<'_>,
) -> Result<NewNode, TxError> {
    let new = OwnedNode::from(Node { id: 0, data: new });
    let begin = move |worker: &mut Worker, tx, slot| {
        let cont = ended(slot);
        crate::tx::obj_add(worker, tx, place, new.properties(), cont);
    };
    call(tx, begin).await
}

/// Returns the pointer of a node by its id: see [`crate::tx::obj_find`].
///
/// # Errors
/// As [`obj_add`].
pub async fn obj_find(tx: Transaction<'_>, id: u64) -> Result<Option<FatPointer>, TxError> {
    let begin = move |worker: &mut Worker, tx, slot| {
        let cont = ended(slot);
        crate::tx::obj_find(worker, tx, id, cont);
    };
    call(tx, begin).await
}

/// Reads a node: see [`crate::tx::obj_get`].
///
/// # Errors
/// As [`obj_add`].
pub async fn obj_get(tx: Transaction<'_>, node: FatPointer) -> Result<Option<OwnedNode>, TxError> {
    let begin = move |worker: &mut Worker, tx, slot| {
        let cont = node_copied(slot);
        crate::tx::obj_get(worker, tx, node, cont);
    };
    call(tx, begin).await
}

/// Replaces the properties of a node: see [`crate::tx::obj_update`].
///
/// # Errors
/// As [`obj_add`].
pub async fn obj_update(
    tx: Transaction<'_>,
    node: FatPointer,
    new: NodeData<'_>,
) -> Result<bool, TxError> {
    let new = OwnedNode::from(Node { id: 0, data: new });
    let begin = move |worker: &mut Worker, tx, slot| {
        let cont = ended(slot);
        crate::tx::obj_update(worker, tx, node, new.properties(), cont);
    };
    call(tx, begin).await
}

/// Reserves a node: see [`crate::tx::obj_reserve`].
///
/// # Errors
/// As [`obj_add`].
pub async fn obj_reserve(
    tx: Transaction<'_>,
    place: Place,
    node_type: u32,
) -> Result<NewNode, TxError> {
    let begin = move |worker: &mut Worker, tx, slot| {
        let cont = ended(slot);
        crate::tx::obj_reserve(worker, tx, place, node_type, cont);
    };
    call(tx, begin).await
}

/// Makes a node exist again: see [`crate::tx::obj_restore`].
///
/// # Errors
/// As [`obj_add`].
pub async fn obj_restore(
    tx: Transaction<'_>,
    node: FatPointer,
    new: NodeData<'_>,
) -> Result<bool, TxError> {
    let new = OwnedNode::from(Node { id: 0, data: new });
    let begin = move |worker: &mut Worker, tx, slot| {
        let cont = ended(slot);
        crate::tx::obj_restore(worker, tx, node, new.properties(), cont);
    };
    call(tx, begin).await
}

/// Deletes a node: see [`crate::tx::obj_delete`].
///
/// # Errors
/// As [`obj_add`].
pub async fn obj_delete(tx: Transaction<'_>, node: FatPointer) -> Result<bool, TxError> {
    let begin = move |worker: &mut Worker, tx, slot| {
        let cont = ended(slot);
        crate::tx::obj_delete(worker, tx, node, cont);
    };
    call(tx, begin).await
}

/// Adds or replaces an association: see [`crate::tx::assoc_add`].
///
/// # Errors
/// As [`obj_add`].
pub async fn assoc_add(
    tx: Transaction<'_>,
    node: FatPointer,
    assoc_type: u32,
    assoc: Assoc<'_>,
    now: u64,
) -> Result<Put, TxError> {
    let assoc = OwnedAssoc::from(assoc);
    let begin = move |worker: &mut Worker, tx, slot| {
        let cont = ended(slot);
        crate::tx::assoc_add(worker, tx, node, assoc_type, assoc.as_assoc(), now, cont);
    };
    call(tx, begin).await
}

/// Deletes an association: see [`crate::tx::assoc_delete`].
///
/// # Errors
/// As [`obj_add`].
pub async fn assoc_delete(
    tx: Transaction<'_>,
    node: FatPointer,
    assoc: (u32, u64),
    deletion: Deletion,
    now: u64,
) -> Result<bool, TxError> {
    let begin = move |worker: &mut Worker, tx, slot| {
        let cont = ended(slot);
        crate::tx::assoc_delete(worker, tx, node, assoc, deletion, now, cont);
    };
    call(tx, begin).await
}

/// Changes the type of an association: see [`crate::tx::assoc_change_type`].
///
/// # Errors
/// As [`obj_add`].
pub async fn assoc_change_type(
    tx: Transaction<'_>,
    node: FatPointer,
    types: (u32, u32),
    id2: u64,
    now: u64,
) -> Result<bool, TxError> {
    let begin = move |worker: &mut Worker, tx, slot| {
        let cont = ended(slot);
        crate::tx::assoc_change_type(worker, tx, node, types, id2, now, cont);
    };
    call(tx, begin).await
}

/// Returns associations by the ids to which they point: see [`crate::tx::assoc_get`].
///
/// # Errors
/// As [`obj_add`].
pub async fn assoc_get(
    tx: Transaction<'_>,
    node: FatPointer,
    assoc_type: u32,
    ids: &[u64],
    bounds: TimeBounds,
) -> Result<Vec<OwnedAssoc>, TxError> {
    let ids = ids.to_vec();
    let begin = move |worker: &mut Worker, tx, slot| {
        let cont = assocs_copied(slot);
        crate::tx::assoc_get(worker, tx, node, assoc_type, &ids, bounds, cont);
    };
    call(tx, begin).await
}

/// Returns the number of visible associations: see [`crate::tx::assoc_count`].
///
/// # Errors
/// As [`obj_add`].
pub async fn assoc_count(
    tx: Transaction<'_>,
    node: FatPointer,
    assoc_type: u32,
) -> Result<Count, TxError> {
    let begin = move |worker: &mut Worker, tx, slot| {
        let cont = ended(slot);
        crate::tx::assoc_count(worker, tx, node, assoc_type, cont);
    };
    call(tx, begin).await
}

/// Reads several nodes, counts and lists at the same time: see [`crate::tx::read_all`]. `copy` copies the results from the
/// references that it receives; it must not capture variables.
///
/// # Errors
/// As [`obj_add`].
pub async fn read_all<T: Send + 'static>(
    tx: Transaction<'_>,
    reads: &[(FatPointer, Read<'_>)],
    copy: impl Fn(Results<'_>) -> T + Copy + Send + 'static,
) -> Result<T, TxError> {
    let reads = Encoded::new(reads);
    let begin = move |worker: &mut Worker, tx, slot| {
        let cont = copying::<FoundAll, _>(slot, move |found| match found {
            Ok(results) => Ok(copy(results)),
            Err(error) => Err(error.clone()),
        });
        crate::many::begin(worker, tx, reads, cont);
    };
    call(tx, begin).await
}

/// Returns visible associations, the newest first: see [`crate::tx::assoc_range`].
///
/// # Errors
/// As [`obj_add`].
pub async fn assoc_range(
    tx: Transaction<'_>,
    node: FatPointer,
    assoc_type: u32,
    range: Range,
) -> Result<Vec<OwnedAssoc>, TxError> {
    let begin = move |worker: &mut Worker, tx, slot| {
        let cont = assocs_copied(slot);
        crate::tx::assoc_range(worker, tx, node, assoc_type, range, cont);
    };
    call(tx, begin).await
}
