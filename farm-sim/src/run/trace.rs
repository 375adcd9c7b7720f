//! The events and operations of a run, as lines of text.

use farm_check::history::graph::GraphOperation;
use farm_check::history::{Access, History, KeyOperation, Outcome, Transaction};

use farm_core::time::VirtualTime;

use crate::cluster::Cluster;

/// Returns the fabric's events and the clients' operations, in order of time.
pub(super) fn lines(cluster: &Cluster, history: &History) -> Vec<String> {
    let mut lines: Vec<(u64, String)> = cluster
        .fabric()
        .trace()
        .into_iter()
        .map(|line| (moment(&line), line))
        .collect();
    let mut add = |at: u64, what: String| lines.push((at, format!("{at:>12} {what}")));
    for transaction in &history.transactions {
        let client = transaction.client;
        add(
            VirtualTime::of_tick(transaction.begun).0,
            format!("client {client} begins: {}", accesses(transaction)),
        );
        if transaction.outcome != Outcome::Unknown {
            add(
                VirtualTime::of_tick(transaction.ended).0,
                format!("client {client} ends: {:?}", transaction.outcome),
            );
        }
    }
    for operation in &history.operations {
        let KeyOperation {
            client,
            key,
            request,
            ..
        } = operation;
        add(
            VirtualTime::of_tick(operation.begun).0,
            format!("client {client} requests of key {key}: {request:?}"),
        );
        if let Some(result) = operation.result {
            add(
                VirtualTime::of_tick(operation.ended).0,
                format!("client {client} receives for key {key}: {result:?}"),
            );
        }
    }
    for operation in &history.graph {
        let GraphOperation {
            client,
            begun,
            ended,
            steps,
        } = operation;
        let requests: Vec<_> = steps.iter().map(|step| &step.0).collect();
        add(
            VirtualTime::of_tick(*begun).0,
            format!("client {client} requests of the graph: {requests:?}"),
        );
        if let Some(ended) = ended {
            let results: Vec<_> = steps.iter().filter_map(|step| step.1.as_ref()).collect();
            add(
                VirtualTime::of_tick(*ended).0,
                format!("client {client} receives from the graph: {results:?}"),
            );
        }
    }
    lines.sort_by_key(|(at, _)| *at);
    lines.into_iter().map(|(_, line)| line).collect()
}

fn moment(line: &str) -> u64 {
    line.split_whitespace()
        .next()
        .and_then(|word| word.parse().ok())
        .unwrap_or(0)
}

fn accesses(transaction: &Transaction) -> String {
    let accesses = transaction.accesses.iter().map(|access| match access {
        Access::Read {
            object,
            version,
            id,
            ..
        } => format!(
            "reads object {}: version {version}, written by write {}",
            object.0, id.0
        ),
        Access::Write { object, id, parent } => {
            format!(
                "writes object {}: write {} replaces write {}",
                object.0, id.0, parent.0
            )
        }
    });
    accesses.collect::<Vec<_>>().join(", ")
}
