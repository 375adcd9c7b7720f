//! Errors of the graph store.

use farm_txn::TxError;

/// Why an operation on the graph failed. It has no effect.
#[derive(Debug, thiserror::Error)]
pub enum GraphError {
    /// An error of the transaction.
    #[error(transparent)]
    Tx(#[from] TxError),
    /// The node does not exist.
    #[error("the node does not exist: it was deleted, or never added")]
    NoNode,
    /// The node has another association of a type that is unique.
    #[error(
        "the node has an association of type {0} to another node, and the schema permits only one: delete it first"
    )]
    NotUnique(u32),
    /// The machine of the node refused the operation, for this reason.
    #[error("{0}")]
    Refused(String),
    /// Memory of the graph has an invalid content: a bug, or overwritten memory.
    #[error("the graph is damaged: {0}")]
    Damaged(String),
}
