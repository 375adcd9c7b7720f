//! Checks the graph after a run: the number that each list stores is that of the links that it has.

use std::collections::BTreeSet;
use std::ops::{AddAssign, Range as Ids};

use farm_core::worker::Worker;
use farm_graph::GraphError;
use farm_graph::tasks::alone;
use farm_graph::tx::Range;
use farm_txn::{Handle, TxError};
use serde::{Deserialize, Serialize};

use super::loaded::link_type;
use crate::closed_loop::{self, Clients, ClosedLoop, Ran};
use crate::recorder::Outcome;

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

impl AddAssign for AuditResult {
    fn add_assign(&mut self, other: AuditResult) {
        self.nodes += other.nodes;
        self.lists += other.lists;
        self.links += other.links;
        self.long += other.long;
        self.wrong = self.wrong.take().or(other.wrong);
    }
}

/// The function that receives the result, on the worker's thread.
pub type Done = Box<dyn FnOnce(AuditResult) + Send>;

struct Auditor {
    audit: Audit,
    result: AuditResult,
    done: Done,
}

type Driver = ClosedLoop<Auditor>;

/// Checks the share of a worker. No request may be in flight on any worker.
pub fn run(worker: &mut Worker, audit: Audit, done: Done) {
    let in_flight = audit.in_flight;
    let auditor = Auditor {
        audit,
        result: AuditResult::default(),
        done,
    };
    closed_loop::start_untimed(worker, auditor, in_flight, None);
}

impl Clients for Auditor {
    type Operation = u64;
    type Costs = ();

    fn draw(&mut self, _: &mut Worker) -> Option<u64> {
        self.audit.ids.next()
    }

    fn begin(own: &mut Driver, worker: &mut Worker, seat: usize) {
        let (id, types) = (*own.operation(seat), own.clients.audit.link_types);
        let task = async move |farm: Handle| check(&farm, id, types).await;
        closed_loop::spawn(
            worker,
            task,
            move |own: &mut Driver, worker, checked| match checked {
                Ok(result) => {
                    own.clients.result += result;
                    own.finish(worker, seat, 0, Outcome::Committed);
                }
                Err(error) => {
                    let error = GraphError::from(error);
                    own.stop(seat, format!("cannot check node {id}: {error}"));
                }
            },
        );
    }

    fn end(mut self, _: &mut Worker, ran: Ran) {
        if let Some(why) = ran.failure {
            self.result.wrong.get_or_insert(why);
        }
        (self.done)(self.result);
    }
}

/// Checks the lists of a node.
async fn check(farm: &Handle, id: u64, link_types: u64) -> Result<AuditResult, TxError> {
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
