//! Two-hop queries: the neighbours of the neighbours of a node, without duplicates.
//!
//! A query reads the adjacency list of its start, and then the lists of all neighbours at the same time, by lock-free one-sided
//! reads from any machine. Its continuations have the number of a read as their context. The pointers in the lists name
//! the nodes, so no id is looked up.

use std::sync::Arc;

use farm_core::object::FatPointer;
use farm_core::worker::Worker;
use farm_graph::{Assocs, AssocsCont, GraphError};
use rand::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;
use slab::Slab;

use super::distinct::Distinct;
use super::vertex::{ListPart, neighbours};
use crate::closed_loop::{self, Clients, ClosedLoop, Extent, Ran};
use crate::counters::{Costs, counters};
use crate::graph::GraphCosts;
use crate::recorder::{Outcome, Recorder};
use crate::ycsb::stream::worker_rng;

counters! {
    /// Costs of two-hop queries.
    pub struct TwoHopCosts {
        /// Costs of the operations on the graph.
        pub graph: GraphCosts,
        /// Number of nodes whose adjacency lists were read.
        pub vertices: u64,
        /// Number of edges in these lists.
        pub edges: u64,
        /// Number of nodes that the queries have found.
        pub found: u64,
        /// Number of queries that failed.
        pub errors: u64,
    }
}

impl Costs for TwoHopCosts {
    fn of(worker: &mut Worker) -> Self {
        Self {
            graph: GraphCosts::of(worker),
            ..Self::default()
        }
    }
}

/// The starts of the queries of a worker.
pub enum Starts {
    /// Each query begins at a random one of these nodes.
    Random {
        /// The nodes.
        nodes: Arc<[FatPointer]>,
        /// Seed of the choices.
        seed: u64,
        /// Number of the worker in the whole cluster.
        worker: u64,
    },
    /// One query from each of these nodes. The results are kept.
    Each(Vec<FatPointer>),
}

/// A run of queries.
pub struct Run {
    /// The starts.
    pub starts: Starts,
    /// How long, how much and how fast.
    pub extent: Extent,
    /// One query in this many is timed.
    pub sampled_1_in: u32,
}

/// The result of a run on a worker.
pub struct Queried {
    /// Counts, latencies and costs.
    pub ran: Ran<TwoHopCosts>,
    /// The ids that each query of [`Starts::Each`] has found, ascending.
    pub found: Vec<Vec<u64>>,
}

/// The function that receives the result, on the worker's thread.
pub type Done = Box<dyn FnOnce(Queried) + Send>;

/// Runs queries. Calls `done` when the run has ended and no query is in flight any more.
pub fn run(worker: &mut Worker, run: Run, done: Done) {
    let mut found = Vec::new();
    let draw = match run.starts {
        Starts::Random {
            nodes,
            seed,
            worker,
        } => Draw::Random(nodes, worker_rng(seed, worker)),
        Starts::Each(nodes) => {
            found.resize(nodes.len(), Vec::new());
            Draw::Each(nodes.into_iter().enumerate())
        }
    };
    let clients = Queries {
        draw,
        reads: Slab::new(),
        most_reads: run.extent.in_flight.max(1),
        lists: Vec::new(),
        buffers: Vec::new(),
        distinct: Distinct::default(),
        found,
        done,
    };
    closed_loop::start(
        worker,
        clients,
        Recorder::new(1, run.sampled_1_in),
        run.extent,
    );
}

/// Draws the starts.
enum Draw {
    Random(Arc<[FatPointer]>, Xoshiro256PlusPlus),
    Each(std::iter::Enumerate<std::vec::IntoIter<FatPointer>>),
}

struct Queries {
    draw: Draw,
    /// The reads in flight of all queries.
    reads: Slab<Read>,
    /// Number of reads in flight from which no further query begins.
    most_reads: usize,
    /// Lists that are read together. Reused.
    lists: Vec<(FatPointer, AssocsCont)>,
    /// Memory for the results of queries.
    buffers: Vec<Vec<u64>>,
    distinct: Distinct,
    found: Vec<Vec<u64>>,
    done: Done,
}

type Driver = ClosedLoop<Queries>;

/// A query in flight.
struct Query {
    start: ListPart,
    /// Position of the start in [`Starts::Each`].
    number: Option<usize>,
    /// Number of its reads in flight.
    pending: usize,
    /// The next part of the list of the start, if there is one.
    more: Option<ListPart>,
    /// Ids that were found, with duplicates.
    found: Vec<u64>,
    failed: Option<GraphError>,
}

/// A read of an adjacency list in flight.
#[derive(Clone, Copy)]
struct Read {
    /// The seat of the query.
    seat: usize,
    part: ListPart,
    /// Whether this is the list of the start.
    is_start: bool,
}

impl Clients for Queries {
    type Operation = Query;
    type Costs = TwoHopCosts;

    #[inline]
    fn may_begin(&self, _: usize) -> bool {
        self.reads.len() < self.most_reads
    }

    fn draw(&mut self, _: &mut Worker) -> Option<Query> {
        let (number, start) = match &mut self.draw {
            Draw::Random(nodes, _) if nodes.is_empty() => return None,
            Draw::Random(nodes, rng) => (None, nodes[rng.random_range(0..nodes.len())]),
            Draw::Each(nodes) => {
                let (number, node) = nodes.next()?;
                (Some(number), node)
            }
        };
        Some(Query {
            start: ListPart::first(start),
            number,
            pending: 0,
            more: None,
            found: self.buffers.pop().unwrap_or_default(),
            failed: None,
        })
    }

    fn begin(own: &mut Driver, worker: &mut Worker, seat: usize) {
        let part = own.operation(seat).start;
        own.read(worker, seat, part, true);
    }

    fn end(self, _: &mut Worker, ran: Ran<TwoHopCosts>) {
        let found = self.found;
        (self.done)(Queried { ran, found });
    }
}

impl Driver {
    /// Begins to read a part of an adjacency list.
    fn read(&mut self, worker: &mut Worker, seat: usize, part: ListPart, is_start: bool) {
        let cont = self.reading(seat, part, is_start);
        part.read(worker, cont);
    }

    /// Returns the continuation of a read.
    fn reading(&mut self, seat: usize, part: ListPart, is_start: bool) -> AssocsCont {
        self.operation(seat).pending += 1;
        let read = Read {
            seat,
            part,
            is_start,
        };
        let key = self.clients.reads.insert(read);
        AssocsCont::new(list_read, key)
    }

    /// Handles the list of the start: reads the lists of the neighbours.
    fn first_hop(&mut self, worker: &mut Worker, read: Read, edges: Assocs<'_>) {
        let mut lists = std::mem::take(&mut self.clients.lists);
        for (_, node) in neighbours(edges) {
            let cont = self.reading(read.seat, ListPart::first(node), false);
            lists.push((node, cont));
        }
        ListPart::read_first(worker, &lists);
        lists.clear();
        self.clients.lists = lists;
        // The next part is read after these lists, so that the number of reads of a query is bounded.
        self.operation(read.seat).more = read.part.next(edges);
    }

    /// Handles the list of a neighbour: its ids are part of the result.
    fn second_hop(&mut self, worker: &mut Worker, read: Read, edges: Assocs<'_>) {
        let found = &mut self.operation(read.seat).found;
        found.reserve(edges.len());
        edges.iter().for_each(|edge| found.push(edge.id2));
        if let Some(part) = read.part.next(edges) {
            self.read(worker, read.seat, part, false);
        }
    }

    /// Continues a query none of whose reads is in flight.
    fn advance(&mut self, worker: &mut Worker, seat: usize) {
        let query = self.operation(seat);
        if let Some(error) = query.failed.take() {
            let why = format!("cannot read an adjacency list: {error}");
            self.recorder.counters.errors += 1;
            return self.rest(worker, seat, why);
        }
        if let Some(part) = query.more.take() {
            return self.read(worker, seat, part, true);
        }
        let (number, mut found) = (query.number, std::mem::take(&mut query.found));
        self.clients.distinct.retain(&mut found);
        self.recorder.counters.found += found.len() as u64;
        match number {
            Some(number) => {
                found.sort_unstable();
                self.clients.found[number] = found;
            }
            None => {
                found.clear();
                self.clients.buffers.push(found);
            }
        }
        self.finish(worker, seat, 0, Outcome::Committed);
    }
}

fn list_read(worker: &mut Worker, key: usize, edges: Result<Assocs<'_>, &GraphError>) {
    closed_loop::resume(worker, |own: &mut Driver, worker| {
        let read = own.clients.reads.remove(key);
        match edges {
            Ok(edges) => {
                own.recorder.counters.edges += edges.len() as u64;
                own.recorder.counters.vertices += u64::from(read.part.next(edges).is_none());
                match read.is_start {
                    true => own.first_hop(worker, read, edges),
                    false => own.second_hop(worker, read, edges),
                }
            }
            Err(error) => own.operation(read.seat).failed = Some(error.clone()),
        }
        let query = own.operation(read.seat);
        query.pending -= 1;
        if query.pending == 0 {
            own.advance(worker, read.seat);
        }
    });
}
