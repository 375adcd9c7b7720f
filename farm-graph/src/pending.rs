//! Operations in flight, and their continuations.

use std::collections::VecDeque;

use farm_core::ids::WorkerRef;
use farm_core::object::FatPointer;
use farm_core::worker::{BorrowCont, Borrowed, Cont, Worker};
use farm_txn::TxHandle;

use crate::GraphError;
use crate::edit::Work;
use crate::list::Put;
use crate::node::Header;
use crate::op::{Assocs, Count, NewNode, Node, Outcome, RangeOp};
use crate::wire::Reply;

/// The result of reading a node: `None` if it does not exist.
#[derive(Debug)]
pub enum FoundNode {}

impl Borrowed for FoundNode {
    type Of<'a> = Result<Option<Node<'a>>, &'a GraphError>;
}

/// The result of reading associations.
#[derive(Debug)]
pub enum FoundAssocs {}

impl Borrowed for FoundAssocs {
    type Of<'a> = Result<Assocs<'a>, &'a GraphError>;
}

/// The continuation that receives a node, which is valid only during the call.
pub type NodeCont = BorrowCont<FoundNode>;
/// The continuation that receives associations, which are valid only during the call.
pub type AssocsCont = BorrowCont<FoundAssocs>;
/// The continuation that receives a new node.
pub type AddedCont = Cont<Result<NewNode, GraphError>>;
/// The continuation that receives the pointer of a node, or `None` if no node has the id.
pub type FoundCont = Cont<Result<Option<FatPointer>, GraphError>>;

/// The continuation of a write of an association.
pub type PutCont = Cont<Result<Put, GraphError>>;
/// The continuation that receives whether an operation changed something.
pub type ChangedCont = Cont<Result<bool, GraphError>>;
/// The continuation that receives the number of associations.
pub type CountCont = Cont<Result<Count, GraphError>>;

/// The continuation of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AnyCont {
    Node(NodeCont),
    Added(AddedCont),
    Assocs(AssocsCont),
    Put(PutCont),
    Changed(ChangedCont),
    Count(CountCont),
    /// The operation is a transaction of its own.
    Solo(usize),
}

impl AnyCont {
    /// Calls the continuation with a result.
    pub(crate) fn resume(self, worker: &mut Worker, result: Result<Outcome<'_>, GraphError>) {
        // Any other result is a bug of the machine that made the operation.
        let wrong = || GraphError::Damaged("an operation has a result of another kind".to_owned());
        match (self, result) {
            (AnyCont::Node(cont), Ok(Outcome::Node(node))) => cont.resume(worker, Ok(node)),
            (AnyCont::Node(cont), other) => {
                cont.resume(worker, Err(&other.err().unwrap_or_else(wrong)));
            }
            (AnyCont::Assocs(cont), Ok(Outcome::Assocs(found))) => cont.resume(worker, Ok(found)),
            (AnyCont::Assocs(cont), other) => {
                cont.resume(worker, Err(&other.err().unwrap_or_else(wrong)));
            }
            (AnyCont::Added(cont), Ok(Outcome::Added(new))) => cont.resume(worker, Ok(new)),
            (AnyCont::Added(cont), other) => {
                cont.resume(worker, Err(other.err().unwrap_or_else(wrong)));
            }
            (AnyCont::Put(cont), Ok(Outcome::Put(put))) => cont.resume(worker, Ok(put)),
            (AnyCont::Put(cont), other) => {
                cont.resume(worker, Err(other.err().unwrap_or_else(wrong)));
            }
            (AnyCont::Changed(cont), Ok(Outcome::Changed(it))) => cont.resume(worker, Ok(it)),
            (AnyCont::Changed(cont), other) => {
                cont.resume(worker, Err(other.err().unwrap_or_else(wrong)));
            }
            (AnyCont::Solo(_), _) => unreachable!("`Pending::end` ends these operations itself"),
            (AnyCont::Count(cont), Ok(Outcome::Count(count))) => cont.resume(worker, Ok(count)),
            (AnyCont::Count(cont), other) => {
                cont.resume(worker, Err(other.err().unwrap_or_else(wrong)));
            }
        }
    }
}

/// An operation inside of a caller's transaction.
pub(crate) struct Pending {
    pub(crate) tx: TxHandle,
    pub(crate) node: FatPointer,
    pub(crate) buffers: Buffers,
    pub(crate) cont: AnyCont,
    /// Number of objects that are being read.
    pub(crate) fetching: usize,
    /// Why one of them could not be read.
    pub(crate) failed: Option<GraphError>,
}

/// Buffers of an operation. Reused.
#[derive(Default)]
pub(crate) struct Buffers {
    /// The encoded operation.
    pub(crate) body: Vec<u8>,
    pub(crate) reply: Reply,
    pub(crate) work: Work,
}

/// An operation that is a transaction of its own.
pub(crate) struct Solo {
    /// Whether the operation is one of the reads of which only some run at a time.
    pub(crate) is_read: bool,
    pub(crate) node: FatPointer,
    /// The encoded operation.
    pub(crate) body: Vec<u8>,
    /// The result of the last attempt.
    pub(crate) reply: Reply,
    pub(crate) cont: AnyCont,
}

/// Maximum number of reads that a worker makes in transactions at a time, and at most a quarter of
/// `transactions.concurrency`: reads of long lists take much longer than other transactions, which would wait for them.
pub const MAX_READS: usize = 16;

/// The reads in transactions of a worker.
#[derive(Default)]
pub(crate) struct SoloReads {
    pub(crate) running: usize,
    pub(crate) waiting: VecDeque<usize>,
}

/// An operation that was sent, or waits for room.
pub(crate) struct Shipped {
    pub(crate) to: WorkerRef,
    pub(crate) body: Vec<u8>,
    pub(crate) most_reply: usize,
    pub(crate) cont: AnyCont,
}

/// What an operation reads next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// The node of [`Goal`].
    Node,
    /// The object with the data of the node; and the header of the node, if the object has no properties.
    Data(Option<Header>, FatPointer),
    /// The first page of a list.
    Head(FatPointer),
}

/// The result that an operation returns.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    Node,
    Count(u32),
    Range(RangeOp),
}

/// An operation without a transaction that reads.
pub(crate) struct Reading {
    pub(crate) node: FatPointer,
    pub(crate) goal: Goal,
    pub(crate) step: Step,
    pub(crate) restarts: u32,
    /// Whether the first page or the object with the data is from the cache.
    pub(crate) cached: bool,
    pub(crate) cont: AnyCont,
}

/// A search for a node in a transaction.
#[derive(Clone, Copy)]
pub(crate) struct Search {
    pub(crate) tx: TxHandle,
    pub(crate) cont: FoundCont,
}
