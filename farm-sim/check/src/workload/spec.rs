//! The parameters of a workload.

use std::fmt;
use std::str::FromStr;

use farm_graph::{AssocType, GraphSpec, NodeType, Schema};
use farm_kv::TableSpec;
use serde::{Deserialize, Serialize};

use super::value::LEAST_BYTES;
use crate::history::graph::{ASSOC_KINDS, AssocKind};

/// The initial balance of every account of the bank.
pub(super) const BALANCE: u64 = 1_000;

/// The kind of a workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// Objects that form a cycle: each names its successor. Transactions swap two adjacent objects.
    Cycle,
    /// Accounts whose sum is constant.
    Bank,
    /// Reads and writes of randomly chosen objects.
    #[default]
    Append,
    /// A hashtable whose keys are read and changed by all workers.
    Table,
    /// Objects that are allocated, freed and replaced, and named by fat pointers.
    Churn,
    /// The accounts of SmallBank, in tables.
    SmallBank,
    /// The subscribers of TATP, in tables, with more changes than TATP has.
    Tatp,
    /// A graph of nodes and associations.
    Graph,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 8] = [
        Kind::Cycle,
        Kind::Bank,
        Kind::Append,
        Kind::Table,
        Kind::Churn,
        Kind::SmallBank,
        Kind::Tatp,
        Kind::Graph,
    ];

    /// Returns true if the workload uses objects, not tables or a graph.
    pub fn has_objects(self) -> bool {
        !matches!(self, Kind::Table | Kind::Graph) && !self.has_rows()
    }

    /// Returns true if the workload uses rows of tables.
    pub fn has_rows(self) -> bool {
        matches!(self, Kind::SmallBank | Kind::Tatp)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Cycle => "cycle",
            Kind::Bank => "bank",
            Kind::Append => "append",
            Kind::Table => "table",
            Kind::Churn => "churn",
            Kind::SmallBank => "smallbank",
            Kind::Tatp => "tatp",
            Kind::Graph => "graph",
        })
    }
}

/// The error for an unknown workload name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown workload {0:?}; the workloads are cycle, bank, append, table, churn, smallbank, tatp and graph"
)]
pub struct NoKind(String);

impl FromStr for Kind {
    type Err = NoKind;

    fn from_str(name: &str) -> Result<Self, NoKind> {
        let found = Self::ALL.into_iter().find(|kind| kind.to_string() == name);
        found.ok_or_else(|| NoKind(name.into()))
    }
}

/// The parameters of a workload. Shares are out of 100.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// The kind.
    pub kind: Kind,
    /// Objects on each machine. In churn, these are entries, each of which names an object or none.
    pub objects_per_machine: usize,
    /// Whether a transaction may access objects of all machines. Otherwise it accesses objects of one machine.
    pub spread: bool,
    /// Bytes of an object's payload, at least 40.
    pub payload_bytes: usize,
    /// Maximum number of bytes of an object that an entry of churn names, at least 40.
    pub named_bytes: usize,
    /// Clients of each worker. A client has one operation at a time.
    pub clients: usize,
    /// Operations of each client.
    pub operations: u64,
    /// Share of transactions that only read.
    pub read_only: u32,
    /// Share of operations that are lock-free reads; of the operations on a graph, share of reads.
    pub lock_free: u32,
    /// Share of operations on the table or the graph that the client's worker runs as transactions.
    pub in_transactions: u32,
    /// Share of operations that run as tasks, that is as `async` functions, if they can: transactions, and operations on the
    /// table. The others run by continuations.
    pub tasks: u32,
    /// Number of keys of the table, or of accounts of SmallBank. TATP has a quarter as many subscribers.
    pub keys: u64,
    /// The table's neighbourhood H.
    pub neighbourhood: u32,
    /// Shards of the table.
    pub shards: u32,
    /// Buckets of each shard.
    pub buckets: u32,
    /// Bytes of the table's values, at least 8.
    pub value_bytes: usize,
    /// The sizes of the graph.
    pub graph: GraphShape,
    /// Seed of all random choices.
    pub seed: u64,
}

/// The sizes of a graph. The table of ids has the sizes of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphShape {
    /// Nodes at the beginning. Their ids count from 1.
    pub nodes: u64,
    /// Further ids, of nodes that clients add.
    pub spare_nodes: u64,
    /// Types of associations: the first ones of [`ASSOC_KINDS`](crate::history::graph::ASSOC_KINDS).
    pub assoc_types: u32,
    /// Number of entities to which associations point that have no inverse.
    pub ids: u64,
    /// Maximum number of bytes of data of an association, without its number.
    pub assoc_bytes: usize,
    /// Size from which a page of a list is split.
    pub page_bytes: usize,
    /// Number of lists and nodes whose first pages, and objects with data, a worker caches.
    pub cached_heads: usize,
    /// Share of operations that read or write the data of nodes. Such a write writes data that is in an object of
    /// its own.
    pub node_data: u32,
    /// Share of writes that delete or restore a node. If it is 0, no nodes are deleted, and few are
    /// reserved.
    pub restores: u32,
    /// Number of operations of a client after which all of its changes remove associations; 0 if there is no such number.
    pub removes_after: u64,
}

impl Default for GraphShape {
    fn default() -> Self {
        Self {
            nodes: 6,
            spare_nodes: 4,
            assoc_types: 8,
            ids: 40,
            assoc_bytes: 60,
            page_bytes: 1024,
            cached_heads: 16,
            node_data: 10,
            restores: 7,
            removes_after: 0,
        }
    }
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            kind: Kind::default(),
            objects_per_machine: 8,
            spread: true,
            payload_bytes: 200,
            named_bytes: 640,
            clients: 2,
            operations: 100,
            read_only: 25,
            lock_free: 40,
            in_transactions: 30,
            tasks: 33,
            keys: 24,
            neighbourhood: 6,
            shards: 3,
            buckets: 3,
            value_bytes: 32,
            graph: GraphShape::default(),
            seed: 0,
        }
    }
}

impl Spec {
    /// Returns the number of objects of all machines.
    pub(super) fn objects(&self, machines: usize) -> usize {
        match self.kind {
            Kind::Table | Kind::SmallBank | Kind::Tatp | Kind::Graph => 0,
            _ => self.objects_per_machine * machines,
        }
    }

    /// Returns the objects that a transaction on `object` may access: the first, and their number.
    pub(super) fn range_of(&self, object: usize, machines: usize) -> (usize, usize) {
        let per_machine = self.objects_per_machine;
        match self.spread {
            true => (0, per_machine * machines),
            false => (object / per_machine * per_machine, per_machine),
        }
    }

    /// Returns the payload bytes of an object.
    pub(super) fn payload(&self) -> usize {
        self.payload_bytes.max(LEAST_BYTES)
    }

    /// Returns the specification of the graph.
    pub(super) fn graph(&self) -> GraphSpec {
        let node = |id, lists| NodeType {
            id,
            name: format!("node {id}"),
            lists,
        };
        let assoc = |kind: &AssocKind| AssocType {
            id: kind.id,
            name: format!("association {}", kind.id),
            inverse: kind.inverse,
            unique: kind.unique,
            dangling: kind.dangling,
        };
        let assocs = ASSOC_KINDS.iter().map(assoc).collect();
        GraphSpec {
            schema: Schema::new(vec![node(1, 1), node(2, 3)], assocs)
                .expect("the types of the workload fit together"),
            ids: TableSpec {
                value_bytes: farm_graph::ID_VALUE_BYTES,
                ..self.table()
            },
            page_bytes: self.graph.page_bytes,
            cached_heads: self.graph.cached_heads,
        }
    }

    /// Returns the specification of the table.
    pub(super) fn table(&self) -> TableSpec {
        TableSpec {
            id: 1,
            neighbourhood: self.neighbourhood,
            key_bytes: farm_kv::KEY_BYTES,
            value_bytes: self.value_bytes,
            shards: self.shards,
            buckets: self.buckets,
        }
    }
}
