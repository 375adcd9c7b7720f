//! Writes edges. A worker receives them in batches and keeps many in flight.
//!
//! An edge needs the names of its two nodes. The worker finds a name in its cache, or by a lookup of the id; if no node has the
//! id, the worker adds the node on its machine. Edges in flight that need the same name wait for one lookup. If another
//! worker adds the same node at that time, one of both additions is refused, and that worker looks the id up again.
//!
//! The owner of a node writes the edges that arrive together in one transaction ([`farm_graph::ops`]).

use std::collections::HashMap;

use farm_core::object::FatPointer;
use farm_core::worker::{Cont, Worker};
use farm_graph::ids::{self, Place};
use farm_graph::{GraphError, NewNode, Put, ops};
use serde::{Deserialize, Serialize};

use super::known::Known;
use super::sample::Sample;
use super::vertex::{EDGE, edge, vertex};
use crate::closed_loop::{self, Clients, ClosedLoop, Ran};
use crate::recorder::Outcome;

/// Entries of a worker's cache of names.
const KNOWN: usize = 1 << 18;

/// Numbers of what was imported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imported {
    /// Number of nodes.
    pub nodes: u64,
    /// Number of edges, without duplicates.
    pub edges: u64,
    /// Number of lines whose edge existed already.
    pub duplicates: u64,
    /// Number of edges from a node to itself.
    pub self_loops: u64,
}

impl std::ops::AddAssign for Imported {
    fn add_assign(&mut self, other: Self) {
        self.nodes += other.nodes;
        self.edges += other.edges;
        self.duplicates += other.duplicates;
        self.self_loops += other.self_loops;
    }
}

/// What a worker keeps from one batch to the next.
pub struct Importer {
    known: Known,
    /// The nodes that this worker has added.
    pub sample: Sample,
    undirected: bool,
}

impl Importer {
    /// Creates the state of a worker before the first batch. `sampled` is the maximum size of the sample of nodes.
    pub fn new(undirected: bool, sampled: usize) -> Self {
        Self {
            known: Known::new(KNOWN),
            sample: Sample::new(sampled),
            undirected,
        }
    }
}

/// A part of the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Number of the first edge in the whole list, from 1 on.
    pub first: u64,
    /// The edges.
    pub edges: Vec<(u64, u64)>,
}

/// The function that receives what was imported, on the worker's thread.
pub type Done = Box<dyn FnOnce(anyhow::Result<Imported>, Importer) + Send>;

/// Writes the edges of a batch, `in_flight` at a time. Calls `done` at the end.
pub fn run(worker: &mut Worker, batch: Batch, importer: Importer, in_flight: usize, done: Done) {
    let clients = Clerk {
        number: batch.first,
        edges: batch.edges.into_iter(),
        waiting: HashMap::new(),
        imported: Imported::default(),
        importer,
        done,
    };
    closed_loop::start_untimed(worker, clients, in_flight.max(1), None);
}

/// Imports a batch.
struct Clerk {
    edges: std::vec::IntoIter<(u64, u64)>,
    /// Number of the next edge.
    number: u64,
    /// The seats of the edges that wait for the name of a node, by its id.
    waiting: HashMap<u64, Vec<usize>>,
    imported: Imported,
    importer: Importer,
    done: Done,
}

type Driver = ClosedLoop<Clerk>;

/// An edge in flight.
struct Edge {
    ids: [u64; 2],
    number: u64,
    names: [Option<FatPointer>; 2],
    /// Number of lookups or writes that have not ended.
    pending: usize,
    written: Option<Put>,
    failed: Option<String>,
}

impl Clients for Clerk {
    type Operation = Edge;
    type Costs = ();

    fn draw(&mut self, _: &mut Worker) -> Option<Edge> {
        let (from, to) = self.edges.next()?;
        let number = self.number;
        self.number += 1;
        Some(Edge {
            ids: [from, to],
            number,
            names: [None; 2],
            pending: 0,
            written: None,
            failed: None,
        })
    }

    fn begin(own: &mut Driver, worker: &mut Worker, seat: usize) {
        let [from, to] = own.operation(seat).ids;
        own.find(worker, seat, from);
        if to != from {
            own.find(worker, seat, to);
        }
        if own.operation(seat).pending == 0 {
            own.write(worker, seat);
        }
    }

    fn end(self, _: &mut Worker, ran: Ran) {
        let imported = self.imported;
        (self.done)(ran.unless_failed().map(|_| imported), self.importer);
    }
}

impl Driver {
    /// Finds the name of a node of an edge, or makes the edge wait for it.
    fn find(&mut self, worker: &mut Worker, seat: usize, id: u64) {
        if let Some(node) = self.clients.importer.known.get(id) {
            return self.name(seat, id, node);
        }
        self.operation(seat).pending += 1;
        let waiting = self.clients.waiting.entry(id).or_default();
        waiting.push(seat);
        if waiting.len() == 1 {
            ids::find(worker, id, Cont::new(found, id));
        }
    }

    /// Sets the name of a node of an edge.
    fn name(&mut self, seat: usize, id: u64, node: FatPointer) {
        let edge = self.operation(seat);
        for (own, name) in edge.ids.iter().zip(&mut edge.names) {
            if *own == id {
                *name = Some(node);
            }
        }
    }

    /// Continues the edges that wait for a node.
    fn named(&mut self, worker: &mut Worker, id: u64, node: Result<FatPointer, String>) {
        if let Ok(node) = node {
            self.clients.importer.known.put(id, node);
        }
        for seat in self.clients.waiting.remove(&id).unwrap_or_default() {
            match &node {
                Ok(node) => self.name(seat, id, *node),
                Err(why) => self.operation(seat).failed = Some(why.clone()),
            }
            self.operation(seat).pending -= 1;
            if self.operation(seat).pending == 0 {
                self.write(worker, seat);
            }
        }
    }

    /// Writes an edge whose nodes have names. If the list is undirected, also writes the edge back, unless the edge leads
    /// from a node to itself. Whether an undirected edge existed is decided at the node with the lesser id, so that lines
    /// with the same ids in different orders count as one edge.
    fn write(&mut self, worker: &mut Worker, seat: usize) {
        let undirected = self.clients.importer.undirected;
        let it = self.operation(seat);
        let ([mut from, mut to], [Some(mut source), Some(mut target)]) = (it.ids, it.names) else {
            return self.stop_edge(seat);
        };
        if undirected && to < from {
            (from, to, source, target) = (to, from, target, source);
        }
        let number = it.number;
        it.pending = 1 + usize::from(undirected && from != to);
        if undirected && from != to {
            let back = edge(from, source, number);
            let cont = Cont::new(back_written, seat);
            ops::assoc_add(worker, target, EDGE, back, number, cont);
        }
        let there = edge(to, target, number);
        let cont = Cont::new(written, seat);
        ops::assoc_add(worker, source, EDGE, there, number, cont);
    }

    /// Ends one of the writes of an edge.
    fn end_write(
        &mut self,
        worker: &mut Worker,
        seat: usize,
        put: Result<Option<Put>, GraphError>,
    ) {
        let it = self.operation(seat);
        it.pending -= 1;
        match put {
            Ok(put) => it.written = it.written.or(put),
            Err(error) => it.failed = Some(error.to_string()),
        }
        if it.pending > 0 {
            return;
        }
        let is_loop = it.ids[0] == it.ids[1];
        let is_new = match (it.written, &it.failed) {
            (Some(put), None) => put == Put::Added,
            _ => return self.stop_edge(seat),
        };
        let imported = &mut self.clients.imported;
        imported.edges += u64::from(is_new);
        imported.duplicates += u64::from(!is_new);
        imported.self_loops += u64::from(is_new && is_loop);
        self.finish(worker, seat, 0, Outcome::Committed);
    }

    /// Ends the import because of an edge that failed.
    fn stop_edge(&mut self, seat: usize) {
        let it = self.operation(seat);
        let [from, to] = it.ids;
        let why = it.failed.take();
        let why = why.unwrap_or_else(|| "a node has no name".to_owned());
        self.stop(
            seat,
            format!("cannot add the edge from {from} to {to}: {why}"),
        );
    }
}

fn found(worker: &mut Worker, id: u64, found: Result<Option<FatPointer>, GraphError>) {
    closed_loop::resume(worker, |own: &mut Driver, worker| match found {
        Ok(Some(node)) => own.named(worker, id, Ok(node)),
        Ok(None) => {
            let place = Place {
                id: Some(id),
                near: None,
            };
            ops::obj_add(worker, place, vertex(), Cont::new(added, id));
        }
        Err(error) => {
            let why = format!("cannot look up the node {id}: {error}");
            own.named(worker, id, Err(why));
        }
    });
}

fn added(worker: &mut Worker, id: u64, added: Result<NewNode, GraphError>) {
    closed_loop::resume(worker, |own: &mut Driver, worker| match added {
        Ok(new) => {
            own.clients.imported.nodes += 1;
            own.clients.importer.sample.add(id);
            own.named(worker, id, Ok(new.node));
        }
        // Another worker has added the node since the lookup.
        Err(GraphError::IdTaken(_)) => ids::find(worker, id, Cont::new(found, id)),
        Err(error) => {
            let why = format!("cannot add the node {id}: {error}");
            own.named(worker, id, Err(why));
        }
    });
}

fn written(worker: &mut Worker, seat: usize, put: Result<Put, GraphError>) {
    closed_loop::resume(worker, |own: &mut Driver, worker| {
        own.end_write(worker, seat, put.map(Some));
    });
}

fn back_written(worker: &mut Worker, seat: usize, put: Result<Put, GraphError>) {
    closed_loop::resume(worker, |own: &mut Driver, worker| {
        own.end_write(worker, seat, put.map(|_| None));
    });
}
