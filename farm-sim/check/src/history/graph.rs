//! Operations on a graph store, and their results.

use serde::{Deserialize, Serialize};

/// A type of associations that graph workloads use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssocKind {
    /// Number of the type.
    pub id: u32,
    /// The type of the inverse associations.
    pub inverse: Option<u32>,
    /// Whether a node has at most one visible association of the type.
    pub unique: bool,
    /// Whether associations can also be added to nodes that do not exist.
    pub dangling: bool,
}

const fn kind(id: u32, inverse: Option<u32>, unique: bool) -> AssocKind {
    AssocKind {
        id,
        inverse,
        unique,
        dangling: false,
    }
}

const fn dangling(id: u32, inverse: Option<u32>, unique: bool) -> AssocKind {
    AssocKind {
        dangling: true,
        ..kind(id, inverse, unique)
    }
}

/// The types of associations. A workload uses the first ones; the number of them includes both types of a pair.
pub const ASSOC_KINDS: [AssocKind; 16] = [
    kind(1, None, false),
    kind(2, Some(2), false),
    dangling(3, Some(4), false),
    dangling(4, Some(3), false),
    kind(5, None, true),
    kind(6, Some(6), true),
    dangling(7, None, false),
    dangling(8, None, true),
    kind(9, None, false),
    kind(10, None, false),
    kind(11, None, false),
    kind(12, None, false),
    kind(13, None, false),
    kind(14, None, false),
    kind(15, None, false),
    kind(16, None, false),
];

/// Returns a type of associations.
///
/// # Panics
/// If [`ASSOC_KINDS`] has no such type.
pub fn assoc_kind(id: u32) -> AssocKind {
    ASSOC_KINDS[id as usize - 1]
}

/// Bounds of times, both inclusive.
pub type Times = (u64, u64);

/// An association, as an operation writes it. Every value is a number that is written once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NewAssoc {
    /// The time.
    pub time: u64,
    /// The value.
    pub value: u64,
    /// Whether the association contains the pointer to the node that it points to.
    pub target: bool,
}

/// An operation on the graph. Nodes are named by their ids. An id is never used again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GraphRequest {
    /// Looks up the pointer of a node by its id.
    Find(u64),
    /// Adds a node: its id, and its value.
    AddNode(u64, u64),
    /// Reserves a node, which does not exist until it is restored: its id, and the type for whose lists it has room.
    ReserveNode(u64, u32),
    /// Reads a node.
    GetNode(u64),
    /// Replaces the value of a node.
    SetNode(u64, u64),
    /// Deletes a node. Its associations remain.
    DeleteNode(u64),
    /// Sets the value of a node that was reserved or deleted, so that it exists.
    RestoreNode(u64, u64),
    /// Adds or replaces an association of a node: the type, the id of the other node, the association.
    Put(u64, u32, u64, NewAssoc),
    /// Hides an association of a node: the type, the id of the other node.
    Hide(u64, u32, u64),
    /// Removes an association of a node: the type, the id of the other node.
    Remove(u64, u32, u64),
    /// Moves a visible association of a node to another type: the old type, the new one, the id of the other node.
    ChangeType(u64, u32, u32, u64),
    /// Returns the associations of a node by the ids of the other nodes: the type, the ids, the bounds.
    Get(u64, u32, Vec<u64>, Times),
    /// Counts the visible associations of a node.
    Count(u64, u32),
    /// Returns visible associations of a node, the newest first: the type, the bounds, the number to skip, the maximum
    /// number.
    Range(u64, u32, Times, u64, u64),
    /// Makes several reads at the same time: of nodes, counts and associations.
    All(Vec<GraphRequest>),
}

impl GraphRequest {
    /// Returns the node that is read, if the request reads one node.
    pub fn node(&self) -> Option<u64> {
        match *self {
            GraphRequest::GetNode(id)
            | GraphRequest::Get(id, ..)
            | GraphRequest::Count(id, _)
            | GraphRequest::Range(id, ..) => Some(id),
            _ => None,
        }
    }
}

/// An association that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SeenAssoc {
    /// The id of the other node.
    pub id2: u64,
    /// The time.
    pub time: u64,
    /// The value.
    pub value: u64,
    /// Whether lists contain the association.
    pub visible: bool,
    /// Whether the association contains the pointer to the other node.
    pub target: bool,
}

/// The result of an operation on the graph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GraphResult {
    /// Whether a node has the id.
    Found(bool),
    /// A node was added or reserved.
    Added,
    /// Refused: another node has the id.
    IdTaken,
    /// The value of a node; `None` if it was deleted.
    Node(Option<u64>),
    /// Whether an update, a deletion or a restoration changed something.
    Changed(bool),
    /// A new association was added.
    PutNew,
    /// A hidden association was replaced.
    PutShown,
    /// A visible association was replaced.
    PutUpdated,
    /// Refused: the node, or the node of the inverse association, does not exist.
    NoNode,
    /// Refused: the type is unique, and the node, or the node of the inverse association, has another association.
    NotUnique,
    /// Number of visible associations, and number of changes of that number.
    Count(u64, u64),
    /// Associations, in the order in which they were returned.
    Assocs(Vec<SeenAssoc>),
    /// The results of several reads, in their order.
    All(Vec<GraphResult>),
}

/// Operations on the graph that take effect together: one operation alone, or the operations of one transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphOperation {
    /// The client. A client has one operation at a time.
    pub client: u32,
    /// The moment just before the client requested the operations.
    pub begun: u64,
    /// The moment just after the client knew the outcome. `None` if it is not known: the operations may have taken
    /// effect, may still take effect, or may never do so.
    pub ended: Option<u64>,
    /// The operations in their order, and their results. A result is `None` if it is not known.
    pub steps: Vec<(GraphRequest, Option<GraphResult>)>,
}

impl GraphOperation {
    /// Returns whether the operations are known to have changed the graph.
    pub fn is_change(&self) -> bool {
        use GraphResult::{Added, Changed, PutNew, PutShown, PutUpdated};
        let changes = |result: &GraphResult| {
            matches!(
                result,
                Added | Changed(true) | PutNew | PutShown | PutUpdated
            )
        };
        self.ended.is_some()
            && self
                .steps
                .iter()
                .any(|step| step.1.as_ref().is_some_and(changes))
    }
}
