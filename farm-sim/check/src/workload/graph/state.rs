//! The state of the graph workload on a worker.

use std::collections::{BTreeMap, VecDeque};

use farm_core::ids::WorkerRef;
use farm_core::object::FatPointer;
use farm_core::worker::Worker;
use farm_graph::GraphError;
use farm_txn::TxHandle;

use crate::history::graph::{GraphRequest, GraphResult};

/// The time of all changes of counts.
pub(super) const NOW: u64 = 7;

/// How a client makes its operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    /// One operation alone.
    Alone,
    /// The operations of a transaction, by continuations.
    Tx,
    /// The operations of a transaction, by a task.
    Task,
}

/// The operations that a client makes.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) via: Via,
    /// The operations as they were drawn.
    pub(super) drawn: Vec<GraphRequest>,
    /// The operations of this try, with the ids that the store gave to new nodes.
    pub(super) steps: Vec<GraphRequest>,
    /// The results of the first steps.
    pub(super) results: Vec<GraphResult>,
    /// The ids and pointers of nodes that the steps have added or found.
    pub(super) pointers: Vec<(u64, FatPointer)>,
    /// Nodes with ids of the store that the steps have added.
    pub(super) own: Vec<FatPointer>,
    pub(super) tx: Option<TxHandle>,
    pub(super) attempt: u8,
    /// Whether the operations may take effect although their outcome is not known.
    pub(super) in_doubt: bool,
    /// An error that is a bug if the reads of the transaction fit together.
    pub(super) wrong: Option<String>,
}

/// A result of an operation, as the graph store returned it.
pub(super) type Got = Result<GraphResult, Failure>;

/// Handles the result of a step of a client.
pub(super) type Stepped = fn(&mut Worker, usize, Got);

/// Why an operation has no result.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// No effect because of a conflict, or because there was no room. A retry may succeed.
    Conflict,
    /// No effect: memory is full, or the transaction is too large.
    Full,
    /// A machine was lost, without effect.
    Lost,
    /// A machine was lost; there may be an effect.
    InDoubt,
    /// No effect: this machine leaves.
    Leaving,
    /// A bug, unless the operation was part of a transaction with reads that do not fit together.
    Wrong(String),
}

/// What a worker has done to close the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closing {
    /// Its clients have not ended.
    Open,
    /// It waits until those of all workers have ended, and then finds all nodes.
    Finds,
    /// It reads the final state.
    Reads,
}

/// The graph workload on a worker.
pub(super) struct GraphWork {
    pub(super) stepped: Stepped,
    /// Whether the graph is open on this worker.
    pub(super) is_open: bool,
    /// The nodes with ids that the workload gave, as far as this worker knows them.
    pub(super) nodes: BTreeMap<u64, FatPointer>,
    /// The nodes with ids that the store gave, which this worker has added.
    pub(super) own: Vec<FatPointer>,
    /// Ids of nodes that this worker has to add before its clients begin.
    pub(super) to_add: Vec<u64>,
    /// Ids of nodes that this worker has to find.
    pub(super) to_find: Vec<u64>,
    /// The moment at which the current step of the set-up or of the closing began.
    pub(super) begun: u64,
    /// By client.
    pub(super) pending: Vec<Option<Pending>>,
    pub(super) closing: Closing,
    /// The workers that this worker has to ask whether their clients have ended.
    pub(super) to_ask: Vec<WorkerRef>,
    /// Requests that find the last nodes, or read the final state.
    pub(super) last_reads: VecDeque<GraphRequest>,
}

impl GraphWork {
    pub(super) fn new(stepped: Stepped, clients: usize) -> Self {
        Self {
            stepped,
            is_open: false,
            nodes: BTreeMap::new(),
            own: Vec::new(),
            to_add: Vec::new(),
            to_find: Vec::new(),
            begun: 0,
            pending: vec![None; clients],
            closing: Closing::Open,
            to_ask: Vec::new(),
            last_reads: VecDeque::new(),
        }
    }
}

/// Returns the graph workload of a worker.
pub(super) fn graph_work(worker: &mut Worker) -> &mut GraphWork {
    let found = worker.layer();
    found.expect("the graph workload uses its state only after it was started")
}

/// Returns the result of an operation that the graph store has ended with an error.
pub(super) fn refusal(error: GraphError) -> Got {
    use farm_bench::oltp::attempt::Stop;
    use farm_kv::KvError;
    let stopped = |stop: Stop| match stop {
        Stop::Conflict(_) => Failure::Conflict,
        Stop::Full(_) => Failure::Full,
        Stop::Lost(_) => Failure::Lost,
        Stop::InDoubt(_) => Failure::InDoubt,
        Stop::Leaving => Failure::Leaving,
        Stop::Failed(why) => Failure::Wrong(why),
    };
    Err(match error {
        GraphError::NoNode => return Ok(GraphResult::NoNode),
        GraphError::NotUnique(_) => return Ok(GraphResult::NotUnique),
        GraphError::IdTaken(_) => return Ok(GraphResult::IdTaken),
        GraphError::Conflict | GraphError::Table(KvError::Busy | KvError::Conflict) => {
            Failure::Conflict
        }
        GraphError::Table(KvError::Full(_) | KvError::Crowded(_)) => Failure::Full,
        GraphError::Table(KvError::PeerLost(_)) => Failure::Lost,
        GraphError::Table(KvError::InDoubt(_)) => Failure::InDoubt,
        GraphError::Tx(error) => stopped(error.into()),
        // The owner sends the text of errors.
        GraphError::Refused(text) if text.contains("memory") || text.contains("region") => {
            Failure::Full
        }
        other => Failure::Wrong(other.to_string()),
    })
}
