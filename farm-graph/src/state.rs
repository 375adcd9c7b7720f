//! The state of the graph store on each worker.

use std::sync::Arc;

use farm_core::worker::Worker;
use farm_kv::{TableId, TableSpec};
use slab::Slab;

use crate::edit::Work;
use crate::ids::{FoundCont, Search};
use crate::pending::Pending;
use crate::schema::Schema;
use crate::tree::Limits;
use crate::wire::Reply;

/// A graph: its types, and how it is stored.
#[derive(Clone, Debug)]
pub struct GraphSpec {
    /// The types of nodes and of associations.
    pub schema: Schema,
    /// The table of the nodes' ids. Its values have [`ID_VALUE_BYTES`] bytes.
    pub ids: TableSpec,
    /// Size from which a page of an association list is split. The first page of a list is read as a whole, so a page
    /// should contain a bit more than twice the associations that applications read at once.
    pub page_bytes: usize,
}

/// Bytes of a value in the table of ids: a fat pointer.
pub const ID_VALUE_BYTES: usize = 16;

/// Buffers of an operation. Reused.
#[derive(Default)]
pub(crate) struct Buffers {
    /// The encoded operation.
    pub(crate) body: Vec<u8>,
    pub(crate) reply: Reply,
    pub(crate) work: Work,
}

/// State of the graph store on one worker.
pub(crate) struct Graph {
    pub(crate) schema: Arc<Schema>,
    pub(crate) limits: Limits,
    pub(crate) ids: TableId,
    /// Operations inside of callers' transactions.
    pub(crate) in_tx: Slab<Pending>,
    /// Searches for nodes by id, in transactions and without.
    pub(crate) searches: Slab<Search>,
    pub(crate) lookups: Slab<FoundCont>,
    pub(crate) buffers: Vec<Buffers>,
    /// Number of nodes to which this worker has given an id.
    pub(crate) ids_given: u64,
}

impl Graph {
    pub(crate) fn new(schema: Arc<Schema>, spec: &GraphSpec, ids: TableId) -> Self {
        Self {
            schema,
            limits: Limits {
                page_bytes: spec.page_bytes,
            },
            ids,
            in_tx: Slab::new(),
            searches: Slab::new(),
            lookups: Slab::new(),
            buffers: Vec::new(),
            ids_given: 0,
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
