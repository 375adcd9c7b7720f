//! Checks of the final state of the graph, when no operation is under way.

use std::collections::BTreeMap;

use farm_core::worker::Worker;
use serde::{Deserialize, Serialize};

use super::state::graph_work;
use super::values::seen;
use crate::history::graph::{SeenAssoc, assoc_kind};
use crate::workload::final_state::FinalState;

/// A node at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditedNode {
    /// Its id.
    pub id: u64,
    /// Its associations by type, in the order of the lists.
    pub lists: Vec<(u32, Vec<SeenAssoc>)>,
}

/// Checks the table of ids on this worker and, on the first worker of a machine, the structure of its nodes. Adds them
/// to the final state.
pub(in crate::workload) fn finish(
    worker: &mut Worker,
    finished: &mut FinalState,
) -> Result<(), String> {
    let me = worker.me();
    finished.live += farm_graph::check_ids(worker)?;
    let state = graph_work(worker);
    let mut nodes: Vec<_> = state.own.clone();
    if me.worker.index() == 0 {
        nodes.extend(state.nodes.values());
    }
    let pointers = state.nodes.clone();
    for node in nodes {
        if worker.machine_of(node.address.region()) != me.machine {
            continue;
        }
        let facts = farm_graph::check_node(worker, node)?;
        finished.live += facts.objects;
        let mut lists = Vec::new();
        for (assoc_type, list) in facts.lists {
            let found: Result<Vec<_>, String> = list
                .iter()
                .map(|assoc| seen(assoc, pointers.get(&assoc.id2).copied()))
                .collect();
            lists.push((assoc_type, found?));
        }
        let id = facts.id;
        finished.nodes.push(AuditedNode { id, lists });
    }
    Ok(())
}

/// Checks that each association of a type with an inverse has its inverse, which differs only in the node.
pub(in crate::workload) fn check(nodes: &[AuditedNode]) -> Result<(), String> {
    let mut all = BTreeMap::new();
    for node in nodes {
        for (assoc_type, list) in &node.lists {
            for assoc in list {
                all.insert((node.id, *assoc_type, assoc.id2), *assoc);
            }
        }
    }
    for ((id, assoc_type, id2), assoc) in &all {
        let Some(inverse) = assoc_kind(*assoc_type).inverse else {
            continue;
        };
        let expected = SeenAssoc { id2: *id, ..*assoc };
        let found = all.get(&(*id2, inverse, *id));
        if found != Some(&expected) {
            return Err(format!(
                "node {id} has {assoc:?} of type {assoc_type}, but the inverse of type {inverse} of node {id2} is \
                 {found:?}"
            ));
        }
    }
    Ok(())
}
