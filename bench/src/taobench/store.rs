//! The operations of TAOBench, inside of transactions.

use std::slice;

use farm_core::object::FatPointer;
use farm_graph::ids::Place;
use farm_graph::tx::{Deletion, Range};
use farm_graph::{Assoc, Found, NodeData, Results, TimeBounds, tasks};
use farm_txn::{Transaction, TxError};

use super::edges::{Edge, OBJECT_TYPE, Owner, value};
use super::rules::{Forbidden, forbidden};
use super::stream::{Read, Write};
use super::workload::Kind;

/// Maximum number of edges that a read of a range returns.
pub const RANGE_LIMIT: u64 = 50;

/// What a write has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It has taken effect.
    Done {
        /// The name of the first object.
        node: FatPointer,
    },
    /// There is no such object or edge.
    NotFound,
    /// The object or edge was written at a later time, or a rule refuses the new edge.
    Declined,
}

/// Returns the properties of an object since a write at this time.
pub(crate) fn object(time: u64, data: &[u8]) -> NodeData<'_> {
    NodeData {
        node_type: OBJECT_TYPE,
        version: time,
        time,
        data,
    }
}

/// Makes a write.
///
/// # Errors
/// A [`GraphError`](farm_graph::GraphError), as a [`TxError`].
pub async fn write(tx: Transaction<'_>, write: &Write) -> Result<Effect, TxError> {
    let Write {
        kind, edge, time, ..
    } = *write;
    let known = write.of.map(|(_, node)| node);
    match (kind, known) {
        (Kind::ObjAdd, _) => add_object(tx, edge.id1, time).await,
        (Kind::EdgeAdd, _) => add_edge(tx, edge, time).await,
        (Kind::ObjUpdate | Kind::ObjDelete, Some(node)) => {
            let Some(found) = tasks::obj_get(tx, node).await? else {
                return Ok(Effect::NotFound);
            };
            if found.time >= time {
                return Ok(Effect::Declined);
            }
            if kind == Kind::ObjDelete {
                tasks::obj_delete(tx, node).await?;
            } else {
                let data = value(Owner::Object(edge.id1), time);
                tasks::obj_update(tx, node, object(time, &data)).await?;
            }
            Ok(Effect::Done { node })
        }
        (Kind::EdgeUpdate | Kind::EdgeDelete, Some(node)) => change_edge(tx, node, write).await,
        _ => unreachable!("a stream draws writes of known edges, and of new ones"),
    }
}

fn place(id: u64, near: Option<FatPointer>) -> Place {
    Place {
        id: Some(id),
        near: near.map(|near| near.address),
    }
}

async fn add_object(tx: Transaction<'_>, key: u64, time: u64) -> Result<Effect, TxError> {
    let data = value(Owner::Object(key), time);
    let new = object(time, &data);
    let node = match tasks::obj_find(tx, key).await? {
        Some(node) if tasks::obj_restore(tx, node, new).await? => node,
        Some(_) => return Ok(Effect::Declined),
        None => tasks::obj_add(tx, place(key, None), new).await?.node,
    };
    Ok(Effect::Done { node })
}

/// Adds an edge, unless a rule refuses it.
///
/// # Errors
/// As [`write()`].
pub async fn add_edge(tx: Transaction<'_>, edge: Edge, time: u64) -> Result<Effect, TxError> {
    let first = tasks::obj_find(tx, edge.id1).await?;
    let second = tasks::obj_find(tx, edge.id2).await?;
    let inverse = edge.edge_type.has_inverse();
    if contradicts(tx, edge, (first, second)).await?
        || inverse && contradicts(tx, edge.inverse(), (second, first)).await?
    {
        return Ok(Effect::Declined);
    }
    let first = match first {
        Some(node) => node,
        None => reserve(tx, edge.id1, second).await?,
    };
    let target = match second {
        _ if edge.id1 == edge.id2 => Some(first),
        None if inverse => Some(reserve(tx, edge.id2, Some(first)).await?),
        second => second,
    };
    put_edge(tx, first, edge, target, time).await?;
    Ok(Effect::Done { node: first })
}

async fn reserve(
    tx: Transaction<'_>,
    key: u64,
    near: Option<FatPointer>,
) -> Result<FatPointer, TxError> {
    let new = tasks::obj_reserve(tx, place(key, near), OBJECT_TYPE).await?;
    Ok(new.node)
}

/// Writes an edge without a check of the rules.
pub(crate) async fn put_edge(
    tx: Transaction<'_>,
    node: FatPointer,
    edge: Edge,
    target: Option<FatPointer>,
    time: u64,
) -> Result<(), TxError> {
    let data = value(Owner::Edge(edge), time);
    let assoc = Assoc {
        id2: edge.id2,
        time,
        version: 0,
        visible: true,
        target,
        data: &data,
    };
    tasks::assoc_add(tx, node, edge.edge_type.number(), assoc, time).await?;
    Ok(())
}

/// Returns whether an edge exists that a rule forbids besides a new edge.
async fn contradicts(
    tx: Transaction<'_>,
    edge: Edge,
    (first, second): (Option<FatPointer>, Option<FatPointer>),
) -> Result<bool, TxError> {
    for rule in forbidden(edge.edge_type) {
        let exists = match (*rule, first, second) {
            (Forbidden::Any(it), Some(first), _) => {
                tasks::assoc_count(tx, first, it.number()).await?.count > 0
            }
            (Forbidden::Same(it), Some(first), _) => {
                exists(tx, first, it.number(), edge.id2).await?
            }
            (Forbidden::Inverse(it), _, Some(second)) => {
                exists(tx, second, it.number(), edge.id1).await?
            }
            _ => false,
        };
        if exists {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn exists(
    tx: Transaction<'_>,
    node: FatPointer,
    edge_type: u32,
    id2: u64,
) -> Result<bool, TxError> {
    let found = tasks::assoc_get(tx, node, edge_type, &[id2], TimeBounds::default()).await?;
    Ok(!found.is_empty())
}

/// Makes an update or a deletion of an edge.
async fn change_edge(
    tx: Transaction<'_>,
    node: FatPointer,
    &Write {
        kind, edge, time, ..
    }: &Write,
) -> Result<Effect, TxError> {
    let (edge_type, all) = (edge.edge_type.number(), TimeBounds::default());
    let found = tasks::assoc_get(tx, node, edge_type, &[edge.id2], all).await?;
    let Some(found) = found.first() else {
        return Ok(Effect::NotFound);
    };
    if found.time >= time {
        return Ok(Effect::Declined);
    }
    if kind == Kind::EdgeDelete {
        let assoc = (edge_type, edge.id2);
        tasks::assoc_delete(tx, node, assoc, Deletion::Remove, time).await?;
    } else {
        // The value is that of the edge in the direction in which it was added.
        put_edge(tx, node, edge, found.target, time).await?;
    }
    Ok(Effect::Done { node })
}

/// Makes reads at the same time. Returns whether one of them has found something.
///
/// # Errors
/// As [`write()`].
pub async fn read_all(tx: Transaction<'_>, reads: &[Read]) -> Result<bool, TxError> {
    let reads: Vec<(FatPointer, farm_graph::Read<'_>)> = reads
        .iter()
        .map(|read| {
            let edge_type = read.known.edge.edge_type.number();
            let id2 = slice::from_ref(&read.known.edge.id2);
            let what = match read.kind {
                Kind::ObjRead => farm_graph::Read::Node,
                Kind::EdgePoint => farm_graph::Read::Assocs(edge_type, id2, TimeBounds::default()),
                Kind::EdgeCount => farm_graph::Read::Count(edge_type),
                _ => farm_graph::Read::Range(edge_type, Range::newest(RANGE_LIMIT)),
            };
            (read.known.node, what)
        })
        .collect();
    let found = |results: Results<'_>| {
        results.iter().any(|found| match found {
            Found::Node(node) => node.is_some(),
            Found::Count(count) => count.count > 0,
            Found::Assocs(edges) => !edges.is_empty(),
        })
    };
    tasks::read_all(tx, &reads, found).await
}

/// Reads what some writes will read, at the same time.
///
/// # Errors
/// As [`write()`].
pub async fn prepare(tx: Transaction<'_>, writes: &[Write]) -> Result<(), TxError> {
    let mut reads = Vec::with_capacity(2 * writes.len());
    for write in writes {
        let Some((_, node)) = write.of else {
            continue;
        };
        reads.push((node, farm_graph::Read::Node));
        if matches!(write.kind, Kind::EdgeUpdate | Kind::EdgeDelete) {
            let edge_type = write.edge.edge_type.number();
            let (id2, all) = (slice::from_ref(&write.edge.id2), TimeBounds::default());
            reads.push((node, farm_graph::Read::Assocs(edge_type, id2, all)));
        }
    }
    tasks::read_all(tx, &reads, |_| ()).await
}
