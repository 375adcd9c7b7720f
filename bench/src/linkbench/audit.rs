//! Checks the graph after a run: the number that each list stores is that of the links that it has.

use std::collections::BTreeSet;
use std::ops::{AddAssign, Range as Ids};

use farm_core::worker::Worker;
use farm_graph::tasks::alone;
use farm_graph::tx::Range;
use farm_txn::{Handle, TxError};
use serde::{Deserialize, Serialize};

use super::loaded::link_type;
use crate::audit::{self, Done, Found};

/// Longer lists are not read.
const LONGEST: u32 = 1_000;

/// What a worker checks.
pub struct Audit {
    /// Ids of nodes.
    pub ids: Ids<u64>,
    /// Number of types of links.
    pub link_types: u64,
    /// Number of nodes that are checked at a time.
    pub in_flight: usize,
}

/// What was checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditResult {
    /// Number of nodes, including deleted ones that have links.
    pub nodes: u64,
    /// Number of lists that are not empty.
    pub lists: u64,
    /// Number of links.
    pub links: u64,
    /// Number of lists that are so long that they were not read.
    pub long: u64,
    /// The first error, if any.
    pub wrong: Option<String>,
}

impl Found for AuditResult {
    fn wrong(&mut self) -> &mut Option<String> {
        &mut self.wrong
    }
}

impl AddAssign for AuditResult {
    fn add_assign(&mut self, other: AuditResult) {
        self.nodes += other.nodes;
        self.lists += other.lists;
        self.links += other.links;
        self.long += other.long;
        self.wrong = self.wrong.take().or(other.wrong);
    }
}

/// A node whose lists are checked.
#[derive(Clone, Copy, Debug)]
struct Node {
    id: u64,
    link_types: u64,
}

/// Checks the share of a worker. No request may be in flight on any worker.
pub fn run(worker: &mut Worker, audit: Audit, done: Done<AuditResult>) {
    let Audit {
        ids,
        link_types,
        in_flight,
    } = audit;
    let nodes = ids.map(move |id| Node { id, link_types });
    audit::run(worker, nodes, in_flight, check, done);
}

/// Checks the lists of a node.
async fn check(farm: &Handle, Node { id, link_types }: Node) -> Result<AuditResult, TxError> {
    let mut result = AuditResult::default();
    let Some(node) = alone::obj_find(farm, id).await? else {
        return Ok(result);
    };
    result.nodes = 1;
    for number in 0..link_types {
        let link_type = link_type(number as u8);
        let count = alone::assoc_count(farm, node, link_type).await?.count;
        if count > LONGEST {
            result.long += 1;
            continue;
        }
        let range = Range::newest(u64::from(count) + 1);
        let found = alone::assoc_range(farm, node, link_type, range).await?;
        let ids: BTreeSet<u64> = found.iter().map(|link| link.id2).collect();
        if found.len() != count as usize || ids.len() != found.len() {
            result.wrong.get_or_insert(format!(
                "the list of node {id} of type {link_type} counts {count} links, and has {}, to {} nodes",
                found.len(),
                ids.len()
            ));
        }
        result.lists += u64::from(count > 0);
        result.links += u64::from(count);
    }
    Ok(result)
}
