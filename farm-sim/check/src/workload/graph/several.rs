//! Several reads at the same time, in transactions.

use farm_core::object::FatPointer;
use farm_core::worker::Worker;
use farm_graph::tasks;
use farm_graph::tx::Range;
use farm_graph::{GraphError, Read, Results, ResultsCont, TimeBounds, tx as in_tx};
use farm_txn::{Transaction, TxError, TxHandle};

use super::results::{self, OwnedFound, step};
use crate::history::graph::{GraphRequest, Times};

pub(super) fn bounds((min, max): Times) -> TimeBounds {
    TimeBounds { min, max }
}

pub(super) fn range(bounds: Times, offset: u64, limit: u64) -> Range {
    Range {
        bounds: self::bounds(bounds),
        offset,
        limit,
    }
}

/// Returns the reads of these requests, of the nodes at these pointers.
fn reads<'a>(requests: &'a [GraphRequest], nodes: &'a [FatPointer]) -> Vec<(FatPointer, Read<'a>)> {
    let read = |request: &'a GraphRequest| match *request {
        GraphRequest::GetNode(_) => Read::Node,
        GraphRequest::Count(_, assoc_type) => Read::Count(assoc_type),
        GraphRequest::Get(_, assoc_type, ref ids, times) => {
            Read::Assocs(assoc_type, ids, bounds(times))
        }
        GraphRequest::Range(_, assoc_type, times, offset, limit) => {
            Read::Range(assoc_type, range(times, offset, limit))
        }
        ref other => unreachable!("{other:?} is not a read of a node"),
    };
    nodes
        .iter()
        .copied()
        .zip(requests.iter().map(read))
        .collect()
}

fn copied(results: Results<'_>) -> Vec<OwnedFound> {
    results.iter().map(OwnedFound::from).collect()
}

/// Begins several reads in a transaction.
pub(super) fn in_transaction(
    worker: &mut Worker,
    tx: TxHandle,
    client: usize,
    requests: &[GraphRequest],
    nodes: &[FatPointer],
) {
    let cont = ResultsCont::new(got_all, client);
    in_tx::read_all(worker, tx, &reads(requests, nodes), cont);
}

fn got_all(worker: &mut Worker, client: usize, result: Result<Results<'_>, &GraphError>) {
    let result = result.map(copied).map_err(Clone::clone);
    let got = results::all(worker, client, result);
    step(worker, client, got);
}

/// Makes several reads in the transaction of a task.
pub(super) async fn in_task(
    tx: Transaction<'_>,
    requests: &[GraphRequest],
    nodes: &[FatPointer],
) -> Result<Vec<OwnedFound>, TxError> {
    tasks::read_all(tx, &reads(requests, nodes), copied).await
}
