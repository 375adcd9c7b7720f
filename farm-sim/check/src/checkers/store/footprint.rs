//! What operations on a graph read and write, to decide whether their order matters.

use std::collections::BTreeSet;

use super::model::inverse_of;
use crate::history::graph::{GraphOperation, GraphRequest, assoc_kind};

/// A part of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// Whether a node has this id.
    Id(u64),
    /// Whether a node exists.
    Existence(u64),
    /// The value of a node.
    Value(u64),
    /// An association: the node, the type, the id of the other node.
    Assoc(u64, u32, u64),
    /// A list as a whole: the node and the type.
    List(u64, u32),
}

/// The parts that an operation reads and writes.
#[derive(Clone, Debug, Default)]
pub(super) struct Footprint {
    reads: BTreeSet<Part>,
    writes: BTreeSet<Part>,
    /// Parts that the operation changes so that the order of two such changes does not matter: the lists to which it
    /// adds associations, or from which it removes some.
    adds: BTreeSet<Part>,
}

impl Footprint {
    /// Returns the footprint of an operation.
    pub(super) fn of(operation: &GraphOperation) -> Self {
        let mut all = Self::default();
        for (request, _) in &operation.steps {
            all.include(request);
        }
        all
    }

    /// Returns whether the order of two operations matters.
    pub(super) fn conflicts(&self, other: &Self) -> bool {
        let one_way = |one: &Self, other: &Self| {
            let read = |part: &Part| other.reads.contains(part);
            one.writes
                .iter()
                .any(|part| read(part) || other.writes.contains(part) || other.adds.contains(part))
                || one.adds.iter().any(read)
        };
        one_way(self, other) || one_way(other, self)
    }

    fn include(&mut self, request: &GraphRequest) {
        match *request {
            GraphRequest::Find(id) => _ = self.reads.insert(Part::Id(id)),
            GraphRequest::AddNode(id, _) | GraphRequest::ReserveNode(id, _) => {
                self.writes
                    .extend([Part::Id(id), Part::Existence(id), Part::Value(id)]);
            }
            GraphRequest::GetNode(id) => _ = self.reads.insert(Part::Value(id)),
            GraphRequest::SetNode(id, _) => {
                self.reads.insert(Part::Existence(id));
                self.writes.insert(Part::Value(id));
            }
            GraphRequest::DeleteNode(id) | GraphRequest::RestoreNode(id, _) => {
                self.writes.extend([Part::Existence(id), Part::Value(id)]);
            }
            GraphRequest::Put(id, assoc_type, id2, _) => {
                let checked = !assoc_kind(assoc_type).dangling;
                self.put((id, assoc_type, id2), checked);
            }
            GraphRequest::Hide(id, assoc_type, id2) | GraphRequest::Remove(id, assoc_type, id2) => {
                self.change((id, assoc_type, id2));
            }
            GraphRequest::ChangeType(id, from, to, id2) => {
                self.change((id, from, id2));
                self.put((id, to, id2), false);
            }
            GraphRequest::Get(id, assoc_type, ref ids, _) => {
                let parts = ids.iter().map(|id2| Part::Assoc(id, assoc_type, *id2));
                self.reads.extend(parts);
            }
            GraphRequest::Count(id, assoc_type) | GraphRequest::Range(id, assoc_type, ..) => {
                self.reads.insert(Part::List(id, assoc_type));
            }
            GraphRequest::All(ref reads) => reads.iter().for_each(|read| self.include(read)),
        }
    }

    fn put(&mut self, place: (u64, u32, u64), checked: bool) {
        self.change(place);
        for (id, assoc_type, _) in inverse_of(place).into_iter().chain([place]) {
            if checked {
                self.reads.insert(Part::Existence(id));
            }
            if assoc_kind(assoc_type).unique {
                self.reads.insert(Part::List(id, assoc_type));
            }
        }
    }

    fn change(&mut self, place: (u64, u32, u64)) {
        for (id, assoc_type, id2) in inverse_of(place).into_iter().chain([place]) {
            self.writes.insert(Part::Assoc(id, assoc_type, id2));
            self.adds.insert(Part::List(id, assoc_type));
        }
    }
}
