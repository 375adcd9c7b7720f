//! Decides strict serializability of transactions, from true versions.
//!
//! Each value carries its write and the write that it replaced. So the order of an object's versions is known, not
//! guessed, and the direct serialization graph is complete. Transactions are strictly serializable if and only if that
//! graph has no cycle together with the real-time order. The real-time order is a chain of the moments at which
//! transactions ended: each transaction has an edge to the moment of its own end, and an edge from the last moment
//! before it began. This takes three edges for each transaction instead of one for each pair.
//!
//! A transaction of unknown outcome has a beginning, but no end. It counts if any of its writes was read or replaced;
//! otherwise it can be left out. If a version was read that no listed transaction wrote, its writer must be a
//! transaction of unknown outcome that does not list all of its accesses, if one exists; such a writer becomes a
//! transaction of its own. If no access records what such a version replaced, the chain of versions is broken, and no
//! dependency is known across the gap.

use crate::history::{Access, Outcome, Transaction};

use super::explain::Names;
use super::finding::{Anomaly, Facts, Finding};
use super::graph::{Edge, Graph, Kinds, NONE};
use super::versions::{Versions, effective};

/// Checks that these transactions and lock-free reads are strictly serializable.
///
/// # Errors
///
/// The first anomaly found. If the graph has cycles, a short cycle of the worst kind.
pub fn check(transactions: &[Transaction]) -> Result<Facts, Finding> {
    let effective = effective(transactions);
    for (index, transaction) in transactions.iter().enumerate() {
        if effective[index] {
            check_alone(transactions, index, transaction)?;
        }
    }
    let versions = Versions::of(transactions, &effective)?;
    let mut edges = dependencies(&versions);
    let facts = Facts {
        transactions: transactions.len(),
        committed: effective.iter().filter(|effective| **effective).count(),
        reads: versions.reads.len(),
        writes: versions.writes,
        edges: edges.len(),
        ..Facts::default()
    };
    let vertices = real_time(transactions, &effective, versions.transactions, &mut edges);
    let graph = Graph::new(versions.transactions, vertices, &edges);
    if !graph.components(Kinds::ALL).cyclic {
        return Ok(facts);
    }
    Err(worst_cycle(&graph, transactions, &versions))
}

/// Checks that the accesses of one transaction do not contradict each other.
fn check_alone(
    transactions: &[Transaction],
    index: usize,
    transaction: &Transaction,
) -> Result<(), Finding> {
    let names = Names(transactions);
    let finding = |kind, text: String| {
        let text = format!("{text}\n{}", names.describe(&[index as u32]));
        Err(Finding::new(kind, text))
    };
    if transaction.outcome == Outcome::Committed && transaction.ended < transaction.begun {
        return finding(
            Anomaly::Violation,
            "a transaction ended before it began".into(),
        );
    }
    let accesses = &transaction.accesses;
    let wrote = accesses.iter().any(|a| matches!(a, Access::Write { .. }));
    for (place, access) in accesses.iter().enumerate().filter(|_| wrote) {
        let Access::Read { object, id, .. } = access else {
            continue;
        };
        let own =
            |access: &&Access| matches!(access, Access::Write { object: of, .. } if of == object);
        let is_it = |access: &Access| matches!(access, Access::Write { id: own, .. } if own == id);
        let before = accesses[..place].iter().rfind(own);
        let after = accesses[place + 1..].iter().find(|access| is_it(access));
        if before.is_some_and(|write| !is_it(write)) || after.is_some() {
            let text = format!(
                "a read of object {} contradicts the writes of its own transaction",
                object.0
            );
            return finding(Anomaly::Internal, text);
        }
    }
    Ok(())
}

/// Returns the dependencies between transactions that follow from their reads and writes.
fn dependencies(versions: &Versions) -> Vec<Edge> {
    let all = &versions.versions;
    let mut edges = Vec::with_capacity(all.len() + versions.reads.len() * 5);
    let mut add = |from: u32, to: u32, kind, version| {
        if from != NONE && to != NONE && from != to {
            edges.push(Edge {
                from,
                to,
                kind,
                version,
            });
        }
    };
    for (at, version) in all.iter().enumerate() {
        if let Some(parent) = all.get(version.parent as usize) {
            add(parent.writer, version.writer, Kinds::WW, at as u32);
        }
    }
    for read in &versions.reads {
        let seen = &all[read.version as usize];
        add(seen.writer, read.reader, Kinds::WR, read.version);
    }
    for read in &versions.reads {
        let seen = &all[read.version as usize];
        if let Some(next) = all.get(seen.child as usize) {
            add(read.reader, next.writer, Kinds::RW, read.version);
        }
    }
    edges
}

/// Adds the edges of real-time order, with a vertex for each moment at which a transaction ended. Returns the number of
/// vertices.
fn real_time(
    transactions: &[Transaction],
    effective: &[bool],
    vertices: u32,
    edges: &mut Vec<Edge>,
) -> u32 {
    let mut ended: Vec<(u64, u32)> = Vec::with_capacity(transactions.len());
    for (index, transaction) in transactions.iter().enumerate() {
        if transaction.outcome == Outcome::Committed {
            ended.push((transaction.ended, index as u32));
        }
    }
    ended.sort_unstable();
    let mut add = |from, to| {
        edges.push(Edge {
            from,
            to,
            kind: Kinds::REAL_TIME,
            version: NONE,
        });
    };
    let mut moments: Vec<u64> = Vec::with_capacity(ended.len());
    for (moment, transaction) in ended {
        if moments.last() != Some(&moment) {
            moments.push(moment);
            let vertex = vertices + moments.len() as u32 - 1;
            if vertex > vertices {
                add(vertex - 1, vertex);
            }
        }
        add(transaction, vertices + moments.len() as u32 - 1);
    }
    let unknown = transactions
        .iter()
        .filter(|transaction| transaction.outcome == Outcome::Unknown);
    let first_unknown = unknown.map(|transaction| transaction.begun).min();
    for vertex in 0..vertices {
        let begun = match transactions.get(vertex as usize) {
            Some(transaction) => effective[vertex as usize].then_some(transaction.begun),
            None => first_unknown,
        };
        let before = moments.partition_point(|moment| begun.is_some_and(|begun| *moment < begun));
        if before > 0 {
            add(vertices + before as u32 - 1, vertex);
        }
    }
    vertices + moments.len() as u32
}

/// Returns the finding of a graph that has a cycle.
fn worst_cycle(graph: &Graph, transactions: &[Transaction], versions: &Versions) -> Finding {
    let (ww, wr, rw) = (Kinds::WW, Kinds::WR, Kinds::RW);
    let seen = ww.or(wr);
    let mut found = None;
    for (first, rest, kind) in [
        (ww, ww, Anomaly::WriteCycle),
        (wr, seen, Anomaly::CircularInformationFlow),
        (rw, seen, Anomaly::ReadSkew),
        (rw, seen.or(rw), Anomaly::WriteSkew),
        (Kinds::REAL_TIME, Kinds::ALL, Anomaly::StaleRead),
    ] {
        let components = graph.components(first.or(rest));
        if components.cyclic {
            found = graph.cycle(&components, first, rest).map(|c| (kind, c));
        }
        if found.is_some() {
            break;
        }
    }
    let (kind, cycle) =
        found.expect("a strongly connected component of several vertices contains a cycle");
    let kind = match kind {
        Anomaly::ReadSkew => read_skew(&cycle, versions),
        other => other,
    };
    Finding::new(
        kind,
        Names(transactions).cycle(&cycle, versions.transactions, &versions.versions),
    )
}

/// Returns the anomaly of a cycle in which one transaction missed a write of another.
fn read_skew(cycle: &[Edge], versions: &Versions) -> Anomaly {
    let object = |edge: &Edge| versions.versions[edge.version as usize].object;
    let same = cycle.iter().all(|edge| object(edge) == object(&cycle[0]));
    if same && cycle.iter().any(|edge| edge.kind == Kinds::WW) {
        Anomaly::LostUpdate
    } else if cycle.len() == 2 {
        Anomaly::FracturedRead
    } else {
        Anomaly::ReadSkew
    }
}
