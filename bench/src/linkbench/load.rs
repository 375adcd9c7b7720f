//! Writes the graph of LinkBench. Each worker writes a part of the ids, on its machine: first the nodes, then their links.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farm_core::object::FatPointer;
use farm_core::worker::{Cont, Worker};
use farm_graph::ids::Place;
use farm_graph::{GraphError, NewNode, Put, ops};

use super::degree::Links;
use super::loaded::{LinksOf, Loaded, NextLink, Nodes, link_type};
use crate::closed_loop::{self, Clients, ClosedLoop, Ran};
use crate::recorder::Outcome;

/// What a worker loads.
pub struct Load {
    /// The graph.
    pub loaded: Loaded,
    /// The ids of the worker's part.
    pub ids: Range<u64>,
    /// Number of operations in flight.
    pub in_flight: usize,
    /// Counts the nodes or links that were written.
    pub progress: Arc<AtomicU64>,
}

/// The function that receives the names of the nodes that a worker has written, in the order of the ids.
pub type NodesDone = Box<dyn FnOnce(anyhow::Result<(Ran, Vec<FatPointer>)>) + Send>;

struct NodeLoader {
    load: Load,
    next: u64,
    names: Vec<Option<FatPointer>>,
    nodes: Nodes,
    done: NodesDone,
}

/// Writes the nodes. Calls `done` on the worker's thread at the end.
pub fn nodes(worker: &mut Worker, load: Load, done: NodesDone) {
    let in_flight = load.in_flight;
    let loader = NodeLoader {
        next: load.ids.start,
        names: vec![None; (load.ids.end - load.ids.start) as usize],
        nodes: Nodes::new(load.loaded.clone()),
        load,
        done,
    };
    closed_loop::start_untimed(worker, loader, in_flight, None);
}

impl Clients for NodeLoader {
    type Operation = u64;
    type Costs = ();

    fn draw(&mut self, _: &mut Worker) -> Option<u64> {
        let id = Some(self.next).filter(|id| *id < self.load.ids.end)?;
        self.next += 1;
        Some(id)
    }

    fn begin(own: &mut ClosedLoop<Self>, worker: &mut Worker, seat: usize) {
        let id = *own.operation(seat);
        let new = own.clients.nodes.get(id);
        let place = Place {
            id: Some(id),
            near: None,
        };
        ops::obj_add(worker, place, new, Cont::new(node_added, seat));
    }

    fn end(self, _: &mut Worker, ran: Ran) {
        let result = ran.unless_failed().and_then(|ran| {
            let names: Option<Vec<FatPointer>> = self.names.iter().copied().collect();
            let names = names.ok_or_else(|| anyhow::anyhow!("the worker stopped before the end"));
            Ok((ran, names?))
        });
        (self.done)(result);
    }
}

fn node_added(worker: &mut Worker, seat: usize, added: Result<NewNode, GraphError>) {
    closed_loop::resume(worker, |own: &mut ClosedLoop<NodeLoader>, worker| {
        let id = *own.operation(seat);
        match added {
            Ok(new) => {
                let at = (id - own.clients.load.ids.start) as usize;
                own.clients.names[at] = Some(new.node);
                own.clients.load.progress.fetch_add(1, Ordering::Relaxed);
                own.finish(worker, seat, 0, Outcome::Committed);
            }
            Err(error) => own.stop(seat, format!("cannot add the node {id}: {error}")),
        }
    });
}

/// What a worker has loaded.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct LoadedLinks {
    /// Number of links.
    pub links: u64,
    /// Number of pairs of a node and a type that have links.
    pub counts: u64,
    /// Seconds of the load.
    pub seconds: f64,
}

/// The function that receives what a worker has loaded.
pub type LinksDone = Box<dyn FnOnce(anyhow::Result<LoadedLinks>) + Send>;

struct LinkLoader {
    load: Load,
    links: LinksOf,
    names: Vec<FatPointer>,
    done: LinksDone,
}

/// Writes the links of the nodes that this worker has written, whose names are `names`. Calls `done` at the end.
pub fn links(
    worker: &mut Worker,
    load: Load,
    links: Arc<Links>,
    names: Vec<FatPointer>,
    done: LinksDone,
) {
    let in_flight = load.in_flight;
    let loader = LinkLoader {
        links: LinksOf::new(load.loaded.clone(), links, load.ids.clone()),
        load,
        names,
        done,
    };
    closed_loop::start_untimed(worker, loader, in_flight, None);
}

impl Clients for LinkLoader {
    type Operation = NextLink;
    type Costs = ();

    fn draw(&mut self, _: &mut Worker) -> Option<NextLink> {
        self.links.next_link()
    }

    fn begin(own: &mut ClosedLoop<Self>, worker: &mut Worker, seat: usize) {
        let next = *own.operation(seat);
        let clients = &mut own.clients;
        let now = clients.load.loaded.now_ms;
        let node = clients.names[(next.id1 - clients.load.ids.start) as usize];
        let link = clients.links.get(&next);
        let cont = Cont::new(link_added, seat);
        ops::assoc_add(worker, node, link_type(next.link_type), link, now, cont);
    }

    fn end(self, _: &mut Worker, ran: Ran) {
        let loaded = ran.unless_failed().map(|ran| LoadedLinks {
            links: ran.recorder.executed(),
            counts: self.links.lists(),
            seconds: ran.duration_s,
        });
        (self.done)(loaded);
    }
}

fn link_added(worker: &mut Worker, seat: usize, put: Result<Put, GraphError>) {
    closed_loop::resume(
        worker,
        |own: &mut ClosedLoop<LinkLoader>, worker| match put {
            Ok(_) => {
                own.clients.load.progress.fetch_add(1, Ordering::Relaxed);
                own.finish(worker, seat, 0, Outcome::Committed);
            }
            Err(error) => {
                let id1 = own.operation(seat).id1;
                own.stop(seat, format!("cannot add a link of node {id1}: {error}"));
            }
        },
    );
}
