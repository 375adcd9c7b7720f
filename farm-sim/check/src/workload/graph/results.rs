//! The results of the graph store, as the history records them.

use farm_core::object::FatPointer;
use farm_core::worker::Worker;
use farm_graph::tasks::{OwnedAssoc, OwnedNode};
use farm_graph::{Count, Found, GraphError, NewNode, Put};

use super::state::{Failure, Got, NOW, Pending, graph_work, refusal};
use super::values::{seen, value_of};
use crate::history::graph::{GraphRequest, GraphResult};

/// A copy of the result of a read.
pub(super) enum OwnedFound {
    Node(Option<OwnedNode>),
    Count(Count),
    Assocs(Vec<OwnedAssoc>),
}

impl From<Found<'_>> for OwnedFound {
    fn from(found: Found<'_>) -> Self {
        match found {
            Found::Node(node) => OwnedFound::Node(node.map(OwnedNode::from)),
            Found::Count(count) => OwnedFound::Count(count),
            Found::Assocs(found) => {
                OwnedFound::Assocs(found.iter().map(OwnedAssoc::from).collect())
            }
        }
    }
}

/// Passes the result of a step on.
pub(super) fn step(worker: &mut Worker, client: usize, got: Got) {
    let stepped = graph_work(worker).stepped;
    stepped(worker, client, got);
}

/// Returns the operations of a client.
pub(super) fn pending(worker: &mut Worker, client: usize) -> Option<&mut Pending> {
    graph_work(worker).pending[client].as_mut()
}

/// Returns the request of the step that has ended.
fn request(pending: &mut Pending) -> Option<&mut GraphRequest> {
    pending.steps.get_mut(pending.results.len())
}

pub(super) fn found(
    worker: &mut Worker,
    client: usize,
    result: Result<Option<FatPointer>, GraphError>,
) -> Got {
    let found = match result {
        Ok(found) => found,
        Err(error) => return refusal(error),
    };
    if let Some(pending) = pending(worker, client)
        && let Some(GraphRequest::Find(id)) = request(pending)
    {
        let id = *id;
        pending.pointers.extend(found.map(|found| (id, found)));
    }
    Ok(GraphResult::Found(found.is_some()))
}

pub(super) fn added(
    worker: &mut Worker,
    client: usize,
    result: Result<NewNode, GraphError>,
) -> Got {
    let added = match result {
        Ok(added) => added,
        Err(error) => return refusal(error),
    };
    if let Some(pending) = pending(worker, client)
        && let Some(GraphRequest::AddNode(id, _) | GraphRequest::ReserveNode(id, _)) =
            request(pending)
    {
        if *id == 0 {
            *id = added.id;
            pending.own.push(added.node);
        } else if *id != added.id {
            let why = format!("node {id} was added, but has the id {}", added.id);
            return Err(Failure::Wrong(why));
        }
        pending.pointers.push((added.id, added.node));
    }
    Ok(GraphResult::Added)
}

pub(super) fn node(
    worker: &mut Worker,
    client: usize,
    result: Result<Option<OwnedNode>, GraphError>,
) -> Got {
    let id = pending(worker, client)
        .and_then(request)
        .and_then(|it| it.node());
    result.map_or_else(refusal, |node| node_with(id, node))
}

/// Returns the result of reading the node with this id.
fn node_with(id: Option<u64>, node: Option<OwnedNode>) -> Got {
    let value = node.map(|node| value_of(id.unwrap_or(node.id), &node));
    let value = value.transpose().map_err(Failure::Wrong)?;
    Ok(GraphResult::Node(value))
}

/// Returns the results of several reads.
pub(super) fn all(
    worker: &mut Worker,
    client: usize,
    result: Result<Vec<OwnedFound>, GraphError>,
) -> Got {
    let found = match result {
        Ok(found) => found,
        Err(error) => return refusal(error),
    };
    let reads = match pending(worker, client).and_then(request) {
        Some(GraphRequest::All(reads)) => reads.clone(),
        _ => Vec::new(),
    };
    if reads.len() != found.len() {
        let why = format!("{} reads had {} results", reads.len(), found.len());
        return Err(Failure::Wrong(why));
    }
    let results = reads.iter().zip(found).map(|(read, found)| match found {
        OwnedFound::Node(node) => node_with(read.node(), node),
        OwnedFound::Count(found) => count(Ok(found)),
        OwnedFound::Assocs(found) => assocs(worker, Ok(found)),
    });
    let results: Result<Vec<_>, Failure> = results.collect();
    results.map(GraphResult::All)
}

pub(super) fn assocs(worker: &mut Worker, result: Result<Vec<OwnedAssoc>, GraphError>) -> Got {
    let found = match result {
        Ok(found) => found,
        Err(error) => return refusal(error),
    };
    let nodes = &graph_work(worker).nodes;
    let seen: Result<Vec<_>, String> = found
        .iter()
        .map(|assoc| seen(assoc, nodes.get(&assoc.id2).copied()))
        .collect();
    seen.map(GraphResult::Assocs).map_err(Failure::Wrong)
}

pub(super) fn changed(result: Result<bool, GraphError>) -> Got {
    result.map_or_else(refusal, |changed| Ok(GraphResult::Changed(changed)))
}

pub(super) fn put(result: Result<Put, GraphError>) -> Got {
    let put = |put| match put {
        Put::Added => GraphResult::PutNew,
        Put::Shown => GraphResult::PutShown,
        Put::Updated => GraphResult::PutUpdated,
    };
    result.map_or_else(refusal, |done| Ok(put(done)))
}

pub(super) fn count(result: Result<Count, GraphError>) -> Got {
    let Count {
        count,
        time,
        version,
    } = match result {
        Ok(count) => count,
        Err(error) => return refusal(error),
    };
    let expected = if version == 0 { 0 } else { NOW };
    match time == expected {
        true => Ok(GraphResult::Count(count.into(), version)),
        false => Err(Failure::Wrong(format!(
            "a number of associations that changed {version} times has the time {time}, not {expected}"
        ))),
    }
}
