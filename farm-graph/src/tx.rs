//! Operations inside of a caller's transaction, on nodes of any machine: they take effect together with all other
//! operations of the transaction, or not at all.
//!
//! No function calls its continuation before it returns. An operation that fails has changed nothing in the transaction.
//! What an operation reads is validated when the transaction commits.

use farm_core::object::FatPointer;
use farm_core::worker::{AddressError, Cont, Worker};
use farm_txn::{Abort, ObjectId, Tx, TxError, TxHandle, api};

use crate::assoc::{Assoc, BODY_BYTES, MAX_TIME};
use crate::edit::{EditError, Missing};
use crate::list::TimeBounds;
use crate::node::NodeData;
use crate::op::{ChangeOp, Op, PutOp, RangeOp};
use crate::pending::{AnyCont, AssocsCont, ChangedCont, CountCont, NodeCont, Pending, PutCont};
use crate::state::{Buffers, Graph, graph};
use crate::{GraphError, MAX_NODE_BYTES, ids};

pub use crate::ids::{obj_add, obj_find};

/// What happens to an association that is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// The association is hidden: lists and counts do not contain it any more, [`assoc_get`] still returns it.
    Hide,
    /// The association is removed.
    Remove,
}

/// Which associations [`assoc_range`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The times.
    pub bounds: TimeBounds,
    /// Number of associations to skip, from the newest one.
    pub offset: u64,
    /// Maximum number of associations.
    pub limit: u64,
}

impl Range {
    /// Returns the range of the newest associations.
    pub fn newest(limit: u64) -> Self {
        Self {
            bounds: TimeBounds::default(),
            offset: 0,
            limit,
        }
    }
}

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
    let checked = graph(worker).check_node(&new);
    let op = checked.map(|()| Op::SetNode(new));
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
    let unique = graph(worker).check_assoc(assoc_type, &assoc);
    let op = unique.map(|unique| {
        Op::Put(PutOp {
            assoc_type,
            assoc,
            now,
            unique,
            bare: false,
        })
    });
    begin(worker, tx, node, op, AnyCont::Put(cont));
}

/// Deletes an association, and its inverse if there is one. The continuation receives whether it was visible
/// ([`Deletion::Hide`]), or whether it existed ([`Deletion::Remove`]).
pub fn assoc_delete(
    worker: &mut Worker,
    tx: TxHandle,
    node: FatPointer,
    (assoc_type, id2): (u32, u64),
    deletion: Deletion,
    now: u64,
    cont: ChangedCont,
) {
    let known = graph(worker).schema.assoc(assoc_type).map(|_| ());
    let op = known.map(|()| Op::Delete {
        assoc_type,
        id2,
        now,
        removes: deletion == Deletion::Remove,
    });
    begin(worker, tx, node, op, AnyCont::Changed(cont));
}

/// Changes the type of a visible association from `from` to `to`. An association of the new type to the same node is
/// replaced. The continuation receives whether there was such an association.
pub fn assoc_change_type(
    worker: &mut Worker,
    tx: TxHandle,
    node: FatPointer,
    (from, to): (u32, u32),
    id2: u64,
    now: u64,
    cont: ChangedCont,
) {
    let unique = graph(worker).check_change(from, to);
    let op = unique.map(|unique| {
        Op::ChangeType(ChangeOp {
            from,
            to,
            id2,
            now,
            unique,
        })
    });
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
    let checked = graph(worker).check_bounds(assoc_type, bounds);
    let ids: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let op = checked.map(|bounds| Op::Get {
        assoc_type,
        bounds,
        ids: &ids,
    });
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
    let checked = graph(worker).check_bounds(assoc_type, range.bounds);
    let op = checked.map(|bounds| {
        Op::Range(RangeOp {
            assoc_type,
            bounds,
            offset: range.offset,
            limit: range.limit,
        })
    });
    begin(worker, tx, node, op, AnyCont::Assocs(cont));
}

impl Graph {
    /// Checks the properties of a node.
    pub(crate) fn check_node(&self, new: &NodeData<'_>) -> Result<(), GraphError> {
        self.schema.node(new.node_type)?;
        check_length(new.data.len(), MAX_NODE_BYTES)
    }

    /// Checks an association. Returns whether its type is unique.
    pub(crate) fn check_assoc(
        &self,
        assoc_type: u32,
        assoc: &Assoc<'_>,
    ) -> Result<bool, GraphError> {
        let declared = self.schema.assoc(assoc_type)?;
        check_time(assoc.time)?;
        check_length(assoc.data.len(), self.limits.max_body() - BODY_BYTES)?;
        match declared.inverse.is_some() && assoc.target.is_none() {
            true => Err(GraphError::NoTarget(assoc_type)),
            false => Ok(declared.unique),
        }
    }

    /// Checks a change of the type of an association. Returns whether the new type is unique.
    pub(crate) fn check_change(&self, from: u32, to: u32) -> Result<bool, GraphError> {
        let (old, new) = (self.schema.assoc(from)?, self.schema.assoc(to)?);
        match old.inverse.is_some() == new.inverse.is_some() {
            true => Ok(new.unique),
            false => Err(GraphError::Inverse(from, to)),
        }
    }

    /// Checks the type of associations to read. Returns the bounds of their times; no association is later than
    /// [`MAX_TIME`].
    pub(crate) fn check_bounds(
        &self,
        assoc_type: u32,
        bounds: TimeBounds,
    ) -> Result<TimeBounds, GraphError> {
        self.schema.assoc(assoc_type)?;
        Ok(TimeBounds {
            min: bounds.min,
            max: bounds.max.min(MAX_TIME),
        })
    }
}

fn check_time(time: u64) -> Result<(), GraphError> {
    match time <= MAX_TIME {
        true => Ok(()),
        false => Err(GraphError::Time(time)),
    }
}

fn check_length(bytes: usize, limit: usize) -> Result<(), GraphError> {
    match bytes <= limit {
        true => Ok(()),
        false => Err(GraphError::TooLong { bytes, limit }),
    }
}

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
        Ok(()) => ids::finish(worker, key),
        Err(EditError::Missing(Missing::Object(pointer))) => {
            api::read_pointer(worker, tx, pointer, Cont::new(fetched, key));
        }
        Err(EditError::Missing(Missing::New(class, near))) => {
            let bytes = class.payload_capacity();
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

pub(crate) fn end(worker: &mut Worker, key: usize, result: Result<(), GraphError>) {
    let mut pending = graph(worker).in_tx.remove(key);
    if result.is_err() {
        // Fails if the transaction has ended, which has freed its new objects.
        let work = &mut pending.buffers.work;
        if api::with(worker, pending.tx, |tx, _| work.abandon(tx)).is_err() {
            work.forget();
        }
    }
    pending.end(worker, result);
}
