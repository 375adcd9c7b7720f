//! [`tx`](crate::tx) for tasks: operations on the graph inside the transactions of `async` functions. Those of
//! [`alone`] are not part of a transaction.

pub mod alone;

use farm_core::object::FatPointer;
use farm_core::worker::{BorrowCont, Borrowed, Cont, Worker};
use farm_txn::{Transaction, TxError};
use slab::Slab;

use crate::batch::{Encoded, FoundAll, Read, Results};
use crate::ids::Place;
use crate::op::{Count, NewNode, Node};
use crate::pending::{AssocsCont, FoundAssocs, FoundNode, NodeCont};
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

/// The operations of tasks with results of one type, which this worker has not ended.
struct Waiting<T>(Slab<Cont<Result<T, TxError>>>);

/// Stores the continuation of a task, and returns its key.
fn wait<T: Send + 'static>(worker: &mut Worker, cont: Cont<Result<T, TxError>>) -> usize {
    if let Some(waiting) = worker.layer::<Waiting<T>>() {
        return waiting.0.insert(cont);
    }
    let mut waiting = Waiting(Slab::new());
    let key = waiting.0.insert(cont);
    worker.put_layer(Box::new(waiting));
    key
}

/// Calls the continuation of a task.
fn resume<T: Send + 'static>(worker: &mut Worker, key: usize, result: Result<T, TxError>) {
    let waiting = worker.layer::<Waiting<T>>();
    let waiting = waiting.expect("`wait` has attached the layer before the operation began");
    waiting.0.remove(key).resume(worker, result);
}

/// Returns a continuation of the graph that calls that of a task.
fn adapted<T: Send + 'static>(
    worker: &mut Worker,
    cont: Cont<Result<T, TxError>>,
) -> Cont<Result<T, GraphError>> {
    let key = wait(worker, cont);
    let back = |worker: &mut Worker, key, result: Result<T, GraphError>| {
        resume(worker, key, result.map_err(TxError::from));
    };
    Cont::new(back, key)
}

/// As [`adapted`], for a result that the continuation receives with references. `copy` copies the result.
fn copying<R: Borrowed, T: Send + 'static>(
    worker: &mut Worker,
    cont: Cont<Result<T, TxError>>,
    copy: impl Fn(R::Of<'_>) -> Result<T, GraphError> + Copy + Send + 'static,
) -> BorrowCont<R> {
    let key = wait(worker, cont);
    let back = move |worker: &mut Worker, key, result: R::Of<'_>| {
        resume(worker, key, copy(result).map_err(TxError::from));
    };
    BorrowCont::new(back, key)
}

fn node_copied(worker: &mut Worker, cont: Cont<Result<Option<OwnedNode>, TxError>>) -> NodeCont {
    copying::<FoundNode, _>(worker, cont, |found| match found {
        Ok(node) => Ok(node.map(OwnedNode::from)),
        Err(error) => Err(error.clone()),
    })
}

fn assocs_copied(worker: &mut Worker, cont: Cont<Result<Vec<OwnedAssoc>, TxError>>) -> AssocsCont {
    copying::<FoundAssocs, _>(worker, cont, |found| match found {
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
    let begin = move |worker: &mut Worker, tx, cont| {
        let cont = adapted(worker, cont);
        crate::tx::obj_add(worker, tx, place, new.properties(), cont);
    };
    tx.operation(begin).await
}

/// Returns the pointer of a node by its id: see [`crate::tx::obj_find`].
///
/// # Errors
/// As [`obj_add`].
pub async fn obj_find(tx: Transaction<'_>, id: u64) -> Result<Option<FatPointer>, TxError> {
    let begin = move |worker: &mut Worker, tx, cont| {
        let cont = adapted(worker, cont);
        crate::tx::obj_find(worker, tx, id, cont);
    };
    tx.operation(begin).await
}

/// Reads a node: see [`crate::tx::obj_get`].
///
/// # Errors
/// As [`obj_add`].
pub async fn obj_get(tx: Transaction<'_>, node: FatPointer) -> Result<Option<OwnedNode>, TxError> {
    let begin = move |worker: &mut Worker, tx, cont| {
        let cont = node_copied(worker, cont);
        crate::tx::obj_get(worker, tx, node, cont);
    };
    tx.operation(begin).await
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
    let begin = move |worker: &mut Worker, tx, cont| {
        let cont = adapted(worker, cont);
        crate::tx::obj_update(worker, tx, node, new.properties(), cont);
    };
    tx.operation(begin).await
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
    let begin = move |worker: &mut Worker, tx, cont| {
        let cont = adapted(worker, cont);
        crate::tx::obj_reserve(worker, tx, place, node_type, cont);
    };
    tx.operation(begin).await
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
    let begin = move |worker: &mut Worker, tx, cont| {
        let cont = adapted(worker, cont);
        crate::tx::obj_restore(worker, tx, node, new.properties(), cont);
    };
    tx.operation(begin).await
}

/// Deletes a node: see [`crate::tx::obj_delete`].
///
/// # Errors
/// As [`obj_add`].
pub async fn obj_delete(tx: Transaction<'_>, node: FatPointer) -> Result<bool, TxError> {
    let begin = move |worker: &mut Worker, tx, cont| {
        let cont = adapted(worker, cont);
        crate::tx::obj_delete(worker, tx, node, cont);
    };
    tx.operation(begin).await
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
    let begin = move |worker: &mut Worker, tx, cont| {
        let cont = adapted(worker, cont);
        crate::tx::assoc_add(worker, tx, node, assoc_type, assoc.as_assoc(), now, cont);
    };
    tx.operation(begin).await
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
    let begin = move |worker: &mut Worker, tx, cont| {
        let cont = adapted(worker, cont);
        crate::tx::assoc_delete(worker, tx, node, assoc, deletion, now, cont);
    };
    tx.operation(begin).await
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
    let begin = move |worker: &mut Worker, tx, cont| {
        let cont = adapted(worker, cont);
        crate::tx::assoc_change_type(worker, tx, node, types, id2, now, cont);
    };
    tx.operation(begin).await
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
    let begin = move |worker: &mut Worker, tx, cont| {
        let cont = assocs_copied(worker, cont);
        crate::tx::assoc_get(worker, tx, node, assoc_type, &ids, bounds, cont);
    };
    tx.operation(begin).await
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
    let begin = move |worker: &mut Worker, tx, cont| {
        let cont = adapted(worker, cont);
        crate::tx::assoc_count(worker, tx, node, assoc_type, cont);
    };
    tx.operation(begin).await
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
    let begin = move |worker: &mut Worker, tx, cont| {
        let cont = copying::<FoundAll, _>(worker, cont, move |found| match found {
            Ok(results) => Ok(copy(results)),
            Err(error) => Err(error.clone()),
        });
        crate::many::begin(worker, tx, reads, cont);
    };
    tx.operation(begin).await
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
    let begin = move |worker: &mut Worker, tx, cont| {
        let cont = assocs_copied(worker, cont);
        crate::tx::assoc_range(worker, tx, node, assoc_type, range, cont);
    };
    tx.operation(begin).await
}
