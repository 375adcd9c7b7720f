//! Breadth-first search from a node.
//!
//! The search runs on one worker, which reads the adjacency lists of all machines by lock-free one-sided reads. It reads the
//! lists of all nodes of a level, many at a time. The nodes that it has not seen before are the next level.

use std::collections::HashMap;

use farm_core::object::FatPointer;
use farm_core::worker::{Cont, Worker};
use farm_graph::{Assocs, AssocsCont, GraphError, ids};

use super::vertex::{ListPart, neighbours};
use crate::closed_loop::{self, Clients, ClosedLoop, Ran};
use crate::graph::GraphCosts;
use crate::recorder::Outcome;

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Searched {
    /// The number of edges from the start to each node that was reached, by the node's id.
    pub level_of: HashMap<u64, u32>,
    /// Number of edges that were followed.
    pub edges: u64,
    /// Seconds of the search.
    pub seconds: f64,
    /// What the search cost.
    pub costs: GraphCosts,
}

impl Searched {
    /// Returns the number of nodes of each level.
    pub fn levels(&self) -> Vec<u64> {
        let depth = self.level_of.values().max().map_or(0, |level| level + 1);
        let mut levels = vec![0; depth as usize];
        for level in self.level_of.values() {
            levels[*level as usize] += 1;
        }
        levels
    }
}

/// The function that receives the result, on the worker's thread: `None` if no node has the id of the start.
pub type Done = Box<dyn FnOnce(anyhow::Result<Option<Searched>>) + Send>;

/// Searches from the node with the id `start`, with at most `in_flight` reads at a time. Calls `done` at the end.
pub fn run(worker: &mut Worker, start: u64, in_flight: usize, done: Done) {
    worker.put_layer(Box::new(Request {
        start,
        in_flight,
        done,
    }));
    ids::find(worker, start, Cont::new(found_start, ()));
}

/// A search whose start is looked up.
struct Request {
    start: u64,
    in_flight: usize,
    done: Done,
}

fn found_start(worker: &mut Worker, (): (), found: Result<Option<FatPointer>, GraphError>) {
    let request = worker.take_layer::<Request>();
    let node = match found {
        Ok(Some(node)) => node,
        Ok(None) => return (request.done)(Ok(None)),
        Err(error) => return (request.done)(Err(error.into())),
    };
    let search = Search {
        level: vec![node],
        read: 0,
        next_level: Vec::new(),
        depth: 0,
        level_of: HashMap::from([(request.start, 0)]),
        edges: 0,
        done: request.done,
    };
    closed_loop::start_untimed(worker, search, request.in_flight.max(1), None);
}

struct Search {
    /// The nodes of the current level.
    level: Vec<FatPointer>,
    /// Number of nodes of the current level whose lists are read, or were.
    read: usize,
    /// The nodes of the next level that were found so far.
    next_level: Vec<FatPointer>,
    /// Number of the current level.
    depth: u32,
    level_of: HashMap<u64, u32>,
    edges: u64,
    done: Done,
}

type Driver = ClosedLoop<Search>;

impl Clients for Search {
    type Operation = ListPart;
    type Costs = GraphCosts;

    /// The next level begins when all lists of the current one were read.
    fn may_begin(&self, running: usize) -> bool {
        self.read < self.level.len() || running == 0
    }

    fn draw(&mut self, _: &mut Worker) -> Option<ListPart> {
        if self.read == self.level.len() {
            self.level.clear();
            std::mem::swap(&mut self.level, &mut self.next_level);
            self.read = 0;
            self.depth += 1;
        }
        let node = *self.level.get(self.read)?;
        self.read += 1;
        Some(ListPart::first(node))
    }

    fn begin(own: &mut Driver, worker: &mut Worker, seat: usize) {
        own.operation(seat)
            .read(worker, AssocsCont::new(list_read, seat));
    }

    fn end(self, _: &mut Worker, ran: Ran<GraphCosts>) {
        let searched = ran.unless_failed().map(|ran| {
            Some(Searched {
                level_of: self.level_of,
                edges: self.edges,
                seconds: ran.duration_s,
                costs: ran.recorder.counters,
            })
        });
        (self.done)(searched);
    }
}

impl Search {
    /// Adds the neighbours that were not seen before to the next level.
    fn visit(&mut self, edges: Assocs<'_>) {
        self.edges += edges.len() as u64;
        for (id, node) in neighbours(edges) {
            self.level_of.entry(id).or_insert_with(|| {
                self.next_level.push(node);
                self.depth + 1
            });
        }
    }
}

fn list_read(worker: &mut Worker, seat: usize, edges: Result<Assocs<'_>, &GraphError>) {
    closed_loop::resume(worker, |own: &mut Driver, worker| {
        let edges = match edges {
            Ok(edges) => edges,
            Err(error) => return own.stop(seat, format!("cannot read an adjacency list: {error}")),
        };
        own.clients.visit(edges);
        match own.operation(seat).next(edges) {
            Some(part) => {
                *own.operation(seat) = part;
                Search::begin(own, worker, seat);
            }
            None => own.finish(worker, seat, 0, Outcome::Committed),
        }
    });
}
