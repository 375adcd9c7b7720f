//! A graph on three machines: an edge list is imported, searched breadth-first from a node, and queried for the neighbours
//! of the neighbours of a node.
//!
//! Each node of the list is a node of the graph store, and each edge an association of both of its nodes. An association
//! contains the pointer to its other node, so the searches follow edges from machine to machine without lookups of ids.
//! `farm edges` does the same with files of any size, with continuations in place of tasks.

use std::collections::{BTreeMap, BTreeSet};

use farm::farm_graph::ids::Place;
use farm::farm_graph::tx::Range;
use farm::farm_graph::{
    Assoc, AssocType, Found, GraphError, GraphSpec, ID_VALUE_BYTES, NodeData, NodeType, Read,
    Results, Schema, open_all,
};
use farm::prelude::*;

/// An edge list in the format of SNAP: the ids of two nodes on each line.
const LIST: &str = "# A square with a tail, and two nodes apart.
1	2
2	3
3	4
4	1
4	5
5	6
70	71
";

/// The type of all nodes.
const VERTEX: u32 = 1;
/// The type of all associations. It is its own inverse: an edge leads in both directions.
const EDGE: u32 = 1;
/// Maximum number of neighbours that a read returns. The graph of this example has no node with more.
const MAX_NEIGHBOURS: u64 = 1000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Three machines of one worker each. The name must be unique among the clusters of this host.
    let mut config = Config::default_for(3, 1);
    config.cluster.name = format!("graph-{}", std::process::id());
    config.memory.region_bytes = 64 << 20;
    config.memory.per_machine_bytes = 128 << 20;
    let machines = start_all(&config, &layers())?;
    open_all(&machines, &spec()?)?;

    // All machines import lines of the list at the same time.
    let edges = parse(LIST)?;
    let parts = edges.chunks(edges.len().div_ceil(machines.len()));
    let mut started = Vec::new();
    for (machine, part) in machines.iter().zip(parts) {
        let (part, (send, done)) = (part.to_vec(), std::sync::mpsc::channel());
        machine.submit(0, move |worker| {
            spawn(worker, async move |farm: Handle| {
                let _ = send.send(import(&farm, part).await);
            });
        })?;
        started.push(done);
    }
    for done in started {
        done.recv()??;
    }

    let levels = block_on(&machines[1], 0, async |farm: Handle| search(&farm, 1).await)??;
    println!("levels from node 1: {levels:?}");
    let expected = [(1, 0), (2, 1), (4, 1), (3, 2), (5, 2), (6, 3)];
    assert_eq!(levels, BTreeMap::from(expected));

    let near = block_on(&machines[2], 0, async |farm: Handle| {
        two_hop(&farm, 1).await
    })??;
    println!("neighbours of the neighbours of node 1: {near:?}");
    assert_eq!(near, BTreeSet::from([1, 3, 5]));

    for machine in machines {
        machine.stop()?;
    }
    Ok(())
}

/// Returns the types of the graph, and how it is stored.
fn spec() -> Result<GraphSpec, Box<dyn std::error::Error>> {
    let vertex = NodeType {
        id: VERTEX,
        name: "vertex".into(),
        lists: 1,
    };
    let edge = AssocType {
        id: EDGE,
        name: "edge".into(),
        inverse: Some(EDGE),
        ..AssocType::default()
    };
    Ok(GraphSpec {
        schema: Schema::new(vec![vertex], vec![edge])?,
        ids: TableSpec::sized(1, 6, ID_VALUE_BYTES, 3, 1000, 0.9)?,
        page_bytes: 8192,
        cached_heads: 1024,
    })
}

/// Parses an edge list. An error names the line.
fn parse(text: &str) -> Result<Vec<(u64, u64)>, String> {
    let lines = text.lines().zip(1..);
    let lines = lines.filter(|(line, _)| !line.starts_with('#'));
    let edges = lines.map(|(line, number)| {
        let mut ids = line.split_whitespace().map(str::parse);
        match (ids.next(), ids.next(), ids.next()) {
            (Some(Ok(from)), Some(Ok(to)), None) => Ok((from, to)),
            _ => Err(format!("line {number} is not an edge: {line:?}")),
        }
    });
    edges.collect()
}

/// Imports edges, each in a transaction.
async fn import(farm: &Handle, edges: Vec<(u64, u64)>) -> Result<(), GraphError> {
    for edge in edges {
        let add = async |tx: Transaction<'_>| add_edge(tx, edge).await;
        while let Err(error) = farm.transact(add).await.map_err(GraphError::from) {
            // Another machine may have added the same node since this transaction looked for it.
            if !matches!(error, GraphError::IdTaken(_)) {
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Adds an edge and its nodes, if they do not exist yet.
async fn add_edge(tx: Transaction<'_>, (from, to): (u64, u64)) -> Result<(), TxError> {
    let node = vertex(tx, from).await?;
    let target = vertex(tx, to).await?;
    let edge = Assoc {
        id2: to,
        time: 0,
        version: 1,
        visible: true,
        target: Some(target),
        data: b"",
    };
    graph::assoc_add(tx, node, EDGE, edge, 0).await?;
    Ok(())
}

/// Returns the pointer of a node. Adds the node on this machine if no node has the id.
async fn vertex(tx: Transaction<'_>, id: u64) -> Result<FatPointer, TxError> {
    if let Some(node) = graph::obj_find(tx, id).await? {
        return Ok(node);
    }
    let place = Place {
        id: Some(id),
        near: None,
    };
    let new = NodeData {
        node_type: VERTEX,
        version: 1,
        time: 0,
        data: b"",
    };
    Ok(graph::obj_add(tx, place, new).await?.node)
}

/// Reads the neighbours of several nodes at the same time. Returns their ids and pointers.
async fn neighbours(
    tx: Transaction<'_>,
    nodes: &[FatPointer],
) -> Result<Vec<(u64, FatPointer)>, TxError> {
    let read = Read::Range(EDGE, Range::newest(MAX_NEIGHBOURS));
    let reads: Vec<(FatPointer, Read)> = nodes.iter().map(|node| (*node, read)).collect();
    graph::read_all(tx, &reads, |lists: Results<'_>| {
        let lists = lists.iter().filter_map(|found| match found {
            Found::Assocs(edges) => Some(edges),
            _ => None,
        });
        let edges = lists.flat_map(|edges| edges.iter());
        edges
            .filter_map(|edge| Some((edge.id2, edge.target?)))
            .collect()
    })
    .await
}

/// Searches breadth-first. Returns the number of edges from the node to each node that can be reached. All nodes of a
/// level are read together. The search is one transaction, so the result is that of one moment.
async fn search(farm: &Handle, start: u64) -> Result<BTreeMap<u64, u32>, TxError> {
    farm.transact(async |tx| {
        let Some(node) = graph::obj_find(tx, start).await? else {
            return Ok(BTreeMap::new());
        };
        let mut levels = BTreeMap::from([(start, 0)]);
        let mut level = vec![node];
        for depth in 1.. {
            let mut next = Vec::new();
            for (id, node) in neighbours(tx, &level).await? {
                levels.entry(id).or_insert_with(|| {
                    next.push(node);
                    depth
                });
            }
            if next.is_empty() {
                break;
            }
            level = next;
        }
        Ok(levels)
    })
    .await
}

/// Returns the neighbours of the neighbours of a node.
async fn two_hop(farm: &Handle, start: u64) -> Result<BTreeSet<u64>, TxError> {
    farm.transact(async |tx| {
        let Some(node) = graph::obj_find(tx, start).await? else {
            return Ok(BTreeSet::new());
        };
        let near = neighbours(tx, &[node]).await?;
        let near: Vec<FatPointer> = near.into_iter().map(|(_, node)| node).collect();
        let far = neighbours(tx, &near).await?;
        Ok(far.into_iter().map(|(id, _)| id).collect())
    })
    .await
}
