//! The types of the graph, and reads of adjacency lists.

use farm_core::object::FatPointer;
use farm_core::worker::Worker;
use farm_graph::tx::Range;
use farm_graph::{
    Assoc, AssocType, Assocs, AssocsCont, MAX_TIME, NodeData, NodeType, Schema, TimeBounds, ops,
};

/// The type of all nodes.
pub const VERTEX: u32 = 1;
/// The type of all associations.
pub const EDGE: u32 = 1;

/// Maximum number of edges that one operation reads. Longer adjacency lists are read in several operations, so that neither
/// a transaction nor a query grows with the degree of a node.
pub const LIST_PART: usize = 1024;

/// Returns the types of the graph.
pub fn schema() -> Schema {
    let vertex = NodeType {
        id: VERTEX,
        name: "vertex".to_owned(),
        lists: 1,
    };
    let edge = AssocType {
        id: EDGE,
        name: "edge".to_owned(),
        ..AssocType::default()
    };
    Schema::new(vec![vertex], vec![edge]).expect("one type of nodes, and one of associations")
}

/// Returns the properties of every node.
pub fn vertex() -> NodeData<'static> {
    NodeData {
        node_type: VERTEX,
        version: 1,
        time: 0,
        data: b"",
    }
}

/// Returns the association to a node. `number` is the number of the edge in the list, from 1 on. It is the time of the
/// association: the times in an adjacency list differ, so that a part of the list ends at a time.
pub fn edge(id: u64, node: FatPointer, number: u64) -> Assoc<'static> {
    Assoc {
        id2: id,
        time: number,
        version: 1,
        visible: true,
        target: Some(node),
        data: b"",
    }
}

/// A part of the adjacency list of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListPart {
    /// The node.
    pub node: FatPointer,
    /// Time of the first edge of the part, at most.
    before: u64,
}

impl ListPart {
    /// Returns the first part of the list of a node.
    pub fn first(node: FatPointer) -> Self {
        Self {
            node,
            before: MAX_TIME,
        }
    }

    /// Reads the part: at most [`LIST_PART`] edges.
    pub fn read(self, worker: &mut Worker, cont: AssocsCont) {
        let range = Range {
            bounds: TimeBounds {
                min: 0,
                max: self.before,
            },
            ..Range::newest(LIST_PART as u64)
        };
        ops::assoc_range(worker, self.node, EDGE, range, cont);
    }

    /// Reads the first parts of the lists of several nodes.
    pub fn read_first(worker: &mut Worker, lists: &[(FatPointer, AssocsCont)]) {
        let range = Range::newest(LIST_PART as u64);
        ops::assoc_ranges(worker, EDGE, range, lists);
    }

    /// Returns the part that follows after the edges that were read, or `None` if these were the last ones.
    pub fn next(self, read: Assocs<'_>) -> Option<Self> {
        if read.len() < LIST_PART {
            return None;
        }
        let last = read.iter().last()?;
        let before = last.time.checked_sub(1)?;
        Some(Self { before, ..self })
    }
}

/// Returns the ids and pointers of the neighbours to which the edges lead.
pub fn neighbours(edges: Assocs<'_>) -> impl Iterator<Item = (u64, FatPointer)> {
    edges.iter().map(|edge| {
        let node = edge.target;
        let node = node.expect("the import writes each edge with the pointer to its node");
        (edge.id2, node)
    })
}
