//! The writes of TAOBench and their rules, on the rows of an engine.

use super::tao::NO_NAME;
use crate::taobench::edges::{Edge, EdgeType, Owner, value};
use crate::taobench::loaded::Loaded;
use crate::taobench::rules::{Forbidden, forbidden};
use crate::taobench::store::Effect;
use crate::taobench::stream::Write;
use crate::taobench::workload::Kind;

/// Objects and edges that are put into a store.
pub(super) trait Puts {
    /// Adds or replaces an object.
    fn put_object(&mut self, id: u64, time: u64, value: &[u8]) -> anyhow::Result<()>;

    /// Adds an edge, or replaces the one of the time `before`.
    fn put_edge(
        &mut self,
        edge: Edge,
        before: Option<u64>,
        time: u64,
        value: &[u8],
    ) -> anyhow::Result<()>;
}

/// The rows of TAOBench in a transaction of an engine whose transactions run in this process.
pub(super) trait Rows: Puts {
    /// Returns the time of an object.
    fn object_time(&self, id: u64) -> anyhow::Result<Option<u64>>;

    /// Deletes an object.
    fn delete_object(&self, id: u64) -> anyhow::Result<()>;

    /// Returns the time of an edge.
    fn edge_time(&self, edge: Edge) -> anyhow::Result<Option<u64>>;

    /// Returns whether an object has edges of a type.
    fn has_any(&self, id1: u64, edge_type: EdgeType) -> anyhow::Result<bool>;

    /// Deletes an edge of the time `before`.
    fn delete_edge(&self, edge: Edge, before: u64) -> anyhow::Result<()>;
}

/// Adds edges that are loaded, with their objects and inverse edges.
pub(super) fn load(rows: &mut impl Puts, loaded: &Loaded) -> anyhow::Result<()> {
    for number in 0..loaded.len() {
        let (edge, time) = (loaded.get(number), loaded.time(number));
        for id in [edge.id1, edge.id2] {
            rows.put_object(id, time, &value(Owner::Object(id), time))?;
        }
        put_both(rows, edge, None, time)?;
    }
    Ok(())
}

/// Makes writes. Returns `None` if the transaction must not commit.
pub(super) fn write_all(
    rows: &mut impl Rows,
    writes: &[Write],
) -> anyhow::Result<Option<Vec<Effect>>> {
    let mut effects = Vec::with_capacity(writes.len());
    for write in writes {
        let effect = write_one(rows, write)?;
        if effect == Effect::Declined && write.of.is_none() && writes.len() > 1 {
            return Ok(None);
        }
        effects.push(effect);
    }
    Ok(Some(effects))
}

fn write_one(rows: &mut impl Rows, write: &Write) -> anyhow::Result<Effect> {
    let Write {
        kind, edge, time, ..
    } = *write;
    let is_object = matches!(kind, Kind::ObjUpdate | Kind::ObjDelete | Kind::ObjAdd);
    let before = match is_object {
        true => rows.object_time(edge.id1)?,
        false => rows.edge_time(edge)?,
    };
    let done = Effect::Done { node: NO_NAME };
    let owner = match is_object {
        true => Owner::Object(edge.id1),
        false => Owner::Edge(edge),
    };
    match (kind, before) {
        (Kind::ObjAdd, None) => rows.put_object(edge.id1, time, &value(owner, time))?,
        (Kind::ObjAdd, Some(_)) => return Ok(Effect::Declined),
        (Kind::EdgeAdd, _) => {
            if contradicts(rows, edge)?
                || edge.edge_type.has_inverse() && contradicts(rows, edge.inverse())?
            {
                return Ok(Effect::Declined);
            }
            put_both(rows, edge, before, time)?;
        }
        (_, None) => return Ok(Effect::NotFound),
        (_, Some(before)) if before >= time => return Ok(Effect::Declined),
        (Kind::ObjUpdate, _) => rows.put_object(edge.id1, time, &value(owner, time))?,
        (Kind::ObjDelete, _) => rows.delete_object(edge.id1)?,
        (Kind::EdgeUpdate, _) => put_both(rows, edge, before, time)?,
        (_, Some(before)) => {
            rows.delete_edge(edge, before)?;
            if edge.edge_type.has_inverse() {
                rows.delete_edge(edge.inverse(), before)?;
            }
        }
    }
    Ok(done)
}

fn put_both(
    rows: &mut impl Puts,
    edge: Edge,
    before: Option<u64>,
    time: u64,
) -> anyhow::Result<()> {
    let value = value(Owner::Edge(edge), time);
    rows.put_edge(edge, before, time, &value)?;
    if edge.edge_type.has_inverse() {
        rows.put_edge(edge.inverse(), before, time, &value)?;
    }
    Ok(())
}

fn contradicts(rows: &impl Rows, edge: Edge) -> anyhow::Result<bool> {
    for rule in forbidden(edge.edge_type) {
        let other = |edge_type| Edge { edge_type, ..edge };
        let exists = match *rule {
            Forbidden::Any(it) => rows.has_any(edge.id1, it)?,
            Forbidden::Same(it) => rows.edge_time(other(it))?.is_some(),
            Forbidden::Inverse(it) => rows.edge_time(other(it).inverse())?.is_some(),
        };
        if exists {
            return Ok(true);
        }
    }
    Ok(false)
}
