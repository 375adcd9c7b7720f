//! The operations of LinkBench's stores, by ids, inside of transactions. A transaction of one operation is
//! `farm.transact(async |tx| store::add_link(tx, &link, now).await)`.
//!
//! As in the reference, links do not need nodes at either end; deleting a node leaves its links; and new nodes get
//! consecutive ids.

use farm_core::object::FatPointer;
use farm_graph::ids::Place;
use farm_graph::tasks::{self, OwnedAssoc};
use farm_graph::tx::{Deletion, Range};
use farm_graph::{Assoc, GraphError, NodeData, Put, TimeBounds};
use farm_txn::{Transaction, TxError};

/// Id of the node whose version is the id of the next new node.
pub const SEQUENCE_ID: u64 = (1 << 63) - 1;

/// A link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Id of the node at which it begins.
    pub id1: u64,
    /// Type.
    pub link_type: u32,
    /// Id of the node at which it ends.
    pub id2: u64,
    /// Whether lists and counts contain it.
    pub visible: bool,
    /// Version.
    pub version: u32,
    /// Time, in milliseconds.
    pub time: u64,
    /// Data.
    pub data: Vec<u8>,
}

impl Link {
    fn of(id1: u64, link_type: u32, assoc: OwnedAssoc) -> Self {
        Self {
            id1,
            link_type,
            id2: assoc.id2,
            visible: assoc.visible,
            version: assoc.version,
            time: assoc.time,
            data: assoc.data,
        }
    }
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Type.
    pub node_type: u32,
    /// Version.
    pub version: u64,
    /// Time, in seconds.
    pub time: u64,
    /// Data.
    pub data: Vec<u8>,
}

impl Node {
    fn properties(&self) -> NodeData<'_> {
        NodeData {
            node_type: self.node_type,
            version: self.version,
            time: self.time,
            data: &self.data,
        }
    }
}

/// A place for a node with this id.
fn place(id: u64) -> Place {
    Place {
        id: Some(id),
        near: None,
    }
}

/// Adds a link or replaces it. It is visible, if `link.visible`; then it counts. Returns whether it is new.
///
/// `node_type` is a type of nodes, for the room of a node that has no lists yet.
///
/// # Errors
/// A [`GraphError`], as a [`TxError`].
pub async fn add_link(
    tx: Transaction<'_>,
    link: &Link,
    node_type: u32,
    now: u64,
) -> Result<bool, TxError> {
    let node = match tasks::obj_find(tx, link.id1).await? {
        Some(node) => node,
        None => {
            tasks::obj_reserve(tx, place(link.id1), node_type)
                .await?
                .node
        }
    };
    let assoc = Assoc {
        id2: link.id2,
        time: link.time,
        version: link.version,
        visible: link.visible,
        target: None,
        data: &link.data,
    };
    let put = tasks::assoc_add(tx, node, link.link_type, assoc, now).await?;
    Ok(put == Put::Added)
}

/// Hides a link, or removes it if `expunge`. Returns whether it was visible, or existed.
///
/// # Errors
/// As [`add_link`].
pub async fn delete_link(
    tx: Transaction<'_>,
    (id1, link_type, id2): (u64, u32, u64),
    expunge: bool,
    now: u64,
) -> Result<bool, TxError> {
    let Some(node) = tasks::obj_find(tx, id1).await? else {
        return Ok(false);
    };
    let deletion = if expunge {
        Deletion::Remove
    } else {
        Deletion::Hide
    };
    tasks::assoc_delete(tx, node, (link_type, id2), deletion, now).await
}

/// Returns the links to these ids, including hidden ones.
///
/// # Errors
/// As [`add_link`].
pub async fn multiget_links(
    tx: Transaction<'_>,
    (id1, link_type): (u64, u32),
    ids: &[u64],
) -> Result<Vec<Link>, TxError> {
    let Some(node) = tasks::obj_find(tx, id1).await? else {
        return Ok(Vec::new());
    };
    let all = TimeBounds::default();
    let found = tasks::assoc_get(tx, node, link_type, ids, all).await?;
    let found = found.into_iter();
    Ok(found.map(|assoc| Link::of(id1, link_type, assoc)).collect())
}

/// Returns visible links, the newest first, and those of the same time by ascending `id2`.
///
/// # Errors
/// As [`add_link`].
pub async fn get_link_list(
    tx: Transaction<'_>,
    (id1, link_type): (u64, u32),
    range: Range,
) -> Result<Vec<Link>, TxError> {
    let Some(node) = tasks::obj_find(tx, id1).await? else {
        return Ok(Vec::new());
    };
    let found = tasks::assoc_range(tx, node, link_type, range).await?;
    let found = found.into_iter();
    Ok(found.map(|assoc| Link::of(id1, link_type, assoc)).collect())
}

/// Returns the number of visible links.
///
/// # Errors
/// As [`add_link`].
pub async fn count_links(tx: Transaction<'_>, id1: u64, link_type: u32) -> Result<u64, TxError> {
    match tasks::obj_find(tx, id1).await? {
        Some(node) => Ok(tasks::assoc_count(tx, node, link_type).await?.count.into()),
        None => Ok(0),
    }
}

/// Sets the id of the next new node.
///
/// # Errors
/// As [`add_link`].
pub async fn start_ids(tx: Transaction<'_>, node_type: u32, next: u64) -> Result<(), TxError> {
    let counter = counter(node_type, next);
    match tasks::obj_find(tx, SEQUENCE_ID).await? {
        Some(sequence) => _ = tasks::obj_update(tx, sequence, counter).await?,
        None => _ = tasks::obj_add(tx, place(SEQUENCE_ID), counter).await?,
    }
    Ok(())
}

fn counter(node_type: u32, next: u64) -> NodeData<'static> {
    NodeData {
        node_type,
        version: next,
        time: 0,
        data: &[],
    }
}

/// Adds a node with the next id, and returns the id.
///
/// # Errors
/// As [`add_link`]; [`GraphError::NoNode`] without [`start_ids`].
pub async fn add_node(tx: Transaction<'_>, node: &Node) -> Result<u64, TxError> {
    let sequence = tasks::obj_find(tx, SEQUENCE_ID).await?;
    let sequence = sequence.ok_or(GraphError::NoNode)?;
    add_node_to(tx, sequence, node).await
}

/// As [`add_node`], if the name of the node `SEQUENCE_ID` is known.
///
/// # Errors
/// As [`add_node`].
pub async fn add_node_to(
    tx: Transaction<'_>,
    sequence: FatPointer,
    node: &Node,
) -> Result<u64, TxError> {
    let last = tasks::obj_get(tx, sequence).await?;
    let last = last.ok_or(GraphError::NoNode)?;
    let id = last.version;
    tasks::obj_update(tx, sequence, counter(last.node_type, id + 1)).await?;
    match tasks::obj_find(tx, id).await? {
        // The node has links already.
        Some(reserved) => _ = tasks::obj_restore(tx, reserved, node.properties()).await?,
        None => _ = tasks::obj_add(tx, place(id), node.properties()).await?,
    }
    Ok(id)
}

/// Returns a node, unless it does not exist or has another type.
///
/// # Errors
/// As [`add_link`].
pub async fn get_node(
    tx: Transaction<'_>,
    node_type: u32,
    id: u64,
) -> Result<Option<Node>, TxError> {
    let Some(node) = tasks::obj_find(tx, id).await? else {
        return Ok(None);
    };
    let found = tasks::obj_get(tx, node).await?;
    let found = found.filter(|found| found.node_type == node_type);
    Ok(found.map(|found| Node {
        node_type,
        version: found.version,
        time: found.time,
        data: found.data,
    }))
}

/// Replaces a node. Returns whether it exists.
///
/// # Errors
/// As [`add_link`].
pub async fn update_node(tx: Transaction<'_>, id: u64, new: &Node) -> Result<bool, TxError> {
    match tasks::obj_find(tx, id).await? {
        Some(node) => tasks::obj_update(tx, node, new.properties()).await,
        None => Ok(false),
    }
}

/// Deletes a node of a type; its links remain. Returns whether it existed.
///
/// # Errors
/// As [`add_link`].
pub async fn delete_node(tx: Transaction<'_>, node_type: u32, id: u64) -> Result<bool, TxError> {
    let Some(node) = tasks::obj_find(tx, id).await? else {
        return Ok(false);
    };
    match tasks::obj_get(tx, node).await? {
        Some(found) if found.node_type == node_type => tasks::obj_delete(tx, node).await,
        _ => Ok(false),
    }
}
