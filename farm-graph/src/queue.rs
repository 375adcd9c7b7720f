//! The operations that an owner has not ended, by node.

use std::collections::{BTreeMap, VecDeque};

use farm_core::messaging::Request;
use farm_core::time::Nanos;
use slab::Slab;

use crate::pending::AnyCont;
use crate::wire::Reply;

/// The requester of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiter {
    /// Another worker.
    Other(Request),
    /// This worker.
    Own(AnyCont),
}

/// An operation that has not ended.
pub(crate) struct Queued {
    pub(crate) waiter: Waiter,
    /// The message.
    pub(crate) body: Vec<u8>,
    pub(crate) reply: Reply,
}

/// The operations on one node.
#[derive(Default)]
pub(crate) struct NodeQueue {
    pub(crate) waiting: VecDeque<usize>,
    /// Operations of the transaction in flight.
    pub(crate) batch: Vec<usize>,
    /// Whether the node is ready or has a batch.
    pub(crate) busy: bool,
    /// Conflicts of the transaction.
    pub(crate) conflicts: u32,
    /// When the first conflict happened.
    pub(crate) conflicts_since: Nanos,
}

/// Numbers of the operations that a worker made as the owner of their nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerCounters {
    /// Number of operations.
    pub operations: u64,
    /// Number of transactions that made them.
    pub transactions: u64,
    /// Number of conflicts with other transactions.
    pub conflicts: u64,
}

/// The operations on all nodes of an owner.
#[derive(Default)]
pub(crate) struct Owner {
    pub(crate) all: Slab<Queued>,
    /// By address of the node. A node without operations has no entry.
    pub(crate) nodes: BTreeMap<u64, NodeQueue>,
    /// Nodes with waiting operations and no transaction in flight.
    pub(crate) ready: VecDeque<u64>,
    pub(crate) counters: OwnerCounters,
    /// Memory for queues and batches.
    pub(crate) queues: Vec<NodeQueue>,
}

impl Owner {
    /// Returns the number of operations that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }
}
