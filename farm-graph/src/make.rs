//! The effect of operations on nodes and lists.

use std::ops::ControlFlow;

use farm_core::marks::mark;
use farm_core::mutants;
use farm_core::object::FatPointer;

use crate::GraphError;
use crate::assoc::Assoc;
use crate::bytes::number;
use crate::edit::{Edit, EditError};
use crate::list::{List, Put, TimeBounds};
use crate::node;
use crate::op::{ChangeOp, Count, NewNode, Node, Op, PutOp, RangeOp};
use crate::schema::Schema;
use crate::tree::{Limits, Wanted};
use crate::wire::Reply;

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
            Op::Put(_) if mutants::is_on("inverse association not added") => None,
            Op::Delete { .. } if mutants::is_on("inverse association not deleted") => None,
            Op::Put(put) => put.inverse(edit, schema, node)?.filter(|inverse| {
                !(mutants::is_on("node that does not exist gets no inverse association")
                    && node::header(edit, inverse.1).is_ok_and(|it| !it.exists()))
            }),
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
            Op::AddNode { id, lists, new } => {
                let node = node::create(edit, id, lists, new.as_ref())?;
                reply.added(&NewNode { id, node });
                return Ok(());
            }
            _ => None,
        };
        // An association of a node with itself may be its own inverse. Then there is one change, with one result.
        if let Some((inverse, target)) = inverse
            && (inverse, target) != (*self, node)
        {
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
                reply.node(Some(&Node::of(&header, data)));
            }
            Op::AddNode { .. } | Op::ChangeType(_) => {
                unreachable!("`Op::make` makes these operations itself")
            }
            Op::SetNode(new) => {
                let sets = node::header(edit, node)?.exists();
                if sets {
                    node::set(edit, node, &new)?;
                }
                reply.changed(sets);
            }
            Op::RestoreNode(new) => {
                let restores = !node::header(edit, node)?.exists()
                    || mutants::is_on("node that exists is restored");
                if restores {
                    node::restore(edit, node, &new)?;
                }
                reply.changed(restores);
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
        if !self.dangling && !node::header(edit, node)?.exists() {
            return Err(GraphError::NoNode.into());
        }
        let mut list = node::list(edit, node, self.assoc_type)?;
        let refuses = self.unique && !mutants::is_on("unique type not checked");
        if refuses && has_other(edit, &list, self.assoc.id2)? {
            mark("graph: second association of a unique type refused");
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
        let wanted = self.offset.saturating_add(self.limit);
        let all_times = self.bounds == TimeBounds::default();
        let wanted = match all_times {
            true => Wanted::Exactly(wanted.min(list.count.into())),
            false => Wanted::AtMost(wanted),
        };
        list.scan(edit, self.bounds, wanted, |assoc| {
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
    list.scan(edit, TimeBounds::default(), Wanted::AtMost(1), |assoc| {
        other = assoc.id2 != id2;
        ControlFlow::Break(())
    })?;
    Ok(other)
}

impl ChangeOp {
    /// Deletes the association, and adds one of the other type, even if a node at its ends was deleted.
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
            dangling: true,
        });
        put.make(edit, types, node, reply)?;
        reply.changed(true);
        Ok(())
    }
}
