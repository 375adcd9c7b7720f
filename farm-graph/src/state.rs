//! The state of the graph store on each worker.

use std::collections::VecDeque;
use std::sync::Arc;

use farm_core::object::FatPointer;
use farm_core::worker::Worker;
use farm_kv::{KvError, TableId, TableSpec};
use slab::Slab;

use crate::assoc::{Assoc, BODY_BYTES, MAX_TIME};
use crate::batch::Many;
use crate::counters::ReadCounters;
use crate::edit::Work;
use crate::heads::{HeadCounters, Heads};
use crate::list::TimeBounds;
use crate::node::NodeData;
use crate::op::{ChangeOp, Deletion, Op, PutOp, Range, RangeOp};
use crate::pending::{
    AnyCont, Buffers, FoundCont, Pending, Reading, Search, Shipped, Solo, SoloReads,
};
use crate::queue::{Owner, OwnerCounters};
use crate::schema::{NodeType, Schema};
use crate::tree::Limits;
use crate::wire::Reply;
use crate::{GraphError, MAX_NODE_BYTES};

/// A graph: its types, and how it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphSpec {
    /// The types of nodes and of associations.
    pub schema: Schema,
    /// The table of the nodes' ids. Its values have [`ID_VALUE_BYTES`] bytes.
    pub ids: TableSpec,
    /// Size from which a page of an association list is split. The first page of a list is read as a whole, so a page
    /// should contain a bit more than twice the associations that applications read at once.
    pub page_bytes: usize,
    /// Number of lists whose first pages each worker caches. An entry has about 48 bytes.
    pub cached_heads: usize,
}

/// Bytes of a value in the table of ids: a fat pointer.
pub const ID_VALUE_BYTES: usize = 16;

/// State of the graph store on one worker.
pub(crate) struct Graph {
    pub(crate) spec: GraphSpec,
    pub(crate) schema: Arc<Schema>,
    pub(crate) limits: Limits,
    pub(crate) ids: TableId,
    /// Operations inside of callers' transactions.
    pub(crate) in_tx: Slab<Pending>,
    /// Searches for nodes by id, in transactions and without.
    pub(crate) searches: Slab<Search>,
    pub(crate) lookups: Slab<(u64, FoundCont)>,
    /// Errors of lookups that could not begin, whose continuations are deferred.
    pub(crate) lookup_errors: VecDeque<KvError>,
    /// Operations that are transactions of their own.
    pub(crate) solos: Slab<Solo>,
    pub(crate) solo_reads: SoloReads,
    /// Several reads in a transaction; `None` while they are attempted.
    pub(crate) many: Slab<Option<Box<Many>>>,
    /// Operations that were sent to the owners of their nodes, or wait for room.
    pub(crate) shipped: Slab<Shipped>,
    pub(crate) unsent: VecDeque<usize>,
    /// Operations on nodes of this worker.
    pub(crate) owner: Owner,
    pub(crate) owner_work: Work,
    /// Operations without a transaction that read.
    pub(crate) readings: Slab<Reading>,
    pub(crate) heads: Heads,
    pub(crate) read_counters: ReadCounters,
    /// Operations that were refused before they began.
    pub(crate) refused: Slab<(AnyCont, GraphError)>,
    /// First pages that were found in the cache for lists that are read together. Reused.
    pub(crate) cached_heads: Vec<Option<FatPointer>>,
    /// Payload of the object that was read last.
    pub(crate) payload: Vec<u8>,
    pub(crate) buffers: Vec<Buffers>,
    /// Messages and results. Reused.
    pub(crate) bodies: Vec<Vec<u8>>,
    pub(crate) replies: Vec<Reply>,
    /// The count in the id that this worker has given last.
    pub(crate) ids_given: u64,
}

impl Graph {
    pub(crate) fn new(spec: GraphSpec, ids: TableId, ids_given: u64) -> Self {
        Self {
            schema: Arc::new(spec.schema.clone()),
            limits: Limits {
                page_bytes: spec.page_bytes,
            },
            ids,
            in_tx: Slab::new(),
            searches: Slab::new(),
            lookups: Slab::new(),
            lookup_errors: VecDeque::new(),
            solos: Slab::new(),
            solo_reads: SoloReads::default(),
            many: Slab::new(),
            shipped: Slab::new(),
            unsent: VecDeque::new(),
            owner: Owner::default(),
            owner_work: Work::default(),
            readings: Slab::new(),
            heads: Heads::new(spec.cached_heads),
            read_counters: ReadCounters::default(),
            refused: Slab::new(),
            cached_heads: Vec::new(),
            payload: Vec::new(),
            buffers: Vec::new(),
            bodies: Vec::new(),
            replies: Vec::new(),
            ids_given,
            spec,
        }
    }

    /// Checks the properties of a node.
    pub(crate) fn check_node(&self, new: &NodeData<'_>) -> Result<&NodeType, GraphError> {
        check_length(new.data.len(), MAX_NODE_BYTES)?;
        self.schema.node(new.node_type)
    }

    /// Returns the operation of [`crate::tx::obj_update`].
    pub(crate) fn set_op<'a>(&self, new: NodeData<'a>) -> Result<Op<'a>, GraphError> {
        self.check_node(&new)?;
        Ok(Op::SetNode(new))
    }

    /// Returns the operation of [`crate::tx::obj_restore`].
    pub(crate) fn restore_op<'a>(&self, new: NodeData<'a>) -> Result<Op<'a>, GraphError> {
        self.check_node(&new)?;
        Ok(Op::RestoreNode(new))
    }

    /// Returns the operation of [`crate::tx::assoc_add`].
    pub(crate) fn put_op<'a>(
        &self,
        assoc_type: u32,
        assoc: Assoc<'a>,
        now: u64,
    ) -> Result<Op<'a>, GraphError> {
        let declared = self.schema.assoc(assoc_type)?;
        if assoc.time > MAX_TIME {
            return Err(GraphError::Time(assoc.time));
        }
        check_length(assoc.data.len(), self.limits.max_body() - BODY_BYTES)?;
        if declared.inverse.is_some() && assoc.target.is_none() {
            return Err(GraphError::NoTarget(assoc_type));
        }
        Ok(Op::Put(PutOp {
            assoc_type,
            assoc,
            now,
            unique: declared.unique,
            dangling: declared.dangling,
        }))
    }

    /// Returns the operation of [`crate::tx::assoc_delete`].
    pub(crate) fn delete_op(
        &self,
        (assoc_type, id2): (u32, u64),
        deletion: Deletion,
        now: u64,
    ) -> Result<Op<'static>, GraphError> {
        self.schema.assoc(assoc_type)?;
        Ok(Op::Delete {
            assoc_type,
            id2,
            now,
            removes: deletion == Deletion::Remove,
        })
    }

    /// Returns the operation of [`crate::tx::assoc_change_type`].
    pub(crate) fn change_op(
        &self,
        (from, to): (u32, u32),
        id2: u64,
        now: u64,
    ) -> Result<Op<'static>, GraphError> {
        let (old, new) = (self.schema.assoc(from)?, self.schema.assoc(to)?);
        if old.inverse.is_some() != new.inverse.is_some() {
            return Err(GraphError::Inverse(from, to));
        }
        Ok(Op::ChangeType(ChangeOp {
            from,
            to,
            id2,
            now,
            unique: new.unique,
        }))
    }

    /// Returns the operation of [`crate::tx::assoc_get`]. `ids` are encoded.
    pub(crate) fn get_op<'a>(
        &self,
        assoc_type: u32,
        ids: &'a [u8],
        bounds: TimeBounds,
    ) -> Result<Op<'a>, GraphError> {
        self.schema.assoc(assoc_type)?;
        Ok(Op::Get {
            assoc_type,
            bounds: bounds.possible(),
            ids,
        })
    }

    /// Returns the operation of [`crate::tx::assoc_range`].
    pub(crate) fn range_op(&self, assoc_type: u32, range: Range) -> Result<RangeOp, GraphError> {
        self.schema.assoc(assoc_type)?;
        Ok(RangeOp::new(assoc_type, range))
    }

    /// Returns whether an operation concerns only its node, so that the node's owner can make it.
    pub(crate) fn is_of_one_node(&self, op: &Op<'_>) -> bool {
        let alone = |id| self.schema.assoc(id).is_ok_and(|it| it.inverse.is_none());
        match *op {
            Op::AddNode { .. } => false,
            Op::Put(PutOp { assoc_type, .. }) | Op::Delete { assoc_type, .. } => alone(assoc_type),
            Op::ChangeType(ChangeOp { from, to, .. }) => alone(from) && alone(to),
            _ => true,
        }
    }

    /// Returns buffers for an operation.
    pub(crate) fn take_buffers(&mut self) -> Buffers {
        let mut buffers = self.buffers.pop().unwrap_or_default();
        buffers.body.clear();
        buffers
    }
}

/// Returns the state of the graph store on a worker.
///
/// # Panics
/// If the graph is not open on the worker.
pub(crate) fn graph(worker: &mut Worker) -> &mut Graph {
    worker
        .layer()
        .expect("open the graph on this worker before you use it: farm_graph::open")
}

/// Returns the numbers of reads without a transaction on a worker.
///
/// # Panics
/// If the graph is not open on the worker.
pub fn read_counters(worker: &mut Worker) -> ReadCounters {
    graph(worker).read_counters
}

/// Returns the counters of a worker's cache of first pages.
///
/// # Panics
/// If the graph is not open on the worker.
pub fn head_counters(worker: &mut Worker) -> HeadCounters {
    graph(worker).heads.counters
}

/// Returns the counters of the operations that a worker made as the owner of their nodes.
///
/// # Panics
/// If the graph is not open on the worker.
pub fn owner_counters(worker: &mut Worker) -> OwnerCounters {
    graph(worker).owner.counters
}

/// Returns a description of operations that this worker has not ended. Call it when no operation is in flight: such
/// operations are then a leak. Returns `None` if there are none.
pub fn left_over(worker: &mut Worker) -> Option<String> {
    let (me, state) = (worker.me(), graph(worker));
    let held = [
        (
            "operations in transactions",
            state.in_tx.len() + state.many.len(),
        ),
        (
            "searches for nodes",
            state.searches.len() + state.lookups.len(),
        ),
        ("transactions of operations", state.solos.len()),
        ("operations that were sent", state.shipped.len()),
        ("operations on nodes of this worker", state.owner.len()),
        ("reads", state.readings.len()),
        ("refusals", state.refused.len()),
    ];
    let (what, count) = held.into_iter().find(|(_, count)| *count > 0)?;
    Some(format!(
        "leak on worker {me}: {count} {what} of the graph, although every operation should have ended"
    ))
}

fn check_length(bytes: usize, limit: usize) -> Result<(), GraphError> {
    match bytes <= limit {
        true => Ok(()),
        false => Err(GraphError::TooLong { bytes, limit }),
    }
}
