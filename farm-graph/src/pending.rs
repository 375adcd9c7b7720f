//! Operations in flight, and their continuations.

use farm_core::object::FatPointer;
use farm_core::worker::{BorrowCont, Borrowed, Cont, Worker};
use farm_txn::TxHandle;

use crate::GraphError;
use crate::list::Put;
use crate::op::{Assocs, Count, NewNode, Node, Outcome};
use crate::state::{Buffers, graph};

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
    /// The error of an operation that was refused before it began.
    pub(crate) refused: Option<GraphError>,
}

impl Pending {
    /// Ends the operation: calls its continuation with its result.
    pub(crate) fn end(mut self, worker: &mut Worker, result: Result<(), GraphError>) {
        let reply = &mut self.buffers.reply;
        match self.cont {
            AnyCont::Solo(solo) => crate::solo::made(worker, solo, self.tx, result, reply),
            cont => {
                let outcome = result.and_then(|()| Outcome::decode(reply.bytes()));
                cont.resume(worker, outcome);
            }
        }
        graph(worker).buffers.push(self.buffers);
    }
}
