//! Operations on one node and its associations: their encoding, their effect, and their results.
//!
//! An operation is encoded, so that it can be sent to the machine of its node. Its result is encoded, too. Numbers are
//! little-endian.

use std::ops::ControlFlow;

use farm_core::object::FatPointer;

use crate::assoc::Assoc;
use crate::edit::{Edit, EditError};
use crate::error::GraphError;
use crate::list::{List, Put, TimeBounds};
use crate::node::{self, NodeData};
use crate::page::{HEADER_BYTES, Page};
use crate::schema::Schema;
use crate::tree::Limits;
use crate::wire::{Reply, number};

/// An operation on a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Op<'a> {
    /// Returns the node.
    GetNode,
    /// Adds a node. Returns its pointer.
    AddNode { id: u64, new: NodeData<'a> },
    /// Sets the properties of a node that exists. Returns whether it does.
    SetNode(NodeData<'a>),
    /// Deletes the node. Returns whether it existed.
    DeleteNode,
    /// Adds or replaces an association.
    Put(PutOp<'a>),
    /// Hides an association, or removes it. Returns whether it was visible, or existed.
    Delete {
        assoc_type: u32,
        id2: u64,
        now: u64,
        removes: bool,
    },
    /// Moves a visible association to the list of another type. Returns whether there was one.
    ChangeType(ChangeOp),
    /// Returns the associations with these ids within the bounds, including hidden ones. The ids have 8 bytes each.
    Get {
        assoc_type: u32,
        bounds: TimeBounds,
        ids: &'a [u8],
    },
    /// Returns the number of visible associations.
    Count { assoc_type: u32 },
    /// Returns visible associations within the bounds, the newest first.
    Range(RangeOp),
}

/// See [`Op::Put`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PutOp<'a> {
    pub(crate) assoc_type: u32,
    pub(crate) assoc: Assoc<'a>,
    pub(crate) now: u64,
    /// Whether the list may contain at most one visible association.
    pub(crate) unique: bool,
    /// Whether the node may have been deleted.
    pub(crate) bare: bool,
}

/// See [`Op::ChangeType`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ChangeOp {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) id2: u64,
    pub(crate) now: u64,
    /// Whether the list of the new type may contain at most one visible association.
    pub(crate) unique: bool,
}

/// See [`Op::Range`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RangeOp {
    pub(crate) assoc_type: u32,
    pub(crate) bounds: TimeBounds,
    /// Number of associations to skip.
    pub(crate) offset: u64,
    /// Maximum number of associations.
    pub(crate) limit: u64,
}

/// The result of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome<'a> {
    Node(Option<Node<'a>>),
    Added(NewNode),
    Put(Put),
    Changed(bool),
    Count(Count),
    Assocs(Assocs<'a>),
}

/// A node, as [`crate::tx::obj_get`] returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node<'a> {
    /// Id of the node.
    pub id: u64,
    /// The properties.
    pub data: NodeData<'a>,
}

/// A new node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// Id of the node.
    pub id: u64,
    /// Name of the node, once the transaction has committed.
    pub node: FatPointer,
}

/// The number of visible associations of a type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of visible associations.
    pub count: u32,
    /// Time of the last change of the number, 0 if it never changed.
    pub time: u64,
    /// Number of changes of the number.
    pub version: u64,
}

/// A list of associations.
#[derive(Clone, Copy)]
pub struct Assocs<'a> {
    page: Page<'a>,
    /// Offset of the first one in the page.
    at: usize,
    count: usize,
}

impl std::fmt::Debug for Assocs<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> Assocs<'a> {
    /// Returns the number of associations.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the associations, the newest first.
    pub fn iter(self) -> impl Iterator<Item = Assoc<'a>> {
        let (page, mut at) = (self.page, self.at);
        // The list was checked when it was decoded.
        (0..self.count).map_while(move |_| {
            let record = page.record(at).ok()?;
            at = record.end();
            Assoc::decode(&record).ok()
        })
    }

    /// A list without associations.
    pub(crate) const EMPTY: Assocs<'static> = Assocs {
        page: Page::EMPTY,
        at: HEADER_BYTES,
        count: 0,
    };

    /// Checks a list that consists of all records of a page.
    pub(crate) fn of_page(page: Page<'a>) -> Result<Self, GraphError> {
        for record in page.records() {
            Assoc::decode(&record?)?;
        }
        Ok(Self {
            page,
            at: HEADER_BYTES,
            count: page.count(),
        })
    }

    /// Returns the range of a list whose first page this is, or `None` if the range may continue on another page.
    pub(crate) fn of_first_page(
        page: Page<'a>,
        range: &RangeOp,
    ) -> Result<Option<Self>, GraphError> {
        let (mut at, mut count, mut skipped) = (HEADER_BYTES, 0, 0);
        let found = |at, count| Ok(Some(Self { page, at, count }));
        for record in page.records() {
            if count as u64 == range.limit {
                return found(at, count);
            }
            let record = record?;
            let assoc = Assoc::decode(&record)?;
            if !assoc.visible || assoc.time < range.bounds.min {
                return found(at, count);
            }
            if assoc.time > range.bounds.max || skipped < range.offset {
                skipped += u64::from(assoc.time <= range.bounds.max);
                at = record.end();
                continue;
            }
            count += 1;
        }
        match count as u64 == range.limit || !page.has_more() {
            true => found(at, count),
            false => Ok(None),
        }
    }
}

impl Op<'_> {
    /// Makes the operation, and writes its result to `reply`, whose earlier content is dropped. A change of an
    /// association includes its inverse, if the schema declares one.
    pub(crate) fn make(
        &self,
        edit: &mut Edit<'_>,
        types: (&Schema, Limits),
        node: FatPointer,
        reply: &mut Reply,
    ) -> Result<(), EditError> {
        let (schema, limits) = types;
        let inverse = match *self {
            Op::Put(put) => put.inverse(edit, schema, node)?,
            Op::Delete {
                assoc_type,
                id2,
                now,
                removes,
            } => {
                let inverse = schema.assoc(assoc_type)?.inverse;
                let found = node::list(edit, node, assoc_type)?;
                let found = found.get(edit, id2)?.and_then(|assoc| assoc.target);
                let id2 = node::header(edit, node)?.id;
                let op = |assoc_type| Op::Delete {
                    assoc_type,
                    id2,
                    now,
                    removes,
                };
                inverse.map(op).zip(found)
            }
            Op::ChangeType(change) => return change.make(edit, types, node, reply),
            Op::AddNode { id, new } => {
                let room = schema.node(new.node_type)?.lists;
                let node = node::create(edit, id, room, Some(&new))?;
                reply.added(&NewNode { id, node });
                return Ok(());
            }
            _ => None,
        };
        if let Some((inverse, target)) = inverse {
            inverse.apply(edit, limits, target, reply)?;
        }
        self.apply(edit, limits, node, reply)
    }

    /// Makes the operation, without the inverse.
    fn apply(
        &self,
        edit: &mut Edit<'_>,
        limits: Limits,
        node: FatPointer,
        reply: &mut Reply,
    ) -> Result<(), EditError> {
        edit.set_near(node.address);
        match *self {
            Op::GetNode => {
                let header = node::header(edit, node)?;
                if !header.exists() {
                    reply.node(None);
                    return Ok(());
                }
                let data = node::data(edit, node)?;
                reply.node(Some(&Node {
                    id: header.id,
                    data: NodeData {
                        node_type: header.node_type,
                        version: header.version,
                        time: header.time,
                        data,
                    },
                }));
            }
            Op::AddNode { .. } | Op::ChangeType(_) => {
                unreachable!("`Op::make` makes these operations itself")
            }
            Op::SetNode(new) => {
                let exists = node::header(edit, node)?.exists();
                if exists {
                    node::set(edit, node, &new)?;
                }
                reply.changed(exists);
            }
            Op::DeleteNode => reply.changed(node::delete(edit, node)?),
            Op::Put(put) => reply.put(put.apply(edit, limits, node)?),
            Op::Delete {
                assoc_type,
                id2,
                now,
                removes,
            } => {
                let mut list = node::list(edit, node, assoc_type)?;
                let changed = match removes {
                    true => list.remove(edit, limits, id2, now)?,
                    false => list.hide(edit, limits, id2, now)?,
                };
                if changed {
                    node::set_list(edit, limits, node, assoc_type, &list)?;
                }
                reply.changed(changed);
            }
            Op::Get {
                assoc_type,
                bounds,
                ids,
            } => {
                let list = node::list(edit, node, assoc_type)?;
                reply.begin_assocs();
                for id2 in ids.chunks_exact(8) {
                    let found = list.get(edit, number(id2, 0, 8))?;
                    if let Some(assoc) = found.filter(|assoc| bounds.contains(assoc.time)) {
                        reply.assoc(&assoc);
                    }
                }
            }
            Op::Count { assoc_type } => {
                let list = node::list(edit, node, assoc_type)?;
                reply.count(&Count::of(&list));
            }
            Op::Range(range) => {
                let list = node::list(edit, node, range.assoc_type)?;
                reply.begin_assocs();
                range.scan(edit, &list, reply)?;
            }
        }
        Ok(())
    }
}

impl<'a> PutOp<'a> {
    /// Returns the operation on the inverse association, and its node.
    fn inverse(
        &self,
        edit: &Edit<'_>,
        schema: &Schema,
        node: FatPointer,
    ) -> Result<Option<(Op<'a>, FatPointer)>, EditError> {
        let Some(inverse) = schema.assoc(self.assoc_type)?.inverse else {
            return Ok(None);
        };
        let target = self.assoc.target;
        let target = target.ok_or(GraphError::NoTarget(self.assoc_type))?;
        let op = PutOp {
            assoc_type: inverse,
            assoc: Assoc {
                id2: node::header(edit, node)?.id,
                target: Some(node),
                ..self.assoc
            },
            unique: schema.assoc(inverse)?.unique,
            ..*self
        };
        Ok(Some((Op::Put(op), target)))
    }

    fn apply(
        &self,
        edit: &mut Edit<'_>,
        limits: Limits,
        node: FatPointer,
    ) -> Result<Put, EditError> {
        if !self.bare && !node::header(edit, node)?.exists() {
            return Err(GraphError::NoNode.into());
        }
        let mut list = node::list(edit, node, self.assoc_type)?;
        if self.unique && has_other(edit, &list, self.assoc.id2)? {
            return Err(GraphError::NotUnique(self.assoc_type).into());
        }
        let put = list.put(edit, limits, &self.assoc, self.now)?;
        node::set_list(edit, limits, node, self.assoc_type, &list)?;
        Ok(put)
    }
}

impl RangeOp {
    fn scan(&self, edit: &Edit<'_>, list: &List, reply: &mut Reply) -> Result<(), EditError> {
        let (mut skipped, mut found) = (0, 0);
        if self.limit == 0 {
            return Ok(());
        }
        list.scan(edit, self.bounds, |assoc| {
            if skipped < self.offset {
                skipped += 1;
                return ControlFlow::Continue(());
            }
            reply.assoc(&assoc);
            found += 1;
            match found < self.limit {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })
    }
}

/// Returns whether a list has a visible association with another id.
fn has_other(edit: &Edit<'_>, list: &List, id2: u64) -> Result<bool, EditError> {
    let mut other = false;
    list.scan(edit, TimeBounds::default(), |assoc| {
        other = assoc.id2 != id2;
        ControlFlow::Break(())
    })?;
    Ok(other)
}

impl ChangeOp {
    /// Deletes the association, and adds one of the other type.
    fn make(
        &self,
        edit: &mut Edit<'_>,
        types: (&Schema, Limits),
        node: FatPointer,
        reply: &mut Reply,
    ) -> Result<(), EditError> {
        let old = node::list(edit, node, self.from)?;
        let Some(assoc) = old.get(edit, self.id2)?.filter(|assoc| assoc.visible) else {
            reply.changed(false);
            return Ok(());
        };
        let data = assoc.data.to_vec();
        let assoc = Assoc {
            data: &data,
            ..assoc
        };
        let delete = Op::Delete {
            assoc_type: self.from,
            id2: self.id2,
            now: self.now,
            removes: true,
        };
        delete.make(edit, types, node, reply)?;
        let put = Op::Put(PutOp {
            assoc_type: self.to,
            assoc,
            now: self.now,
            unique: self.unique,
            bare: true,
        });
        put.make(edit, types, node, reply)?;
        reply.changed(true);
        Ok(())
    }
}

impl Count {
    pub(crate) fn of(list: &List) -> Self {
        Self {
            count: list.count,
            time: list.time,
            version: list.version,
        }
    }
}
