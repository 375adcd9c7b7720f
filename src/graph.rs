//! The graph of a cluster.

use farm_core::config::Config;
use farm_core::object::FatPointer;
use farm_graph::config::GraphConfig;
use farm_graph::ids::Place;
use farm_graph::tasks::{self, OwnedAssoc, OwnedNode, alone};
use farm_graph::tx::{Deletion, Range};
use farm_graph::{
    Assoc, Count, GraphSpec, ID_VALUE_BYTES, NewNode, NodeData, Put, Schema, TimeBounds,
};
use farm_txn::Transaction;

use crate::access::{Access, Site as _, Where};
use crate::catalog::{self, Entry, GraphEntry};
use crate::error::{Error, Kind, Result};
use crate::farm::Farm;

/// The graph of a cluster: nodes, and associations between them in lists, the newest first (`FaRM'14 §4.4`). It is a name,
/// which can be copied. It is created by [`Cluster::create_graph`](crate::Cluster::create_graph).
///
/// Like the operations of a [`Table`](crate::Table), all operations run alone, with `&Farm` or `&LocalFarm`, or inside of a
/// transaction, with [`Tx`](crate::Tx), together with operations on tables and objects. Alone, a read of a node, of the
/// number of associations, or of the newest ones is usually one one-sided read.
///
/// A node is named by its pointer, and found by its id. `now` is the time at which a caller changes associations: the time of
/// the last change of a list.
///
/// ```
/// use farm::prelude::*;
/// use farm::farm_graph::{Assoc, AssocType, NodeData, NodeType, Schema, ids::Place, tx::Range};
///
/// # let cluster = Cluster::local(2).start()?;
/// const USER: u32 = 1;
/// const FOLLOWS: u32 = 1;
/// let schema = Schema::new(
///     vec![NodeType { id: USER, name: "user".into(), lists: 2 }],
///     vec![AssocType { id: FOLLOWS, name: "follows".into(), ..AssocType::default() }],
/// )?;
/// let social = cluster.create_graph("social", schema, 1000)?;
/// let posts: Table<u64, u64> = cluster.create_table("posts", 1000)?;
/// cluster.block_on(async |farm| {
///     let user = |data| NodeData { node_type: USER, version: 0, time: 1, data };
///     let ann = social.obj_add(&farm, Place::default(), user(b"Ann")).await?;
///     farm.transact(async |tx| {
///         let bob = social.obj_add(tx, Place::default(), user(b"Bob")).await?;
///         let follows = Assoc { id2: bob.id, time: 2, version: 0, visible: true, target: Some(bob.node), data: &[] };
///         social.assoc_add(tx, ann.node, FOLLOWS, follows, 2).await?;
///         posts.put(tx, bob.id, 0).await
///     }).await?;
///     let newest = social.assoc_range(&farm, ann.node, FOLLOWS, Range::newest(10)).await?;
///     let bob = social.obj_get(&farm, newest[0].target.expect("it was given")).await?;
///     assert_eq!(bob.expect("it exists").data, b"Bob");
///     Ok::<_, Error>(())
/// })?;
/// # cluster.stop()?;
/// # Ok::<_, Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Graph(());

/// Performs an operation alone or inside of a transaction.
macro_rules! perform {
    ($at:expr, $operation:ident($($argument:expr),*)) => {
        Ok(match $at.site().place() {
            Where::Alone(worker) => alone::$operation(worker, $($argument),*).await?,
            Where::Within(tx) => tasks::$operation(tx, $($argument),*).await?,
        })
    };
}

impl Graph {
    /// Adds a node. Its `place` can have an id and an object near which it is stored.
    ///
    /// # Errors
    /// [`Kind::Exists`] if another node has the id; [`Kind::Invalid`] for a type that the schema does not have;
    /// [`Kind::Full`]; and those of [`Table::get`](crate::Table::get).
    pub async fn obj_add(
        &self,
        at: impl Access,
        place: Place,
        new: NodeData<'_>,
    ) -> Result<NewNode> {
        perform!(at, obj_add(place, new))
    }

    /// Returns the pointer of a node by its id.
    ///
    /// # Errors
    /// Those of [`Table::get`](crate::Table::get).
    pub async fn obj_find(&self, at: impl Access, id: u64) -> Result<Option<FatPointer>> {
        perform!(at, obj_find(id))
    }

    /// Returns a node; `None` if it was deleted.
    ///
    /// # Errors
    /// Those of [`Table::get`](crate::Table::get).
    pub async fn obj_get(&self, at: impl Access, node: FatPointer) -> Result<Option<OwnedNode>> {
        perform!(at, obj_get(node))
    }

    /// Replaces the properties of a node. Returns whether it exists.
    ///
    /// # Errors
    /// As [`Graph::obj_add`].
    pub async fn obj_update(
        &self,
        at: impl Access,
        node: FatPointer,
        new: NodeData<'_>,
    ) -> Result<bool> {
        perform!(at, obj_update(node, new))
    }

    /// Reserves a node, which does not exist until it is restored, but can have associations of dangling types.
    ///
    /// # Errors
    /// As [`Graph::obj_add`].
    pub async fn obj_reserve(
        &self,
        at: impl Access,
        place: Place,
        node_type: u32,
    ) -> Result<NewNode> {
        perform!(at, obj_reserve(place, node_type))
    }

    /// Makes a deleted or reserved node exist. Returns `false` if it exists already.
    ///
    /// # Errors
    /// As [`Graph::obj_add`].
    pub async fn obj_restore(
        &self,
        at: impl Access,
        node: FatPointer,
        new: NodeData<'_>,
    ) -> Result<bool> {
        perform!(at, obj_restore(node, new))
    }

    /// Deletes a node with its associations. Returns whether it existed.
    ///
    /// # Errors
    /// Those of [`Table::get`](crate::Table::get).
    pub async fn obj_delete(&self, at: impl Access, node: FatPointer) -> Result<bool> {
        perform!(at, obj_delete(node))
    }

    /// Adds an association to a node, or replaces it, and its inverse association if its type has one.
    ///
    /// # Errors
    /// [`Kind::NotFound`] if the node does not exist; [`Kind::Exists`] if the type is unique and the node has another
    /// association of it; and those of [`Graph::obj_add`].
    pub async fn assoc_add(
        &self,
        at: impl Access,
        node: FatPointer,
        assoc_type: u32,
        assoc: Assoc<'_>,
        now: u64,
    ) -> Result<Put> {
        perform!(at, assoc_add(node, assoc_type, assoc, now))
    }

    /// Deletes or hides an association, which is given by its type and the id to which it points. Returns whether it existed.
    ///
    /// # Errors
    /// As [`Graph::assoc_add`].
    pub async fn assoc_delete(
        &self,
        at: impl Access,
        node: FatPointer,
        assoc: (u32, u64),
        deletion: Deletion,
        now: u64,
    ) -> Result<bool> {
        perform!(at, assoc_delete(node, assoc, deletion, now))
    }

    /// Changes the type of an association, from the first of `types` to the second. Returns whether it existed.
    ///
    /// # Errors
    /// As [`Graph::assoc_add`].
    pub async fn assoc_change_type(
        &self,
        at: impl Access,
        node: FatPointer,
        types: (u32, u32),
        id2: u64,
        now: u64,
    ) -> Result<bool> {
        perform!(at, assoc_change_type(node, types, id2, now))
    }

    /// Returns the associations of a type to these ids, within bounds of time.
    ///
    /// # Errors
    /// As [`Graph::assoc_add`].
    pub async fn assoc_get(
        &self,
        at: impl Access,
        node: FatPointer,
        assoc_type: u32,
        ids: &[u64],
        bounds: TimeBounds,
    ) -> Result<Vec<OwnedAssoc>> {
        perform!(at, assoc_get(node, assoc_type, ids, bounds))
    }

    /// Returns the number of associations of a type, and the time of the last change of the list.
    ///
    /// # Errors
    /// As [`Graph::assoc_add`].
    pub async fn assoc_count(
        &self,
        at: impl Access,
        node: FatPointer,
        assoc_type: u32,
    ) -> Result<Count> {
        perform!(at, assoc_count(node, assoc_type))
    }

    /// Returns associations of a type, the newest first.
    ///
    /// # Errors
    /// As [`Graph::assoc_add`].
    pub async fn assoc_range(
        &self,
        at: impl Access,
        node: FatPointer,
        assoc_type: u32,
        range: Range,
    ) -> Result<Vec<OwnedAssoc>> {
        perform!(at, assoc_range(node, assoc_type, range))
    }
}

/// Creates the graph, unless it exists, and opens it on all workers of these machines.
pub(crate) async fn create(
    farms: &[Farm],
    config: &Config,
    name: &str,
    schema: &Schema,
    nodes: u64,
) -> Result<Graph> {
    let sizes = (farm_kv::KEY_BYTES, ID_VALUE_BYTES);
    let ids = farm_kv::spec_for(config, 0, sizes, nodes.max(1))?;
    farm_kv::check_memory(config, &ids)?;
    let page_bytes = GraphConfig::of(config).page_bytes as u32;
    let text = &schema.to_toml();
    let create = async |tx: Transaction<'_>, catalog| {
        catalog::only_graph(tx, catalog).await?;
        let object = tx.alloc(text.len(), None).await?;
        tx.write(object, text.as_bytes()).await?;
        Ok(Entry::Graph(GraphEntry {
            ids: catalog::numbered(tx, catalog, ids).await?,
            page_bytes,
            schema: tx.pointer(object).await?,
            schema_bytes: text.len() as u32,
        }))
    };
    let (found, _) = catalog::find_or_create(farms[0].worker(), name, create).await?;
    let Entry::Graph(graph) = found else {
        return Err(catalog::is_other(name, &found, "a graph", Kind::Exists));
    };
    let opened = open(farms, config, name, &graph, Some(schema)).await;
    opened.map_err(|error| error.during(format_args!("cannot open the graph {name:?}")))
}

/// Finds the graph by its name, and opens it on all workers of these machines.
pub(crate) async fn find(farms: &[Farm], config: &Config, name: &str) -> Result<Graph> {
    let found = catalog::find(farms[0].worker(), name).await?;
    let graph = match found.ok_or_else(|| Error::not_found(format!("graph {name:?}")))? {
        Entry::Graph(graph) => graph,
        other => return Err(catalog::is_other(name, &other, "a graph", Kind::Invalid)),
    };
    let opened = open(farms, config, name, &graph, None).await;
    opened.map_err(|error| error.during(format_args!("cannot open the graph {name:?}")))
}

async fn open(
    farms: &[Farm],
    config: &Config,
    name: &str,
    graph: &GraphEntry,
    wanted: Option<&Schema>,
) -> Result<Graph> {
    let bytes = graph.schema_bytes as usize;
    let copy =
        |payload: &[u8]| String::from_utf8_lossy(&payload[..bytes.min(payload.len())]).into_owned();
    let text = farms[0].worker().look_at(graph.schema, copy).await?;
    let schema = Schema::parse(name, &text)?;
    if wanted.is_some_and(|wanted| *wanted != schema) {
        let text = format!("the graph {name:?} exists with another schema; open it instead");
        return Err(Error::new(Kind::Exists, text));
    }
    let spec = GraphSpec {
        schema,
        ids: graph.ids,
        page_bytes: graph.page_bytes as usize,
        cached_heads: GraphConfig::of(config).cached_heads as usize,
    };
    let handles = farms.iter().flat_map(|farm| farm.handles());
    let opened = handles.map(|handle| alone::open(handle, spec.clone()));
    futures_util::future::try_join_all(opened).await?;
    Ok(Graph(()))
}
