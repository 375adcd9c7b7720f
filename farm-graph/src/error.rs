//! Errors of the graph store.

use std::sync::Arc;

use farm_core::ids::WorkerRef;
use farm_kv::KvError;
use farm_txn::TxError;

/// Why an operation on the graph failed. It has no effect.
#[derive(Clone, Debug, thiserror::Error)]
pub enum GraphError {
    /// An error of the transaction.
    #[error(transparent)]
    Tx(TxError),
    /// An error of the table of ids.
    #[error(transparent)]
    Table(#[from] KvError),
    /// The graph cannot be stored in this way.
    #[error("invalid graph: {0}")]
    Spec(String),
    /// The graph is not open on the worker of the operation.
    #[error("the graph is not open on worker {0}: open it through that machine before")]
    NotOpen(WorkerRef),
    /// The node does not exist.
    #[error("the node does not exist: it was deleted, or never added")]
    NoNode,
    /// The node has another association of a type that is unique.
    #[error(
        "the node has an association of type {0} to another node, and the schema permits only one: delete it first"
    )]
    NotUnique(u32),
    /// No type of nodes has this number.
    #[error("no type of nodes has the number {0}; the schema of the graph must declare it")]
    NodeType(u32),
    /// No type of associations has this number.
    #[error("no type of associations has the number {0}; the schema of the graph must declare it")]
    AssocType(u32),
    /// The types of the schema contradict each other.
    #[error("invalid schema: {0}")]
    Schema(String),
    /// An association of a type with an inverse needs the pointer to its other node.
    #[error(
        "association type {0} has an inverse type: set `target` to the pointer of the other node"
    )]
    NoTarget(u32),
    /// Exactly one of two types of associations has an inverse type.
    #[error("association type {0} cannot be changed to {1}: only one of them has an inverse type")]
    Inverse(u32, u32),
    /// The time of an association or a time bound is greater than [`MAX_TIME`](crate::MAX_TIME).
    #[error("the time {0} is greater than the maximum, 2^63 - 1")]
    Time(u64),
    /// Data is too long.
    #[error("data of {bytes} bytes is too long: the limit is {limit} bytes")]
    TooLong {
        /// Length of the data.
        bytes: usize,
        /// Maximum length.
        limit: usize,
    },
    /// The application chose an id that only the store gives.
    #[error("the id {0} is not below 2^63: the store gives these ids")]
    Id(u64),
    /// The id belongs to another node.
    #[error("another node has the id {0}")]
    IdTaken(u64),
    /// Each try of the operation met a conflict with another transaction, for `transactions.patience_ms` of the
    /// configuration.
    #[error(
        "every try of the operation conflicted with another transaction: probably a machine was lost that had locked an object"
    )]
    Conflict,
    /// The machine of the node refused the operation, for this reason.
    #[error("{0}")]
    Refused(String),
    /// Memory of the graph has an invalid content: a bug, or overwritten memory.
    #[error("the graph is damaged: {0}")]
    Damaged(String),
}

impl From<TxError> for GraphError {
    fn from(error: TxError) -> Self {
        Self::from_tx(error)
    }
}

/// For bodies of transactions: an error of the graph ends the transaction, and `GraphError::from` returns it to the
/// caller.
impl From<GraphError> for TxError {
    fn from(error: GraphError) -> Self {
        match error {
            GraphError::Tx(error) => error,
            error => TxError::Layer(Arc::new(error)),
        }
    }
}

impl GraphError {
    /// Returns the error of the graph that ended a transaction, or the transaction's own error.
    fn from_tx(error: TxError) -> Self {
        match error {
            TxError::Layer(error) => match error.downcast_ref::<GraphError>() {
                Some(error) => error.clone(),
                None => GraphError::Tx(TxError::Layer(error)),
            },
            error => GraphError::Tx(error),
        }
    }
}
